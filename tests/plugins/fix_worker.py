"""Fixtures for tests with real workers: ``python -m django runjobs`` on the test database, stopped and checked after.

``worker(…)`` starts one worker for this test; ``shared_worker`` is one for the whole module, its traces cleared
between tests. Whatever happens, every process a worker started is gone at the end, and none of its connections is
left: both are checked, and so is that nothing was logged as a bug of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.functions import Now

from django_pgjobs.models import Job
from tests.e2e.stage import Stage
from tests.plugins.fix_db import empty, patience, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
TAG = "PGJOBS_TEST_TAG"
BUGS = ("worker loop failed", "executor failed around", "cannot tidy up", "Traceback (most recent call last)")

Settings = Mapping[str, object]

ANEW: Settings = {"EXECUTOR_TEMPLATE": False}
"""Of workers whose executors import the project themselves."""


def database_url(**changes: Any) -> str:
    """Return the URL of the test database; ``changes`` replace parts of Django's settings for it."""
    known = {**connection.settings_dict, **changes}
    user, password = quote(known["USER"] or ""), quote(known["PASSWORD"] or "")
    login = f"{user}:{password}@" if password else f"{user}@"
    return f"postgres://{login}{known['HOST'] or 'localhost'}:{known['PORT'] or 5432}/{known['NAME']}"


def _end_with_the_suite() -> None:
    """A suite that is killed cleans nothing up: its workers would take the jobs of the next one.

    Nor does it matter to them whether the suite runs under ``nohup``.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, prctl(2)


class WorkerProcess:
    """A worker and everything it has started, found by a tag in their environment."""

    def __init__(
        self, stage: Stage, arguments: tuple[str, ...], conf: Settings, env: Mapping[str, str], program: tuple[str, ...]
    ) -> None:
        self.tag = uuid4().hex
        self.name = f"test-{self.tag[:12]}"
        self.stage = stage
        self.log_path = stage.path / f"log-{self.tag}"
        environment = {
            **os.environ,
            "DATABASE_URL": database_url(),
            "DJANGO_SETTINGS_MODULE": "tests.settings_worker",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PGJOBS_TEST_CONF": json.dumps({"DRAIN_SECONDS": 10.0, **conf}),
            "PGJOBS_TEST_STAGE": str(stage.path),
            TAG: self.tag,
            **env,
        }
        # Workers are not traced: an exception that is raised in a thread from outside does not get on with a tracer.
        for variable in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
            environment.pop(variable, None)
        named = () if any(argument.startswith("--name") for argument in arguments) else (f"--name={self.name}",)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*program, "runjobs", *named, *arguments],
                cwd=environment.pop("PGJOBS_TEST_CWD", str(ROOT)), env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=_end_with_the_suite,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """What the worker and its executors have written so far."""
        return self.log_path.read_text(errors="replace")

    def said(self, words: str, times: int = 1) -> bool:
        """Tell whether the log has ``words`` (a regular expression) at least so often."""
        return len(re.findall(words, self.log)) >= times

    def wait_for_log(self, words: str, timeout: float = 30, times: int = 1) -> None:
        """Wait until the log has ``words`` so often; fail at once if the worker has ended without."""
        gone = False
        until_said = f"its log says {words!r} {times} times"
        try:
            wait_until(lambda: self.said(words, times) or self.process.poll() is not None, timeout, until_said)
            gone = not self.said(words, times)
        except pytest.fail.Exception as error:
            raise pytest.fail.Exception(f"{error}\n{self.log}") from None
        assert not gone, f"the worker ended with {self.process.returncode} before {until_said}:\n{self.log}"

    def ready(self, processes: int = 1) -> WorkerProcess:
        """Wait until so many executors are ready."""
        self.wait_for_log("executor is ready", 60, processes)
        return self

    def signal(self, number: int) -> None:
        """Send a signal to the supervisor."""
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        """Wait for the worker's end and return its exit status."""
        try:
            return self.process.wait(patience(timeout))
        except subprocess.TimeoutExpired:
            raise pytest.fail.Exception(f"the worker has not ended:\n{self.log}") from None

    def stop(self, timeout: float = 30) -> int:
        """Drain by SIGTERM and return the exit status."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def processes(self) -> list[int]:
        """Return every living process that descends from this worker, itself included."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{TAG}={self.tag}".encode() in (path / "environ").read_bytes() and not _is_zombie(path):
                    found.append(int(path.name))
        return found

    def executors(self) -> list[int]:
        """Return the pids of its executors."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if "executor" in command_of(pid):
                    found.append(pid)
        return found

    def templates(self) -> list[int]:
        """Return the pid of its template, if it has one."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if command_of(pid)[:2] == ["pgjobs", "template"]:
                    found.append(pid)
        return found

    def ready_executors(self) -> list[int]:
        """Return the pids of its executors that serve: what has just died has no successor at once."""
        return [pid for pid in self.executors() if self.said(rf"executor is ready pid={pid}\b")]

    def connections(self) -> int:
        """Return how many server processes this worker and its executors have."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgjobs %%'"
                " AND position(%s IN application_name) > 0",
                [self.name],
            )
            return int(cursor.fetchone()[0])

    def kill(self) -> None:
        """End whatever is left of it; the pid of one that has ended may be another program's by now."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(patience(30))

    def check(self, expected: tuple[str, ...] = ()) -> None:
        """Assert that nothing of it is left and that it has logged no bug of ours."""
        wait_until(lambda: not self.processes(), 5, f"no process of the worker is left ({self.log[-2000:]})")
        wait_until(lambda: not self.connections(), 5, "no connection of the worker is left")
        bugs = [words for words in BUGS[:3] if words in self.log and words not in expected]
        assert not bugs, f"{bugs}\n{self.log}"


