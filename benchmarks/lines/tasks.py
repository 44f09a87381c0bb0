"""``@task`` against ``@job``: the same no-ops drained, enqueued one by one and many at once, in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial

from django.db import transaction
from django.test import override_settings

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Reach, Result, at_least, middle
from benchmarks.lines.register import Producer, start, together
from benchmarks.plan import Plan

TITLE = "@task beside @job"
JOBS = 100_000
TASKS = {"default": {"BACKEND": "django_pgjobs.tasks.PgJobsBackend"}}

Register = Callable[[int], None]
Rates = dict[str, list[float]]


def measure(plan: Plan) -> Result:
    """Measure all three. Nobody listens to the signals of the tasks but Django's own logger, which is off."""
    count, single, many = plan.count(JOBS, least=2000), plan.fixed(400, quick=100), plan.fixed(10_000, quick=2000)
    with override_settings(TASKS=TASKS):
        drained = _in_turns(
            plan.rounds(12),  # pairs of drains differ by a third on two cores
            {"job": partial(_drain, tables.register, count), "task": partial(_drain, tables.enqueue, count)},
        )
        one = _one_by_one(plan.rounds(9), single)
        at_once = _at_once(plan.rounds(15), many)
    return Result(
        [
            *_figures("drain", drained, at_least(0.95)),
            *_figures("one commit each", one, at_least(0.8)),
            *_figures(f"{many:,} by one commit", at_once, at_least(0.8)),
        ],
        f"{count:,} jobs a drain with two processes; one producer",
    )


def _figures(text: str, rates: Rates, reach: Reach) -> list[Figure]:
    native, front = rates
    shares = [ours / plain for ours, plain in zip(rates[front], rates[native], strict=True)]
    figures = [middle(way, f"{way}, {text}", rates[way], "jobs/s") for way in rates]
    return [*figures, middle(f"{front}_of_{native}", f"{front} ÷ {native}, {text}", shares, "×", reach)]


def _in_turns(rounds: int, ways: Mapping[str, Callable[[], float]]) -> Rates:
    rates: Rates = {way: [] for way in ways}
    for turn in range(rounds):
        for way in list(ways) if turn % 2 else reversed(list(ways)):
            rates[way].append(ways[way]())
    return rates


def _drain(register: Register, count: int) -> float:
    with workers.working(processes=2, environment={"PGJOBS_BENCH_TASKS": "1"}) as worker:
        workers.warm_up(worker, register)
        register(count)
        return count / workers.drained(worker, count)


def _one_by_one(rounds: int, times: int) -> Rates:
    tables.empty()
    producer = start(PGJOBS_BENCH_TASKS="1")

    def rate(producer: Producer, way: str) -> float:
        return times / together([producer], way, times)

    try:
        ways = {way: partial(rate, producer, way) for way in ("register", "enqueue")}
        _in_turns(1, ways)
        return _in_turns(rounds, ways)
    finally:
        producer.communicate("", timeout=30)


def _at_once(rounds: int, count: int) -> Rates:
    """Insert calls that are there already: their lists, which differ, are the caller's and not what is compared."""
    from benchmarks import tasks
    from django_pgjobs.tasks import enqueue_many

    rows = [(number,) for number in range(count)]
    calls: list[tuple[tuple[int], dict[str, int]]] = [((number,), {}) for number in range(count)]

    def rate(insert: Callable[[], object]) -> float:
        tables.empty()
        gc.collect()  # each pays for its own garbage
        began = time.perf_counter()
        with transaction.atomic():
            insert()
        return count / (time.perf_counter() - began)

    ways = {
        "register_many": partial(rate, partial(jobs.noop.register_many, rows)),
        "enqueue_many": partial(rate, partial(enqueue_many, tasks.noop, calls)),
    }
    _in_turns(1, ways)
    return _in_turns(rounds, ways)
