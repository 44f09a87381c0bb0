"""The metrics of one worker, made from what its parts count. No query, no lock: a scrape delays nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django_pgjobs.metrics import families as m
from django_pgjobs.metrics.families import Family, Metric, Point, one
from django_pgjobs.store.numbers import AttemptFigures
from django_pgjobs.values.histogram import added


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """Figures of a worker about itself at one moment."""

    ends: Sequence[AttemptFigures]
    claims: int
    jobs_claimed: int
    runs_sent: int
    leases_lost: int
    rescues: Mapping[str, int]
    executor_deaths: Mapping[str, int]
    slots: Mapping[str, int]
    slots_busy: int
    claims_held: int
    jobs_held: int
    ends_unwritten: int
    executors: int
    renewal_age_seconds: float
    leads: bool
    worker: str
    version: str
    release: str


def families_of(found: WorkerFigures) -> list[Family]:
    """Return the metrics of a worker."""
    return [
        *families_of_ends(found.ends, m.ENDS, m.RUN_SECONDS, m.WAIT_SECONDS),
        one(m.CLAIMS, found.claims),
        one(m.JOBS_CLAIMED, found.jobs_claimed),
        one(m.RUNS_SENT, found.runs_sent),
        one(m.LEASES_LOST, found.leases_lost),
        _by(m.RESCUES, found.rescues),
        _by(m.EXECUTOR_DEATHS, found.executor_deaths),
        _by(m.SLOTS, found.slots),
        one(m.SLOTS_BUSY, found.slots_busy),
        one(m.CLAIMS_HELD, found.claims_held),
        one(m.JOBS_HELD, found.jobs_held),
        one(m.ENDS_UNWRITTEN, found.ends_unwritten),
        one(m.EXECUTORS, found.executors),
        one(m.RENEWAL_AGE, found.renewal_age_seconds),
        one(m.LEADER, int(found.leads)),
        Family(m.WORKER_INFO, [Point((found.worker, found.version, found.release), 1)]),
    ]


def families_of_ends(ends: Iterable[AttemptFigures], counter: Metric, run: Metric, wait: Metric) -> list[Family]:
    """Return the counter of ends, by outcome too, and the histograms of runs and waits, with no row of it twice."""
    jobs: dict[tuple[str, ...], Point] = {}
    runs: dict[tuple[str, ...], Point] = {}
    waits: dict[tuple[str, ...], Point] = {}
    for row in ends:
        _add(jobs, Point((row.queue, row.name, row.outcome), row.jobs))
        _add(runs, Point((row.queue, row.name), row.run_seconds, row.run_histogram))
        _add(waits, Point((row.queue,), row.wait_seconds, row.wait_histogram))
    return [Family(metric, list(sums.values())) for metric, sums in ((counter, jobs), (run, runs), (wait, waits))]


def _add(sums: dict[tuple[str, ...], Point], point: Point) -> None:
    known = sums.get(point.labels)
    if known is not None:
        point = Point(point.labels, known.value + point.value, added(known.counts, point.counts))
    sums[point.labels] = point


def _by(metric: Metric, values: Mapping[str, int]) -> Family:
    return Family(metric, [Point((word,), value) for word, value in values.items()])
