"""Cancel many jobs at once, with the trace of the action and without; print both and their ratio.

It times ``JobQuerySet.cancel()`` of ready jobs on Django's connection. The trace is one statement for each batch of a
thousand; ``without`` skips only that statement.

    python -m benchmarks.traced [--rounds 7] [--jobs 20000]

Uses DATABASE_URL as tests do, makes a database of its own and drops it. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from contextlib import nullcontext
from unittest import mock

from django.db import connection

from benchmarks.claim_orm import own_database
from django_pgjobs.models import Job
from django_pgjobs.steering.trail import Trail


def seed(jobs: int) -> None:
    """Refill the table with ready jobs, in the state after an autovacuum."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgjobs_job, pgjobs_action, pgjobs_action_part")
        cursor.execute(
            "INSERT INTO pgjobs_job (name, payload) SELECT 'bench.job', '{}' FROM generate_series(1, %s)", [jobs]
        )
        cursor.execute("VACUUM ANALYZE pgjobs_job")
        cursor.execute("CHECKPOINT")


def timed(jobs: int, *, traced: bool) -> float:
    """Return the seconds that the cancel takes."""
    seed(jobs)
    with nullcontext() if traced else mock.patch.object(Trail, "add", return_value=None):
        began = time.perf_counter()
        done = Job.objects.filter(finished_at=None).cancel(by="benchmark")
        took = time.perf_counter() - began
    if done.changed != jobs:
        raise SystemExit(f"{done.changed} of {jobs} jobs were cancelled.")
    return took


def main() -> None:
    """Measure in pairs, each in the reverse order of the one before, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=20_000)
    options = parser.parse_args()
    took: dict[bool, list[float]] = {True: [], False: []}
    logging.disable()
    with own_database():
        for number in range(options.rounds):
            for traced in (True, False) if number % 2 else (False, True):
                took[traced].append(timed(options.jobs, traced=traced))
    for traced, word in ((True, "with"), (False, "without")):
        print(f"{word:<8} {statistics.median(took[traced]):6.2f} s")
    ratios = [a / b for a, b in zip(took[True], took[False], strict=True)]
    print(f"with ÷ without: {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
