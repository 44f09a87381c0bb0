"""In the executor: a soft limit reaches a job in a thread between two queries, never between a query and its answer.

A job that catches ``SoftDeadlinePassed`` keeps its connections. An exception from outside that arrives while the driver
talks to the server, or while ``atomic`` begins or ends, would leave them out of step. At a soft limit, for this reason:

* no other thread raises it while the job is in the driver or in Django's code around it (``is_in_driver``);
* the thread raises it itself before its next query, for one that does nothing but send queries is hardly ever seen
  outside the driver: in an ``execute_wrapper`` on Django's connections, and in ``Connection.wait`` of psycopg, through
  which all conversation with the server passes, that of raw and server-side cursors too;
* a query for which the thread waits ``QUERY_SECONDS`` more is cancelled on the server. Its ``QueryCanceled`` becomes
  ``SoftDeadlinePassed`` in ``Connection.wait``, as soon as the driver has read that answer.

A request to cancel that comes late would hit the job's next query. The thread thus leaves a wait only while none is
under way: it and the thread that cancels pop the same element, and only the one that gets it continues at once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, wraps
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import django.db.backends
import psycopg
from django.db import connections, transaction, utils
from django.db.backends.base import base
from django.db.backends.signals import connection_created
from django.db.models import query
from django.db.models.sql import compiler
from psycopg.errors import QueryCanceled
from psycopg.pq import TransactionStatus

from django_pgjobs.exceptions import SoftDeadlinePassed
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.worker.executor.cancelling import CANCEL_SECONDS, cancel_queries

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

OUR_FILES.add(__file__)

QUERY_SECONDS = 0.15
"""Time that a query may still last at the soft limit before it is cancelled."""

_DRIVER = Path(psycopg.__file__).parent
_FOLDERS = (f"{_DRIVER}/", f"{_DRIVER.with_name('psycopg_pool')}/", f"{Path(django.db.backends.__file__).parent}/")
_FILES = {__file__, utils.__file__, transaction.__file__, compiler.__file__}
_ITERATES = {"__iter__", "_iterator"}  # of ``QuerySet``: they may have a server-side cursor that is still open

_TRANSACTIONS = {transaction.__file__, base.__file__, f"{_DRIVER}/transaction.py"}
"""Code in which transactions, savepoints and connections begin and end, which must not be left halfway."""

_HOOKS = {
    base.BaseDatabaseWrapper.on_commit.__code__,
    base.BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__,
}
"""They call functions of the job's for ``on_commit``: its own code again, outside the transaction."""

_here = threading.local()