def command_of(pid: int) -> list[str]:
    """Return the command line of a process. Raises ``OSError`` if it is gone."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")


def _is_zombie(path: Path) -> bool:
    return (path / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


class Workers:
    """Starts workers on one stage; ``close`` stops and checks them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.started: list[WorkerProcess] = []
        self.expected: list[str] = []

    def __call__(
        self,
        *arguments: str,
        processes: int = 1,
        threads: int = 4,
        conf: Settings | None = None,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
        program: tuple[str, ...] = (sys.executable, "-m", "django"),
    ) -> WorkerProcess:
        """Start a worker; wait until its executors are ready unless told not to."""
        sizes = (f"--processes={processes}", f"--threads={threads}") if "--inline" not in arguments else ()
        started = WorkerProcess(self.stage, (*sizes, *arguments), conf or {}, env or {}, program)
        self.started.append(started)
        return started.ready(processes) if ready else started

    def expect(self, *words: str) -> None:
        """Allow a log line that would otherwise be taken for a bug of ours."""
        self.expected += words

    def close(self) -> None:
        """Stop all, check all, and leave nothing behind even if a check fails."""
        try:
            for each in self.started:
                if each.process.poll() is None:
                    assert each.stop() == 0, each.log
            for each in self.started:
                each.check(tuple(self.expected))
        finally:
            for each in self.started:
                each.kill()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """The place where this test's jobs leave traces and wait for gates."""
    return Stage(tmp_path)


@pytest.fixture
def worker(committed: None, stage: Stage) -> Iterator[Workers]:
    """Start workers: ``worker("--max-jobs=3", processes=2, conf={…}, env={…})``."""
    workers = Workers(stage)
    try:
        yield workers
    except BaseException:
        for each in workers.started:
            each.kill()
        raise
    workers.close()


@pytest.fixture(scope="module")
def module_worker(
    request: pytest.FixtureRequest,
    django_db_setup: None,
    django_db_blocker: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[WorkerProcess]:
    """The worker of a module, configured by its ``WORKER`` (arguments of ``worker``)."""
    with django_db_blocker.unblock():
        workers = Workers(Stage(tmp_path_factory.mktemp("stage")))
        try:
            yield workers(*request.module.ARGUMENTS, **request.module.WORKER)
        except BaseException:
            for each in workers.started:
                each.kill()
            raise
        workers.close()
        empty()  # of what it has written at its end, such as the figures of its last minute


@pytest.fixture
def shared_worker(
    request: pytest.FixtureRequest, module_worker: WorkerProcess, committed: None
) -> Iterator[WorkerProcess]:
    """The module's worker with a clean stage and all its executors, whichever the test before killed.

    Jobs that a test left are let go and ended before the next.
    """
    processes = int(request.module.WORKER.get("processes", 1))

    def is_whole() -> bool:  # one that leaves is ready, too, beside its successor
        return len(module_worker.executors()) == len(module_worker.ready_executors()) == processes

    wait_until(is_whole, 30, f"{processes} executors are ready, and no other is left")
    module_worker.stage.clear()
    yield module_worker
    assert module_worker.process.poll() is None, module_worker.log
    Job.objects.filter(finished_at=None).cancel(mode="kill", reason="the test is over")
    ended(*Job.objects.filter(finished_at=None), timeout=30)


def started(stage: Stage, key: str, count: int = 1) -> None:
    """Wait until so many jobs wait for ``key``."""
    wait_until(lambda: stage.count("start", key) >= count, 15, f"{count} jobs wait for {key}")


def ended(*jobs: Job, timeout: float = 20) -> list[Job]:
    """Wait until all these jobs have ended and return them read anew, in order."""
    ids = [job.pk for job in jobs]
    open_jobs = Job.objects.filter(pk__in=ids, finished_at=None)
    try:
        wait_until(lambda: not open_jobs.exists(), timeout, f"{len(ids)} jobs have ended")
    except pytest.fail.Exception as error:
        left = [(job.pk, job.name, job.state, job.attempt, job.error, job.hold_reason) for job in open_jobs[:10]]
        raise pytest.fail.Exception(f"{error} Still open: {left}") from None
    found = Job.objects.in_bulk(ids)
    return [found[pk] for pk in ids]


def read(job: Job) -> Job:
    """Read a job anew."""
    return Job.objects.get(pk=job.pk)


UNCHARGED = "This attempt is not charged: it runs again, apart from other jobs."


def history(job: Job) -> list[tuple[int, str]]:
    """Return (number, cause) of a job's kept attempts, without what tells of an executor that died beside it."""
    kept = job.attempts.exclude(message__contains=UNCHARGED).order_by("id")
    return [(attempt.number, str(attempt.cause)) for attempt in kept]


def age(job: Job) -> float:
    """Return the seconds since the claim of a job, on the database's clock."""
    found = Job.objects.filter(pk=job.pk).values_list("claimed_at", Now())[0]
    return float((found[1] - found[0]).total_seconds())
