"""Refuse a registration if its queue is full or this process registers too fast. Both checks are off by default.

The rate comes first: it asks no database. Then one statement locks each queue with a capacity, to the end of the
transaction, and *a new statement* counts their unfinished jobs. The next producer thus waits for the lock and counts
what this one has committed: no number of producers exceeds a capacity. A single statement for both would count only
what was committed before it waited.

That takes READ COMMITTED. Transactions opened here have it. In a caller's transaction at a higher level the count would
be of long ago, so registering there raises; also at SERIALIZABLE, where the server fails one of two transactions only
if both run at that level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from django.db import transaction

from django_pgjobs.exceptions import InvalidJob, QueueFull
from django_pgjobs.registering import token_bucket
from django_pgjobs.store.database import on, read_committed
from django_pgjobs.store.registering import count_unfinished, lock_queues
from django_pgjobs.store.turns import STALE_LEVELS
from django_pgjobs.values.built_in import OWN_QUEUE

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgjobs.conf import Conf

_OPEN = nullcontext()


def passing(connection: BaseDatabaseWrapper, conf: Conf, queues: Iterable[str]) -> AbstractContextManager[None]:
    """Take the tokens and return a context manager: insert one job for each of ``queues`` within it.

    Raises ``RateLimited``; entering the context raises ``QueueFull`` or ``InvalidJob``. The caller's transaction stays
    usable. Entering blocks until other producers into these queues commit. Not repeatable: the tokens are spent.
    """
    wanted = Counter(queue for queue in queues if queue != OWN_QUEUE)
    pay(conf, wanted)
    bounds = {queue: most for queue in wanted if (most := conf.capacity.of(queue)) is not None}
    return _room(connection, bounds, wanted) if bounds else _OPEN


def pay(conf: Conf, wanted: Mapping[str, int]) -> None:
    """Take the tokens for registering ``wanted`` (queue → jobs). Never blocks. Raises ``RateLimited``."""
    rates = {queue: rate for queue in wanted if (rate := conf.registration_rate.of(queue)) is not None}
    if rates:
        token_bucket.of_this_process.take({q: (rate, rate.register * wanted[q]) for q, rate in rates.items()})


@contextmanager
def _room(connection: BaseDatabaseWrapper, bounds: Mapping[str, int], wanted: Mapping[str, int]) -> Iterator[None]:
    """Raise ``QueueFull`` if a queue has no room for the jobs ``wanted`` in it, before anything is written."""
    db, ours = on(connection.alias), connection.get_autocommit() and not connection.in_atomic_block
    with transaction.atomic(using=connection.alias) if ours else _OPEN:
        if ours:
            read_committed(db)
        level = lock_queues(db, bounds)
        if level in STALE_LEVELS:
            raise InvalidJob(
                f"queue {min(bounds)!r} has a capacity, and a transaction at {level.upper()} cannot count its jobs: "
                "register at READ COMMITTED."
            )
        left = {queue: most - wanted[queue] for queue, most in bounds.items()}
        found = count_unfinished(db, bounds, most=max(max(left.values()), 0) + 1)
        for queue, most in sorted(bounds.items()):
            if found[queue] > left[queue]:
                raise QueueFull(queue=queue, capacity=most)
        yield