class SoftLimit:
    """The soft limit of the job that this thread runs; watches the thread's connections until ``end``.

    ``is_open`` says whether the job's own code runs, which begins below a frame of ``within``.
    """

    def __init__(
        self, control: RunControl, wrappers: list[BaseDatabaseWrapper], is_open: Callable[[], bool], within: CodeType
    ) -> None:
        self.control = control
        self.is_open = is_open
        self.within = within
        self.right: list[None] = []  # the right to raise, from the soft limit on: only the thread that pops it may
        self.raised = False  # by the job's thread, in a query
        self.waits_on: list[object] = []  # the psycopg connection, until the wait is over or being cancelled
        self.answered = threading.Event()  # no request to cancel that wait is under way
        self.cancelled: object = None  # the connection; COPY may hear of it only in its next wait
        self._seen: list[object] = []
        self._seen_at = 0.0
        _watch_driver()
        _here.limit = self
        self.watched: list[BaseDatabaseWrapper] = []
        for wrapper in wrappers:
            self.watch(wrapper)

    def watch(self, wrapper: BaseDatabaseWrapper) -> None:
        """Raise the soft limit before queries by this database wrapper of Django's."""
        if wrapper not in self.watched:
            self.watched.append(wrapper)
            wrapper.execute_wrappers.insert(0, self.before_query)  # who appends one pops the last

    def end(self) -> None:
        """Watch nothing any more."""
        _here.limit = None
        for wrapper in self.watched:
            with suppress(ValueError):  # the job has removed it
                wrapper.execute_wrappers.remove(self.before_query)

    # In the control thread, or the one that holds an interrupt back

    def arm(self) -> None:
        """Have the soft limit raised once from now on."""
        self.raised = False
        if not self.right:
            self.right.append(None)

    def take(self) -> bool:
        """Take the right to raise; return False if another thread has taken it."""
        try:
            self.right.pop()
        except IndexError:
            return False
        return True

    def hasten(self, ident: int) -> None:
        """Cancel the query that thread ``ident`` waits for, if it was seen ``QUERY_SECONDS`` ago. Call repeatedly."""
        waits_on, now = self.waits_on, time.monotonic()
        if waits_on is not self._seen:
            self._seen, self._seen_at = waits_on, now
        if (
            waits_on
            and now - self._seen_at >= QUERY_SECONDS
            and is_statement(sys._current_frames().get(ident), self.within)
        ):
            with suppress(IndexError):  # the wait is over
                if _is_active(waits_on[0]):
                    answered = self.answered = threading.Event()
                    self.cancelled = waits_on.pop()
                    cancel_queries([self.cancelled], answered.set)

    # In the job's thread

    def before_query(
        self, execute: Callable[..., object], sql: object, params: object, many: bool, context: object
    ) -> object:
        """Raise the soft limit if it has passed, or else send a query: for ``connection.execute_wrappers``."""
        if self.right and not _has(_TRANSACTIONS, sys._getframe(1), self.within) and self._may_raise():
            raise SoftDeadlinePassed
        return execute(sql, params, many, context)

    def wait(self, wait: Callable[..., object], raw: object, *args: object, **kwargs: object) -> object:
        """Call psycopg's ``wait`` of the connection ``raw``.

        Raise the soft limit in its place if a statement begins, and behind it if the statement was cancelled for that.
        """
        if self.right and not _is_active(raw) and is_statement(sys._getframe(1), self.within) and self._may_raise():
            raise SoftDeadlinePassed
        outer, waits_on = self.waits_on, [raw]
        self.waits_on = waits_on
        try:
            value = wait(raw, *args, **kwargs)
        except BaseException as error:
            self._leave(waits_on, outer)
            if isinstance(error, QueryCanceled) and self.cancelled is raw and self._may_raise():
                raise SoftDeadlinePassed from error
            raise
        self._leave(waits_on, outer)
        return value

    def _leave(self, waits_on: list[object], outer: list[object]) -> None:
        """Leave a wait. Blocks while a request to cancel is under way."""
        self.waits_on = outer
        try:
            waits_on.pop()
        except IndexError:
            self.answered.wait(2 * CANCEL_SECONDS)

    def _may_raise(self) -> bool:
        """Take the right to raise in this thread; False if the job has ended or is being stopped."""
        if not self.is_open() or self.control.interrupt is not SoftDeadlinePassed or not self.take():
            return False
        self.raised = self.control.interrupted = True
        return True


def _is_active(raw: Any) -> bool:
    return not raw.closed and raw.info.transaction_status == TransactionStatus.ACTIVE


@cache
def _watch_driver() -> None:
    connection_created.connect(_watch, dispatch_uid="django_pgjobs.soft_limit")
    wait: Callable[..., object] = psycopg.Connection.wait

    @wraps(wait)
    def watched(connection: object, *args: object, **kwargs: object) -> object:
        limit: SoftLimit | None = getattr(_here, "limit", None)
        if limit is None:
            return wait(connection, *args, **kwargs)
        return limit.wait(wait, connection, *args, **kwargs)

    psycopg.Connection.wait = watched  # type: ignore[assignment, method-assign]


def _watch(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    limit: SoftLimit | None = getattr(_here, "limit", None)
    # A wrapper that its alias does not lead to has another owner, such as an inline worker.
    if limit is not None and getattr(connections._connections, connection.alias, None) is connection:  # type: ignore[attr-defined]
        limit.watch(connection)


def is_in_driver(frame: FrameType | None, within: CodeType) -> bool:
    """Return whether a thread is in the driver or in Django's code around it; only frames inside ``within`` count."""
    return any(_is_of_driver(each.f_code.co_filename, each.f_code.co_name) for each in _frames(frame, within))


def is_statement(frame: FrameType | None, within: CodeType) -> bool:
    """Return whether a thread runs a statement of the job's: not the begin or end of a transaction or cursor."""
    if _has(_TRANSACTIONS, frame, within):
        return False
    names = {each.f_code.co_name for each in _frames(frame, within) if _is_of_cursor(each.f_code.co_filename)}
    return bool(names) and "close" not in names


def _has(files: set[str], frame: FrameType | None, within: CodeType) -> bool:
    return any(each.f_code.co_filename in files for each in _frames(frame, within))


def _frames(frame: FrameType | None, within: CodeType) -> Iterator[FrameType]:
    """Yield the frames of the job's code, the innermost first."""
    innermost = frame
    while frame is not None and frame.f_code is not within and (frame is innermost or frame.f_code not in _HOOKS):
        yield frame
        frame = frame.f_back


@lru_cache(1000)
def _is_of_driver(file: str, name: str) -> bool:
    return file in _FILES or file.startswith(_FOLDERS) or (file == query.__file__ and name in _ITERATES)


@lru_cache(1000)
def _is_of_cursor(file: str) -> bool:
    path = Path(file)
    return path.parent == _DRIVER and ("cursor" in path.name or "copy" in path.name)
