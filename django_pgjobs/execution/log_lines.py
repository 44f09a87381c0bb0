"""The lines that a job logs, kept for its page: taken where they are logged, as far as one attempt may keep them.

A record is taken as ``logging`` makes it, by any logger, in the thread or task that runs the job and in what has its
context: ``asyncio`` tasks and ``sync_to_async``, but not threads that the job starts itself. No handler, level of a
handler, filter or ``propagate`` of the project matters. Until a job here keeps lines, nothing is installed.

Each line has a number that only grows: µs of this machine's monotonic clock. Callbacks, which run under the claim of
the body, continue it.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Protocol

from django_pgjobs import clock
from django_pgjobs.conf import JobBounds, get_conf
from django_pgjobs.exceptions import INTERRUPTS
from django_pgjobs.logs import running
from django_pgjobs.serialization.failures import clean, kind_of, shortened

if TYPE_CHECKING:
    from django_pgjobs.definition.policy import JobPolicy

LINE_CHARS = 8000
"""Characters of a line that are kept, the traceback of its exception included."""

NAME_CHARS = 200

OURS = ("django_pgjobs", "django_pgjobs.jobs")
"""Loggers of this package: what they say of an attempt stands in the history. That of ``context.log`` is not ours."""

MOST_SECONDS = 4e9
"""Records of later instants have a forged one."""

LoggedLine = tuple[int, int, str, str, float]
"""Number, level, logger, text, and seconds since the epoch by this machine's clock."""


class KeepsLines(Protocol):
    """A run whose lines are kept: ``execution.prepared.RunControl``."""

    lines: JobLines | None


class JobLines:
    """The lines of one run that are not sent yet. ``bell`` is rung for each."""

    def __init__(self, level: int, bounds: JobBounds, bell: SimpleQueue[None]) -> None:
        self.level = level
        self.bell = bell
        self.rows: deque[LoggedLine] = deque()
        self.number = 0
        self.lines_left = bounds.log_lines
        self.bytes_left = bounds.log_bytes
        self.skipped = 0
        self.closed = False
        self._taking: set[int] = set()
        self._lock = RLock()
        self._latest: Callable[[], object] = _nothing

    def offer(self, record: logging.LogRecord) -> None:
        """Take a record of the project, once, however many factories it has passed."""
        level = getattr(record, "levelno", None)  # None in what ``makeLogRecord`` makes from the fields of another
        if type(level) is not int or level < self.level or record is self._latest():
            return
        if getattr(record, "name", None) not in OURS:
            self._latest = weakref.ref(record)  # it holds the frames of its exception, and what they hold
            self.take(record)

    def take(self, record: logging.LogRecord) -> None:
        """Keep a record, or count it once the attempt has enough. Raises nothing but an interrupt."""
        if self.lines_left <= 0 or self.closed:
            self.skipped += 1
            return
        thread = get_ident()
        if thread in self._taking:  # a text of the record logs while it is formatted
            return
        self._taking.add(thread)
        try:
            text, name = _text_of(record), _name_of(record)
        finally:
            self._taking.discard(thread)
        size = len(text.encode())
        with self._lock:  # a job has threads, as of ``sync_to_async``
            if self.lines_left <= 0 or size > self.bytes_left:
                self.lines_left = 0
                self.skipped += 1
                return
            self.lines_left -= 1
            self.bytes_left -= size
            self._add(record.levelno, name, text, _instant_of(record))

    def _add(self, level: int, name: str, text: str, at: float) -> None:
        with self._lock:
            self.number = max(self.number + 1, clock.monotonic_ns() // 1000)
            self.rows.append((self.number, min(max(level, 0), 1000), name, text, at))
        self.bell.put(None)

    def sent(self) -> list[LoggedLine]:
        """Remove and return what is to be sent."""
        return [self.rows.popleft() for _ in range(len(self.rows))]

    def close(self, bounds: JobBounds) -> JobLines:
        """Take no more, and say how many lines were left out."""
        self.closed, skipped = True, self.skipped
        if skipped:
            most = f"an attempt keeps {bounds.log_lines} lines and {bounds.log_bytes} bytes"
            self._add(logging.WARNING, "django_pgjobs", f"{skipped} more lines were left out: {most}", time.time())
        return self


def _nothing() -> None:
    return None


def _text_of(record: logging.LogRecord) -> str:
    """Return what a line says, with the traceback of its exception; of one that cannot be formatted, why."""
    try:
        text = record.getMessage()
        info = record.exc_info
        if isinstance(info, tuple) and info[1] is not None:
            text = f"{text}\n{''.join(traceback.format_exception(info[1]))}".rstrip()
        return clean(shortened(str.__str__(text), LINE_CHARS))
    except INTERRUPTS:
        raise  # it is meant for the job
    except Exception as error:
        words = record.msg[:LINE_CHARS] if type(record.msg) is str else ""
        return clean(f"{words} ({kind_of(error)})")


def _name_of(record: logging.LogRecord) -> str:
    return clean(record.name[:NAME_CHARS]) if type(record.name) is str else ""  # a factory may have changed it


def _instant_of(record: logging.LogRecord) -> float:
    made = record.created
    return made if type(made) is float and 0.0 <= made <= MOST_SECONDS else time.time()


def as_json(lines: Iterable[Sequence[object]]) -> str:
    """Return lines as ``store.finalising.write_lines`` takes them. Raises ``ValueError`` for other lists."""
    columns = ("number", "level", "logger", "message", "at")
    return json.dumps([dict(zip(columns, line, strict=True)) for line in lines])


def level_of(definition: JobPolicy) -> int:
    """Return from which level on the lines of such jobs are kept; 0 for none."""
    declared = definition._log_level
    return get_conf().job_logs or 0 if declared is None else declared


def begin(control: KeepsLines, level: int, bell: SimpleQueue[None] | None = None) -> JobLines:
    """Keep the lines of the run of ``control`` from now on."""
    _install()
    control.lines = JobLines(level, get_conf().bounds, bell or SimpleQueue())
    return control.lines


def _install() -> None:
    made: Callable[..., logging.LogRecord] = logging.getLogRecordFactory()
    if getattr(made, "keeps_lines", False):
        return

    def make(*args: object, **kwargs: object) -> logging.LogRecord:
        record = made(*args, **kwargs)
        lines: JobLines | None = getattr(getattr(running.get(None), "control", None), "lines", None)
        if lines is not None:
            lines.offer(record)
        return record

    make.keeps_lines = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make)
