"""Trying faults: each in a copy of the tree, with the tests that are nearest to it first.

Five rounds: *near*, the few test files that speak most of what was changed; *workers*, the few that start workers and
concern it; *unit*, *db* and *e2e*, all of those. A round tries what the one before has left. A fault is *noticed* when
a test fails with it that passes without it, and twice: one failure may be the machine's. What hangs for longer than
its round may take is noticed too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg

from django_pgjobs.embedded import EmbeddedServer
from tests.mutations.concerning import concerning
from tests.mutations.faults import ROOT, Fault

NEAR = "near"
WORKERS = "workers"
SECONDS = {NEAR: 400.0, WORKERS: 900.0, "unit": 600.0, "db": 1500.0, "e2e": 1800.0}
"""The rounds, and how long one may take: several times what it takes on a machine with other work to do."""

NEAR_FILES = 5
TEST_SECONDS = 120
MARK = "PGJOBS_MUTATION"
TEMPLATE = "test_mutation_template"
MIGRATING = "tests/db/test_prepare.py"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)
DONE = re.compile(r"^(?:.* (?:passed|skipped|deselected)|no tests ran)\b.* in [\d.]+s", re.MULTILINE)
FLAKES = 5
"""So many failures that do not come again are passed over in one round."""


@dataclass(frozen=True)
class Verdict:
    """What became of a fault in a round: the test that noticed it, or nobody."""

    fault: Fault
    noticed_by: str
    round: str
    seconds: float

    @property
    def survived(self) -> bool:
        return not self.noticed_by


class Lane:
    """A copy of the tree and a server, for one fault after the other."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.server = EmbeddedServer(fsync=False)
        self.mark = uuid4().hex
        self.runs = 0
        self.written = time.time()
        self.sound: dict[str, bool] = {}

    def __enter__(self) -> Lane:
        copy_tree(self.place)
        self.server.start()
        if self._pytest([MIGRATING], SECONDS[NEAR], TEMPLATE)[0] != 0:
            self.server.stop()
            raise RuntimeError("without any fault the tests fail already: is the tree in the middle of something?")
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        shutil.rmtree(self.place, ignore_errors=True)

    def judge(self, fault: Fault, round_: str) -> Verdict:
        """Put the fault into the copy, run this round, and take it out again."""
        path = self.place / fault.file
        text = path.read_text(encoding="utf-8")
        began = time.monotonic()
        faulty = fault.apply(text)
        self._write(path, faulty)
        try:
            noticed_by = self._noticed_by(fault, round_, path, text, faulty)
        finally:
            self._write(path, text)
        return Verdict(fault, noticed_by, round_, time.monotonic() - began)

    def _noticed_by(self, fault: Fault, round_: str, path: Path, text: str, faulty: str) -> str:
        chosen = {NEAR: near, WORKERS: concerning}
        tests = chosen[round_](fault, self.place) if round_ in chosen else [f"tests/{round_}"]
        passed_over: list[str] = []
        while len(passed_over) < FLAKES:
            status, output = self._pytest([*tests, *(f"--deselect={test}" for test in passed_over)], SECONDS[round_])
            if status is None:
                return "hangs"
            # A fault may end pytest's process, with any status, before it has come to its last line.
            if status in (0, 5) and DONE.search(output):
                return ""
            found = FAILED.search(output)
            if found is None:
                return f"pytest ends with status {status}: {output.strip().splitlines()[-1:]}"
            again, _ = self._pytest([found[1]], SECONDS[round_])
            if again != 0 and self._is_sound(found[1], path, text, faulty):
                return found[1]
            passed_over.append(found[1])
        return ""

    def _is_sound(self, test: str, path: Path, text: str, faulty: str) -> bool:
        """Whether a test passes without the fault."""
        if test not in self.sound:
            self._write(path, text)
            status, _ = self._pytest([test], SECONDS[NEAR])
            self._write(path, faulty)
            self.sound[test] = status == 0
        return self.sound[test]

    def _write(self, path: Path, text: str) -> None:
        """Write; with an age of its own, in whole seconds, by which Python knows that what it has compiled is old."""
        path.write_text(text, encoding="utf-8")
        self.written += 2
        os.utime(path, (self.written, self.written))

    def _pytest(self, arguments: list[str], seconds: float, database: str = "") -> tuple[int | None, str]:
        """Run pytest in the copy; return its status, None if it had to be killed, and what it printed.

        Each run has a database of its own: a copy of the one that the first run has migrated, which is named.
        """
        copied, self.runs = not database, self.runs + 1
        if copied:
            database = f"test_mutation_{self.runs}"
            self._run_sql(f"CREATE DATABASE {database} TEMPLATE {TEMPLATE}")
        environment = {
            **os.environ,
            "DATABASE_URL": self.server.url,
            "PGJOBS_TEST_DATABASE": database,
            "PGJOBS_TEST_PATIENCE": os.environ.get("PGJOBS_TEST_PATIENCE", "2"),
            "PYTHONPATH": str(self.place),
            MARK: self.mark,
        }
        command = [
            sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly",
            "--reuse-db", "-o", f"timeout={TEST_SECONDS}", *arguments,
        ]  # fmt: skip
        log = self.place / "output.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.place, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
        self.sweep()
        process.wait()
        if copied:
            self._run_sql(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        return status, log.read_text(errors="replace")

    def sweep(self) -> None:
        """Kill a run and what it has left: workers may be in sessions of their own, but have inherited our mark."""
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _run_sql(self, statement: str) -> None:
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.server.url, autocommit=True) as raw:
            raw.execute(statement.encode())


def marked(mark: str) -> Iterator[int]:
    """Yield the processes that carry this mark in their environment (Linux)."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in entry.read_bytes():
                yield int(entry.parent.name)


def copy_tree(place: Path) -> None:
    """Copy what git knows of, and what it would if it were told."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def near(fault: Fault, root: Path = ROOT) -> list[str]:
    """Return the unit and database test files that speak most of what this fault changes, the densest first."""
    words = _words(fault, root)
    subjects = {part for part in Path(fault.file).stem.split("_") if len(part) > 3}
    scores: dict[str, float] = {}
    for path in (path for kind in ("unit", "db") for path in (root / "tests" / kind).glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if hits := sum(len(re.findall(rf"\b{re.escape(word)}\b", text)) for word in words):
            own = len(subjects & set(path.stem.split("_")))
            scores[path.relative_to(root).as_posix()] = hits / len(text) + own
    best = sorted(scores, key=lambda name: -scores[name])[:NEAR_FILES]
    if fault.file.endswith(".sql"):
        best = list(dict.fromkeys(["tests/db/test_sql_contracts.py", *best]))
    return best or ["tests/unit"]


def _words(fault: Fault, root: Path) -> set[str]:
    """What tests would call it: a module and what it defines; a statement and what of the store runs it."""
    path = Path(fault.file)
    if path.suffix == ".py":
        text = (root / fault.file).read_text(encoding="utf-8")
        return {
            path.stem,
            *re.findall(r"^class (\w+)", text, re.MULTILINE),
            *re.findall(r"^def (\w+)", text, re.MULTILINE),
        }
    words = {path.stem}
    for module in (root / "django_pgjobs/store").glob("*.py"):
        for function in re.split(r"^(?=def )", module.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if f'"{path.stem}"' in function and (name := re.match(r"def (\w+)", function)):
                words.add(name[1])
    return words
