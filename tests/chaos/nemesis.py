"""The random nemesis: ``python -m tests.chaos.nemesis --seconds 120 --seed 7 --jobs 5000``.

Starts its own PostgreSQL, a proxy, and workers with leases of 1.5 s; registers jobs of all roles; does to processes,
connections and rows what a seeded list says, three faults at a time; heals, waits, and checks by id. Prints the seed
and the report; status 1 if anything was violated.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(prog="python -m tests.chaos.nemesis", description=__doc__)
    line.add_argument("--seconds", type=float, default=60.0, help="how long faults go on (default: %(default)s)")
    line.add_argument("--seed", type=int, help="repeats a run's faults (default: a new one, printed)")
    line.add_argument("--jobs", type=int, help="registered at least; faults go on until then (default: 50 a second)")
    line.add_argument("--workers", type=int, default=3, help="at any time (default: %(default)s)")
    line.add_argument("--pace", type=float, default=1.0, help="stretches the pauses between faults (%(default)s)")
    line.add_argument("--no-fsync", action="store_true", help="faster; safe here, for only processes are killed")
    line.add_argument("--keep", type=Path, metavar="DIR", help="leave journal and logs of the workers there")
    line.add_argument("-v", "--verbose", action="store_true", help="print each fault")
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    import django

    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.ERROR, format="%(message)s")
    logging.getLogger("django_pgjobs").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the workers go with us
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.chaos.settings"
    django.setup()
    # They need Django set up.
    from tests.chaos.storm import Plan

    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    jobs = options.jobs if options.jobs is not None else int(options.seconds * 50)
    plan = Plan(options.seconds, seed, jobs, options.workers, options.pace)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        return rage(plan, options.keep, fsync=not options.no_fsync)
    with tempfile.TemporaryDirectory(prefix="pgjobs-nemesis-") as directory:
        return rage(plan, Path(directory), fsync=not options.no_fsync)


def rage(plan: object, directory: Path, *, fsync: bool) -> int:
    """Run a plan in a directory; return the exit status."""
    from tests.chaos.ground import ChaosServer, Ground, django_on
    from tests.chaos.proxy import Proxy
    from tests.chaos.storm import Plan, Storm
    from tests.e2e.stage import Stage
    from tests.plugins.fix_chaos import ChaosWorkers

    assert isinstance(plan, Plan)
    say(f"nemesis seed={plan.seed} seconds={plan.seconds:g} jobs={plan.jobs} workers={plan.workers} fsync={fsync}")
    with ChaosServer(fsync=fsync) as server, Proxy.before(server.url) as proxy, django_on(server.url):
        stage = Stage(directory)
        ground = Ground(server, proxy, stage, ChaosWorkers(stage, proxy.url))
        try:
            report = Storm(ground, plan, say).run()
        finally:
            ground.close()
    say(f"seed={plan.seed} {report}")
    return 1 if report.violations else 0


def say(words: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
