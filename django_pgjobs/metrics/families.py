"""Every metric: its name, kind, labels and meaning. The documentation's table is made from here, and tests read it.

Metrics of a worker count what that worker did, so they add up over workers. Metrics of the fleet, ``pgjobs_fleet_…``,
come from one row that the leader writes: every process that exports them exports the same, so take their maximum. Where
several databases are served, each has such a row, and these metrics the label ``database``.

The text is that of Prometheus, version 0.0.4. A worker writes it in the process that renews leases, so it must be
quick: ``prometheus_client`` takes 5 µs a line. Any value of a label stays one label: control characters and marks that
turn text around become their numbers, and long values are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from django_pgjobs.serialization.escapes import plain
from django_pgjobs.values.histogram import BOUNDS

FamilyKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A declared metric; ``name`` is what its samples are called, for a histogram without ``_bucket`` and its like."""

    name: str
    kind: FamilyKind
    text: str
    labels: tuple[str, ...] = ()

    def samples(self) -> list[str]:
        """Return the names of its samples, as queries use them."""
        suffixes = ("_bucket", "_count", "_sum") if self.kind == "histogram" else ("",)
        return [self.name + suffix for suffix in suffixes]


class Point(NamedTuple):
    """A value with the values of the labels; of a histogram the sum in seconds, and the counts by ``BOUNDS``."""

    labels: tuple[str, ...]
    value: float
    counts: Sequence[int] = ()


class Family(NamedTuple):
    """A metric with all its values."""

    metric: Metric
    points: Sequence[Point]


def one(metric: Metric, value: float) -> Family:
    """Return a metric without labels."""
    return Family(metric, [Point((), value)])


def of_databases(found: Mapping[str, Sequence[Family]]) -> list[Family]:
    """Return the metrics of several databases, by alias, as one, with the label ``database``."""
    points: dict[Metric, list[Point]] = {}
    for alias, families in found.items():
        for metric, own in families:
            points.setdefault(metric, []).extend(each._replace(labels=(alias, *each.labels)) for each in own)
    return [Family(replace(each, labels=("database", *each.labels)), own) for each, own in points.items()]


def cumulated(counts: Sequence[int]) -> Iterator[int]:
    """Yield how many lie at or below each bound, and last how many there are; ``counts`` may be trimmed."""
    total = 0
    for index in range(len(BOUNDS) + 1):
        if index < len(counts):
            total += counts[index]
        yield total


# Of a worker

ENDS = Metric(
    "pgjobs_ends_total",
    "counter",
    "Attempts that ended, and jobs that ended without one.",
    ("queue", "name", "outcome"),
)
RUN_SECONDS = Metric("pgjobs_run_seconds", "histogram", "How long attempts ran.", ("queue", "name"))
WAIT_SECONDS = Metric(
    "pgjobs_wait_seconds", "histogram", "How long jobs waited from when they were due to their claim.", ("queue",)
)
CLAIMS = Metric("pgjobs_claims_total", "counter", "Claims that found at least one job.")
JOBS_CLAIMED = Metric("pgjobs_jobs_claimed_total", "counter", "Jobs that were claimed.")
RUNS_SENT = Metric(
    "pgjobs_runs_sent_total",
    "counter",
    "Runs that were sent to executors: attempts and callbacks, also those that came back without having started.",
)
LEASES_LOST = Metric(
    "pgjobs_leases_lost_total", "counter", "Ends that were not written, because the job was no longer this worker's."
)
RESCUES = Metric("pgjobs_rescues_total", "counter", "Attempts of other workers that this one ended.", ("cause",))
EXECUTOR_DEATHS = Metric(
    "pgjobs_executor_deaths_total",
    "counter",
    "Executors that ended other than by leaving: `signal`, `exit` (by itself), `memory` (the kernel needed it), `boot`"
    " (before it was ready), `killed` (by this worker), `frozen` (by the watchdog).",
    ("reason",),
)
SLOTS = Metric("pgjobs_slots", "gauge", "Jobs that may run at once: in threads, and as coroutines.", ("mode",))
SLOTS_BUSY = Metric("pgjobs_slots_busy", "gauge", "Slots in which a job runs.")
CLAIMS_HELD = Metric("pgjobs_claims_held", "gauge", "Claims with jobs whose end has not been written.")
JOBS_HELD = Metric("pgjobs_jobs_held", "gauge", "Claimed jobs whose end has not been written.")
ENDS_UNWRITTEN = Metric("pgjobs_ends_unwritten", "gauge", "Ends that wait to be written.")
EXECUTORS = Metric("pgjobs_executors", "gauge", "Executors that are ready.")
RENEWAL_AGE = Metric(
    "pgjobs_renewal_age_seconds", "gauge", "Time since the leases were last renewed, or none was held to renew."
)
LEADER = Metric("pgjobs_leader", "gauge", "1 if this worker leads, else 0.")
WORKER_INFO = Metric("pgjobs_worker_info", "gauge", "Always 1: which worker this is.", ("worker", "version", "release"))

WORKER = (
    ENDS, RUN_SECONDS, WAIT_SECONDS, CLAIMS, JOBS_CLAIMED, RUNS_SENT, LEASES_LOST, RESCUES, EXECUTOR_DEATHS, SLOTS,
    SLOTS_BUSY, CLAIMS_HELD, JOBS_HELD, ENDS_UNWRITTEN, EXECUTORS, RENEWAL_AGE, LEADER, WORKER_INFO,
)  # fmt: skip
"""Families that each worker exports of itself."""

# Of the fleet

