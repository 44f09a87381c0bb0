"""Fixtures for tests on committed rows: raw connections stepped by hand, rows to claim, and waiting for facts.

``committed`` opens the test database without a transaction around the test and empties our tables afterwards.
``db_connection`` makes connections with the plan pins of a worker. Nothing here sleeps as a wait: see ``wait_until``.
Every timeout goes through ``patience``, so a slow machine sets PGJOBS_TEST_PATIENCE.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test.utils import setup_databases, teardown_databases

from django_pgjobs.decisions import Failure
from django_pgjobs.maintenance.duties import DutyProgress, TimedDuty, upkeep
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import Job
from django_pgjobs.store import claiming, registering
from django_pgjobs.store.claiming import ClaimedJob, Pair
from django_pgjobs.store.database import PINS, Database, Params, Rows, rows_of, statement
from django_pgjobs.store.finalising import Author, End
from django_pgjobs.store.new_jobs import NewJob, NewJobs

T = TypeVar("T")

PATIENCE = float(os.environ.get("PGJOBS_TEST_PATIENCE", "1"))
"""Multiplies every timeout of the tests."""

TABLES = (
    "pgjobs_job",
    "pgjobs_claim",
    "pgjobs_attempt",
    "pgjobs_log_line",
    "pgjobs_stack",
    "pgjobs_step",
    "pgjobs_gate",
    "pgjobs_link",
    "pgjobs_memo",
    "pgjobs_event",
    "pgjobs_minute",
    "pgjobs_total",
    "pgjobs_depth",
    "pgjobs_notice",
    "pgjobs_heartbeat",
    "pgjobs_leader_term",
    "pgjobs_cron_entry",
    "pgjobs_queue_state",
    "pgjobs_limit",
    "pgjobs_stored_result",
    "pgjobs_key_window",
    "pgjobs_known_job",
    "pgjobs_admission",
    "pgjobs_statistic",
    "pgjobs_installation",
    "pgjobs_import",
    "pgjobs_action",
    "pgjobs_action_part",
)

WORKER = UUID("00000000-0000-4000-8000-000000000001")
AUTHOR = Author(WORKER, "test worker", "release 1")
FAILURE = Failure(
    "shop.errors.Declined",
    "card refused",
    (("shop.errors.Declined", "card refused"), ("builtins.OSError", "line is down")),
    "Traceback (most recent call last): …",
)


def patience(seconds: float) -> float:
    """Return ``seconds`` as long as this machine may take for them."""
    return seconds * PATIENCE


def wait_until(fact: Callable[[], object], timeout: float, what: str) -> None:
    """Return as soon as ``fact()`` is true; fail after ``timeout`` seconds (times PATIENCE), naming ``what``."""
    until = time.monotonic() + patience(timeout)
    while not fact():
        if time.monotonic() > until:
            pytest.fail(f"After {patience(timeout):g} s it is still not so that {what}.")
        time.sleep(0.005)


def wait_for_age(raw: RawDatabase, seconds: float) -> None:
    """Return when the server has been up for so long: at first nobody is told of leases that ran out meanwhile."""
    up = "SELECT statement_timestamp() > pg_postmaster_start_time() + make_interval(secs => %s)"
    wait_until(lambda: raw.value(up, [seconds]), seconds + 5, f"the server has been up for {seconds:g} s")


class RawDatabase:
    """A psycopg connection as a ``Database``, with parameters and results as a worker has them."""

    sent_at = 0.0
    """It shares its connection with none, and waits for no turn."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def fetch(self, name: str, params: Params) -> Rows:
        cursor = psycopg.Cursor(self.raw)
        cursor.execute(statement(name), params, binary=True)
        return rows_of(cursor) if cursor.description else []

    def transaction(self) -> AbstractContextManager[object]:
        return self.raw.transaction()

    def fetch_together(self, statements: Sequence[tuple[str, Params]]) -> list[Rows]:
        with self.raw.transaction():
            return [self.fetch(name, params) for name, params in statements]

    def query(self, text: str, params: Any = None) -> list[tuple[Any, ...]]:
        cursor = self.raw.execute(text, params)
        return cursor.fetchall() if cursor.description else []

    def value(self, text: str, params: Any = None) -> Any:
        return self.query(text, params)[0][0]

    def row(self, job_id: int) -> dict[str, Any]:
        """Return the whole committed row as JSON values, with the state, for comparing it before and after."""
        found: dict[str, Any] = self.value(
            "SELECT to_jsonb(j) || jsonb_build_object('state', j.state) FROM pgjobs_job AS j WHERE id = %s", [job_id]
        )
        return found

    def lock(self, *ids: int) -> None:
        """Lock rows until this connection's transaction ends."""
        self.query("SELECT id FROM pgjobs_job WHERE id = ANY (%s) ORDER BY id FOR UPDATE", [list(ids)])

    @property
    def pid(self) -> int:
        return self.raw.info.backend_pid

    def commit(self) -> None:
        self.raw.commit()

    def rollback(self) -> None:
        self.raw.rollback()


