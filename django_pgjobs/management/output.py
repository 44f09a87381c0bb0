"""How a subcommand tells: a table or JSON on stdout, remarks on stderr, nothing that a job's data could do to either.

Anybody who may register a job chooses its texts. So what is not printable, from an escape sequence to a mark that
turns the direction of the text, is shown by its number.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any, TypeVar

import psycopg
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, OperationalError
from django.utils import timezone

from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.escapes import plain as plain
from django_pgjobs.steering.trail import SHELL, recorded_as
from django_pgjobs.store import statements as store

F = TypeVar("F", bound=Callable[..., Any])

SKIPPED = 1
"""The exit status when something was skipped, not found or not healthy."""

WRONG = 2
"""The exit status of wrong usage."""

PIPE_CLOSED = 141
"""That of a program which SIGPIPE ended, as nobody reads on."""


def add_format(parser: argparse.ArgumentParser) -> None:
    """Declare ``--format``."""
    parser.add_argument("--format", choices=["table", "json"], default="table", help="How to tell (default: table).")


def block(text: object) -> list[str]:
    """Return the lines of a text, each of them plain."""
    return [plain(line, keep="\t") for line in str(text).split("\n")]


def short(text: object, most: int) -> str:
    """Return the beginning of a text, plain."""
    shown = plain(str(text)[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def instant(value: datetime | None) -> str:
    """An instant to the second in the current zone."""
    if value is None:
        return "-"
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return f"{local:%Y-%m-%d %H:%M:%S}"


def write_line(command: BaseCommand, text: str, *, to_stderr: bool = False) -> None:
    """Write a line to stdout, or ``aside`` to stderr; what its encoding has not is written as its number."""
    stream = command.stderr if to_stderr else command.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    fitting = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(fitting, str) if to_stderr else stream.write(fitting)


def write_skipped(command: BaseCommand, skipped: Mapping[str, int]) -> None:
    """Write why jobs were skipped, one reason a line."""
    for reason, number in sorted(skipped.items()):
        write_line(command, f"  {number} skipped: {plain(reason)}")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; its cells are plain already, numbers stand right."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(headers))]
    right = [all(line[n][:1].isdigit() or line[n] in "-" for line in lines[1:]) for n in range(len(headers))]
    for line in lines:
        cells = [
            cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(line, widths, right, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def facts(pairs: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yield name and value of each, one a line; the further lines of a value below it."""
    for name, value in pairs:
        first, *more = block(value)
        yield f"{name + ':':<14} {first}".rstrip()
        yield from (f"{'':<14} {line}".rstrip() for line in more)


def json_of(value: Any) -> str:
    """Return JSON in one line, of ASCII alone, with instants as ISO 8601."""
    return json.dumps(value, default=_json_value)


def _json_value(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def facing_the_database(perform: F) -> F:
    """Word what the database refuses in one line instead of a traceback; what it does is done in the shell."""

    @functools.wraps(perform)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with recorded_as(SHELL):
                return perform(*args, **kwargs)
        except (DatabaseError, psycopg.Error) as error:
            raise CommandError(words_of(error)) from error

    return wrapped  # type: ignore[return-value]


def words_of(error: BaseException) -> str:
    """Return what a database error means, in one line."""
    words = plain(one_line(error))
    if store.is_not_migrated(error):
        return f"{store.NOT_MIGRATED} ({words})."
    if isinstance(error, OperationalError | psycopg.OperationalError):
        return f"The database does not answer: {words}"
    return f"The database refuses it: {words}"


@contextmanager
def quietly(command: BaseCommand) -> Iterator[None]:
    """Leave without words when nobody reads on, as with ``| head``."""
    try:
        try:
            yield
        finally:
            command.stdout.flush()
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more as it ends: into nothing.
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
