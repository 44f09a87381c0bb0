"""NOTIFY: wakes workers when there is something to claim, and waiters when a job has ended."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from django_pgjobs.conf import get_conf
from django_pgjobs.store.database import Database

WORKERS = "pgjobs"
WAITERS = "pgjobs_ended"
LIMITED = "limited"


class Notification(NamedTuple):
    """One notification: a channel and a payload."""

    channel: str
    payload: str

    @property
    def is_for_claimers(self) -> bool:
        """True if this announces a registration that no limit holds."""
        return not self.payload.startswith(LIMITED)

    @property
    def queue(self) -> str:
        """The queue that this names."""
        return self.payload.partition(":")[2]


PAUSES = Notification(WORKERS, "pauses")
"""Something was paused, or a pause has ended."""

STACKS = Notification(WORKERS, "stacks")
"""An operator asks for the stack of a running job."""


@lru_cache(maxsize=256)
def wake_up(queue: str, priority: int | None) -> Notification:
    """Return the notice that wakes workers of the queue at this priority; None wakes the queue's admitters."""
    return Notification(WORKERS, f"{LIMITED if priority is None else priority}:{queue}")


def scan_behind(queue: str) -> Notification:
    """Return the notice that makes workers scan behind their frontier: older jobs may be claimable again."""
    return Notification(WORKERS, f"behind:{queue}")


def busy(queue: str) -> Notification:
    """Return the notice that asks workers of the queue to keep polling: more jobs follow without a notification."""
    return Notification(WORKERS, f"busy:{queue}")


def ended(job_id: int) -> Notification:
    """Return the notice that wakes the waiters of this job."""
    return Notification(WAITERS, str(job_id))


def notify(db: Database, notices: Iterable[Notification], schema: str = "") -> None:
    """Send notifications, at the commit of the open transaction if there is one.

    Where one worker serves many schemas they name ``schema``, or that to which the session's path leads.
    """
    unique = sorted(set(notices))
    if unique and get_conf().schemas is not None:
        params = {"channels": [n.channel for n in unique], "payloads": [n.payload for n in unique], "schema": schema}
        db.fetch("notify_of_schema", params)
    elif len(unique) == 1:  # nearly always: half the cost
        db.fetch("notify", unique[0]._asdict())
    elif unique:
        db.fetch("notify_many", {"channels": [n.channel for n in unique], "payloads": [n.payload for n in unique]})


def notify_queues(db: Database, pairs: Iterable[tuple[str, int | None]], *, behind: bool = False) -> None:
    """Wake workers that serve these (queue, priority) pairs, at the commit of the open transaction if there is one.

    A priority of None wakes the queue's admitters. ``behind``: these jobs may be older than any claimed now, so only a
    scan behind the frontier finds them.
    """
    unique = {wake_up(*pair) for pair in pairs}
    notify(db, unique | {scan_behind(notice.queue) for notice in unique} if behind else unique)
