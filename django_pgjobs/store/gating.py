"""A queue for its producers: lock it, count its unfinished jobs, list them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database

LOCK_CLASS = 0x706A71
"""The first half of our advisory locks' numbers ("pjq"), so that they collide with no other lock."""


class ListedJob(NamedTuple):
    """An unfinished job of a queue: its ``run_at``, its id, and whether it is waiting, runnable or running."""

    run_at: datetime
    id: int
    label: str


BEFORE_ALL = "-infinity", 0
"""The position before the first job of a queue."""


def lock_queues(db: Database, queues: Iterable[str]) -> str:
    """Lock registering into these queues until the transaction ends; return its isolation level.

    Blocks while another transaction holds one of these locks.
    """
    # Two queues may share a number. Sorted by number, not by name, all transactions lock in one order.
    keys = sorted({_signed(zlib.crc32(queue.encode())) for queue in queues})
    return str(db.fetch("lock_queues", {"class": LOCK_CLASS, "keys": keys})[0][1])


def count_unfinished(db: Database, queues: Iterable[str], *, most: int) -> dict[str, int]:
    """Return how many unfinished jobs each queue has, exact up to ``most``; beyond that, ``most`` or more."""
    return dict(db.fetch("count_unfinished", {"queues": sorted(queues), "most": most}))


Page = tuple[list[ListedJob], tuple[str, int]]
"""Some jobs, and the position of the last: its run_at as text, since Python has no datetime for some instants."""


def list_queue(db: Database, queue: str, *, after: tuple[str, int], limit: int) -> Page:
    """Return the next ``limit`` unfinished jobs of a queue after (run_at, id), in that order, and where they end."""
    rows = db.fetch("list_queue", {"queue": queue, "run_at": after[0], "id": after[1], "limit": limit})
    return [ListedJob(*row[:3]) for row in rows], (rows[-1][3], rows[-1][1]) if rows else after


def _signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number
