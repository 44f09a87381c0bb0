"""Kills of a job that a test plays, at any statement or commit, on connections whose transactions are savepoints.

Within a *trial* all is rolled back in the end. Each connection believes that it is in autocommit, outside of the test's
transaction: its transactions, and statements outside of them, are savepoints, constraints that are checked at a COMMIT
are checked at its end, and ``on_commit`` hooks run after it. Once the process is dead no statement reaches the server,
and what its open transactions had written is rolled back, as the server does when a client is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from django_pgjobs import decisions as decide
from django_pgjobs.exceptions import JobSuspended, WorkerStopping
from django_pgjobs.execution import attempt
from django_pgjobs.execution.durable import DurableMemory
from django_pgjobs.execution.single_job import Performer, WrittenEnd
from django_pgjobs.testing import crashing
from django_pgjobs.testing.running import JobRunner

if TYPE_CHECKING:
    from django_pgjobs.decisions import Decision
    from django_pgjobs.execution.prepared import Prepared, RunControl
    from django_pgjobs.store.claiming import ClaimedJob

_UNDO = re.compile(r"\s*ROLLBACK\s+TO\b", re.I)
_NESTED = re.compile(r"\s*(SAVEPOINT|RELEASE|ROLLBACK\s+TO)\b", re.I)
_REFUSED = re.compile(r"\s*(BEGIN|START\s+TRANSACTION|COMMIT|END|ROLLBACK|ABORT|PREPARE\s+TRANSACTION)\b", re.I)
_LOCKS = re.compile(r"\bpg_(try_)?advisory_lock(_shared)?\s*\(", re.I)
_DEFERRED = (
    "SELECT CASE WHEN bool_or(NOT condeferred) THEN"
    " string_agg(format('%I.%I', nspname, conname), ', ') FILTER (WHERE condeferred) ELSE 'ALL' END"
    " FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace"
    " WHERE condeferrable AND nspname = ANY(current_schemas(false))"
)
"""The constraints that wait for the COMMIT of a transaction that says nothing about them."""

_BODY, _SINGLE = "pgjobs_transaction", "pgjobs_statement"


SentSoFar = tuple[int, float]
"""Numbers of what was sent: mails, and other things."""


class Killed(JobSuspended):
    """The process is dead, as far as the job can see."""


class Moment(NamedTuple):
    """Something that a kill can come before or after: a ``query``, a ``commit``, or the function's ``return``."""

    what: str
    text: str
    using: str


class Kill(NamedTuple):
    """A death before or after the moment of this index."""

    at: int
    before: bool


class Doom:
    """The course of a run, moment by moment, and the kill that ends it. ``mark`` counts what was sent.

    ``sent``: at the end of the latest moment; ``again``: when the job was to run again.
    """

    def __init__(self, mark: Callable[[], SentSoFar], kill: Kill | None = None) -> None:
        self._mark = mark
        self.kill = kill
        self.moments: list[Moment] = []
        self.sent_before: set[int] = set()
        self.again: SentSoFar | None = None
        self.watching = self.dead = False
        self.sent = self.sent_at_death = self.mark()
        self.control: RunControl | None = None
        self.connections: list[PlayedTransactions] = []

    def mark(self) -> SentSoFar:
        """Return how much was sent; what is asked for that, maybe of a database, is no part of the run."""
        watching, self.watching = self.watching, False
        try:
            return self._mark()
        finally:
            self.watching = watching

    def begins(self, what: str, text: str, using: str) -> None:
        """Note a moment that begins, and die if the kill comes before it."""
        self.moments.append(Moment(what, text, using))
        if self.mark() != self.sent:
            self.sent_before.add(len(self.moments) - 1)
        self._die_if(before=True)

    def is_over(self) -> None:
        """Note that the moment is over, and die if the kill comes after it."""
        self.sent = self.mark()
        self._die_if(before=False)

    def _die_if(self, *, before: bool) -> None:
        if self.kill == Kill(len(self.moments) - 1, before):
            self.sent_at_death, self.dead = self.mark(), True
            if self.control is not None:
                self.control.interrupt = WorkerStopping  # so its end, never written, is not logged as a failure
            for connection in self.connections:
                connection._rollback()
            raise Killed

    def execute(self, execute: Callable[..., object], sql: str, params: object, many: bool, context: Any) -> object:
        """Run a statement as the server does for a client that commits each by itself, unless it has begun one."""
        connection, text = cast("PlayedTransactions", context["connection"]), str(sql)
        if self.dead:
            if _UNDO.match(text):
                return None
            raise Killed
        if _REFUSED.match(text) and not _UNDO.match(text):
            raise ValueError(f"{text!r} cannot be played in a test: use transaction.atomic()")
        if _LOCKS.search(text):
            raise ValueError(f"{text!r} would outlive the test: use pg_advisory_xact_lock()")
        nested = _NESTED.match(text) is not None
        if watched := self.watching and not nested:
            self.begins("query", text, connection.alias)
        found = connection._play(lambda: execute(sql, params, many, context))
        if watched:
            self.is_over()
        return found

    def elsewhere(self, execute: Callable[..., object], sql: str, params: object, many: bool, context: Any) -> NoReturn:
        """Refuse a statement on a connection whose writes cannot be taken back."""
        raise ValueError(f"the database {context['connection'].alias!r} is no PostgreSQL: kills cannot be played there")


