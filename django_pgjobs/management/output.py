"""The output of subcommands: a table or JSON on stdout, remarks on stderr, both safe from a job's data.

The code that registers a job chooses its texts. Unprintable characters therefore, from escape sequences to marks that
reverse the direction of text, appear as their code points.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime
from typing import Any, NoReturn, TypeVar

import psycopg
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, OperationalError

from django_pgjobs.inspection.words import clock_time
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.escapes import plain as plain
from django_pgjobs.serialization.failures import clean
from django_pgjobs.steering.trail import SHELL, recorded_as
from django_pgjobs.store.database import NOT_MIGRATED, is_not_migrated

F = TypeVar("F", bound=Callable[..., object])

Options = dict[str, Any]
"""The options of a subcommand: destination → value."""

SKIPPED = 1
"""The exit status if something was skipped, not found or unhealthy."""

WRONG = 2
"""The exit status of wrong usage."""

PIPE_CLOSED = 141
"""The exit status after SIGPIPE: the reader of the output has gone."""


_shown_at: ContextVar[str] = ContextVar("pgjobs_shown_at", default="")


@contextmanager
def shown_at(alias: str) -> Iterator[None]:
    """Say of what the block shows that it is of this database; of none where there is only one."""
    token = _shown_at.set(alias)
    try:
        yield
    finally:
        _shown_at.reset(token)


@contextmanager
def refused(*errors: type[Exception]) -> Iterator[None]:
    """Exit with the words of such an error of the block: what was asked is wrong."""
    try:
        yield
    except errors as error:
        raise CommandError(plain(one_line(error)), returncode=WRONG) from None


def ref(number: int, sign: str = "#") -> str:
    """Return the id of a row as people read it, and paste it: with the database where several are shown."""
    return f"{plain(alias)}:{number}" if (alias := _shown_at.get()) else f"{sign}{number}"


def located(fields: Any) -> Any:
    """Return JSON fields, an object or a list of them, with their database where several are shown."""
    if not (alias := _shown_at.get()):
        return fields
    return {"database": alias, **fields} if isinstance(fields, dict) else list(map(located, fields))


def block(text: object) -> list[str]:
    """Return the lines of a text, each made plain."""
    return [plain(line, keep="\t") for line in str(text).split("\n")]


def short(text: object, most: int) -> str:
    """Return the beginning of a text, made plain."""
    shown = plain(str(text)[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def instant(value: datetime | None) -> str:
    """Return an instant to the second, in the current zone."""
    return "-" if value is None else clock_time(value)


def check_texts(options: Mapping[str, object]) -> None:
    """Refuse a text that PostgreSQL cannot store or compare, before anything is asked. Raises ``CommandError``."""
    for name, value in options.items():
        for text in _texts(value):
            if text != clean(text):
                raise CommandError(
                    f"{name.replace('_', '-')}: {clean(text)!r} has a NUL, or is not valid UTF-8.", returncode=WRONG
                )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def write_line(command: BaseCommand, text: str, *, to_stderr: bool = False) -> None:
    """Write a line to stdout, or ``to_stderr``; escape characters that the stream cannot encode."""
    stream = command.stderr if to_stderr else command.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    fitting = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(fitting, str) if to_stderr else stream.write(fitting)


def answer(command: BaseCommand, options: Options, fields: object, lines: Iterable[str]) -> None:
    """Write the fields as JSON or else the lines, as ``--format`` says."""
    for line in [json_of(located(fields))] if options["format"] == "json" else lines:
        write_line(command, line)


def exit_if(skipped: object) -> None:
    """Exit with ``SKIPPED`` if that is true, or not empty."""
    if skipped:
        sys.exit(SKIPPED)


def fail(command: BaseCommand, text: str) -> NoReturn:
    """Write the text to stderr, and exit with ``SKIPPED``."""
    write_line(command, text, to_stderr=True)
    sys.exit(SKIPPED)


def skipped_lines(skipped: Mapping[str, int]) -> list[str]:
    """Return why jobs were skipped, one reason per line."""
    return [f"  {number} skipped: {plain(reason)}" for reason, number in sorted(skipped.items())]


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, numbers right-aligned. Its cells must be plain already."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(headers))]
    right = [all(line[n][:1].isdigit() or line[n] in "-" for line in lines[1:]) for n in range(len(headers))]
    for line in lines:
        cells = [
            cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(line, widths, right, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def facts(pairs: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield name and value, one pair per line; a value's further lines follow below it."""
    for name, value in pairs:
        first, *more = block(value)
        yield f"{name + ':':<14} {first}".rstrip()
        yield from (f"{'':<14} {line}".rstrip() for line in more)


def json_of(value: object) -> str:
    """Return JSON on one line, ASCII only, instants in ISO 8601."""
    return json.dumps(value, default=_json_value)


def _json_value(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def facing_the_database(perform: F) -> F:
    """Decorate a subcommand: database errors become one line, and its actions are recorded as the shell's."""

    @functools.wraps(perform)
    def wrapped(*args: object, **kwargs: object) -> object:
        try:
            with recorded_as(SHELL):
                return perform(*args, **kwargs)
        except (DatabaseError, psycopg.Error) as error:
            raise CommandError(words_of(error)) from error

    return wrapped  # type: ignore[return-value]


def words_of(error: BaseException) -> str:
    """Describe a database error in one line."""
    words = plain(one_line(error))
    if is_not_migrated(error):
        return f"{NOT_MIGRATED} ({words})."
    if isinstance(error, OperationalError | psycopg.OperationalError):
        return f"The database does not answer: {words}"
    return f"The database refuses it: {words}"


@contextmanager
def quietly(command: BaseCommand) -> Iterator[None]:
    """Exit silently when the reader closes the pipe, as ``| head`` does."""
    try:
        try:
            yield
        finally:
            command.stdout.flush()
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout again at exit; let it flush into nothing.
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
