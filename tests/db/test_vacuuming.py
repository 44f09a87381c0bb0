"""The leader's own VACUUM: when it is due, that it gives way, who may do it, and that it ends with the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.maintenance import vacuum as room
from django_pgjobs.maintenance.vacuum import (
    AFTER_FAILURE_SECONDS,
    AFTER_SKIP_SECONDS,
    CHECK_SECONDS,
    IDLE_SECONDS,
    VacuumedTable,
    Vacuumer,
    VacuumSession,
)
from django_pgjobs.running.served_database import ServedDatabase
from django_pgjobs.store import vacuuming
from django_pgjobs.store.vacuuming import Dead
from django_pgjobs.worker.shared.connection import LOCK_TIMEOUT, WorkerConnection
from django_pgjobs.worker.shared.lines import SharedLine
from django_pgjobs.worker.threads.maintainer import FirstTurns
from tests.plugins.fix_clock import Time
from tests.plugins.fix_db import RawDatabase, blocked_by, wait_until
from tests.plugins.fix_roles import Role

COUNT = "SELECT pg_stat_get_vacuum_count(%s::regclass)"


@pytest.fixture
def quiet(raw: RawDatabase) -> Iterator[None]:
    """Nobody else vacuums, and nothing is dead."""
    for table in ("pgjobs_job", "pgjobs_claim"):
        raw.query(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        raw.query(f"VACUUM {table}")
    yield
    for table in ("pgjobs_job", "pgjobs_claim"):
        raw.query(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


def session() -> VacuumSession:
    return WorkerConnection("default", "pgjobs test vacuum", statement_seconds=None)


def die(raw: RawDatabase, count: int) -> None:
    """Let rows of the job table die, and wait until the server's statistics know."""
    before = raw.value("SELECT pg_stat_get_dead_tuples('pgjobs_job'::regclass)")
    raw.query("INSERT INTO pgjobs_job (name, payload) SELECT 'dead', '{}' FROM generate_series(1, %s)", [count])
    raw.query("DELETE FROM pgjobs_job WHERE name = 'dead'")
    raw.query("SELECT pg_stat_force_next_flush()")
    known = "SELECT pg_stat_get_dead_tuples('pgjobs_job'::regclass)"
    wait_until(lambda: raw.value(known) >= before + count, 20, "the statistics know")


def settle(vacuumer: Vacuumer, raw: RawDatabase) -> None:
    """Tick until nothing runs."""

    def ended() -> bool:
        if vacuumer.running is not None:
            vacuumer.tick(raw)
        return vacuumer.running is None

    vacuumer.tick(raw)
    wait_until(ended, 30, "the VACUUM has ended")


@pytest.mark.parametrize(
    ("dead", "alive", "due"),
    [(299_999, 0, False), (300_000, 0, True), (300_000, 10_000_000, True), (300_000, 10_000_001, False)],
)
def test_it_is_due_when_much_has_died_and_no_less_than_a_share(dead: int, alive: int, due: bool) -> None:
    [jobs, _] = Vacuumer(session).tables
    assert jobs.is_due(Dead(dead, alive, True, "", 0)) is due


def test_what_the_last_one_could_not_clean_up_does_not_bring_the_next() -> None:
    """An old snapshot keeps it; only what dies on top counts, and less when autovacuum has been there."""
    table = VacuumedTable("pgjobs_job", 100, 0.03)

    def found(dead: int) -> Dead:
        return Dead(dead, 0, True, "", 0)

    assert table.is_due(found(150))
    table.settled = False
    assert [table.is_due(found(dead)) for dead in (150, 249, 250)] == [False, False, True]
    assert [table.is_due(found(dead)) for dead in (30, 129, 130)] == [False, False, True]


