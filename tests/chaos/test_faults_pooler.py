"""PgBouncer between everybody and the server: producers, workers and the jobs. In transaction mode if not said."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection
from django.test import override_settings

from django_pgjobs.exceptions import JobNotFinished
from django_pgjobs.models import Job
from tests.chaos.ground import Ground, django_on
from tests.chaos.jobs import act, called
from tests.chaos.load import needs, recovered, under_load
from tests.e2e.jobs import no_op
from tests.e2e.sessions import leaves_behind, tells_its_session
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ANEW, Workers, database_url, ended
from tests.plugins.shell import run

pytestmark = pytest.mark.chaos

POOL = 12

CONFIG = """
[databases]
* = host={host} port={upstream} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {pool}
max_client_conn = 400
server_lifetime = {lifetime}
ignore_startup_parameters = {ignored}
logfile = {directory}/log
pidfile = {directory}/pid
"""


class Pooler:
    """One PgBouncer before a server, run by an account without rights."""

    def __init__(self, url: str, directory: Path, mode: str = "transaction") -> None:
        parts = urlsplit(url)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.port}").geturl()
        self.directory = directory
        self.mode = mode
        self.process: subprocess.Popen[bytes] | None = None
        config = directory / "pgbouncer.ini"
        config.write_text(
            CONFIG.format(
                host=parts.hostname, upstream=parts.port, user=parts.username, password=parts.password,
                port=self.port, pool=POOL, directory=directory, ignored="extra_float_digits", mode=mode,
                lifetime=5 if mode == "transaction" else 3600,
            )
        )  # fmt: skip
        config.chmod(0o644)
        directory.chmod(0o777)

    def start(self) -> None:
        """Start and wait until it answers."""
        account = "nobody" if os.geteuid() == 0 else None
        path = f"{os.environ['PATH']}:/usr/sbin"
        with (self.directory / "output").open("wb") as output:
            self.process = subprocess.Popen(
                ["pgbouncer", str(self.directory / "pgbouncer.ini")],
                env={"PATH": path}, stdout=output, stderr=output, cwd=self.directory, user=account,
            )  # fmt: skip
        wait_until(self._answers, 10, f"PgBouncer answers ({self.directory})")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            assert self.process is not None
            assert self.process.poll() is None, (self.directory / "output").read_text()
            return False
        return True

    def connects(self) -> int:
        """Return how many clients have connected so far."""
        return (self.directory / "log").read_text().count("login attempt")

    def close(self, ground: Ground) -> None:
        """Stop the workers behind it, then it: its connections to the server keep their names as long as it lives."""
        for worker in ground.workers.started:
            assert worker.stop() == 0, worker.log
        self.stop()

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End it."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(10)


@pytest.fixture
def pooler(ground: Ground) -> Iterator[Pooler]:
    """PgBouncer before the proxy."""
    needs("pgbouncer")
    # Not below pytest's own directory: each pytest that starts closes that to other accounts.
    with tempfile.TemporaryDirectory(prefix="pgjobs-pooler-") as directory:
        pooler = Pooler(ground.proxy.url, Path(directory))
        pooler.start()
        yield pooler
        pooler.stop()


def through(pooler: Pooler) -> dict[str, str]:
    """The environment of a worker behind it."""
    return {"DATABASE_URL": pooler.url}


def test_everything_goes_through_a_transaction_pooler(ground: Ground, pooler: Pooler) -> None:
    """Registration, two workers, jobs that query, that fail, that are called back: with more clients than connections.

    Nobody hears; whoever is pinned by ``set_config`` for a transaction leaves the next one nothing of it.
    """
    with django_on(pooler.url):
        workers = [ground.workers(env=through(pooler), processes=2) for _ in range(2)]
        jobs = ground.register.many([(act, "sleep", "", {"seconds": 0.02})] * 150)
        jobs += ground.register.many([(act, "query", "", {"seconds": 0.01})] * 100)
        jobs += [
            ground.register(act, "fail", times=2),
            ground.register(called, "raise"),
            ground.register(act, "snooze"),
        ]
        jobs += [ground.register(act, "register_child"), ground.register(act, "register_child", commit=False)]
        ended(*jobs, timeout=30)
        for _ in range(2 * POOL):
            connection.close()
            with connection.cursor() as cursor:
                cursor.execute("SELECT current_setting('enable_seqscan'), current_setting('statement_timeout')")
                assert cursor.fetchone() == ("on", "0")
    assert not any(worker.said("prepared statement|database trouble") for worker in workers)
    pooler.close(ground)
    report = ground.check()
    assert (report.counts["succeeded"], report.counts["abandoned"]) == (255, 1), report


def test_a_lease_is_kept_and_a_dead_worker_is_rescued_through_a_pooler(ground: Ground, pooler: Pooler) -> None:
    """P39: kill −9 of a worker behind PgBouncer, whose server connections live on."""
    first = ground.workers(env=through(pooler))
    job = ground.register(act, "wait", gate="killed")
    wait_until(lambda: ground.journal.count("start"), 10, "it runs")
    ground.workers(env=through(pooler))
    with ground.fault("kill", first.pid, *first.executors()):
        first.kill()
    ground.stage.open("killed")
    recovered(ground, job, within=15, what="kill −9 behind a pooler")
    ground.workers.started.remove(first)
    pooler.close(ground)
    report = ground.check(recovery_seconds=4)
    assert report.counts["attempts_lost"] == 1, report


def test_the_pooler_is_killed_and_started_again(ground: Ground, pooler: Pooler) -> None:
    """P39 P41: with jobs under way."""
    worker = ground.workers(env=through(pooler))
    jobs = under_load(ground, 60, done=8, seconds=0.2)
    with ground.fault("refuse"):
        pooler.stop()
        worker.wait_for_log("database trouble, will try again loop=keep")
        pooler.start()
    recovered(ground, *jobs, within=25, what="pooler killed")
    pooler.close(ground)
    report = ground.check()
    assert report.counts["succeeded"] == 61, report


@pytest.fixture
def behind(request: pytest.FixtureRequest, worker: Workers) -> Iterator[Pooler]:
    """A pooler in the mode that the test says; behind it is one worker of one thread with its jobs alone."""
    needs("pgbouncer")
    with tempfile.TemporaryDirectory(prefix="pgjobs-pooler-") as directory:
        pooler = Pooler(database_url(), Path(directory), request.param)
        pooler.start()
        started = worker(threads=1, conf=ANEW, env={"PGJOBS_TEST_EXECUTOR_DATABASE_URL": pooler.url})
        yield pooler
        assert started.stop() == 0, started.log
        pooler.stop()


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("mode", ["session", "transaction"])
@override_settings(PGJOBS={"SCHEMAS": lambda: ["public"]})
def test_waiting_in_a_schema_sets_no_path_of_a_session_behind_a_pooler(mode: str) -> None:
    """PgBouncer refuses one as an option, and hands one that was set on to others."""
    needs("pgbouncer")
    with tempfile.TemporaryDirectory(prefix="pgjobs-pooler-") as directory:
        pooler = Pooler(database_url(), Path(directory), mode)
        pooler.start()
        with django_on(pooler.url):
            row = no_op.register()
            with pytest.raises(JobNotFinished):
                row.wait(timeout=0)
            assert Job.objects.get(pk=row.pk).waited
            for _ in range(POOL):
                connection.close()
                with connection.cursor() as cursor:
                    cursor.execute("SHOW search_path")
                    assert cursor.fetchone() == ('"$user", public',)
        pooler.stop()


def tells() -> dict[str, Any]:
    (job,) = ended(tells_its_session.register())
    assert job.outcome == "succeeded", job.error
    assert Job.objects.get(pk=job.pk).description == "written", "what it wrote was rolled back"
    return dict(job.result or {})


KEPT_APART = {
    "session": ("own setting", "role", "lock", "temporary table", "prepared", "transaction", "time zone"),
    "transaction": ("transaction", "time zone", "name"),
}
"""What a job of a pooler's mode leaves and the next one does not meet."""


