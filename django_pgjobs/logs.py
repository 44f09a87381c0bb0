"""Logging of this package: with loggers that raise nothing, since handlers, filters and formatters are project code.

Otherwise a handler that raises would break its caller: a job's thread before it reports its outcome, a loop of the
worker, a registering transaction. A record that cannot be logged goes to stderr in one line.

A line is a fixed phrase, then facts as ``key=value``, then, behind ``: ``, free text. The writers of rows choose names,
queues and messages, so each value is bounded, and quoted where it could pass for another fact.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Protocol

from django_pgjobs.exceptions import INTERRUPTS
from django_pgjobs.serialization.escapes import bounded, one_line, quoted

LIMIT = 4000
"""Number of characters of a record that go to stderr if it cannot be logged."""

speaks_of: ContextVar[str] = ContextVar("django_pgjobs_alias", default="")
"""The alias that all lines of this thread are about, empty where there is only one to tell."""

running: ContextVar[Any] = ContextVar("django_pgjobs_context")
"""The job that runs here: its ``JobContext``, or what makes one when asked and has its facts as ``item``.

``context`` sets it.
"""

_MAY_KEEP_LOCKS = sys.version_info < (3, 13)
"""True if ``logging`` takes its locks by a call: an exception from outside, right after it, leaves them held."""

_CALLER = 3
"""Frames from the standard logger up to the caller."""

VALUE_LIMIT = 400
"""Number of characters of a value that are logged: more than the longest name that a registration accepts."""

TEXT_LIMIT = 100_000
"""Number of characters of free text that are logged, such as a traceback that no handler could format."""

NAMED = 20
"""Number of names of a list that are logged."""

_CONVERSION = re.compile(r"%%|(=)?%[-.\d]*[a-z]")


class AttemptFacts(Protocol):
    """The facts of a job that every log line about an attempt names."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def claim_id(self) -> str: ...
    @property
    def description(self) -> str: ...


class JobFacts(AttemptFacts, Protocol):
    """The facts that an attempt has about its job; ``store.claiming.ClaimedJob`` implements it."""

    @property
    def kind(self) -> str: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def run_at(self) -> datetime: ...
    @property
    def extras(self) -> Mapping[str, object] | None: ...
    @property
    def until(self) -> float | None: ...
    @property
    def target(self) -> int | None: ...


class Facts(str):
    """Facts as ``key=value`` that ``facts`` has made harmless: they go into a line as they are."""

    __slots__ = ()


def facts(words: str, *args: object) -> Facts:
    """Return ``words % args`` for a log line, each value made harmless as in a line itself."""
    return Facts(words % tuple(_shown(words, args)))


def facts_of_attempt(
    name: str, job: int, attempt: int, most: int | None, claim: object, queue: str, *, database: str = ""
) -> Facts:
    """Return the facts that every line about an attempt carries, in their order; ``most``: attempts, if known.

    ``database``: the alias, where there is more than one to tell.
    """
    number = attempt if most is None else Facts(f"{attempt}/{most}")
    found = facts("name=%s job=%s attempt=%s claim=%s queue=%s", name, job, number, claim, queue)
    return Facts(found + facts(" alias=%s", database)) if database else found


def listed(names: Iterable[str]) -> Facts:
    """Return names as one value: sorted, separated by commas, ``…`` for those beyond the first ``NAMED``."""
    every = sorted(names) or [""]
    shown = [quoted(name, VALUE_LIMIT) for name in every[:NAMED]]
    return Facts(",".join(shown if len(every) <= NAMED else [*shown, "…"]))


def _shown(message: str, args: tuple[object, ...]) -> Iterator[object]:
    """Return ``args`` so that no text breaks the line, or passes for another fact."""
    for value, is_fact in zip(args, chain(_are_values(message), repeat(False)), strict=False):
        if value is None or isinstance(value, int | float | Facts):
            yield value
        else:
            yield quoted(value, VALUE_LIMIT) if is_fact else bounded(value, TEXT_LIMIT)


@lru_cache(512)
def _are_values(message: str) -> tuple[bool, ...]:
    """Return for each conversion whether its value has a key before it."""
    return tuple(found[1] is not None for found in _CONVERSION.finditer(message) if found[0] != "%%")


@contextmanager
def speaking_of(alias: str) -> Iterator[None]:
    """Within the block, let all lines of this thread say this alias; nothing if it is empty."""
    token = speaks_of.set(alias)
    try:
        yield
    finally:
        speaks_of.reset(token)


