"""Notify workers of committed writes.

Nothing notifies inside a caller's transaction. PostgreSQL makes transactions that have notified commit one after
another, each through the flush of its WAL; a full notification queue fails the commit; a transaction that has notified
cannot be prepared. A statement that only notifies, after the commit, has nothing to flush. If the process dies between
the two, if the notification fails, or if a hook of the project raises, workers find the jobs at their next poll; no job
is lost.

A process spends an eighth of its time on notifications at most, so it does not notify each time if it registers very
often. A notification *costs* ``COST_FACTOR`` times the time that it took. For that long, and for ``QUIET_SECONDS`` at
most, the process stays silent about the same queue and priority. If it registers more often than notifications cost, it
is in a rush: it announces that, and stays silent for ``BUSY_SECONDS``. Workers poll until that time is over. They count
from the arrival of the notification, which is no earlier than its start, and the jobs registered in silence are
committed, so the last poll finds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import Error, connections

from django_pgjobs.clock import monotonic
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log as logger
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

COST_FACTOR = 8
COST_STEPS = 4
"""One that took long, as a machine or a network may stall, changes the cost by a quarter of the difference."""

LEAST_COST_SECONDS = 0.002
MOST_COST_SECONDS = 0.02
"""Each listener pays for a notification, too, however little it cost its sender; and one that took long, as a machine
or a network may stall, says little about the next."""

_notified: dict[tuple[str, Notification], _Last] = {}
"""(alias, notice of a registration) → its latest notification.

A fork inherits it and stays silent for as long as its parent would.
"""


@dataclass(slots=True)
class _Last:
    """Start of a notification, the seconds after that in which to send no other, and what it cost.

    ``silent``: how many notifications that silence has saved.
    """

    begun: float
    silence: float
    cost: float
    silent: int = 0


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
    schema: str
    savepoints: set[str]
    registered: set[Notification]
    notices: set[Notification]

    def takes(
        self, schema: str, savepoints: set[str], registered: set[Notification], notices: set[Notification]
    ) -> bool:
        """Add these notices if they are of the same schema and savepoints; return whether this hook sends them."""
        if self.schema != schema:
            return False
        if self.savepoints == savepoints:
            self.registered |= registered
            self.notices |= notices
            return True
        return self.savepoints <= savepoints and self.registered >= registered and self.notices >= notices

    def send(self) -> None:
        """Send the notices, after the commit."""
        connection = connections[self.using]
        if not _in_transaction(connection):  # inside a transaction a test simulates the commit: nothing is committed
            _send(connection, self.schema, self.registered, self.notices)


def _when_committed(connection: BaseDatabaseWrapper, registered: set[Notification], notices: set[Notification]) -> None:
    # Of an engine for tenants, which may have set another by the commit.
    schema = (getattr(connection, "schema_name", None) or "") if get_conf().schemas is not None else ""
    if not _in_transaction(connection):
        _send(connection, schema, registered, notices)
        return
    if is_of_a_test_case(connection):
        return
    hooks: list[Any] = connection.run_on_commit
    savepoints = set(connection.savepoint_ids)
    # One hook per transaction and schema, even if it registers many jobs; no look at those before a hook of others.
    for hook in reversed(hooks):
        earlier = getattr(hook[1], "__self__", None)
        if not isinstance(earlier, _Waiting):
            break
        if earlier.takes(schema, savepoints, registered, notices):
            return
    waiting = _Waiting(connection.alias, schema, savepoints, set(registered), set(notices))
    if connection.in_atomic_block:
        connection.on_commit(waiting.send, robust=True)
    else:
        # With autocommit off Django refuses new hooks. It runs existing ones when autocommit is on again after a
        # commit, and drops them at a rollback: that is all we need.
        hooks.append((savepoints, waiting.send, True))


def _send(
    connection: BaseDatabaseWrapper, schema: str, registered: Iterable[Notification], notices: set[Notification]
) -> None:
    begun = monotonic()
    using = connection.alias
    unsent = {notice: rush for notice in registered if (rush := _in_a_rush(using, notice, begun)) is not None}
    if not unsent and not notices:
        return
    busy = {notifying.busy(notice.queue) for notice, rush in unsent.items() if rush}
    try:
        notifying.notify(beneath(using), {*unsent, *busy, *notices}, schema)
    except Error as error:
        logger.warning("notification failed, workers find the jobs at their next poll: %s", one_line(error))
    else:
        took = min(max(COST_FACTOR * (monotonic() - begun), LEAST_COST_SECONDS), MOST_COST_SECONDS)
        for notice, rush in unsent.items():
            last = _notified.get((using, notice))
            cost = took if last is None else last.cost + (took - last.cost) / COST_STEPS
            _notified[using, notice] = _Last(begun, BUSY_SECONDS if rush else min(cost, QUIET_SECONDS), cost)


def _in_a_rush(using: str, notice: Notification, now: float) -> bool | None:
    """Return whether registrations come more often than notifications cost; None to send none, as a silence lasts."""
    last = _notified.get((using, notice))
    if last is None or get_conf().schemas is not None:  # the one before may have been of another schema
        return False
    if now - last.begun < last.silence:
        last.silent += 1
        return None
    gap = (now - last.begun) / (1 + last.silent)
    # Longer once there was something to save, lest a pace at the limit change from one to the other.
    return notice.is_for_claimers and gap < last.cost * (1.5 if last.silent else 1)


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    return connection.in_atomic_block or not connection.autocommit


def is_of_a_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a ``TestCase`` opened this transaction, which never commits: its tests may count hooks."""
    blocks: list[object] = getattr(connection, "atomic_blocks", [])
    return bool(blocks) and getattr(blocks[0], "_from_testcase", False)