class PlayedTransactions:
    """Mixed into the class of a connection of Django's for as long as its transactions are played."""

    alias: str
    autocommit: bool
    connection: Any
    cursor: Any
    wrap_database_errors: Any
    _doom: Doom
    _deferred: str
    _is_open: bool

    def close(self) -> None:
        """Stay open: the test's transaction is on this connection."""

    def chunked_cursor(self) -> Any:
        """Read all at once: a dead process could still close a cursor of the server, past all wrappers."""
        return self.cursor()

    def _set_autocommit(self, autocommit: bool) -> None:
        """Do nothing: a transaction begins with its first statement."""

    def _commit(self) -> None:
        doom = self._doom
        if doom.dead:
            raise Killed
        if self._is_open:
            if doom.watching:
                doom.begins("commit", "COMMIT", self.alias)
            self._is_open = False
            self._end(_BODY)
            if doom.watching:
                doom.is_over()

    def _rollback(self) -> None:
        if self._is_open:
            self._is_open = False
            self._undo(_BODY)

    def _play(self, execute: Callable[[], object]) -> object:
        if not self.autocommit:
            if not self._is_open:
                self._send(f"SAVEPOINT {_BODY}")
                self._is_open = True
            return execute()
        self._send(f"SAVEPOINT {_SINGLE}")
        try:
            found = execute()
        except BaseException:
            self._undo(_SINGLE)
            raise
        self._end(_SINGLE)
        return found

    def _end(self, name: str) -> None:
        try:
            again = f"SET CONSTRAINTS {self._deferred} DEFERRED; " if self._deferred else ""
            self._send(f"SET CONSTRAINTS ALL IMMEDIATE; {again}RELEASE SAVEPOINT {name}")
        except BaseException:
            self._undo(name)
            raise

    def _undo(self, name: str) -> None:
        self._send(f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}")

    def _send(self, text: str) -> None:
        with self.wrap_database_errors:
            self.connection.execute(text, prepare=False)


def _fresh() -> dict[str, object]:
    """Return the state of a connection outside of transactions."""
    no = ("in_atomic_block", "needs_rollback", "closed_in_transaction", "errors_occurred", "health_check_enabled")
    none = dict.fromkeys((*no, "run_commit_hooks_on_set_autocommit_on", "_is_open"), False)
    lists: dict[str, Any] = {"savepoint_ids": [], "atomic_blocks": [], "run_on_commit": []}
    return none | lists | {"commit_on_exit": True, "autocommit": True, "close_at": None, "rollback_exc": None}


@contextmanager
def played(doom: Doom, ours: Sequence[Any], others: Sequence[Any]) -> Iterator[None]:
    """Play the transactions of ``ours``, and refuse statements on ``others``; leave all of them as they were."""
    kept = [(each, type(each), dict(each.__dict__), list(each.execute_wrappers)) for each in (*ours, *others)]
    try:
        for each in others:
            each.execute_wrappers.insert(0, doom.elsewhere)
        for each in ours:
            with each.cursor() as cursor:
                cursor.execute(_DEFERRED)
                deferred = cursor.fetchone()[0]
            each.__dict__.update(_fresh(), _doom=doom, _deferred=deferred)
            each.execute_wrappers.insert(0, doom.execute)
            each.__class__ = type(type(each).__name__, (PlayedTransactions, type(each)), {})
        doom.connections = [*ours]
        yield
    finally:
        for each, kind, state, wrappers in kept:
            each.__class__ = kind
            each.execute_wrappers[:] = wrappers
            for name in (*_fresh(), "_doom", "_deferred"):
                each.__dict__.pop(name, None)
                each.__dict__.update({name: state[name]} if name in state else {})


class DoomedRunner(JobRunner):
    """Runs one job on played connections; a kill leaves it to be rescued, as that of a dead worker."""

    def __init__(self, using: str, doom: Doom, *, after_kill: Callable[[], None]) -> None:
        super().__init__(using, raise_errors=False, early=True)
        self.doom = doom
        self.after_kill = after_kill

    def _perform(self, job: ClaimedJob, errors: list[BaseException]) -> WrittenEnd | None:
        performer = Performer(self.db, self.author, self._run, using=self.using)
        try:
            return performer.perform(job)
        except Killed:
            self.doom.dead, self.doom.kill = False, None
            errors.clear()
            for each in self.doom.connections:
                each.__dict__.update(_fresh())  # the process that follows has new ones, and no hooks of this one
            self.doom.again = self.doom.mark()
            self.after_kill()
            crashing.rescue(self.db, self.using, job.claim_id)
            return None
        finally:
            self.doom.watching = False

    def _run(self, prepared: Prepared) -> Decision:
        doom = self.doom
        doom.control, doom.watching = prepared.control, True
        prepared.memories = PlayedMemories(self.using)
        decision = attempt.run_here(prepared)
        if doom.dead:
            raise Killed
        if not isinstance(decision, decide.Committed):
            doom.begins("return", "", self.using)
            doom.is_over()
        doom.watching = False
        return decision


@dataclass(frozen=True, slots=True)
class PlayedMemories:
    """Opens the memory of a job on a played connection."""

    using: str

    def of(self, prepared: Prepared) -> DurableMemory:
        """Return the memory of the job, always the same."""
        if prepared.memory is None:
            prepared.memory = PlayedMemory(prepared, self.using)
        found: DurableMemory = prepared.memory
        return found


class PlayedMemory(DurableMemory):
    """The memory of a job whose transactions are savepoints."""

    def _check_no_begin(self, what: str) -> None:
        """Do nothing: a transaction is always open, the test's."""
