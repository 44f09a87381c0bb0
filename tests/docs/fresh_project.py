"""A fresh project in which a page is followed as printed: its files, its commands, a shell, and a worker beside them.

``# shop/jobs.py``, the first line of a Python block, is the file that it belongs to. The first block of a file is the
file; later ones are added to its end, as all of ``mysite/settings.py`` are. Blocks of ``>>>`` are typed into
``manage.py shell``, blocks of ``$`` into a terminal. A worker runs beside them; it and the shell are started again when
a file has changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.docs.pages import ROOT, Block
from tests.docs.printed import matches
from tests.plugins.fix_db import patience

SETTINGS = "mysite/settings.py"

HAS_TASKS = find_spec("django.tasks") is not None

STAYS = re.compile(r"runjobs\b(?!.*--(until-idle|max-jobs|help))|runserver$|--serve$")
"""Commands that run until Ctrl-C."""

LOOKS = re.compile(r"pgjobs (why|show|list|tree|stats|top|workers|check|names|crons list|events)\b")
"""Commands that only look: a reader who is too fast repeats them."""

OURS = re.compile(
    r"^([A-Z_]+=('[^']*'|\"[^\"]*\"|\S*) )*(python manage\.py|python -m (django_pgjobs|pytest)|django-admin|pytest)\b"
)
"""Commands that are run."""

ELSEWHERE = re.compile(
    r"(sudo )?(pip|python -m pip|docker|heroku|fly|kubectl|psql|pg_dump|pg_restore|createdb|systemctl|make)\b"
)
"""Programs that need another machine, a network or minutes: their commands are only shown."""


UNWANTED = re.compile(r"\(pgjobs\.(?!W009)[EW]\d+\)|job parked")
"""What no page may lead to. W009 is of tasks of packages that are not installed here."""

PLACEHOLDERS = re.compile(r"\b(ID|NAME)\b")
"""Stands for a job's id or a name that the page does not have: the command is only shown."""


def commands(text: str) -> Iterator[tuple[str, str]]:
    """(command, what it prints) of a block of a terminal; a line after ``\\`` continues the command."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, printed = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        yield command.rstrip(), printed


@dataclass
class Terminal:
    """A command that runs until the page ends."""

    command: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self, how: signal.Signals) -> None:
        """Stop it by a signal, and by force if that takes too long."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)
        try:
            self.process.wait(patience(10))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(patience(10))