def test_it_vacuums_what_is_due_and_rests(
    raw: RawDatabase, quiet: None, time: Time, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a connection of its own, without ANALYZE; the room is free again."""
    vacuumer = Vacuumer(session)
    vacuumer.tables[0].died = 1000
    before, analysed = (
        raw.value(COUNT, ["pgjobs_job"]),
        raw.value("SELECT pg_stat_get_analyze_count('pgjobs_job'::regclass)"),
    )
    settle(vacuumer, raw)
    assert raw.value(COUNT, ["pgjobs_job"]) == before, "nothing is dead"
    die(raw, 1500)
    settle(vacuumer, raw)
    assert raw.value(COUNT, ["pgjobs_job"]) == before, "it looks now and then only"
    time(IDLE_SECONDS)
    with caplog.at_level(logging.INFO, "django_pgjobs"):
        settle(vacuumer, raw)
    wait_until(lambda: raw.value(COUNT, ["pgjobs_job"]) == before + 1, 20, "it was vacuumed")
    assert "table was vacuumed table=pgjobs_job" in caplog.text
    assert raw.value("SELECT pg_stat_get_analyze_count('pgjobs_job'::regclass)") == analysed
    assert raw.value("SELECT pg_stat_get_dead_tuples('pgjobs_job'::regclass)") == 0
    time(IDLE_SECONDS)
    settle(vacuumer, raw)
    assert raw.value(COUNT, ["pgjobs_job"]) == before + 1


def test_switched_off_it_does_not_look(raw: RawDatabase, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PGJOBS = {"VACUUM": False}
    monkeypatch.setattr(vacuuming, "read_dead", lambda db, table: pytest.fail("looked"))
    Vacuumer(session).tick(raw)


@pytest.mark.parametrize("table", list(vacuuming.VACUUMS))
def test_a_table_that_is_locked_is_left_alone(raw: RawDatabase, other: RawDatabase, quiet: None, table: str) -> None:
    """It never queues for a lock, where all of our statements would have to wait after it."""
    before = raw.value(COUNT, [table])
    other.query(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE")
    ours = session()
    vacuuming.VACUUMS[table](ours)
    assert raw.value(COUNT, [table]) == before
    other.rollback()
    vacuuming.VACUUMS[table](ours)
    wait_until(lambda: raw.value(COUNT, [table]) == before + 1, 20, "it was vacuumed")
    ours.close()


def test_its_connection_bounds_waits_for_locks_and_nothing_else(committed: None) -> None:
    ours = WorkerConnection("default", "pgjobs test vacuum", statement_seconds=None)
    shown = {key: ours.connection.execute(f"SHOW {key}").fetchone() for key in ("statement_timeout", "lock_timeout")}
    assert shown == {"statement_timeout": ("0",), "lock_timeout": (LOCK_TIMEOUT,)}
    assert not ours.cut_if_mute(1e12)
    ours.close()


@pytest.fixture
def long_vacuum(raw: RawDatabase, other: RawDatabase, quiet: None, monkeypatch: pytest.MonkeyPatch) -> Vacuumer:
    """A VACUUM that holds the table for a long time, as on large tables."""

    def slow(db: Any) -> None:
        # Throttled to a crawl by the server's own brake.
        db.connection.execute("SET vacuum_cost_delay = 100; ")
        db.connection.execute("SET vacuum_cost_limit = 1")
        store_vacuum(db)

    raw.query("INSERT INTO pgjobs_job (name, payload) SELECT 'alive', '{}' FROM generate_series(1, 20000)")
    store_vacuum = vacuuming.VACUUMS["pgjobs_job"]
    monkeypatch.setattr(vacuuming, "VACUUMS", {"pgjobs_job": slow})
    vacuumer = Vacuumer(session)
    vacuumer.tables[0].died = 1000
    die(raw, 20_000)
    vacuumer.tick(raw)
    wait_until(lambda: is_vacuuming(raw), 20, "it vacuums")
    return vacuumer


def is_vacuuming(raw: RawDatabase) -> bool:
    return bool(raw.value("SELECT count(*) FROM pg_stat_progress_vacuum WHERE relid = 'pgjobs_job'::regclass"))


def test_it_gives_way_to_whoever_waits_for_the_table(
    raw: RawDatabase,
    db_connection: Callable[..., RawDatabase],
    background: Any,
    long_vacuum: Vacuumer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A migration: else it would wait for the VACUUM, and every claim for the migration."""
    migration = db_connection()
    altered = background(migration.query, "ALTER TABLE pgjobs_job ADD CONSTRAINT shop CHECK (id > 0) NOT VALID")
    assert long_vacuum.running is not None
    assert long_vacuum.running.session is not None
    wait_until(lambda: blocked_by(raw, long_vacuum.running.session.pid), 20, "it waits")  # type: ignore[union-attr]
    with caplog.at_level(logging.INFO, "django_pgjobs"):
        long_vacuum.tick(raw)
    altered.result(20)
    raw.query("ALTER TABLE pgjobs_job DROP CONSTRAINT shop")
    wait_until(lambda: not is_vacuuming(raw), 20, "it has ended")
    settle(long_vacuum, raw)
    assert "VACUUM is cancelled, another session waits for the table" in caplog.text
    assert long_vacuum.tables[0].rest_until > clock.monotonic() + AFTER_FAILURE_SECONDS / 2


def test_it_is_left_alone_while_nobody_waits_and_ends_with_the_worker(raw: RawDatabase, long_vacuum: Vacuumer) -> None:
    """W8: a resignation is not delayed by it."""
    running = long_vacuum.running
    long_vacuum.tick(raw)
    assert long_vacuum.running is running
    assert is_vacuuming(raw)
    long_vacuum.leave(raw)
    assert long_vacuum.running is None
    wait_until(lambda: not is_vacuuming(raw), 20, "it has ended")
    long_vacuum.leave(raw)


def may_vacuum(role: Role, raw: RawDatabase) -> bool:
    """Tell whether a VACUUM by this role happens, and that we know it beforehand."""
    vacuumer = Vacuumer(lambda: WorkerConnection(role.alias, "pgjobs test vacuum", statement_seconds=None))
    vacuumer.tables[0].died = 1000
    die(raw, 1500)
    before = raw.value(COUNT, ["pgjobs_job"])
    theirs = role.connect()
    found = vacuuming.read_dead(theirs, "pgjobs_job")
    assert found is not None
    settle(vacuumer, theirs)
    theirs.query("VACUUM (SKIP_LOCKED, TRUNCATE false) pgjobs_job")
    by_hand = raw.value(COUNT, ["pgjobs_job"]) - before - found.allowed
    assert by_hand == found.allowed, "the server and we agree"
    assert (raw.value("SELECT pg_stat_get_dead_tuples('pgjobs_job'::regclass)") == 0) is found.allowed
    assert vacuumer.refused is not found.allowed
    return bool(found.allowed)


@pytest.fixture
def version(raw: RawDatabase) -> int:
    return raw.raw.info.server_version // 10_000


def test_a_role_that_may_not_is_told_once_what_to_grant(
    raw: RawDatabase, quiet: None, time: Time, role: Callable[..., Role], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is tried, nothing fails; both tables are due, round after round. Once it may, it does."""
    limited = role("SELECT, INSERT, UPDATE, DELETE ON pgjobs_job, pgjobs_claim")
    theirs = limited.connect()
    die(raw, 1500)
    before = [raw.value(COUNT, [table]) for table in vacuuming.VACUUMS]
    vacuumer = Vacuumer(lambda: pytest.fail("connected"))
    for table in vacuumer.tables:
        table.died = 0
    for _ in range(3):
        vacuumer.tick(theirs)
        assert vacuumer.running is None
        time(IDLE_SECONDS)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    owner = raw.value("SELECT tableowner FROM pg_tables WHERE tablename = 'pgjobs_job'")
    assert f"pgjobs_job is owned by {owner};" in caplog.text
    assert "GRANT MAINTAIN ON pgjobs_job, pgjobs_claim" in caplog.text
    assert [raw.value(COUNT, [table]) for table in vacuuming.VACUUMS] == before
    assert not may_vacuum(limited, raw)
    raw.query(f"GRANT {owner} TO {limited.name}")
    assert may_vacuum(limited, raw)


@pytest.mark.parametrize("grant", ["MAINTAIN ON pgjobs_job, pgjobs_claim", "pg_maintain"])
def test_from_17_on_the_right_to_maintain_is_enough(
    raw: RawDatabase, quiet: None, time: Time, role: Callable[..., Role], version: int, grant: str
) -> None:
    """On the tables, or on all there are by membership."""
    if version < 17:
        pytest.skip("there is no such right before PostgreSQL 17")
    assert may_vacuum(role("SELECT, INSERT, UPDATE, DELETE ON pgjobs_job, pgjobs_claim", grant), raw)


def test_a_membership_that_inherits_nothing_is_not_enough(
    raw: RawDatabase, quiet: None, time: Time, role: Callable[..., Role], version: int
) -> None:
    """The server looks at what a role inherits: before 16 the role says whether it does, then the membership."""
    owner = raw.value("SELECT tableowner FROM pg_tables WHERE tablename = 'pgjobs_job'")
    if version < 16:
        limited = role(owner)
        raw.query(f"ALTER ROLE {limited.name} NOINHERIT")
    else:
        limited = role()
        for each in (owner, "pg_maintain") if version > 16 else (owner,):
            raw.query(f"GRANT {each} TO {limited.name} WITH INHERIT FALSE")
    assert not may_vacuum(limited, raw)


def test_from_17_on_an_owner_may_have_lost_the_right(
    raw: RawDatabase, quiet: None, time: Time, role: Callable[..., Role], version: int
) -> None:
    """The server skips its tables as anybody's; before, an owner cannot lose it."""
    owner = role()
    former = raw.value("SELECT tableowner FROM pg_tables WHERE tablename = 'pgjobs_job'")
    raw.query(f"ALTER TABLE pgjobs_job OWNER TO {owner.name}")
    try:
        assert may_vacuum(owner, raw)
        raw.query(f"REVOKE ALL ON pgjobs_job FROM {owner.name}")
        assert may_vacuum(owner, raw) is (version < 17)
    finally:
        raw.query(f"GRANT ALL ON pgjobs_job TO {owner.name}")
        raw.query(f"ALTER TABLE pgjobs_job OWNER TO {former}")


def test_the_owner_of_the_database_may(raw: RawDatabase, quiet: None, time: Time, role: Callable[..., Role]) -> None:
    owner = role()
    name, former = raw.query(
        "SELECT datname, pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
    )[0]
    raw.query(f"ALTER DATABASE {name} OWNER TO {owner.name}")
    try:
        assert may_vacuum(owner, raw)
    finally:
        raw.query(f"ALTER DATABASE {name} OWNER TO {former}")


@pytest.mark.parametrize("why", ["locked", "lost the right"])
def test_one_that_was_skipped_is_not_taken_for_done(
    raw: RawDatabase,
    other: RawDatabase,
    quiet: None,
    time: Time,
    role: Callable[..., Role],
    caplog: pytest.LogCaptureFixture,
    why: str,
) -> None:
    """The server warns and says VACUUM all the same. It is due as before, and comes soon; told once."""
    owner = raw.value("SELECT tableowner FROM pg_tables WHERE tablename = 'pgjobs_job'")
    limited = role(owner)
    vacuumer = Vacuumer(lambda: WorkerConnection(limited.alias, "pgjobs test vacuum", statement_seconds=None))
    vacuumer.tables = vacuumer.tables[:1]
    vacuumer.tables[0].died = 1000
    die(raw, 1500)
    before = raw.value(COUNT, ["pgjobs_job"])

    def connect_late() -> VacuumSession:
        if why == "locked":
            other.query("LOCK TABLE pgjobs_job IN SHARE UPDATE EXCLUSIVE MODE")
        else:
            raw.query(f"REVOKE {owner} FROM {limited.name}")
        return connect()

    connect, vacuumer.connect = vacuumer.connect, connect_late
    with caplog.at_level(logging.INFO, "django_pgjobs"):
        settle(vacuumer, raw)
        raw.query(f"GRANT {owner} TO {limited.name}")
        time(AFTER_SKIP_SECONDS)
        settle(vacuumer, raw)
    other.rollback()
    raw.query(f"GRANT {owner} TO {limited.name}")
    assert raw.value(COUNT, ["pgjobs_job"]) == before
    assert caplog.text.count("server skipped a VACUUM") == 1
    assert "was vacuumed" not in caplog.text
    vacuumer.connect = connect
    time(CHECK_SECONDS)
    settle(vacuumer, raw)
    assert raw.value(COUNT, ["pgjobs_job"]) == before, "not at once"
    time(AFTER_SKIP_SECONDS)
    settle(vacuumer, raw)
    assert raw.value(COUNT, ["pgjobs_job"]) == before + 1


def test_a_table_that_is_locked_keeps_no_other_from_its_vacuum(
    raw: RawDatabase, other: RawDatabase, quiet: None, time: Time
) -> None:
    vacuumer = Vacuumer(session)
    for table in vacuumer.tables:
        table.died, table.share = 0, 0.0
    other.query("LOCK TABLE pgjobs_job IN SHARE UPDATE EXCLUSIVE MODE")
    before = [raw.value(COUNT, [table.name]) for table in vacuumer.tables]
    settle(vacuumer, raw)
    time(CHECK_SECONDS)
    settle(vacuumer, raw)
    other.rollback()
    assert [raw.value(COUNT, [table.name]) for table in vacuumer.tables] == [before[0], before[1] + 1]


def test_a_server_that_refuses_is_told_and_asked_later(
    raw: RawDatabase, quiet: None, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """W10: it gets no connection; pruning and everything else continue."""

    def refuses() -> VacuumSession:
        raise psycopg.OperationalError("too many connections")

    vacuumer = Vacuumer(refuses)
    vacuumer.tables[0].died, vacuumer.tables[0].share = 0, 0.0
    settle(vacuumer, raw)
    assert "VACUUM failed, tried again later table=pgjobs_job: too many connections" in caplog.text
    time(CHECK_SECONDS)
    vacuumer.tables = vacuumer.tables[:1]
    vacuumer.tick(raw)
    before = vacuumer.running
    time(AFTER_FAILURE_SECONDS)
    vacuumer.tick(raw)
    assert (before, vacuumer.running is None) == (None, False)
    settle(vacuumer, raw)
    assert vacuuming.read_dead(raw, "no_such_table") is None
    assert room.CLAIMS_DIED < room.JOBS_DIED


def test_one_that_waits_for_a_session_of_many_schemas_gives_up_and_meets_no_other(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for the session's process then, waits for the table of another schema."""
    line = SharedLine("vacuum", lambda: WorkerConnection("default", "pgjobs test vacuum", statement_seconds=None))
    ran: list[object] = []
    monkeypatch.setattr(vacuuming, "VACUUMS", {"pgjobs_job": ran.append})
    monkeypatch.setattr(vacuuming, "is_waited_for", lambda db, pid: True)
    shared = line.open("public")
    vacuumer = Vacuumer(lambda: shared)
    running = vacuumer.running = room.Vacuuming(vacuumer.tables[0], lambda: shared)
    with line.turn:
        running.start()
        wait_until(lambda: line.turn.waiting, 20, "it waits for its turn")
        vacuumer.tick(raw)
        assert not running.unwanted.is_set()
        running.cancel()
    running.join(20)
    line.close()
    assert (ran, running.error) == ([], None)


def test_a_schema_stays_awake_while_its_table_is_vacuumed(raw: RawDatabase, long_vacuum: Vacuumer) -> None:
    """Else the VACUUM of a large table would be cancelled after a few seconds, each time anew."""
    found: Any = SimpleNamespace(leases=0, gates=0, limited_jobs=0, fires=0)
    served: Any = SimpleNamespace(kept_up=[long_vacuum], check=SimpleNamespace(found=found), first=FirstTurns())
    has_duties: Any = ServedDatabase.has_duties
    assert has_duties.fget(served) is True
    long_vacuum.leave(raw)
    assert has_duties.fget(served) is False
