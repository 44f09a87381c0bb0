"""One question to several databases, side by side: each answers within two seconds, or it is said why it did not.

For what shows several databases at once: pages, shell commands, metrics. A question is a function of an alias. It runs
in a thread, whose Django connection of that alias is one of its own, so the ORM and statements of ``sql/`` work in it
as anywhere. The thread has the caller's context: its language, its time zone.

* **The caller is back in time.** It waits for the threads alone, never for a name server, a connection, a statement, or
  the end of one.
* **Nothing is left behind.** A connection that is overdue is cut, which ends its thread. One that is being opened ends
  by libpq's own timeout. The server gives the statement up, too.
* **Nothing piles up.** Of a process, at most ``MOST_ASKING`` threads ask one database at once. Further ones wait for
  their turn, and end when their time is over: a page that is loaded each second has few threads at a frozen server.
* **One database is not shown twice**: of two aliases that lead to the same, the second says so instead.

One database alone is asked in the caller's thread, on its own connection, without a bound: as if this were not there.
One in which a ``TestCase`` has opened a transaction is, too: no other connection sees what the test has written.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from django.db import DatabaseError, InterfaceError, connections
from django.utils import timezone, translation
from django.utils.connection import ConnectionDoesNotExist

from django_pgjobs import clock
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import keeping
from django_pgjobs.store.database import configure, is_not_migrated, on
from django_pgjobs.store.own_connection import cut, own_wrapper, use_autocommit
from django_pgjobs.store.waking import is_of_a_test_case

SECONDS = 2.0
"""Time that all answers together may take."""

MOST_ASKING = 8
"""Number of threads of a process that ask one database at once."""

CANCELLED = "57014"
"""SQLSTATE: the statement has run into its timeout."""

WAYS = {"connect_timeout": 2, "tcp_user_timeout": 2_000}
"""Parameters of libpq, over those of the project, which may be patient. It knows no shorter time to connect."""

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)


class NoAnswer(NamedTuple):
    """Why a database gave no answer.

    ``code``: *unreachable*, *silent*, *unmigrated*, *same*, *refused* or *unknown*. ``text`` says it in a clause about
    *it*, the database; it may have words of the server, so it is for operators only.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer_co]):
    """The answer of the database ``alias``; or None, and the ``trouble``."""

    alias: str
    answer: Answer_co | None = None
    trouble: NoAnswer | None = None


def ask_each(
    aliases: Sequence[str], question: Callable[[str], Answer], *, seconds: float = SECONDS, bounded: bool = False
) -> list[Reply[Answer]]:
    """Ask each database the question, and return the replies in this order; ``bounded``: also one alone is one of many.

    Raises what a question raised, unless it is an error of the database. Of a single alias that is raised as well.
    """
    if len(aliases) == 1 and not bounded:
        return [Reply(aliases[0], question(aliases[0]))]
    until = clock.monotonic() + seconds
    done: queue.SimpleQueue[_Asker[Answer]] = queue.SimpleQueue()
    askers = [_Asker(alias, question, until, done) for alias in aliases]
    apart = [asker for asker in askers if not _is_tested(asker.alias)]
    try:
        for asker in apart:
            asker.start()
        for asker in askers:
            if asker not in apart:
                asker.answer_here()
        waiting = len(apart)
        while waiting and (left := until - clock.monotonic()) > 0:
            try:
                done.get(timeout=left)
            except queue.Empty:
                break
            waiting -= 1
    finally:
        for asker in apart:
            asker.give_up()
    return _without_twins([asker.found(seconds) for asker in askers])


def _is_tested(alias: str) -> bool:
    known = {each.alias: each for each in connections.all(initialized_only=True)}
    return alias in known and is_of_a_test_case(known[alias])


def _without_twins(found: Sequence[tuple[object, Reply[Answer]]]) -> list[Reply[Answer]]:
    first: dict[object, str] = {}
    replies = []
    for identity, reply in found:
        if identity is not None and (other := first.setdefault(identity, reply.alias)) != reply.alias:
            reply = Reply(reply.alias, trouble=NoAnswer("same", f"it is the same database as {other!r}"))
        replies.append(reply)
    return replies


_slots: dict[str, threading.Semaphore] = {}
os.register_at_fork(after_in_child=_slots.clear)


