"""All benchmarks, one after the other: ``make bench``."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("benchmarks.registering", "benchmarks.claim_orm", "benchmarks.throughput")


def main() -> None:
    """Run each in a process of its own."""
    for module in MODULES:
        sys.stdout.write(f"\n{module}\n")
        sys.stdout.flush()
        subprocess.run([sys.executable, "-m", module], check=True)


if __name__ == "__main__":
    main()