@dataclass(frozen=True)
class Claimed:
    """What one claim statement took."""

    claim_id: UUID
    jobs: list[ClaimedJob]

    @property
    def ids(self) -> list[int]:
        return [job.id for job in self.jobs]

    def ends(self, **facts: Any) -> list[End]:
        """Return an ``End`` for each job under this claim."""
        return [End(job.id, str(self.claim_id), **facts) for job in self.jobs]

    def fences(self) -> list[tuple[int, str]]:
        return [(job.id, str(self.claim_id)) for job in self.jobs]


def from_the_beginning(*pairs: tuple[str, int]) -> list[Pair]:
    """Return pairs whose frontier lies before every row."""
    return [Pair(queue, priority, _LONG_AGO, 0) for queue, priority in pairs]


_LONG_AGO: Any = "-infinity"


def claim(
    db: Database,
    limit: int = 1,
    pairs: Sequence[Pair] | None = None,
    *,
    worker: UUID = WORKER,
    lease: float = 30.0,
    allowance: float = 5.0,
    grace: float = 10.0,
) -> Claimed:
    """Claim as a worker does; by default from the beginning of queue ``default``, priority 0."""
    claim_id = uuid4()
    jobs = claiming.claim_jobs(
        db,
        pairs or from_the_beginning(("default", 0)),
        claim_id=claim_id,
        worker=worker,
        limit=limit,
        lease_seconds=lease,
        allowance_seconds=allowance,
        grace_seconds=grace,
    )
    return Claimed(claim_id, jobs)


def register(count: int = 1, **fields: Any) -> list[int]:
    """Insert jobs named ``test.job``; ``fields`` as of ``NewJob``. Returns the ids in order."""
    new = NewJob(**{"name": "test.job", "payload": '{"args": [1], "kwargs": {}}', **fields})
    return registering.register_jobs("default", [alike(new, count)], limited=new.limit_key is not None)


def alike(new: NewJob, count: int = 1) -> NewJobs:
    """Return so many of the same."""
    return NewJobs(new, [new.payload] * count)


def job(job_id: int) -> Job:
    """Read a job anew."""
    return Job.objects.get(pk=job_id)


@dataclass(frozen=True)
class Background:
    """Functions run in threads whose Django connections are closed at their end."""

    pool: ThreadPoolExecutor

    def __call__(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
        def run() -> T:
            try:
                return function(*args, **kwargs)
            finally:
                connections.close_all()

        return self.pool.submit(run)


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None,
    django_db_modify_db_settings: None,
    django_db_blocker: Any,
    django_db_keepdb: bool,
    django_db_createdb: bool,
) -> Iterator[None]:
    """Make all test databases, for tests that are marked with none, too: pytest-django makes those of its marks."""
    keep = django_db_keepdb and not django_db_createdb
    with django_db_blocker.unblock():
        made = setup_databases(verbosity=0, interactive=False, keepdb=keep, serialized_aliases=set())
    yield
    if not django_db_keepdb:
        with django_db_blocker.unblock():
            _end_other_sessions()
            teardown_databases(made, verbosity=0)


