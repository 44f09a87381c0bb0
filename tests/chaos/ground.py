"""The ground a fault test stands on: a server of its own, migrated and audited, a proxy before it, and a producer."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.db import connection, transaction

from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import Job
from django_pgjobs.store.database import statement
from tests.chaos import audit
from tests.chaos import history as h
from tests.chaos.journal import Journal
from tests.e2e.stage import Stage
from tests.plugins.fix_db import patience
from tests.plugins.fix_worker import ROOT, WorkerProcess, Workers

DATABASE = "test_chaos"
OUR_TABLES = (
    *("pgjobs_job", "pgjobs_claim", "pgjobs_attempt", "pgjobs_step", "pgjobs_heartbeat", "pgjobs_cron_entry"),
    *("pgjobs_memo", "pgjobs_event", "pgjobs_gate", "pgjobs_link", "pgjobs_queue_state", "pgjobs_limit"),
    *("pgjobs_action", "pgjobs_action_part", "pgjobs_stack", "pgjobs_log_line"),
    *audit.TABLES,
)


class RolledBack(Exception):
    """Raised to roll a registration back."""


class ChaosServer:
    """A PostgreSQL server for one module: restartable, configurable, its own."""

    def __init__(self, *, fsync: bool = False) -> None:
        self.embedded = EmbeddedServer(fsync=fsync)

    def __enter__(self) -> ChaosServer:
        self.embedded.start()
        self.ask(f"CREATE DATABASE {DATABASE}", database="postgres")
        self._migrate()
        audit.install(self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self.embedded.stop()

    def _migrate(self) -> None:
        env = {**os.environ, "DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        command = [sys.executable, "-m", "django", "migrate", "-v0"]
        subprocess.run(command, cwd=ROOT, env={**env, "PYTHONPATH": str(ROOT)}, check=True)

    @property
    def url(self) -> str:
        """The way to the test database without a proxy."""
        return f"{self.embedded.url.rpartition('/')[0]}/{DATABASE}"

    @property
    def pid(self) -> int | None:
        """The postmaster's process."""
        return self.embedded.pid

    def ask(self, text: str, *params: object, database: str = DATABASE) -> list[Any]:
        """Run one statement on a connection of its own."""
        url = f"{self.embedded.url.rpartition('/')[0]}/{database}"
        with psycopg.connect(url, autocommit=True) as raw:
            cursor = raw.execute(text.encode(), params or None)
            return cursor.fetchall() if cursor.description is not None else []

    def configure(self, **settings: object) -> None:
        """Set server parameters and restart; ``None`` resets one."""
        for name, value in settings.items():
            self.embedded.settings.pop(name, None)
            if value is not None:
                self.embedded.settings[name] = str(value)
        self.restart()

    def restart(self, *, immediate: bool = False) -> None:
        """Stop (fast; with ``immediate`` as a crash) and start again."""
        self.halt(immediate=immediate)
        self.start()

    def halt(self, *, immediate: bool = False) -> None:
        """Stop and keep the data; Django's connection of this process connects anew afterwards."""
        connection.close()
        self.embedded.halt(immediate=immediate)

    def start(self) -> None:
        """Start if it does not run."""
        self.embedded.start()

    def terminate(self, match: str = "pgjobs ", limit: int = 1000) -> int:
        """Terminate server processes whose application_name matches; return how many."""
        text = (
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND application_name ~ %s ORDER BY random() LIMIT %s) AS chosen"
        )
        return len(self.ask(text, match, limit))

    def empty(self) -> None:
        """Forget all jobs and the audit of them."""
        self.start()
        self.ask(f"TRUNCATE {', '.join(OUR_TABLES)}")


@contextlib.contextmanager
def django_on(url: str) -> Iterator[None]:
    """Let Django's connection ``default`` of this process lead to ``url``."""
    parts = urlsplit(url)
    where = {
        "HOST": parts.hostname,
        "PORT": parts.port,
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password or "",
    }
    before = {key: connection.settings_dict.get(key) for key in where}
    connection.close()
    connection.settings_dict.update(where)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)


