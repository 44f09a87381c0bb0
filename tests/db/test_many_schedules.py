"""A hundred thousand schedules: what the leader reads and writes does not grow with how many there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs import sql
from django_pgjobs.maintenance import cron_firing
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing, scheduling
from django_pgjobs.store.database import Database
from django_pgjobs.store.firing import ListedCron
from tests.db.cron_ground import PLAIN, ago, put
from tests.plugins.explaining import Explaining, faults, nodes, pages
from tests.plugins.fix_db import RawDatabase

pytestmark = pytest.mark.usefixtures("no_other_entries", "steady")
MANY = 20_000
Connect = Callable[..., RawDatabase]

SEED = """
INSERT INTO pgjobs_cron_entry (
    name, origin, job_name, declared_expression, declared_zone, declared_payload, declared_options, fingerprint,
    next_fire_at
)
SELECT 'tenant:' || n %% 1000 || ':' || n, 'row', 'shop.report', '0 0 1 1 *', 'UTC', '{"args": [], "kwargs": {}}',
    %s::jsonb,
    'known', CASE WHEN %s THEN statement_timestamp() + interval '9 days' END
FROM generate_series(1, %s) AS n
"""


def fill(raw: RawDatabase, *, planned: bool, count: int = MANY) -> None:
    raw.query(SEED, [json.dumps(PLAIN), planned, count])


STATEMENTS: dict[str, Callable[[Any], object]] = {
    "list_crons": lambda db: firing.list_crons(db, everything=False, pending=["tenant:1:1"], excluded=["tenant:2:2"]),
    "a slice": lambda db: firing.list_crons(db, everything=True, beyond="tenant:5", most=100),
    "shelve_crons": lambda db: firing.shelve_crons(db, seconds=60),
    "list_row_jobs": scheduling.list_row_jobs,
    "list_unchecked_crons": lambda db: scheduling.list_unchecked_crons(db, "shop.report", "known", most=100),
    "orphan_crons": lambda db: scheduling.orphan_crons(db, "another.job", "gone", older_seconds=300, most=100),
    "refresh_crons": lambda db: firing.refresh_crons(db, ["tenant:1:1"], fresh_seconds=60),
}


@pytest.mark.parametrize("prepared", ["before", "after"])
def test_what_the_leader_asks_for_each_turn_costs_what_is_due_and_not_the_table(
    raw: RawDatabase, db_connection: Connect, prepared: str
) -> None:
    """As a worker's connection has it; also with plans that were made while the table was empty."""
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    if prepared == "before":
        for run in STATEMENTS.values():
            run(explaining)
        worker.commit()
    fill(raw, planned=True)
    raw.query("ANALYZE pgjobs_cron_entry")
    for number in range(5):
        put(raw, f"tenant:{number}:{1000 + number}", next_fire_at=ago(raw, minutes=1))
    wrong = {}
    for name, run in STATEMENTS.items():
        run(explaining)
        worker.rollback()
        read = max(node["Actual Rows"] * node["Actual Loops"] for node in nodes(explaining.plan))
        if pages(explaining) > 1500 or read > 500 or faults(explaining.plan, vain=300):
            wrong[name] = (pages(explaining), read, faults(explaining.plan, vain=300))
    assert wrong == {}


def test_the_check_above_finds_a_join_with_all_entries(
    raw: RawDatabase, db_connection: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin: what was read by name is compared with each entry."""
    worker = db_connection(autocommit=False)
    fill(raw, planned=True)
    whole = sql.statement
    joined = whole("list_crons").replace("e.name = ANY (ARRAY (SELECT name FROM chosen))", "length(e.name) > 0")
    monkeypatch.setattr(sql, "statement", lambda name: joined if name == "list_crons" else whole(name))
    explaining = Explaining(worker, set())
    STATEMENTS["list_crons"](explaining)
    assert max(node["Actual Rows"] for node in nodes(explaining.plan)) >= MANY
    worker.rollback()


def test_due_ones_are_fired_before_any_of_many_is_planned_and_a_turn_ends_in_time(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, time: Callable[[float], None]
) -> None:
    """Planning costs its time, here a tenth of a second each; what comes due meanwhile goes first in the next turn."""
    fill(raw, planned=False, count=60)
    planned: list[str] = []
    plan = firing.plan_cron

    def dear(db: Database, entry: ListedCron, *args: Any, **kwargs: Any) -> bool:
        planned.append(entry.name)
        time(cron_firing.REST_SECONDS / 4.9)
        return plan(db, entry, *args, **kwargs)

    monkeypatch.setattr(firing, "plan_cron", dear)
    firer = Firer()
    for turn in range(1, 5):
        due = f"tenant:{turn}:{turn}"
        put(raw, due, next_fire_at=ago(raw, minutes=1), created_at=ago(raw, days=400), last_fire_at=None)
        firer(raw)
        assert Job.objects.filter(cron_entry=due).count() == 1
        assert len(planned) == 5 * turn
    for _ in range(10):
        firer(raw)
    assert (len(planned), CronEntry.objects.filter(next_fire_at=None).count(), Job.objects.count()) == (56, 0, 4)


@pytest.mark.usefixtures("time")  # or a busy machine's turn ends before the slice does
def test_a_slice_follows_a_slice_until_all_were_read(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody edited a row by hand; the leader reads all of them in time, a thousand at a time."""
    monkeypatch.setattr(firing, "MOST_LISTED", 50)
    listed = firing.list_crons
    monkeypatch.setattr(firing, "list_crons", lambda db, **asked: listed(db, **asked, most=50))
    fill(raw, planned=True, count=120)
    firer = Firer()
    raw.query("UPDATE pgjobs_cron_entry SET declared_expression = '61 * * * *'")
    counts = []
    for _ in range(4):
        firer.everything_at = 0.0
        firer(raw)
        counts.append(CronEntry.objects.exclude(broken="").count())
    assert counts == [50, 100, 120, 120]


@pytest.mark.usefixtures("time")  # or a busy machine's turn ends before the slice does
def test_the_leader_forgets_schedules_that_are_gone(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """People make and delete schedules for as long as a leader lives; its memory holds those that there are."""
    monkeypatch.setattr(firing, "MOST_LISTED", 50)
    listed = firing.list_crons
    monkeypatch.setattr(firing, "list_crons", lambda db, **asked: listed(db, **asked, most=50))
    firer = Firer()

    def read_all() -> int:
        for _ in range(4):
            firer.everything_at = 0.0
            firer(raw)
        return len(firer.seen)

    fill(raw, planned=True, count=120)
    assert read_all() == 120
    raw.query("DELETE FROM pgjobs_cron_entry WHERE name <> 'tenant:7:7'")
    assert read_all() == 1
