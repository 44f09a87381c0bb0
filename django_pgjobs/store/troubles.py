"""Failing and held jobs: counted along an index and up to a bound, however many jobs there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_pgjobs.states import FLEET, TREND, Ended, Outcome
from django_pgjobs.store.counting import Counted
from django_pgjobs.store.database import Database

_FAILED = (Ended.RETRIED.value, Ended.ABANDONED.value)
_COUNTED = (*_FAILED, Ended.SUCCEEDED.value, Ended.STEPPED.value)


class HeldName(NamedTuple):
    """Number of jobs of a queue that have this hold; with ``more``, that and ``retrying`` are lower bounds.

    ``retrying``: those that are tried again at a later time. ``seconds``: for how long the first one could have run but
    for its hold; None if none could.
    """

    queue: str
    hold: str
    jobs: int
    more: bool
    retrying: int
    seconds: float | None


class Failing(NamedTuple):
    """A name whose latest attempts failed: how many did, of how many, and how many of the failed are tried again.

    ``seconds``: how far back the first of these attempts is.
    """

    queue: str
    name: str
    failed: int
    attempts: int
    retried: int
    seconds: float


class WaitingForEvents(NamedTuple):
    """Number of jobs that wait for an event; with ``more``, at least. ``seconds``: the longest of their waits."""

    jobs: int
    more: bool
    seconds: float | None


class HeldUp(NamedTuple):
    """A sequence, the job for which it waits, that job's queue, and for how many ``seconds`` it has been abandoned."""

    queue: str
    sequence: str
    job_id: int
    seconds: float


def list_held_pairs(db: Database) -> list[tuple[str, str]]:
    """Return each (queue, hold) that has a held job."""
    return [(queue, hold) for queue, hold in db.fetch("list_held_pairs", {})]


def count_held(db: Database, pairs: Sequence[tuple[str, str]], *, most: int) -> list[HeldName]:
    """Count the held jobs of each (queue, hold), up to ``most`` each."""
    params = {"queues": [queue for queue, _ in pairs], "holds": [hold for _, hold in pairs], "most": most}
    return [HeldName._make(row) for row in db.fetch("count_held", params)] if pairs else []


def count_minutes(db: Database, *, seconds: float, most: int) -> list[Counted]:
    """Count what ended in the minutes that began within ``seconds``, by queue and outcome; reads 2 × ``most`` rows."""
    params = {"fleet": FLEET, "trend": TREND, "seconds": seconds, "most": most, "outcomes": list(Outcome)}
    return [Counted._make(row) for row in db.fetch("count_minutes", params)]


def list_failing(
    db: Database, *, share: float, least: int, recent_seconds: float, seconds: float, most: int, limit: int
) -> list[Failing]:
    """Return the names of which this ``share`` of the latest attempts failed, and at least ``least`` of them.

    The latest are those of the last ``recent_seconds``; if there are fewer than ``least``, the last ones within
    ``seconds``. Reads up to twice ``most`` rows.
    """
    params = {
        "fleet": FLEET, "trend": TREND, "failed": list(_FAILED), "counted": list(_COUNTED), "share": share,
        "least": least, "recent": recent_seconds, "seconds": seconds, "most": most, "limit": limit,
    }  # fmt: skip
    return [Failing._make(row) for row in db.fetch("list_failing", params)]


def count_events(db: Database, *, most: int) -> WaitingForEvents:
    """Count the jobs that wait for an event, among the first ``most`` that have such a wait."""
    return WaitingForEvents._make(db.fetch("count_events", {"most": most})[0])


def list_held_up(db: Database, *, most: int) -> list[HeldUp]:
    """Return the sequences that an abandoned job holds up, the longest wait first.

    Looks at the first ``most`` in which jobs stand, and at those of the ``most`` jobs that were abandoned last.
    """
    return [HeldUp._make(row) for row in db.fetch("list_held_up", {"most": most})]


def list_parked(db: Database, queues: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return of each of these queues a parked job, and why its worker parked it."""
    return {queue: (job_id, why) for queue, job_id, why in db.fetch("list_parked", {"queues": list(queues)})}
