"""Atomic jobs: the body, the job's end and the COMMIT are one transaction, so either all of it remains or nothing.

The body runs with the guard open, inside ``transaction.atomic()`` on the connection of the jobs. Then the guard is
closed: from here on the job may be killed, but not interrupted. Its result is encoded, its end is written as the last
statement, behind the fence, and the transaction is committed. Any error before rolls all of it back and is
a failure like any other.

Once its end is written the attempt is *in doubt* until the COMMIT has been answered: it may come through although it
raises. Code that records such a failure looks at the row first. A hook of ours, the first of ``on_commit``, notes the
COMMIT; what later hooks raise is logged and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import Error, connections, transaction
from psycopg.pq import TransactionStatus

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision
from django_pgjobs.ends.kinds import callback_allowance, has_callback
from django_pgjobs.exceptions import Abandon, Cancel, RolledBack, UnstorableResult
from django_pgjobs.execution import events
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import OUR_FILES, Account, kind_of, text_of
from django_pgjobs.states import Outcome
from django_pgjobs.store import atomic, gates, notifying, turns, waking
from django_pgjobs.store.atomic import LOCK_TIMEOUT, AtomicEnd, NoStep
from django_pgjobs.store.database import is_data_trouble, on, set_lock_timeout
from django_pgjobs.store.finalising import End
from django_pgjobs.store.notifying import Notification

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


OUR_FILES.add(__file__)

Returned = decide.Succeeded | decide.Stepped
"""Decisions of a body that has returned."""

UNREACHED_SECONDS = 5.0
"""Delay of the retry of a job for whose transaction there was no connection."""

ABORTED = "The body caught a database error outside of an atomic() of its own: its transaction could not continue."
UNDONE = "The body called set_rollback(True), or caught an error that had broken an atomic() around it."
CANCELLED = "A cancel was requested before its next step."
KEY_TAKEN = "The next step, {name}, cannot enter its queue: another job there has the key of this one."
CLOSED = "The body closed the connection of its transaction."
ENDED = (
    "The body ended its transaction by a COMMIT or ROLLBACK of its own: what it did before is not one with its end, "
    "and what it did after is rolled back."
)
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
NOTHING_REMAINS = "All that it did in this database is rolled back."


class _Lost(Exception):
    """Rolls the transaction back: the end is not ours to write."""


@dataclass(slots=True)
class _Course:
    """State of a transaction on ``using``. ``raised``: by the body, or by what follows up to the COMMIT.

    ``wakes``: the notifications of a next step that is due, or of jobs that waited for this one.
    """

    using: str
    decision: Decision | None = None
    committed: bool = False
    raised: BaseException | None = None
    wakes: Collection[Notification] = ()

    def note(self) -> None:
        """Record that the transaction is committed, before any hook of the job's can hang or raise."""
        self.committed = True
        if self.wakes:
            waking.notify(self.using, self.wakes)


