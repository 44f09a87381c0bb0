"""``register_many`` against COPY of the same rows, its two ways against each other, and jobs with keys and members."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import connection, transaction

from benchmarks import jobs, tables
from benchmarks.figures import Result, Series, at_least, middle
from benchmarks.plan import Plan
from django_pgjobs import Batch
from django_pgjobs.store import copying, registering
from django_pgjobs.store.new_jobs import NewJob, NewJobs

TITLE = "register_many"
SIZES = (10, 100, 300, 1000, 3000)
COLUMNS = "name, queue, priority, max_attempts, timeout_seconds, payload, headers, description, run_at"


def measure(plan: Plan) -> Result:
    """Measure in turns, one commit each, after one that is not counted."""
    count = plan.fixed(10_000, quick=2000)
    ours: list[float] = []
    copy: list[float] = []
    _seconds(_register, count)
    for turn in range(plan.rounds(25)):
        tables.empty()
        for way in (_register, _copy) if turn % 2 else (_copy, _register):
            (ours if way is _register else copy).append(count / _seconds(way, count))
    others: dict[str, list[float]] = {"keys": [], "members": []}
    for turn in range(plan.rounds(9)):
        for name, way in (
            (("members", _members), ("keys", _keyed)) if turn % 2 else (("keys", _keyed), ("members", _members))
        ):
            tables.empty()
            plain = _seconds(_register, count)
            tables.empty()
            others[name].append(plain / _seconds(way, count))
    ratios = [rate / plain for rate, plain in zip(ours, copy, strict=True)]
    curves: dict[str, Series] = {"by one INSERT": [], "by COPY": []}
    for size in SIZES:
        rows, copied = _ways(size, max(2, plan.rounds(min(20, 20_000 // size))))
        curves["by one INSERT"].append((size, rows))
        curves["by COPY"].append((size, copied))
    return Result(
        [
            middle("register_many", f"register_many, {count:,} jobs", ours, "jobs/s"),
            middle("copy", "COPY of the same rows as text, psycopg's write_row", copy, "rows/s"),
            middle("of_copy", "register_many ÷ COPY", ratios, "×", at_least(0.7)),
            middle("keys", "register_many, each job with a key ÷ without", others["keys"], "×", at_least(0.5)),
            middle("members", "a batch's add_many ÷ register_many", others["members"], "×", at_least(0.8)),
        ],
        "the curves tell from how many jobs on COPY is faster than one INSERT",
        curves,
    )


def _register(count: int) -> None:
    jobs.noop.register_many([(number,) for number in range(count)])


def _keyed(count: int) -> None:
    jobs.keyed.register_many([(number,) for number in range(count)])


def _members(count: int) -> None:
    with Batch("members") as batch:
        batch.add_many([jobs.noop.bind(number) for number in range(count)])


def _copy(count: int) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now = cursor.fetchone()[0]
        with cursor.copy(f"COPY pgjobs_job ({COLUMNS}) FROM STDIN") as copy:
            for number in range(count):
                payload = f'{{"args": [{number}], "kwargs": {{}}}}'
                copy.write_row(("benchmarks.jobs.noop", "default", 0, 5, 1800.0, payload, None, "", now))


def _ways(size: int, rounds: int) -> tuple[float, float]:
    """Return the jobs per second of both ways that register_many has."""
    payload = '{"args": [7], "kwargs": {}}'
    new = [NewJobs(NewJob("benchmarks.jobs.noop", payload), [payload] * size)]
    tables.empty()
    rows = min(_seconds(lambda _: registering._insert_jobs("default", new), size) for _ in range(rounds))
    copied = min(_seconds(lambda _: copying.copy_jobs("default", new, size), size) for _ in range(rounds))
    return size / rows, size / copied


def _seconds(way: Callable[[int], object], count: int) -> float:
    began = time.perf_counter()
    way(count)
    return time.perf_counter() - began