@dataclass
class Project:
    """A project's folder and what runs in it. ``database_url`` is empty where the page brings a server itself."""

    folder: Path
    database_url: str = ""
    terminals: list[Terminal] = field(default_factory=list)
    port: int = 0
    """The port of the page's own ``runserver``."""
    has_worker: bool = False
    """The page has started a worker itself."""
    _written: set[str] = field(default_factory=set)
    _is_unseen: bool = False
    """No process has been started since a file was written."""
    _worker: Terminal | None = None
    _leaving: list[Terminal] = field(default_factory=list)
    _shell: subprocess.Popen[str] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a reader who has installed the package, and set no other variable for it."""
        kept = {
            key: value for key, value in os.environ.items() if key not in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL")
        }
        given = {"DATABASE_URL": self.database_url} if self.database_url else {}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**kept, **given, "PYTHONPATH": str(ROOT), "PATH": path}

    # Blocks

    def follow(self, block: Block) -> None:
        """Do what a block says; raise ``AssertionError`` naming the place if it is not as printed."""
        if block.file:
            self.write(block.file, block.text)
        elif block.language == "pycon":
            self.beside()
            said = self.ask(text=block.text, where=block.where, line=block.line)
            assert not said, f"{said}\n{self.said()}"
        elif block.language == "console" and not block.text.startswith("$ "):
            self.watch(block)
        elif block.language == "console":
            for command, printed in commands(block.text):
                self.type(command, printed, block.where)

    def write(self, name: str, text: str) -> None:
        """Make the file, or add to it, once the worker has done what is due."""
        if self._shell is not None:
            self.ask()
        if not HAS_TASKS:
            text = text.replace("django.tasks", "django_tasks")  # as the pages say for Django 5.2
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        adds = name in self._written or (name == SETTINGS and target.exists())
        before = target.read_text(encoding="utf-8") if adds else ""
        target.write_text(f"{before}\n\n{text}" if before else text, encoding="utf-8")
        self._written.add(name)
        self._is_unseen = True
        self.end_shell()
        self.end_worker()

    def check(self) -> None:
        """Let Django check the project, unless a process has been started with all that the page has written."""
        if self._is_unseen:
            status, printed = self.run("python manage.py check")
            assert status == 0, printed
            assert not UNWANTED.search(printed), printed

    def type(self, command: str, wanted: str, where: str) -> None:
        """Run a command and compare what it prints."""
        if PLACEHOLDERS.search(command):
            return
        if not OURS.match(command):
            assert ELSEWHERE.match(command), f"{where}: {command}: tests neither run this program nor know it"
            return
        if STAYS.search(command):
            self.stay(command, wanted, where)
            return
        if self.has_worker or (self.database_url and " pgjobs " in command):
            self.beside()
        if self._shell is not None:
            self.ask()  # the worker has done what is due
        until = time.monotonic() + (patience(10) if LOOKS.search(command) else 0)
        while True:
            status, printed = self.run(command)
            if not wanted.strip() or matches(printed, wanted):
                break
            assert time.monotonic() < until, (
                f"{where}: {command}\n{printed}\nbut the page shows:\n{wanted}{self.said()}"
            )
        assert status == 0 or wanted.strip(), f"{where}: {command}\n{printed}"

    def run(self, command: str) -> tuple[int, str]:
        """Run a command; return its status and all that it prints, to stderr too."""
        started = self.start(command)
        try:
            status = started.process.wait(patience(30))
        except subprocess.TimeoutExpired:
            started.stop(signal.SIGKILL)
            raise AssertionError(f"{command} does not end:\n{started.printed}") from None
        return status, started.printed

    def stay(self, command: str, wanted: str, where: str) -> None:
        """Start a command that stays, and wait until it has printed what the page shows."""
        if command.endswith("runjobs"):  # of all queues: the page's own worker
            self.end_worker()
            self.has_worker = True
        if command.endswith("runserver"):
            self.port = free_port()
            command = f"{command} {self.port}"
        if "runjobs" in command and not wanted.strip():
            wanted = "…\n…worker starts…"
        started = self.start(command)
        self.terminals.append(started)
        until = time.monotonic() + patience(30)
        while wanted.strip() and not matches(started.printed, f"{wanted.rstrip()}\n…\n"):
            assert started.process.poll() is None, f"{where}: {command}\n{started.printed}"
            assert time.monotonic() < until, f"{where}: {command}\n{started.printed}\nbut the page shows:\n{wanted}"
            time.sleep(0.05)

    def watch(self, block: Block) -> None:
        """Wait until the page's own worker has printed what a block without a command shows."""
        until = time.monotonic() + patience(10)
        wanted = f"…\n{block.text.rstrip()}\n…\n"
        while not matches(self.terminals[-1].printed, wanted):
            assert time.monotonic() < until, f"{block.where}\n{self.terminals[-1].printed}"
            time.sleep(0.05)

    # What runs beside the page

    def start(self, command: str) -> Terminal:
        self._is_unseen = False
        log = self.folder.parent / f"{self.folder.name}.{time.monotonic_ns()}.log"
        with log.open("wb") as out:
            # By exec the process is the command itself, so it is the command that a signal stops and a wait waits for.
            process = subprocess.Popen(
                f"exec {command}" if command.startswith("python") else command,
                shell=True, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        return Terminal(command, process, log)

    def beside(self) -> None:
        """Start a worker and a shell, unless they run."""
        if self._worker is None and not self.has_worker:
            self._worker = self.start("python manage.py runjobs --processes 1 --no-reload")
        if self._shell is None:
            program = [sys.executable, str(Path(__file__).with_name("shell.py"))]
            self._shell = subprocess.Popen(
                program, cwd=self.folder, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )

    def ask(self, **request: object) -> str:
        """Let the shell run a block, or only wait for the worker; return what differs."""
        self.wait_for_worker()
        shell = self._shell
        assert shell is not None
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(json.dumps({**request, "patience": patience(8)}) + "\n")
        shell.stdin.flush()
        answer = shell.stdout.readline()
        assert answer, f"{request.get('where')}: the shell has died\n{self.said()}"
        return str(json.loads(answer))

    def wait_for_worker(self) -> None:
        """Wait until the worker can run jobs; a page is read more slowly than a worker starts."""
        until = time.monotonic() + patience(30)
        while self._worker is not None and "executor is ready" not in self._worker.printed:
            assert self._worker.process.poll() is None, self._worker.printed
            assert time.monotonic() < until, self._worker.printed
            time.sleep(0.05)

    def said(self) -> str:
        """Return the end of what the worker has logged."""
        return "" if self._worker is None else f"\nthe worker's log ends:\n{self._worker.printed[-4000:]}"

    def end_shell(self) -> None:
        if self._shell is not None:
            assert self._shell.stdin is not None
            assert self._shell.stdout is not None
            self._shell.stdin.close()
            self._shell.wait(patience(10))
            self._shell.stdout.close()
            self._shell = None

    def end_worker(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Let the worker that runs beside stop; its successor need not wait for that."""
        if self._worker is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._worker.process.pid, how)
            self._leaving.append(self._worker)
            self._worker = None

    def close(self) -> None:
        """Stop everything."""
        try:
            self.end_shell()
            self.end_worker(signal.SIGKILL)
            for worker in self._leaving:
                worker.stop(signal.SIGTERM)
                assert not UNWANTED.search(worker.printed), worker.printed
        finally:
            for terminal in reversed(self.terminals):
                # PostgreSQL stops in order; a worker's executors leave with it.
                terminal.stop(signal.SIGINT if "--serve" in terminal.command else signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def copied(template: Path, folder: Path, database_url: str) -> Project:
    """Return a copy of a project on a database of its own."""
    shutil.copytree(template, folder)
    return Project(folder, database_url)
