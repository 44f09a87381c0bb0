"""Sixteen producers beside each other: a business row and one ``register()`` a transaction, silently and notifying.

A third way notifies inside the transaction, as ours did before ADR-0021. The disk's flush is taken as it is, and once
more as one of 2 ms, which ``commit_delay`` plays: who flushes for all that wait sleeps for so long before it.
"""

from __future__ import annotations

import random
import time

from django.db import connection, transaction

from benchmarks import jobs, stamps, tables, workers
from benchmarks.figures import Figure, Result, at_least, middle, percentile
from benchmarks.lines import register
from benchmarks.lines.pickup import WARM_UP
from benchmarks.plan import Plan

TITLE = "Producers beside each other, a transaction each"
PRODUCERS = 16
SLOW_FLUSH_MICROSECONDS = 2000
WAYS = ("silent", "notifying", "inside")
FLUSHES = (("", "", 0), ("slow_", ", flush of 2 ms", SLOW_FLUSH_MICROSECONDS))


def measure(plan: Plan) -> Result:
    """Let all of them commit by turns in each way; then register within transactions for an idle worker."""
    tables.empty()
    figures: list[Figure] = []
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS bench_order")
        cursor.execute("CREATE TABLE bench_order (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text)")
    with connection.cursor() as listener:
        listener.execute("LISTEN pgjobs")
        producers = [register.start() for _ in range(PRODUCERS)]
        try:
            for prefix, words, delay in FLUSHES:
                figures += _flushing(plan, producers, prefix, words, delay)
        finally:
            for producer in producers:
                producer.communicate("", timeout=30)
        listener.execute("UNLISTEN pgjobs")
    figures += _pickup(plan)
    fsync = plan.server.describe()["server"]["fsync"]
    note = f"{PRODUCERS} processes, fsync {fsync}; interleaved rounds; silent: the setting NOTIFY is off"
    return Result(figures, note)


def _flushing(plan: Plan, producers: list[register.Producer], prefix: str, words: str, delay: int) -> list[Figure]:
    times = plan.fixed(150, quick=40)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    register.together(producers, f"delay:{delay}", 1)
    for way in WAYS:
        register.together(producers, way, 10)
    for turn in range(plan.rounds(9)):
        for way in WAYS if turn % 2 else reversed(WAYS):
            rates[way].append(PRODUCERS * times / register.together(producers, way, times))
    register.together(producers, "delay:0", 1)
    silent = rates["silent"]
    figures = [middle(f"{prefix}{way}", f"{way}{words}", rates[way], "transactions/s") for way in WAYS]
    for way, bound in (("notifying", at_least(0.9)), ("inside", None)):
        ratios = [rate / plain for rate, plain in zip(rates[way], silent, strict=True)]
        figures.append(middle(f"{prefix}{way}_of_silent", f"{way} ÷ silent{words}", ratios, "×", bound))
    return figures


def _pickup(plan: Plan) -> list[Figure]:
    """From the instant at which the commit is known to the first line of the job; the wake-up is sent after it."""
    count = plan.fixed(500, quick=60)
    with workers.stamp_file() as path, workers.working(processes=1, stamps=path):
        committed = [_register(number) for number in range(count + WARM_UP)]
        if stamps.wait_for(path, count + WARM_UP - 1, 10) is None:
            raise workers.BenchmarkError("a job did not start")
        started = stamps.read(path)
    waits = [(started[number] - committed[number]) * 1000 for number in range(WARM_UP, count + WARM_UP)]
    return [
        Figure("pickup_p50", "commit of a transaction → first line of the job, p50", percentile(waits, 0.5), "ms"),
        Figure("pickup_p99", "commit of a transaction → first line of the job, p99", percentile(waits, 0.99), "ms"),
    ]


def _register(number: int) -> float:
    time.sleep(0.02 + random.random() * 0.03)
    instants: list[float] = []
    with transaction.atomic():
        transaction.on_commit(lambda: instants.append(stamps.now()))
        jobs.note.register(number)
    return instants[0]
