"""A queue for its producers: lock it, count its unfinished jobs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from django_pgjobs.store.database import Database

LOCK_CLASS = 0x706A71
"""The first half of our advisory locks' numbers ("pjq"), so that they collide with no other lock."""


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


def _signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number
