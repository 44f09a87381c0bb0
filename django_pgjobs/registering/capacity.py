"""What stands before a registration: is the queue full, does this process register too fast. Open by default.

Tokens are taken first, which asks no database. Then, for queues of bounded capacity: a lock on each queue, held to the
end of the transaction, and *in a new statement* the count of its unfinished jobs. So the next producer, who waits for
the lock, counts what this one has committed, and a capacity is never exceeded however many register at once. A
statement that did both at once would count what was committed before it waited.

That takes READ COMMITTED. A transaction that is opened here has it; in a caller's at a higher level the count would be
of long ago, so registering is refused there; at SERIALIZABLE too, where the server lets one of two win if both are so.
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
from django_pgjobs.store.gating import count_unfinished, lock_queues

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgjobs.conf import Conf

STALE_LEVELS = ("repeatable read", "serializable")
"""Isolation levels at which a statement does not see what was committed since the transaction began."""

_OPEN = nullcontext()


def passing(connection: BaseDatabaseWrapper, conf: Conf, queues: Iterable[str]) -> AbstractContextManager[None]:
    """Return what is to be entered for inserting one job for each of ``queues``.

    Raises ``RateLimited`` here, and when it is entered ``QueueFull`` or ``InvalidJob``; a transaction of the caller's
    stays usable. Not repeatable: the tokens are spent.
    """
    if not conf.capacity.values and not conf.registration_rate.values:
        return _OPEN
    wanted = Counter(queues)
    pay(conf, wanted)
    bounds = {queue: most for queue in wanted if (most := conf.capacity.of(queue)) is not None}
    return _room(connection, bounds, wanted) if bounds else _OPEN


def pay(conf: Conf, wanted: Mapping[str, int]) -> None:
    """Take the tokens for registering so many jobs per queue. Raises ``RateLimited``."""
    rates = {queue: rate for queue in wanted if (rate := conf.registration_rate.of(queue)) is not None}
    if rates:
        token_bucket.of_this_process.take({q: (rate, rate.register * wanted[q]) for q, rate in rates.items()})


@contextmanager
def _room(connection: BaseDatabaseWrapper, bounds: Mapping[str, int], wanted: Mapping[str, int]) -> Iterator[None]:
    if connection.in_atomic_block or not connection.get_autocommit():
        _check(connection.alias, bounds, wanted)
        yield
    else:
        with transaction.atomic(using=connection.alias):
            read_committed(on(connection.alias))
            _check(connection.alias, bounds, wanted)
            yield


def _check(alias: str, bounds: Mapping[str, int], wanted: Mapping[str, int]) -> None:
    """Raise ``QueueFull`` if a queue has no room for what is wanted; nothing has been written then."""
    db = on(alias)
    level = lock_queues(db, bounds)
    if level in STALE_LEVELS:
        raise InvalidJob(
            f"queue {min(bounds)!r} has a capacity, which cannot be counted in a transaction at {level.upper()}: "
            "register at READ COMMITTED."
        )
    left = {queue: most - wanted[queue] for queue, most in bounds.items()}
    found = count_unfinished(db, bounds, most=max(max(left.values()), 0) + 1)
    for queue, most in sorted(bounds.items()):
        if found[queue] > left[queue]:
            raise QueueFull(queue=queue, capacity=most)
