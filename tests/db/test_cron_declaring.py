"""What code declares is brought into the database; the plans of what the leader asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connections
from django.test import override_settings

from django_pgjobs import Cron, Unique, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance import cron_declaring, cron_firing
from django_pgjobs.maintenance.cron_declaring import CronSync, MarkMissing, declared_for
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing, keeping
from django_pgjobs.store.database import Database, on
from django_pgjobs.store.finalising import Author
from django_pgjobs.store.firing import DeclaredCron
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests.db.cron_ground import MINUTE, ago, clean, declare, entry, latest, put, statements, tick
from tests.plugins.fix_db import AUTHOR, RawDatabase, patience

pytestmark = pytest.mark.usefixtures("no_other_entries", "steady")


OTHER = Author(UUID(int=9), "other")


def report(kind: str) -> None: ...


# Declaring


def test_declared_entries_are_brought_into_the_database(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W36: at once when a worker starts, each minute by the leader, at once when one is elected."""
    definition = job(name="test.clean", cron=Cron("@daily"))(clean)
    leader = Leader(AUTHOR)
    sync = CronSync(declared_for("default"), leader)
    sync.tick(raw)
    assert (entry("test.clean").declared_expression, entry("test.clean").declared_zone) == ("@daily", "UTC")
    leader.tick(raw)
    put(raw, "test.clean", declared_expression="@weekly")
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@daily", "newly elected"
    put(raw, "test.clean", declared_expression="@weekly")
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@weekly"
    time(cron_declaring.SYNC_SECONDS)
    leader.tick(raw)
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@daily"
    assert definition.name == "test.clean"


