"""No-op jobs end to end with real processes, against the SQL ceiling of the same run.

``python -m benchmarks.throughput [--jobs N] [--processes N] [--threads N]`` on the database of DATABASE_URL.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

import django


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    ceiling = _ceiling(options.jobs)
    ours, line = _worker(options)
    say = sys.stdout.write
    say(f"SQL ceiling (claim + finalise, 2 connections, batch 500): {ceiling:,.0f} jobs/s\n")
    say(f"runjobs --processes {options.processes} --threads {options.threads}: {ours:,.0f} jobs/s")
    say(f" = {ours / ceiling:.2f} of the ceiling\n")
    for name, text in re.findall(r"(statements|per_job|cpu_supervisor|cpu_executors)=([\d.]+)", line):
        number = float(text)
        say(
            f"  {name}: {number:g}"
            + (f" s = {number / options.jobs * 1e6:.1f} µs per job\n" if "cpu" in name else "\n")
        )


def _ceiling(count: int) -> float:
    from benchmarks import ceiling, tables

    tables.fill(count)
    return count / ceiling.drain([("default", 0)])


def _worker(options: argparse.Namespace) -> tuple[float, str]:
    from benchmarks import tables

    tables.fill(options.jobs)
    before = tables.wal_bytes()
    command = [sys.executable, "-m", "django", "runjobs", "--until-idle", f"--processes={options.processes}"]
    worker = subprocess.run([*command, f"--threads={options.threads}"], stderr=subprocess.PIPE, text=True, check=True)
    done = tables.value("SELECT count(*) FROM pgjobs_job WHERE outcome = 'succeeded'")
    if done != options.jobs:
        raise SystemExit(f"{done} of {options.jobs} jobs succeeded\n{worker.stderr}")
    seconds = tables.value("SELECT extract(epoch FROM max(finished_at) - min(claimed_at))::float8 FROM pgjobs_job")
    sys.stdout.write(f"WAL per job, claim to end: {(tables.wal_bytes() - before) / options.jobs:,.0f} bytes\n")
    return options.jobs / seconds, worker.stderr.splitlines()[-1]


if __name__ == "__main__":
    main()
