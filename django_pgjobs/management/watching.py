"""Live views in a terminal: a screen that is drawn again every few seconds, by plain escape codes.

``q`` and Ctrl-C end it. However it ends, the terminal is as before: its own screen, its cursor, its keys.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from django.core.management.base import BaseCommand
from django.db import DatabaseError, connections

from django_pgjobs.management import databases, output
from django_pgjobs.management.output import Options
from django_pgjobs.store.asking import SECONDS as ASKED_SECONDS
from django_pgjobs.store.asking import Reply

SECONDS = 2.0
LEAST_SECONDS, MOST_SECONDS = 0.2, 3600.0

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


def interval(text: str) -> float:
    """Return how many seconds lie between two drawings."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}")
    return seconds


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Declare ``--watch``."""
    text = f"Draw it again every so many seconds (default: {SECONDS:g}) until q or Ctrl-C."
    parser.add_argument("--watch", metavar="SECONDS", nargs="?", type=interval, const=SECONDS, help=text)


Draw = Callable[[str], Iterable[str]]
"""Draws what is in a database, by its alias."""


def watch(
    command: BaseCommand, options: Options, seconds: float | None, draw: Draw, *, patience: float = ASKED_SECONDS
) -> None:
    """Draw until the user ends it; without a terminal or ``seconds`` once. An outage of the database is drawn, too.

    Several databases are drawn one below the other; once, exit with 1 if one does not answer within ``patience``.
    """
    aliases = databases.aliases_of(options)

    def drawn() -> list[Reply[list[str]]]:
        return databases.asked(aliases, lambda alias: list(draw(alias)), seconds=patience)

    if seconds is None or not _is_terminal(command):
        found = drawn()
        for line in databases.sections(found):
            output.write_line(command, line)
        output.exit_if(any(reply.trouble for reply in found))
        return
    with _terminal(command) as write:
        while True:
            write(_frame(_lines(aliases[0], drawn), command))
            if _is_ended(seconds):
                return


def _lines(using: str, drawn: Callable[[], list[Reply[list[str]]]]) -> list[str]:
    try:
        return list(databases.sections(drawn()))
    except DatabaseError as error:
        connections[using].close()
        return ["The database does not answer; trying again.", *output.block(output.words_of(error))]


def _frame(lines: list[str], command: BaseCommand) -> str:
    size = shutil.get_terminal_size()
    encoding = getattr(command.stdout, "encoding", None) or "utf-8"
    shown = [line[: size.columns] for line in lines[: size.lines - 1]]
    text = "".join(f"{line}{_REST_OF_LINE}\r\n" for line in shown).encode(encoding, "replace").decode(encoding)
    return f"{_HOME}{text}{_REST}"


def _is_terminal(command: BaseCommand) -> bool:
    return bool(command.stdout.isatty()) and sys.stdin.isatty()


@contextmanager
def _terminal(command: BaseCommand) -> Iterator[Callable[[str], None]]:
    """Take over the terminal, and give it back."""
    import termios  # here: other systems than Unix have no such module
    import tty  # here: as above

    def write(text: str) -> None:
        command.stdout.write(text, ending="")
        command.stdout.flush()

    def end(*_given: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    keys = sys.stdin.fileno()
    before, terminated = termios.tcgetattr(keys), signal.signal(signal.SIGTERM, end)
    try:
        tty.setcbreak(keys)
        write(_ENTER)
        with contextlib.suppress(KeyboardInterrupt):
            yield write
    finally:
        write(_LEAVE)
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, terminated)


def _is_ended(seconds: float) -> bool:
    """Wait, and tell whether the user has pressed *q* or closed the terminal."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if not ready:
        return False
    typed = os.read(sys.stdin.fileno(), 100)
    return not typed or b"q" in typed.lower()
