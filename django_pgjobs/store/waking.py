"""Notify workers of committed writes.

Nothing notifies inside a caller's transaction. PostgreSQL makes transactions that have notified commit one after
another, each through the flush of its WAL; a full notification queue fails the commit; a transaction that has notified
cannot be prepared. A statement that only notifies, after the commit, has nothing to flush. If the process dies between
the two, if the notification fails, or if a hook of the project raises, workers find the jobs at their next poll; no job
is lost.

A process that registers often does not notify each time. After a notification it stays silent about the same queue and
priority for ``QUIET_SECONDS``. If it had notified shortly before, it stays silent for ``BUSY_SECONDS`` and announces
that. Workers poll until that time is over. They count from the arrival of the notification, which is no earlier than
its start, and the jobs registered in silence are committed, so the last poll finds them.
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
from django_pgjobs.store.notifying import Notification

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgjobs.conf import Conf

QUIET_SECONDS = 0.005
BUSY_SECONDS = 0.1
"""Both are shorter than workers keep polling, with room for clocks that run at different speeds."""

RUSH_SECONDS = 0.02
"""Two notifications closer together than this begin a rush; a gap of ``2 * BUSY_SECONDS`` ends it."""

logger = safe_logger("django_pgjobs")

_notified: dict[tuple[str, Notification], _Last] = {}
"""(alias, notice of a registration) → its latest notification.

A fork inherits it and stays silent for as long as its parent would.
"""


class _Last(NamedTuple):
    """Start of a notification, and the seconds after that in which to send no other."""

    begun: float
    silence: float


def registered(connection: BaseDatabaseWrapper, pairs: Iterable[tuple[str, int | None]], conf: Conf) -> None:
    """Wake workers for jobs that have been inserted: now, or when their transaction commits.

    ``pairs``: their queues and priorities; a priority of None, if a limit holds the job, wakes admitters. Never raises
    for a failed notification.
    """
    if conf.notify:
        _when_committed(connection, {notifying.wake_up(*pair) for pair in pairs}, set())


def notify(using: str, notices: Iterable[Notification]) -> None:
    """Notify workers and waiters of an operator's changes: now, or when the transaction commits.

    With the setting ``NOTIFY`` off it notifies only waiters.
    """
    to_workers = get_conf().notify
    wanted = {notice for notice in notices if to_workers or notice.channel != notifying.WORKERS}
    if wanted:
        _when_committed(connections[using], set(), wanted)


@dataclass(slots=True)
class _Waiting:
    """Notices to send when the transaction commits, unless one of these savepoints is rolled back."""

    using: str
    savepoints: set[str]
    registered: set[Notification] = field(default_factory=set)
    notices: set[Notification] = field(default_factory=set)

    def takes(self, savepoints: set[str], registered: set[Notification], notices: set[Notification]) -> bool:
        """Add these notices if they depend on the same savepoints; return whether this hook sends them."""
        if self.savepoints == savepoints:
            self.registered |= registered
            self.notices |= notices
            return True
        return self.savepoints <= savepoints and self.registered >= registered and self.notices >= notices

    def send(self) -> None:
        """Send the notices, after the commit."""
        connection = connections[self.using]
        if not _in_transaction(connection):  # inside a transaction a test simulates the commit: nothing is committed
            _send(connection, self.registered, self.notices)


def _when_committed(connection: BaseDatabaseWrapper, registered: set[Notification], notices: set[Notification]) -> None:
    if not _in_transaction(connection):
        _send(connection, registered, notices)
        return
    if _is_of_a_test_case(connection):
        return
    hooks: list[Any] = connection.run_on_commit
    savepoints = set(connection.savepoint_ids)
    # One hook per transaction, even if it registers many jobs.
    last = getattr(hooks[-1][1], "__self__", None) if hooks else None
    if isinstance(last, _Waiting) and last.takes(savepoints, registered, notices):
        return
    waiting = _Waiting(connection.alias, savepoints, set(registered), set(notices))
    if connection.in_atomic_block:
        connection.on_commit(waiting.send, robust=True)
    else:
        # With autocommit off Django refuses new hooks. It runs existing ones when autocommit is on again after a
        # commit, and drops them at a rollback: that is all we need.
        hooks.append((savepoints, waiting.send, True))


def _send(connection: BaseDatabaseWrapper, registered: Iterable[Notification], notices: set[Notification]) -> None:
    begun = monotonic()
    using = connection.alias
    unsent = {notice: silence for notice in registered if (silence := _silence(using, notice, begun)) is not None}
    if not unsent and not notices:
        return
    busy = {notifying.busy(notice.queue) for notice, silence in unsent.items() if silence == BUSY_SECONDS}
    try:
        notifying.notify(beneath(using), {*unsent, *busy, *notices})
    except Error as error:
        logger.warning("notification failed, workers find the jobs at their next poll: %s", one_line(error))
    else:
        _notified.update({(using, notice): _Last(begun, silence) for notice, silence in unsent.items()})


def _silence(using: str, notice: Notification, now: float) -> float | None:
    """Return the seconds of silence after a notification sent now; None to send none, because a silence still lasts."""
    last = _notified.get((using, notice))
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
    """Return whether a ``TestCase`` opened this transaction, which never commits: its tests may count hooks."""
    blocks: list[Any] = getattr(connection, "atomic_blocks", [])
    return bool(blocks) and getattr(blocks[0], "_from_testcase", False)
