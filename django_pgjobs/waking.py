"""Telling workers of what was written, once it is committed.

Nothing notifies inside a caller's transaction. PostgreSQL lets those who have notified commit one after another, each
through the flush of its WAL; a queue of notifications that is full fails the commit; a transaction that has notified
cannot be prepared. A statement that only notifies, behind the commit, has nothing to flush. A process that dies between
the two, a notification that fails, a hook of the project that raises: all of them cost the workers' next poll, no job.

A process that registers often does not notify each time. After a notification it stays silent about the same queue and
priority for ``QUIET_SECONDS``. If it notified shortly before already, it stays silent for ``BUSY_SECONDS`` and says so.
Workers look again until that time is over. They count from when they hear, which is no earlier than the notification
began, and what is held back here is committed, so their last look finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import Error, connections

from django_pgjobs.clock import monotonic
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import notifying
from django_pgjobs.store.database import beneath
from django_pgjobs.store.notifying import Notice

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgjobs.conf import Conf

QUIET_SECONDS = 0.005
BUSY_SECONDS = 0.1
"""Both shorter than workers keep looking, with room for clocks that do not run alike."""

RUSH_SECONDS = 0.02
"""Two notifications closer together than this begin a busy stretch; it ends with a gap of ``2 * BUSY_SECONDS``."""

logger = safe_logger("django_pgjobs")

_notified: dict[tuple[str, Notice], _Last] = {}
"""(alias, notice of a registration) → the last notification that was sent of it.

A fork inherits it and stays silent for as long as its parent would have.
"""


class _Last(NamedTuple):
    """When a notification began, and for how long nothing is sent after that instant."""

    begun: float
    silence: float


def registered(connection: BaseDatabaseWrapper, pairs: Iterable[tuple[str, int | None]], conf: Conf) -> None:
    """Wake workers of registrations that have been written: now, or when their transaction is committed.

    ``pairs``: their queues and priorities; None for a priority where a limit holds the job, so admitters hear of it.
    """
    if conf.notify:
        _when_committed(connection, {notifying.wake_up(*pair) for pair in pairs}, set())


def notify(using: str, notices: Iterable[Notice]) -> None:
    """Notify workers and waiters of what an operator has written: now, or when it is committed.

    With the setting ``NOTIFY`` off this notifies waiters only.
    """
    to_workers = get_conf().notify
    wanted = {notice for notice in notices if to_workers or notice.channel != notifying.WORKERS}
    if wanted:
        _when_committed(connections[using], set(), wanted)


@dataclass(slots=True)
class _Waiting:
    """What is sent when the transaction is committed, unless one of these savepoints is rolled back."""

    alias: str
    savepoints: set[str]
    registered: set[Notice] = field(default_factory=set)
    notices: set[Notice] = field(default_factory=set)

    def takes(self, savepoints: set[str], registered: set[Notice], notices: set[Notice]) -> bool:
        """Whether these are sent with the others, or will be, as they depend on the same savepoints."""
        if self.savepoints == savepoints:
            self.registered |= registered
            self.notices |= notices
            return True
        return self.savepoints <= savepoints and self.registered >= registered and self.notices >= notices

    def send(self) -> None:
        """Send them, behind the commit."""
        connection = connections[self.alias]
        if not _in_transaction(connection):  # in one a test plays the commit, and nothing is committed
            _send(connection, self.registered, self.notices)


def _when_committed(connection: BaseDatabaseWrapper, registered: set[Notice], notices: set[Notice]) -> None:
    if not _in_transaction(connection):
        _send(connection, registered, notices)
        return
    if _is_of_a_test_case(connection):
        return
    hooks: list[Any] = connection.run_on_commit
    savepoints = set(connection.savepoint_ids)
    # One hook for a transaction that registers much.
    last = getattr(hooks[-1][1], "__self__", None) if hooks else None
    if isinstance(last, _Waiting) and last.takes(savepoints, registered, notices):
        return
    waiting = _Waiting(connection.alias, savepoints, set(registered), set(notices))
    if connection.in_atomic_block:
        connection.on_commit(waiting.send, robust=True)
    else:
        # With autocommit switched off Django refuses new hooks. It runs those that are there when autocommit is on
        # again behind a commit, and drops them at a rollback: that is all we ask of it.
        hooks.append((savepoints, waiting.send, True))


def _send(connection: BaseDatabaseWrapper, registered: Iterable[Notice], notices: set[Notice]) -> None:
    begun = monotonic()
    alias = connection.alias
    unsent = {notice: silence for notice in registered if (silence := _silence(alias, notice, begun)) is not None}
    if not unsent and not notices:
        return
    busy = {notifying.busy(notice.queue) for notice, silence in unsent.items() if silence == BUSY_SECONDS}
    try:
        notifying.notify(beneath(alias), {*unsent, *busy, *notices})
    except Error as error:
        logger.warning("notification failed, workers find the jobs at their next poll: %s", one_line(error))
    else:
        _notified.update({(alias, notice): _Last(begun, silence) for notice, silence in unsent.items()})


def _silence(alias: str, notice: Notice, now: float) -> float | None:
    """For how long nothing more of this pair needs to be sent behind a notification now; None if none is due."""
    last = _notified.get((alias, notice))
    if last is None:
        return QUIET_SECONDS
    gap = now - last.begun
    if gap < last.silence:
        return None
    rush = RUSH_SECONDS if last.silence == QUIET_SECONDS else 2 * BUSY_SECONDS
    return BUSY_SECONDS if gap < rush and notice.is_for_claimers else QUIET_SECONDS


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    return connection.in_atomic_block or not connection.autocommit


def _is_of_a_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether a ``TestCase`` has opened this transaction, which is never committed: its tests may count hooks."""
    blocks: list[Any] = getattr(connection, "atomic_blocks", [])
    return bool(blocks) and getattr(blocks[0], "_from_testcase", False)