@pytest.mark.parametrize("behind", KEPT_APART, indirect=True)
def test_the_next_job_behind_a_pooler_meets_nothing_that_it_can_keep_apart(behind: Pooler) -> None:
    before = tells()
    for how in KEPT_APART[behind.mode]:
        (left,) = ended(leaves_behind.register(how))
        assert left.outcome == "succeeded", left.error
        assert tells() == before, how


@pytest.mark.parametrize("behind", KEPT_APART, indirect=True)
def test_a_job_behind_a_pooler_connects_once_and_one_without_statements_never(behind: Pooler) -> None:
    """Its session is closed, not reset, as it may not be the job's alone."""
    ended(leaves_behind.register("own setting"))
    before = behind.connects()
    ended(*[leaves_behind.register("own setting") for _ in range(20)])
    assert behind.connects() - before == 20
    ended(*[no_op.register() for _ in range(20)])
    assert behind.connects() - before == 20


def test_the_doctor_names_the_pooler_and_what_does_not_work_behind_it(ground: Ground, pooler: Pooler) -> None:
    def found(**database: object) -> dict[str, Any]:
        env = {**through(pooler), "DJANGO_SETTINGS_MODULE": "tests.settings_worker", "PGJOBS_TEST_STAGE": "/nowhere"}
        done = run(
            "doctor", "--format", "json", env={**env, "PGJOBS_TEST_DATABASES": json.dumps({"default": database})}
        )
        [found] = [each for each in json.loads(done.stdout)["findings"] if each["id"] == "pooler"]
        return dict(found)

    cure = 'DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True'
    assert found()["cure"] == cure
    assert found(DISABLE_SERVER_SIDE_CURSORS=True)["cure"] != cure