class SafeLogger:
    """A logger of the standard library whose calls never raise exceptions of a project's handlers or filters."""

    __slots__ = ("isEnabledFor", "logger")

    def __init__(self, name: str) -> None:
        self.logger = logging.getLogger(name)
        self.isEnabledFor = self.logger.isEnabledFor  # not a method around it: each job asks twice

    def debug(self, message: str, *args: object, **options: object) -> None:
        """Log at DEBUG."""
        self._log(logging.DEBUG, message, args, options)

    def info(self, message: str, *args: object, **options: object) -> None:
        """Log at INFO."""
        self._log(logging.INFO, message, args, options)

    def warning(self, message: str, *args: object, **options: object) -> None:
        """Log at WARNING."""
        self._log(logging.WARNING, message, args, options)

    def error(self, message: str, *args: object, **options: object) -> None:
        """Log at ERROR."""
        self._log(logging.ERROR, message, args, options)

    def critical(self, message: str, *args: object, **options: object) -> None:
        """Log at CRITICAL."""
        self._log(logging.CRITICAL, message, args, options)

    def exception(self, message: str, *args: object, **options: object) -> None:
        """Log at ERROR, with the exception that is being handled."""
        self._log(logging.ERROR, message, args, {"exc_info": True, **options})

    def log(self, level: int, message: str, *args: object, **options: object) -> None:
        """Log at ``level``."""
        self._log(level, message, args, options)

    def _log(self, level: int, message: str, args: tuple[object, ...], options: dict[str, Any]) -> None:
        if not self.logger.isEnabledFor(level):
            return
        if (alias := speaks_of.get()) and not any(isinstance(arg, Facts) and " alias=" in arg for arg in args):
            phrase, colon, text = message.partition(": ")
            message = f"{phrase} {facts('alias=%s', alias).replace('%', '%%')}{colon}{text}"
        try:
            self.logger.log(level, message, *_shown(message, args), stacklevel=_CALLER, **options)
        except INTERRUPTS:
            raise  # it is meant for the job that called us
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and _is_real():
                raise
            write_to_stderr(level, message, args, error)
        finally:
            if _MAY_KEEP_LOCKS and not _is_logging():
                release_logging()


def safe_logger(name: str) -> SafeLogger:
    """Return the logger of this name, made safe."""
    return SafeLogger(name)


log = safe_logger("django_pgjobs")


def _is_real() -> bool:
    """Return whether a KeyboardInterrupt may come from the keyboard, if this process handles SIGINT at all."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def release_logging() -> None:
    """Release locks of ``logging`` that an exception left held in this thread, unless it is logging now.

    Otherwise every thread of this process would wait for them forever, even if ``logging`` caught the exception.
    """
    handlers = [ref() for ref in list(logging._handlerList)]  # type: ignore[attr-defined]
    for lock in [logging._lock, *(handler.lock for handler in handlers if handler is not None)]:  # type: ignore[attr-defined]
        while lock is not None and lock._is_owned():
            lock.release()


def _is_logging() -> bool:
    """Return whether this thread is inside ``logging``, as in a handler that logs: its locks are still needed."""
    frame = sys._getframe().f_back
    while frame is not None and frame.f_code.co_filename != logging.__file__:
        frame = frame.f_back
    return frame is not None


def write_to_stderr(level: int, message: str, args: tuple[object, ...], error: BaseException) -> None:
    """Write to stderr, in one line, a record that could not be logged because of ``error``. Raises nothing."""
    from django_pgjobs.serialization.failures import kind_of, text_of  # here for start-up time

    why = f"{kind_of(error)}: {one_line(text_of(error))}"
    try:
        words = bounded(message % args if args else message, LIMIT)
    except BaseException:
        words = message
    try:
        sys.stderr.write(f"pgjobs: logging failed with {why}; {logging.getLevelName(level)} {words}\n")
        sys.stderr.flush()
    except BaseException:
        return  # there is no other way to report it


class JobFilter(logging.Filter):
    """Gives each record ``job``, ``attempt``, ``queue`` and ``claim``: those of the job that logs, else None.

    Add it to the ``filters`` of a handler in ``LOGGING`` if your format uses these names. Workers add it to all their
    handlers themselves; other processes do not. It keeps values that a record already has, and passes every record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Complete the record."""
        job = running.get(None)
        facts = getattr(job, "job", job)
        for name, attribute in _FACTS:
            if name not in record.__dict__:
                record.__dict__[name] = None if facts is None else getattr(facts, attribute)
        return True


_FACTS = (("job", "id"), ("attempt", "attempt"), ("queue", "queue"), ("claim", "claim_id"))


def name_jobs() -> None:
    """Add a ``JobFilter`` to every existing handler. Repeatable."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if not any(isinstance(known, JobFilter) for known in handler.filters):
                handler.filters.insert(0, JobFilter())  # first: a project's own filters may read its attributes


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds ``job``, ``attempt``, ``claim`` and ``queue`` to every record; the caller's own ``extra`` overrides them."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, object]]:
        """Merge both extras (the standard adapter drops the caller's)."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