class _Asker(threading.Thread, Generic[Answer]):
    """Asks one database; puts itself into ``done`` when it has."""

    def __init__(
        self,
        alias: str,
        question: Callable[[str], Answer],
        until: float,
        done: queue.SimpleQueue[_Asker[Answer]],
    ) -> None:
        super().__init__(name=f"pgjobs-ask-{alias}", daemon=True)
        self.alias = alias
        self.question = question
        self.until = until
        self.done = done
        # asgiref keeps them from threads, in whatever context
        self.context, self.language = copy_context(), translation.get_language()
        self.zone = timezone.get_current_timezone()
        self.lock = threading.Lock()
        self.overdue = False
        self.wrapper: Any = None
        self.identity: object = None
        self.reply: Reply[Answer] | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Wait for a turn, ask, and close the connection."""
        slot = _slots.setdefault(self.alias, threading.Semaphore(MOST_ASKING))
        if not slot.acquire(timeout=max(0.0, self.until - clock.monotonic())):
            return
        try:
            self.context.run(self._answer_apart)
        finally:
            with self.lock:
                if self.wrapper is not None:
                    self.wrapper.close()
                self.wrapper = None
            connections.close_all()
            slot.release()
            self.done.put(self)

    def answer_here(self) -> None:
        """Ask in the caller's thread, on its own connection."""
        self._answer(lambda: None)

    def give_up(self) -> None:
        """End it if it has not ended; called by the caller."""
        with self.lock:
            self.overdue = True
            if self.wrapper is not None and self.wrapper.connection is not None:
                cut(self.wrapper.connection)

    def found(self, seconds: float) -> tuple[object, Reply[Answer]]:
        """Return the database that it is, None if that is not known, and the reply. Raises what the question did."""
        error, reply = self.error, self.reply  # as they are now: the thread still runs
        if error is not None:
            raise error
        silent = NoAnswer("silent", f"it does not answer within {seconds:g} s")
        if reply is None or (reply.trouble is not None and reply.trouble.code == "silent"):
            return None, Reply(self.alias, trouble=silent)
        return (None if reply.trouble else self.identity), reply

    def _answer_apart(self) -> None:
        with translation.override(self.language), timezone.override(self.zone):
            self._answer(self._connect)

    def _answer(self, connect: Callable[[], object]) -> None:
        try:
            connect()
            seen = keeping.read_identity(on(self.alias))
            if seen.table is None:
                self.reply = Reply(self.alias, trouble=_unmigrated(self.alias))
                return
            self.identity = seen.table_identity
            if self.wrapper is not None and seen.backend_pid == self.wrapper.connection.info.backend_pid:
                # Behind a pooler it would be set for the next client of the server process.
                left = f"{max(1, round(1000 * (self.until - clock.monotonic())))}ms"
                configure(on(self.alias), {"statement_timeout": left}, local=False)
            self.reply = Reply(self.alias, self.question(self.alias))
        except (DatabaseError, InterfaceError, psycopg.Error, OSError, ConnectionDoesNotExist) as error:
            self.reply = Reply(self.alias, trouble=self._trouble(error))
            _loosen(error)
        except BaseException as error:
            self.error = error

    def _connect(self) -> None:
        if self.alias not in connections.settings:
            raise ConnectionDoesNotExist(f"DATABASES has no alias {self.alias!r}")
        wrapper = own_wrapper(self.alias, {}, WAYS)
        if wrapper.vendor != "postgresql":
            raise ConnectionDoesNotExist(f"it is not PostgreSQL ({wrapper.vendor})")
        self.wrapper = connections[self.alias] = wrapper
        wrapper.ensure_connection()
        with self.lock:
            if self.overdue:
                raise TimeoutError
        use_autocommit(wrapper)

    def _trouble(self, error: BaseException) -> NoAnswer:
        words, cause = one_line(error), error.__cause__ or error
        state = getattr(cause, "sqlstate", None)
        if isinstance(error, ConnectionDoesNotExist):
            return NoAnswer("unknown", words)
        if is_not_migrated(error):
            return _unmigrated(self.alias)
        if self.overdue or state == CANCELLED or isinstance(cause, TimeoutError | psycopg.errors.ConnectionTimeout):
            return NoAnswer("silent", words)
        if isinstance(cause, OSError | psycopg.OperationalError | psycopg.InterfaceError):
            return NoAnswer("unreachable", f"it cannot be reached: {words}")
        return NoAnswer("refused", f"it refuses: {words}")


def _loosen(error: BaseException | None) -> None:
    """Part an error from its frames: together they would hold a socket until the garbage collector comes by."""
    while error is not None:
        error.__traceback__, error = None, error.__cause__ or error.__context__


def _unmigrated(alias: str) -> NoAnswer:
    words = "its tables of django-pgjobs are not there, or older than this code: run manage.py migrate --database"
    return NoAnswer("unmigrated", f"{words} {alias}")