class Producer:
    """Registers jobs by Django's connection and notes in the journal what became of it."""

    def __init__(self, journal: Journal, database: str = "default", prefix: str = "") -> None:
        self.journal = journal
        self.database = database
        self.prefix = prefix
        self.count = 0

    def key(self, word: str = "job") -> str:
        """Return a key that no other job of this test has."""
        self.count += 1
        return f"{self.prefix}{word}-{self.count}"

    def __call__(
        self, definition: Any, role: str = "succeed", *, key: str = "", rolled_back: bool = False, **facts: Any
    ) -> Job:
        """Register one job; keys are made unless given."""
        return self.many([(definition, role, key, facts)], rolled_back=rolled_back)[0]

    def many(self, wanted: list[tuple[Any, str, str, dict[str, Any]]], *, rolled_back: bool = False) -> list[Job]:
        """Register several in one transaction. Raises what the database raises; their fate is then unknown."""
        keys = [key or self.key(role) for _, role, key, _ in wanted]
        made: list[Job] = []
        for key in keys:
            self.journal.note("registering", key=key)
        try:
            with transaction.atomic(using=self.database):
                for (definition, role, _, facts), key in zip(wanted, keys, strict=True):
                    there = definition if self.database == "default" else definition.using(database=self.database)
                    made.append(there.register(key=key, role=role, **facts))
                if rolled_back:
                    raise RolledBack
        except RolledBack:
            pass
        for key in keys:
            self.journal.note("registered", key=key, fate=h.ROLLED_BACK if rolled_back else h.COMMITTED)
        return made


class Ground:
    """What a fault test is given; ``check`` compares all witnesses at its end."""

    def __init__(self, server: ChaosServer, proxy: Any, stage: Stage, workers: Workers) -> None:
        self.server = server
        self.proxy = proxy
        self.stage = stage
        self.workers = workers
        self.journal = Journal(stage.path)
        self.register = Producer(self.journal)
        self.faults: list[h.Fault] = []
        self.killed: list[WorkerProcess] = []

    @contextlib.contextmanager
    def fault(self, kind: str, *pids: int) -> Iterator[None]:
        """Say that inside this block something is done on purpose; the checker takes it as an explanation."""
        begin = time.time()
        try:
            yield
        finally:
            self.faults.append(h.Fault(kind, begin, time.time(), frozenset(pids)))

    def crash(self) -> None:
        """Stop the server immediately and start it again."""
        with self.fault(h.CRASH):
            self.server.restart(immediate=True)

    def gone(self, worker: WorkerProcess) -> None:
        """Expect no good end of a worker that was killed; what it started must be gone all the same."""
        worker.process.wait(30)
        self.workers.started.remove(worker)
        self.killed.append(worker)

    def retry(self, job: Job) -> Any:
        """An operator's retry; the checker then allows one more end."""
        self.journal.note("reopen", job=job.pk)
        return job.retry()

    def history(self, *, recovery_seconds: float = 2.0) -> h.History:
        """Read everything that is known by now."""
        return audit.collect(
            self.server.url,
            self.journal,
            faults=self.faults,
            processes_left=self._orphans(),
            recovery_seconds=recovery_seconds,
        )

    def _orphans(self) -> list[str]:
        """Return processes whose worker has ended; they have a moment to follow it."""
        gone = [worker for worker in (*self.workers.started, *self.killed) if worker.process.poll() is not None]
        wall_until(lambda: not any(worker.processes() for worker in gone), patience(5))
        return [f"pid {pid} of {worker.name}" for worker in gone for pid in worker.processes()]

    def check(self, *, expected: set[str] | None = None, recovery_seconds: float = 60.0) -> h.Report:
        """Stop all workers, compare the witnesses, and fail on any violation of a kind that is not ``expected``."""
        self.proxy.heal()
        self.server.start()
        self.workers.close()
        report = h.check(self.history(recovery_seconds=recovery_seconds))
        bad = [violation for violation in report.violations if violation.kind not in (expected or set())]
        assert not bad, str(report)
        return report

    def close(self) -> None:
        """Kill what a test has left running, and let go of the journal."""
        for each in (*self.workers.started, *self.killed):
            each.kill()
        self.journal.close()


def text_of(name: str) -> str:
    """Return how a statement of ``sql/`` begins, as a regular expression for the proxy."""
    begin = statement(name).partition("%")[0].strip()
    return re.escape(begin)


def wall_until(fact: Callable[[], object], seconds: float) -> bool:
    """Wait for a fact; return whether it came."""
    until = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