@dataclass(frozen=True, slots=True)
class AtomicEnds:
    """Runs atomic jobs on this thread's connection ``using``, where their rows are.

    Without ``stored`` a job has no row, since it bypasses the queue: only its body is one transaction.
    """

    using: str
    stored: bool = True

    def run(self, prepared: Prepared, body: Callable[[Prepared], Returned]) -> Decision:
        """Run ``body`` and commit it with the job's end. Raises what the body raises, or the server at the COMMIT."""
        course = _Course(self.using)
        with prepared.guard.keeping_connections():
            try:
                # Only what the guard calls can be interrupted, and a server may take long to answer.
                prepared.guard.reach(connections[self.using].ensure_connection)
            except Error as error:
                return self._unreached(prepared, error)
            if prepared.control.interrupt is not None:  # it came as the connection was made, and is spent
                raise prepared.control.interrupt
            try:
                return self._run(prepared, body, course)
            except _Lost:
                return decide.Lost()
            except BaseException as error:
                if course.committed and course.decision is not None:
                    log_hook(prepared, "job", error)
                    return course.decision
                if course.raised is None or course.raised is error:
                    raise
        raise course.raised  # not what its ROLLBACK raised, on a connection that is gone

    def _run(self, prepared: Prepared, body: Callable[[Prepared], Returned], course: _Course) -> Decision:
        connection = connections[self.using]
        outermost = not connection.in_atomic_block
        with transaction.atomic(using=self.using):
            if outermost:  # a savepoint has no COMMIT, and a test would find this hook among its own
                transaction.on_commit(course.note, using=self.using)
            try:
                with one_transaction(connection):
                    done = body(prepared)
                check_committable(connection)
                decision: Decision = self._written(prepared, done, course, outermost=outermost) if self.stored else done
                prepared.in_doubt = self.stored
                course.decision = decision
            except BaseException as error:
                course.raised = error
                raise
        return decision

    def _written(self, prepared: Prepared, done: Returned, course: _Course, *, outermost: bool) -> decide.Committed:
        """Write what the body came to, as the last statement of its transaction."""
        job, seconds = prepared.job, clock.monotonic() - prepared.began
        if isinstance(done, decide.Succeeded):
            return self._end(prepared, End(job.id, job.claim_id, seconds, done.result), course, outermost=outermost)
        end = End(job.id, job.claim_id, seconds, columns=done.columns)
        went_on = atomic.next_step_atomic(on(self.using), end, outermost=outermost)
        if went_on is NoStep.LOST:
            raise _Lost
        if went_on is NoStep.CANCELLED:
            raise Cancel(CANCELLED)
        if went_on.refused:
            raise Abandon(KEY_TAKEN.format(name=done.name))
        if went_on.due:
            course.wakes = [notifying.wake_up(went_on.queue, went_on.priority)]
        return decide.Committed(
            step_in=None if went_on.priority is None else (went_on.queue, went_on.priority), stepped=True
        )

    def _end(self, prepared: Prepared, end: End, course: _Course, *, outermost: bool) -> decide.Committed:
        """Write the success of a job, and count it in the gates that it feeds."""
        db, job = on(self.using), prepared.job
        marks = has_callback(job.name, Outcome.SUCCEEDED)
        written: AtomicEnd | None
        try:
            if marks:
                end.outcome = Outcome.SUCCEEDED
                allowance = callback_allowance()
                marked = atomic.mark_atomic(db, end, allowance_seconds=allowance, outermost=outermost)
                written = AtomicEnd(counted=False) if marked else None
            elif job.idempotency_key is not None:
                written = atomic.end_atomic_keyed(db, end, outermost=outermost)
            else:
                written = atomic.end_atomic(db, end, outermost=outermost)
        except Exception as error:
            if end.result is not None and is_data_trouble(error):
                raise UnstorableResult(f"The job's result cannot be stored: {one_line(error)}") from error
            raise
        if written is None:
            raise _Lost
        if written.counted:
            before = set_lock_timeout(db, LOCK_TIMEOUT)
            course.wakes = gates.notices_of(turns.settle_ends(db, [job.id]))
            set_lock_timeout(db, before)  # constraints that are checked at the COMMIT may wait longer
        return decide.Committed(marked=marks)

    def _unreached(self, prepared: Prepared, error: Error) -> decide.Snoozed:
        # Nothing of the job has run, so its attempt is not charged.
        about, words = events.facts(prepared.context), one_line(error)
        log.warning(
            "no connection for the job's transaction, again in %g s alias=%s %s: %s",
            UNREACHED_SECONDS, self.using, about, words,
        )  # fmt: skip
        return decide.Snoozed(UNREACHED_SECONDS)


@contextmanager
def one_transaction(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Raise ``RolledBack`` if the block returns and one of its statements has ended the transaction around it."""
    ended = False

    def watch(execute: Callable[..., object], *given: object) -> object:
        nonlocal ended
        before = _status(connection)
        try:
            return execute(*given)
        finally:
            ended = ended or (before in OPEN and _status(connection) == TransactionStatus.IDLE)

    connection.execute_wrappers.append(watch)
    try:
        yield
    finally:
        if watch in connection.execute_wrappers:  # what the body has left there comes behind it
            connection.execute_wrappers.remove(watch)
    if ended:
        raise RolledBack(ENDED)


def _status(connection: BaseDatabaseWrapper) -> TransactionStatus | None:
    return None if connection.connection is None else connection.connection.info.transaction_status


def check_committable(connection: BaseDatabaseWrapper) -> None:
    """Raise ``RolledBack`` if the transaction of a body that has returned cannot be committed any more."""
    if connection.connection is None or connection.closed_in_transaction:
        raise RolledBack(f"{CLOSED} {NOTHING_REMAINS}")
    if connection.needs_rollback:
        raise RolledBack(f"{UNDONE} {NOTHING_REMAINS}")
    if connection.connection.info.transaction_status == TransactionStatus.INERROR:
        raise RolledBack(f"{ABORTED} {NOTHING_REMAINS}")


def log_hook(prepared: Prepared, what: str, error: BaseException) -> None:
    """Log that an ``on_commit`` hook of the job's own has failed, after the COMMIT of ``what``."""
    info, trace = Account(error).for_log()
    words = f"{kind_of(error)}: {text_of(error)}{trace}"
    log.error(
        "on_commit hook failed, the %s is committed all the same %s: %s",
        what, events.facts(prepared.context), words, exc_info=info,
    )  # fmt: skip