def _end_other_sessions() -> None:
    """A thread's connection that nobody has closed yet would keep its database from being dropped."""
    for each in connections.all():
        if each.vendor == "postgresql":
            each.close()
            with each.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            each.close()


@pytest.fixture
def committed(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Work on committed rows; our tables and that of users are empty before and after."""
    with django_db_blocker.unblock():
        assert connection.settings_dict["NAME"].startswith("test"), "not a test database"
        yield
        empty()


@pytest.fixture
def background(committed: None) -> Iterator[Background]:
    """Run a function in a thread: ``background(function, …)`` returns its Future."""
    with ThreadPoolExecutor(8) as pool:
        yield Background(pool)


def empty() -> None:
    """Delete our rows; truncate, which is slower on small tables, only when they have grown.

    Fails if Django's connection still listens: it reads no notifications, so it would hold the server's queue. Ends
    what sleeps on a connection that a test has cut: its snapshot would keep the dead rows of the tests that follow.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '10s'")
        cursor.execute(
            "SELECT pg_total_relation_size('pgjobs_job') > 2000000, EXISTS (SELECT FROM auth_user),"
            " ARRAY(SELECT pg_listening_channels()),"
            " ARRAY(SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event = 'PgSleep')"
        )
        grown, users, channels, _ = cursor.fetchone()
        if channels:
            cursor.execute("UNLISTEN *")
        if users:
            User.objects.all().delete()
        if grown:
            cursor.execute(f"TRUNCATE {', '.join(TABLES)}")
        else:
            cursor.execute(";".join(f"DELETE FROM {table}" for table in TABLES))
        cursor.execute("RESET lock_timeout")
    assert not channels, f"Django's connection was left listening to {channels}"


# Depends on ``background`` so that connections, and with them locks, go before threads are waited for.
@pytest.fixture
def db_connection(background: Background) -> Iterator[Callable[..., RawDatabase]]:
    """Return a function that opens a connection to the test database: ``db_connection(autocommit=True, pins=True)``."""
    opened: list[psycopg.Connection[Any]] = []

    def connect(*, autocommit: bool = True, pins: bool = True) -> RawDatabase:
        options = " ".join(f"-c {key}={value}" for key, value in PINS.items()) if pins else ""
        known = connection.get_connection_params()
        params = {key: known[key] for key in ("dbname", "host", "port", "user", "password") if known.get(key)}
        opened.append(psycopg.connect(**params, options=options, autocommit=autocommit))
        return RawDatabase(opened[-1])

    yield connect
    for raw in opened:
        raw.close()


@pytest.fixture
def raw(db_connection: Callable[..., RawDatabase]) -> RawDatabase:
    """A worker's connection in autocommit."""
    return db_connection()


@contextmanager
def autovacuum_off(raw: RawDatabase) -> Iterator[None]:
    """Inside, no autovacuum of our tables changes their statistics or keeps dead rows of others by its snapshot."""
    for table in TABLES:
        raw.query(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    try:
        yield
    finally:
        for table in TABLES:
            raw.query(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


@pytest.fixture
def other(db_connection: Callable[..., RawDatabase]) -> RawDatabase:
    """A second connection, with transactions of its own: ``commit()`` and ``rollback()`` it by hand."""
    return db_connection(autocommit=False)


def blocked_by(db: RawDatabase, pid: int) -> bool:
    """Tell whether some backend waits for a lock that backend ``pid`` holds."""
    return bool(
        db.value(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock' AND %s = ANY (pg_blocking_pids(pid)))",
            [pid],
        )
    )


def slow_duty(leader: Leader, name: str) -> TimedDuty:
    """Return one of the leader's slow duties."""
    found = upkeep(DutyProgress(leader, {}), lambda: pytest.fail("connected"))
    [duty] = [each for each in found if isinstance(each, TimedDuty) and each.name == name]
    return duty
