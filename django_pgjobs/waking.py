"""Telling workers of what was written, once it is committed.

Nothing notifies inside a caller's transaction. PostgreSQL lets those who have notified commit one after another, each
through the flush of its WAL; a queue of notifications that is full fails the commit; a transaction that has notified
cannot be prepared. A statement that only notifies, behind the commit, has nothing to flush. A process that dies between
the two, a notification that fails, a hook of the project that raises: all of them cost the workers' next poll, no job.

Of registrations at most one notification is sent per 5 ms, process, queue and priority. That is enough: what is asked
about here is committed, and a worker looks again ``LOOK_AGAIN_SECONDS`` after it has heard, which is no earlier than
the notification began.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import Error, connections

from django_pgjobs import store
from django_pgjobs.clock import monotonic
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import safe_logger
from django_pgjobs.store import Notice

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgjobs.conf import Conf

NOTIFY_INTERVAL_SECONDS = 0.005
"""Shorter than what a worker waits to look again, with room for clocks that do not run alike."""

logger = safe_logger("django_pgjobs")

_notified: dict[tuple[str, Notice], float] = {}
"""(alias, notice of a registration) → when the last notification that was sent of it *began*.

A fork inherits it and may keep silent for 5 ms after its parent notified, which is what the interval means.
"""


def registered(connection: BaseDatabaseWrapper, pairs: Iterable[tuple[str, int | None]], conf: Conf) -> None:
    """Wake workers of registrations that have been written: now, or when their transaction is committed.

    ``pairs``: their queues and priorities; None for a priority where a limit holds the job, so admitters hear of it.
    """
    if conf.notify:
        _when_committed(connection, {store.wake_up(*pair) for pair in pairs}, set())


def tell(using: str, notices: Iterable[Notice]) -> None:
    """Tell workers and waiters of what an operator has written: now, or when it is committed.

    With the setting ``NOTIFY`` off workers are told nothing.
    """
    to_workers = get_conf().notify
    wanted = {notice for notice in notices if to_workers or notice.channel != store.WORKERS}
    if wanted:
        _when_committed(connections[using], set(), wanted)


@dataclass(slots=True)
class _Waiting:
    """What is sent when the transaction is committed, unless one of these savepoints is rolled back."""

    alias: str
    savepoints: set[str]
    registered: set[Notice] = field(default_factory=set)
    told: set[Notice] = field(default_factory=set)

    def takes(self, savepoints: set[str], registered: set[Notice], told: set[Notice]) -> bool:
        """Whether these are sent with the others, or will be, as they depend on the same savepoints."""
        if self.savepoints == savepoints:
            self.registered |= registered
            self.told |= told
            return True
        return self.savepoints <= savepoints and self.registered >= registered and self.told >= told

    def send(self) -> None:
        """Send them, behind the commit."""
        connection = connections[self.alias]
        if not _in_transaction(connection):  # in one a test plays the commit, and nothing is committed
            _send(connection, self.registered, self.told)


def _when_committed(connection: BaseDatabaseWrapper, registered: set[Notice], told: set[Notice]) -> None:
    if not _in_transaction(connection):
        _send(connection, registered, told)
        return
    if _is_of_a_test_case(connection):
        return
    hooks: list[Any] = connection.run_on_commit
    savepoints = set(connection.savepoint_ids)
    # One hook for a transaction that registers much.
    last = getattr(hooks[-1][1], "__self__", None) if hooks else None
    if isinstance(last, _Waiting) and last.takes(savepoints, registered, told):
        return
    waiting = _Waiting(connection.alias, savepoints, set(registered), set(told))
    if connection.in_atomic_block:
        connection.on_commit(waiting.send, robust=True)
    else:
        # With autocommit switched off Django refuses new hooks. It runs those that are there when autocommit is on
        # again behind a commit, and forgets them at a rollback: that is all we ask of it.
        hooks.append((savepoints, waiting.send, True))


def _send(connection: BaseDatabaseWrapper, registered: Iterable[Notice], told: set[Notice]) -> None:
    begun = monotonic()
    alias = connection.alias
    unheard = [
        notice for notice in registered if _notified.get((alias, notice), -math.inf) <= begun - NOTIFY_INTERVAL_SECONDS
    ]
    if not unheard and not told:
        return
    try:
        store.notify(store.beneath(alias), {*unheard, *told})
    except Error as error:
        logger.warning("stored, and workers will see it when they look: %s", " ".join(str(error).split()))
    else:
        _notified.update(dict.fromkeys([(alias, notice) for notice in unheard], begun))


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    return connection.in_atomic_block or not connection.autocommit


def _is_of_a_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether a ``TestCase`` has opened this transaction, which is never committed: its tests may count hooks."""
    blocks: list[Any] = getattr(connection, "atomic_blocks", [])
    return bool(blocks) and getattr(blocks[0], "_from_testcase", False)
