"""What is told by NOTIFY: workers that there is something to claim, waiters that a job has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from django_pgjobs.store.database import Database

WORKERS = "pgjobs"
WAITERS = "pgjobs_ended"
LIMITED = "limited"


class Notice(NamedTuple):
    """One notification: a channel, and what is said there."""

    channel: str
    payload: str

    @property
    def is_for_claimers(self) -> bool:
        """Whether this is of a registration that no limit holds."""
        return not self.payload.startswith(LIMITED)

    @property
    def queue(self) -> str:
        """The queue that this is about."""
        return self.payload.partition(":")[2]


PAUSES = Notice(WORKERS, "pauses")
"""Something was paused, or a pause has ended."""


def wake_up(queue: str, priority: int | None) -> Notice:
    """Wake those who claim from the queue at this priority; None wakes those who let jobs into the queue."""
    return Notice(WORKERS, f"{LIMITED if priority is None else priority}:{queue}")


def look_behind(queue: str) -> Notice:
    """Tell that jobs of the queue are claimable which may be older than any that is claimed now."""
    return Notice(WORKERS, f"behind:{queue}")


def busy(queue: str) -> Notice:
    """Ask workers of the queue to keep looking: for a moment more is registered without a notification."""
    return Notice(WORKERS, f"busy:{queue}")


def ended(job_id: int) -> Notice:
    """Tell those who wait for this job."""
    return Notice(WAITERS, str(job_id))


def notify(db: Database, notices: Iterable[Notice]) -> None:
    """Send notifications, at the commit of the open transaction if there is one."""
    told = sorted(set(notices))
    if len(told) == 1:  # nearly always: half the cost
        db.fetch("notify", told[0]._asdict())
    elif told:
        db.fetch("notify_many", {"channels": [n.channel for n in told], "payloads": [n.payload for n in told]})


def notify_queues(db: Database, pairs: Iterable[tuple[str, int | None]], *, behind: bool = False) -> None:
    """Wake workers that serve these (queue, priority) pairs, at the commit of the open transaction if there is one.

    None for a priority wakes those who let jobs into the queue. ``behind`` tells that these jobs may be older than any
    that is claimed now, so a look at what is new does not find them.
    """
    told = {wake_up(*pair) for pair in pairs}
    notify(db, told | {look_behind(notice.queue) for notice in told} if behind else told)