FLEET_UP = Metric("pgjobs_fleet_up", "gauge", "1 if the leader's figures could be read, else 0 and no other figure.")
FLEET_MEASURED_AGE = Metric(
    "pgjobs_fleet_measured_age_seconds", "gauge", "Time since a leader last measured; +Inf if none has."
)
FLEET_LEADERLESS = Metric(
    "pgjobs_fleet_leaderless_seconds",
    "gauge",
    "Time since the last leader's term ran out; 0 while one leads, +Inf if none ever has.",
)
FLEET_JOBS = Metric(
    "pgjobs_fleet_jobs",
    "gauge",
    "Unfinished jobs: `ready`, `scheduled`, `running`, or why they are held. Large counts are lower bounds.",
    ("queue", "state"),
)
FLEET_OLDEST_READY = Metric(
    "pgjobs_fleet_oldest_ready_seconds",
    "gauge",
    "How long the oldest ready job has been due; 0 without one.",
    ("queue",),
)
FLEET_QUEUE_WORKERS = Metric("pgjobs_fleet_queue_workers", "gauge", "Workers that claim from the queue.", ("queue",))
FLEET_WORKERS = Metric(
    "pgjobs_fleet_workers",
    "gauge",
    "Workers by their heartbeats: `running`, `quiet`, `draining`, `silent`.",
    ("state",),
)
FLEET_SLOTS = Metric("pgjobs_fleet_slots", "gauge", "Threads for jobs, in all live workers.")
FLEET_SLOTS_BUSY = Metric("pgjobs_fleet_slots_busy", "gauge", "Jobs held by live workers at their last heartbeats.")
FLEET_NOTIFICATIONS = Metric(
    "pgjobs_fleet_notification_queue_ratio", "gauge", "How full the server's queue of notifications is, from 0 to 1."
)
FLEET_DEAD_ROWS = Metric("pgjobs_fleet_dead_rows", "gauge", "Rows that VACUUM has not removed yet.", ("table",))
FLEET_LIVE_ROWS = Metric("pgjobs_fleet_live_rows", "gauge", "Rows by the server's estimate.", ("table",))

FLEET = (
    FLEET_UP, FLEET_MEASURED_AGE, FLEET_LEADERLESS, FLEET_JOBS, FLEET_OLDEST_READY, FLEET_QUEUE_WORKERS, FLEET_WORKERS,
    FLEET_SLOTS, FLEET_SLOTS_BUSY, FLEET_NOTIFICATIONS, FLEET_DEAD_ROWS, FLEET_LIVE_ROWS,
)  # fmt: skip
"""Families that workers and web processes export of the whole fleet."""

FLEET_ENDS = Metric(
    "pgjobs_fleet_ends_total",
    "counter",
    "Attempts that ended in any worker since the tables were made, and jobs that ended without one.",
    ("queue", "name", "outcome"),
)
FLEET_RUN_SECONDS = Metric(
    "pgjobs_fleet_run_seconds", "histogram", "How long attempts ran, in any worker.", ("queue", "name")
)
FLEET_WAIT_SECONDS = Metric(
    "pgjobs_fleet_wait_seconds",
    "histogram",
    "How long jobs waited from when they were due to their claim, by any worker.",
    ("queue",),
)

TOTALS = (FLEET_ENDS, FLEET_RUN_SECONDS, FLEET_WAIT_SECONDS)
"""Families that web processes alone export of the whole fleet."""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST_CHARS = 200
"""Number of characters of a label's value that are kept."""

LIMITS = (*map(repr, BOUNDS), "+Inf")
"""The values of the label ``le``."""


def render(families: Iterable[Family]) -> bytes:
    """Return the page of these metrics. A metric without values is left out."""
    lines = [line for family in families if family.points for line in _lines(family)]
    return ("\n".join(lines) + "\n").encode()


def harmless(value: str) -> str:
    """Return a text that a label may have: printable and short."""
    return plain(value[:MOST_CHARS])[:MOST_CHARS]


def number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    if value == float("inf"):
        return "+Inf"
    return repr(value) if isinstance(value, int) else repr(float(value))


def _lines(family: Family) -> Iterator[str]:
    metric = family.metric
    yield f"# HELP {metric.name} {metric.text}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for point in family.points:
        if metric.kind == "histogram":
            yield from _histogram(metric, point)
        else:
            yield f"{metric.name}{_labels(metric, point.labels)} {number(point.value)}"


def _histogram(metric: Metric, point: Point) -> Iterator[str]:
    prefixes, in_all = _prefixes(metric, point.labels), 0
    for prefix, in_all in zip(prefixes, cumulated(point.counts), strict=True):
        yield f"{prefix}{in_all}"
    labels = _labels(metric, point.labels)
    yield f"{metric.name}_count{labels} {in_all}"
    yield f"{metric.name}_sum{labels} {number(float(point.value))}"


@lru_cache(maxsize=4096)
def _prefixes(metric: Metric, values: tuple[str, ...]) -> list[str]:
    pairs = _pairs(metric, values)
    return [f'{metric.name}_bucket{{{pairs},le="{limit}"}} ' for limit in LIMITS]


@lru_cache(maxsize=8192)
def _labels(metric: Metric, values: tuple[str, ...]) -> str:
    return f"{{{_pairs(metric, values)}}}" if metric.labels else ""


def _pairs(metric: Metric, values: tuple[str, ...]) -> str:
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(metric.labels, values, strict=True))


def _escaped(value: str) -> str:
    return harmless(value).replace("\\", r"\\").replace('"', r"\"")