def test_very_many_entries_are_declared_a_part_in_each_tick(
    raw: RawDatabase, time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W36: each costs its time; the leader's term and the fires that are due share the thread."""
    names = [f"many:{number:02}" for number in range(20)]
    declaring = firing.declare_cron

    def dear(db: Database, declared: DeclaredCron, **options: Any) -> bool:
        time(cron_firing.REST_SECONDS / 4.9)
        return declaring(db, declared, **options)

    monkeypatch.setattr(firing, "declare_cron", dear)
    definition = job(name="test.clean")(clean)
    declared = {name: Cron("@daily", definition.bind(), name=name).declared() for name in names}
    leader = Leader(AUTHOR)
    leader.tick(raw)
    sync = CronSync(declared, leader)
    for ticks in range(1, 5):
        sync.tick(raw)
        assert CronEntry.objects.count() == 5 * ticks
    put(raw, "many:07", declared_expression="@weekly")
    sync.tick(raw)
    assert entry("many:07").declared_expression == "@weekly", "until the next minute"
    time(cron_declaring.SYNC_SECONDS)
    leader.tick(raw)
    for _ in range(4):
        sync.tick(raw)
    assert entry("many:07").declared_expression == "@daily"


def test_a_worker_that_does_not_lead_overwrites_only_at_its_start(
    raw: RawDatabase, time: Callable[[float], None]
) -> None:
    """W36 W38: its code is the newest then; later the leader's code counts and restores what no other has."""
    job(name="test.clean", cron=Cron("@daily"))(clean)
    declare(raw, "test.clean", expression="@weekly")
    sync = CronSync(declared_for("default"), Leader(OTHER))
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@daily"
    declare(raw, "test.clean", expression="@monthly")
    time(cron_declaring.SYNC_SECONDS)
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@monthly"
    raw.query("DELETE FROM pgjobs_cron_entry")
    time(cron_declaring.SYNC_SECONDS)
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@daily"


def test_a_schema_that_was_made_anew_gets_its_entries_at_the_next_visit(raw: RawDatabase) -> None:
    """W36: the worker remembers what it has declared there, and its term has the same number."""
    job(name="test.clean", cron=Cron("@daily"))(clean)
    leader = Leader(AUTHOR)
    sync = CronSync(declared_for("default"), leader)
    for _ in range(2):
        raw.query("DELETE FROM pgjobs_leader_term")
        raw.query("DELETE FROM pgjobs_cron_entry")
        leader.tick(raw)
        sync.tick(raw)
        assert (leader.term, entry("test.clean").declared_expression) == (1, "@daily")
        sync.leave(raw)
        leader.leave(raw)


@override_settings(PGJOBS={"SCHEMAS": lambda: ["tenant"]})
def test_a_later_visit_leaves_what_another_deployment_has_declared_since(raw: RawDatabase) -> None:
    """W36 W38: it confirms what its own code says, restores what is not there, and takes over after a day."""
    job(name="test.clean", cron=Cron("@daily"))(clean)
    leader = Leader(AUTHOR)
    sync = CronSync(declared_for("default"), leader)

    def visit() -> CronEntry:
        leader.tick(raw)
        sync.tick(raw)
        sync.leave(raw)
        leader.leave(raw)
        return entry("test.clean")

    declare(raw, "test.clean", expression="@weekly")
    assert visit().declared_expression == "@daily", "its start"
    put(raw, "test.clean", declared_at=ago(raw, seconds=60))
    assert visit().declared_at > ago(raw, seconds=20), "it still says so"
    declare(raw, "test.clean", expression="@monthly")
    put(raw, "test.clean", declared_at=ago(raw, hours=23))
    found = visit()
    assert found.declared_expression == "@monthly"
    assert found.declared_at < ago(raw, hours=22), "it says something else"
    put(raw, "test.clean", declared_at=ago(raw, hours=25))
    assert visit().declared_expression == "@daily", "no other says so any more"
    raw.query("DELETE FROM pgjobs_cron_entry")
    assert visit().declared_expression == "@daily"


def test_nothing_is_asked_where_nothing_is_declared(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W37."""
    leader = Leader(AUTHOR)
    leader.tick(raw)
    sync = CronSync(declared_for("default"), leader)
    with statements(raw) as asked:
        for _ in range(3):
            sync.tick(raw)
            time(cron_declaring.SYNC_SECONDS)
    sync.leave(raw)
    assert asked == []


def test_entries_of_another_deployment_stay(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W38: two applications with different schedules on one database; a name that this one never heard of fires too."""
    declare(raw, "theirs", job_name="their.job")
    put(raw, "theirs", created_at=ago(raw, hours=1))
    job(name="test.clean", cron=Cron("@daily"))(clean)
    leader = Leader(AUTHOR)
    leader.tick(raw)
    CronSync(declared_for("default"), leader).tick(raw)
    tick(raw)
    assert set(CronEntry.objects.values_list("name", flat=True)) == {"theirs", "test.clean"}
    assert Job.objects.get().name == "their.job"


def test_a_deploy_resets_nothing_that_is_not_declared(raw: RawDatabase) -> None:
    """W40: last fire, overrides and pause stay; so no fire is made twice."""
    declare(raw)
    kept: dict[str, Any] = {
        "created_at": ago(raw, days=3), "last_fire_at": latest(raw), "last_job_id": 5, "expression": "@hourly",
        "zone": "Asia/Tokyo", "paused_at": ago(raw), "paused_by": "ann", "paused_until": None,
    }  # fmt: skip
    put(raw, payload='{"args": [2], "kwargs": {}}', **kept)
    declare(raw, expression="@daily", payload='{"args": [3], "kwargs": {}}', options={"queue": "day"})
    row = entry()
    assert {column: getattr(row, column) for column in kept} == kept
    assert (row.payload, row.declared_payload) == ({"args": [2], "kwargs": {}}, {"args": [3], "kwargs": {}})
    assert (row.declared_expression, row.declared_options["queue"]) == ("@daily", "day")


def test_a_new_expression_missed_nothing_before_it_was_declared(raw: RawDatabase) -> None:
    """W40: the deploy at ten past does not fire what the new expression would have fired on the hour."""
    declare(raw, expression="0 0 1 1 *")
    put(raw, created_at=ago(raw, days=400), last_fire_at=ago(raw, days=300))
    declare(raw, expression="*/10 * * * *")
    tick(raw)
    assert (Job.objects.count(), entry().next_fire_at) == (0, latest(raw) + 10 * MINUTE)


def test_one_bad_entry_does_not_keep_the_others(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W39: neither one that the settings forbid nor one that the database refuses."""
    definition = job(name="test.report")(report)
    for name in ("a", "b", "c"):
        Cron("@daily", definition.bind("x"), name=name)
    Cron("@daily", definition.using(queue="forbidden").bind("x"), name="d")
    whole = Cron.declared

    def declared(self: Cron) -> DeclaredCron:
        return whole(self)._replace(payload="no json") if self.name == "b" else whole(self)

    monkeypatch.setattr(Cron, "declared", declared)
    with override_settings(PGJOBS={"QUEUES": ["default"]}):
        CronSync(declared_for("default"), Leader(OTHER)).tick(raw)
    assert set(CronEntry.objects.values_list("name", flat=True)) == {"a", "c"}
    assert "cron entry cannot be declared, the others can cron=b" in caplog.text
    assert "cron entry cannot be declared cron=d" in caplog.text


def test_what_the_project_makes_for_an_entry_is_made_once(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """I13: a description or a key that hangs must not stop the thread that rescues."""
    calls: list[str] = []

    def made(kind: str) -> str:
        calls.append(kind)
        return kind

    definition = job(name="test.report", unique=Unique(made, until="finished"), description=made)(report)
    Cron("@daily", definition.bind("x"), name="daily")
    leader = Leader(AUTHOR)
    leader.tick(raw)
    sync = CronSync(declared_for("default"), leader)
    calls.clear()
    for _ in range(2):
        sync.tick(raw)
        raw.query("UPDATE pgjobs_cron_entry SET declared_options = '{}'")
        time(cron_declaring.SYNC_SECONDS)
        leader.tick(raw)
    sync.tick(raw)
    assert (entry("daily").declared_options["key"], entry("daily").declared_options["description"]) == ("x", "x")
    assert calls == []


def test_an_entry_whose_key_cannot_be_made_is_not_declared(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, when the worker starts; the others are declared."""
    answers = {"x": "x", "y": "y"}
    definition = job(name="test.report", unique=Unique(lambda kind: answers[kind], until="finished"))(report)
    for kind in answers:
        Cron("@daily", definition.bind(kind), name=kind)
    del answers["x"]
    assert list(declared_for("default")) == ["y"]
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "cron entry cannot be declared cron=x" in told


def test_an_entry_goes_to_the_database_of_its_job(raw: RawDatabase) -> None:
    definition = job(name="test.report")(report)
    Cron("@daily", definition.using(database="other").bind("x"), name="there")
    Cron("@daily", definition.bind("x"), name="here")
    CronSync(declared_for("default"), Leader(OTHER)).tick(raw)
    assert list(CronEntry.objects.values_list("name", flat=True)) == ["here"]


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (None, {"default": ["each", "one"], "second": ["each"], "third": ["each"]}),
        (["second", "default"], {"default": ["each"], "second": ["each", "one"], "third": []}),
    ],
)
def test_an_entry_of_each_database_is_declared_in_those_of_the_setting(
    settings: Any, setting: Any, found: dict[str, list[str]]
) -> None:
    """Without the setting, in each that a worker serves; the other entries have one home all the same."""
    settings.PGJOBS = {"DATABASES": setting}
    definition = job(name="test.report")(report)
    Cron("@daily", definition.bind("x"), name="each", each_database=True)
    Cron("@daily", definition.bind("x"), name="one")
    assert {alias: list(declared_for(alias)) for alias in found} == found


def test_an_entry_of_each_database_is_missing_where_the_setting_leaves_its_database_out(
    raw: RawDatabase, time: Callable[[float], None], settings: Any
) -> None:
    """It keeps its row with what operators did, and fires again when the alias is back."""
    job(name="test.clean", cron=Cron("* * * * *", each_database=True))(clean)
    CronSync(declared_for("default"), Leader(OTHER)).tick(raw)
    assert entry("test.clean").pause(by="ann", reason="it moves") == 1
    settings.PGJOBS = {"DATABASES": ["second"]}
    put(raw, "test.clean", declared_at=ago(raw, seconds=cron_declaring.MISSING_SECONDS + 1))
    CronSync(declared_for("default"), Leader(OTHER)).tick(raw)
    MarkMissing()(on("default"))
    assert (entry("test.clean").status, entry("test.clean").paused_by) == ("missing", "ann")
    settings.PGJOBS = {"DATABASES": ["second", "default"]}
    CronSync(declared_for("default"), Leader(OTHER)).tick(raw)
    assert (entry("test.clean").status, entry("test.clean").paused_by) == ("paused", "ann")


def test_an_entry_that_becomes_one_of_each_database_keeps_its_fires(raw: RawDatabase) -> None:
    definition = job(name="test.report")(report)
    for each in (False, True):
        with registry.isolated():
            Cron("@daily", definition.bind("x"), name="report", each_database=each)
            CronSync(declared_for("default"), Leader(OTHER)).tick(raw)
        if not each:
            put(raw, "report", last_fire_at=ago(raw, hours=30))
    kept = entry("report")
    assert kept.declared_options["each_database"] is True
    assert kept.last_fire_at is not None


def test_an_entry_whose_code_is_gone_is_marked_until_it_comes_back(
    raw: RawDatabase, time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """W38, bad input: visible, logged, not fired; any worker that has the code brings it back."""
    job(name="test.clean", cron=Cron("* * * * *"))(clean)
    sync = CronSync(declared_for("default"), Leader(OTHER))
    sync.tick(raw)
    declare(raw, "stays")
    put(
        raw,
        "test.clean",
        declared_at=ago(raw, seconds=cron_declaring.MISSING_SECONDS + 1),
        created_at=ago(raw, hours=1),
    )
    MarkMissing()(on("default"))
    assert [row.name for row in CronEntry.objects.exclude(missing_since=None)] == ["test.clean"]
    assert "declared by no worker's code any more" in caplog.text
    tick(raw)
    assert Job.objects.count() == 0
    time(cron_declaring.SYNC_SECONDS)
    sync.tick(raw)
    assert entry("test.clean").missing_since is None
    tick(raw)
    assert Job.objects.count() == 1


def test_in_one_of_many_schemas_an_entry_is_missing_after_a_day(raw: RawDatabase) -> None:
    """W38: workers of two deployments visit it in turns, each after five minutes."""
    declare(raw, "theirs")
    with override_settings(PGJOBS={"SCHEMAS": lambda: ["tenant"]}):
        for seconds, status in ((43_200, "on"), (86_401, "missing")):
            put(raw, "theirs", declared_at=ago(raw, seconds=seconds))
            MarkMissing()(on("default"))
            assert entry("theirs").status == status


@pytest.mark.parametrize(("lock", "marked"), [("UPDATE", ["free"]), ("KEY SHARE", ["free", "held"])])
def test_entries_without_code_are_marked_on_the_workers_own_connection_and_held_rows_are_left(
    raw: RawDatabase, other: RawDatabase, lock: str, marked: list[str]
) -> None:
    """W38: rescue shares that thread; who only points to the row is not in the way."""
    for name in ("free", "held"):
        declare(raw, name)
        put(raw, name, declared_at=ago(raw, seconds=cron_declaring.MISSING_SECONDS + 1))
    other.query("BEGIN")
    other.query(f"SELECT name FROM pgjobs_cron_entry WHERE name = 'held' FOR {lock}")
    django = connections["default"]
    db = WorkerConnection("default", "test", statement_seconds=patience(10.0))
    try:
        db.connection.execute("SET lock_timeout = '100ms'")
        MarkMissing()(db)
        assert sorted(CronEntry.objects.exclude(missing_since=None).values_list("name", flat=True)) == marked
        assert connections["default"] is django
        other.rollback()
        MarkMissing()(db)
        assert not CronEntry.objects.filter(missing_since=None).exists()
        assert db.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert keeping.read_identity(db) == db.identity
    finally:
        db.close()


def test_a_new_declaration_replaces_all_of_the_old_one(raw: RawDatabase) -> None:
    """W36: whatever the code says now is what counts."""
    declare(raw)
    said = {
        "job_name": "test.other", "expression": "@daily", "zone": "Europe/Berlin", "payload": '{"args": [2]}',
        "misfire": "skip", "overlap": "skip",
    }  # fmt: skip
    declare(raw, **said, options={"priority": 7})
    row = entry()
    assert (row.job_name, row.declared_expression, row.declared_zone) == ("test.other", "@daily", "Europe/Berlin")
    assert (row.declared_payload, row.declared_options["priority"]) == ({"args": [2]}, 7)
    assert (row.misfire, row.overlap) == ("skip", "skip")


@pytest.mark.parametrize(
    "changed",
    [
        {"last_fire_at": "2001-01-01"}, {"last_job_id": 7}, {"expression": "@daily"}, {"zone": "Europe/Berlin"},
        {"starts_at": "2001-01-01"}, {"ends_at": "2999-01-01"},
    ],
    ids=str,
)  # fmt: skip
def test_a_fire_is_planned_only_for_an_entry_that_stands_as_it_was_read(
    raw: RawDatabase, changed: dict[str, Any]
) -> None:
    """An operator or another leader was faster; each of these columns alone is reason enough."""
    declare(raw)
    [read] = firing.list_crons(raw, everything=True)
    put(raw, **changed)
    assert not firing.plan_cron(raw, read, latest(raw))
    [read] = firing.list_crons(raw, everything=True)
    assert firing.plan_cron(raw, read, latest(raw))


def test_a_declaration_seen_lately_is_not_written_again(raw: RawDatabase) -> None:
    """Many workers say the same each minute; the row is written by the first of them."""
    declare(raw)
    before = raw.value("SELECT xmin::text FROM pgjobs_cron_entry")
    assert firing.refresh_crons(raw, ["clean", "unknown"], fresh_seconds=30) == {"clean": False}
    assert raw.value("SELECT xmin::text FROM pgjobs_cron_entry") == before
    put(raw, declared_at=ago(raw, seconds=31))
    firing.refresh_crons(raw, ["clean"], fresh_seconds=30)
    assert entry().declared_at > ago(raw, seconds=20)


# Plans


def test_the_look_at_overlaps_goes_by_the_entrys_unfinished_jobs(raw: RawDatabase) -> None:
    """However many jobs there are."""
    plan = "\n".join(
        row[0]
        for row in raw.query("EXPLAIN SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = 'x' AND j.finished_at IS NULL")
    )
    assert "pgjobs_job_cron" in plan
