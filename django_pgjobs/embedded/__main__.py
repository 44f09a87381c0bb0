"""Run a command with a database, either the one in DATABASE_URL or a server started for the command; or serve one.

The exit status is the command's, 128 + n if signal n ended it, 127 if it does not exist, 1 if the server did
not start. It writes the server's directory to stderr.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from django_pgjobs.embedded.directory import EmbeddedError, clean
from django_pgjobs.embedded.server import DEFAULT_MAJOR, EmbeddedServer
from django_pgjobs.embedded.sharing import DATA, running_url, share

ALIVE_SECONDS = 1.0
"""Interval at which ``--serve`` checks its server."""


class Relay:
    """Passes signals on to the command, once each."""

    PASSED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self) -> None:
        self._command: subprocess.Popen[bytes] | None = None
        self._launching = False
        self._early: list[int] = []

    def install(self) -> None:
        """Handle the signals; before the command starts, they end this process in good order."""
        for number in self.PASSED:
            signal.signal(number, self._receive)

    def run(self, command: Sequence[str], environment: dict[str, str]) -> int:
        """Run the command and return its exit status. Raises OSError if it cannot be started."""
        self._launching = True
        self._command = subprocess.Popen(command, env=environment)
        for number in self._early:
            self._command.send_signal(number)
        status = self._command.wait()
        return status if status >= 0 else 128 - status

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._command is not None:
            self._pass_on(self._command, number)
        elif self._launching:
            self._early.append(number)
        else:
            self.ignore()
            raise SystemExit(128 + number)

    def _pass_on(self, command: subprocess.Popen[bytes], number: int) -> None:
        # A key press reaches the whole foreground group; passed on, it would count as a second signal.
        if number in (signal.SIGINT, signal.SIGQUIT) and in_foreground():
            return
        command.send_signal(number)

    def ignore(self) -> None:
        """Let nothing interrupt the server's shutdown."""
        for number in self.PASSED:
            signal.signal(number, signal.SIG_IGN)


def in_foreground() -> bool:
    """Tell whether this process is in the foreground group of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def run_with(server: EmbeddedServer, command: Sequence[str], out: IO[str]) -> int:
    """Run a command with a server of its own and return its exit status. Signals are passed on."""
    relay = Relay()
    relay.install()
    try:
        url = server.start()
        out.write(f"{server}\n")
        out.flush()
        return relay.run(command, os.environ | {"DATABASE_URL": url})
    finally:
        relay.ignore()
        server.stop()


def serve(server: EmbeddedServer, data: Path, out: IO[str]) -> int:
    """Print the server's URL and run it until a signal comes, unless one runs for ``data`` already."""
    stopped = threading.Event()
    for number in Relay.PASSED:
        signal.signal(number, lambda *_: stopped.set())
    try:
        url, ours = share(server, data)
        out.write(f"DATABASE_URL={url}\n")
        out.flush()
        if not ours:
            sys.stderr.write("it runs already, started by another process\n")
            return 0
        sys.stderr.write(f"{server}; Ctrl-C stops it, its data are kept\n")
        while not stopped.wait(ALIVE_SECONDS):
            if server.pid is None:
                raise EmbeddedError(f"{server} has ended by itself")
        return 0
    finally:
        server.stop()


def parser() -> argparse.ArgumentParser:
    """Return the command line of ``python -m django_pgjobs.embedded``."""
    line = argparse.ArgumentParser(
        prog="python -m django_pgjobs.embedded",
        description="Run a command with DATABASE_URL: the one that is set, or that of a PostgreSQL started for it.",
    )
    line.add_argument("--major", type=int, default=DEFAULT_MAJOR, help="major version (default: %(default)s)")
    line.add_argument("--bin", type=Path, metavar="DIR", help="another installation's directory of programs")
    line.add_argument("--no-fsync", action="store_true", help="faster; a power cut may lose the data")
    line.add_argument("--data", type=Path, metavar="DIR", help="keep the data in DIR")
    line.add_argument("--serve", action="store_true", help="run until stopped, print DATABASE_URL (--data: .pg)")
    line.add_argument("--clean", action="store_true", help="delete what ended runs left and what --data keeps")
    line.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ARGS…")
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    line = parser()
    options = line.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        if options.clean:
            for path in clean(options.data):
                sys.stderr.write(f"removed {path}\n")
            return 0
        if options.serve:
            if command:
                line.error("--serve takes no command")
            data = options.data or DATA
            fsync = not options.no_fsync
            return serve(
                EmbeddedServer(major=options.major, fsync=fsync, data=data, binaries=options.bin), data, sys.stdout
            )
        if not command:
            line.error("a command is missing; --serve runs a server without one")
        if os.environ.get("DATABASE_URL"):
            os.execvp(command[0], command)  # noqa: S606  running what the caller asks for is the purpose
        fsync = not options.no_fsync
        server = EmbeddedServer(major=options.major, fsync=fsync, data=options.data, binaries=options.bin)
        running = None if options.data is None else running_url(options.data, server.major)
        if running is not None:
            os.execvpe(command[0], command, os.environ | {"DATABASE_URL": running})  # noqa: S606  as above
        return run_with(server, command, sys.stderr)
    except FileNotFoundError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    except (EmbeddedError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
