"""Schedules made at run time, as the leader fires them: within their bounds, and until they are stopped."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_pgjobs import sql
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing
from django_pgjobs.store.database import statement
from tests.db.cron_ground import MINUTE, ago, declare, entry, fires, latest, put, tick
from tests.db.cron_rows_ground import NAME, definition, schedule
from tests.plugins.fix_db import RawDatabase

__all__ = ["definition"]

pytestmark = pytest.mark.usefixtures("no_other_entries", "steady")


def test_nothing_fires_before_the_start_nor_after_the_end(raw: RawDatabase, definition: Any) -> None:
    """Both included; after its end it is no longer looked at."""
    last = latest(raw)
    schedule(definition, misfire="all", misfire_limit=50, start=last - 30 * MINUTE, end=last - 10 * MINUTE)
    put(raw, NAME, created_at=ago(raw, hours=5), in_force_since=None)
    for _ in range(4):
        tick(raw)
    assert fires() == [last - 30 * MINUTE, last - 20 * MINUTE, last - 10 * MINUTE]
    row = entry(NAME)
    assert (row.status, row.next_fire_at, row.next_fires()) == ("ended", None, [])
    assert firing.list_crons(raw, everything=False) == []


def test_the_statement_itself_keeps_the_bounds(
    raw: RawDatabase, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that read the row before they changed fires nothing outside; the sabotaged twins do."""
    last = latest(raw)
    columns: dict[str, Any] = {
        "starts_at": last + MINUTE, "ends_at": last - MINUTE, "max_fires": 0, "enabled": False,
        "paused_at": last, "missing_since": last,
    }  # fmt: skip
    whole = statement("fire_cron")
    for number, (column, value) in enumerate(columns.items()):
        name = f"bound:{number}"
        if column == "missing_since":
            declare(raw, name)
        else:
            schedule(definition, name=name)
        [read] = firing.list_crons(raw, everything=False)
        put(raw, name, **{column: value})
        assert firing.fire_cron(raw, read, [last], None, notify=False) == [], column
        lines = [line for line in whole.splitlines() if not re.search(rf"^AND .*e\.{column}\b", line)]
        assert len(lines) == len(whole.splitlines()) - 1
        monkeypatch.setattr(sql, "statement", {"fire_cron": "\n".join(lines)}.__getitem__)
        assert firing.fire_cron(raw, read, [last], None, notify=False) != [], column
        monkeypatch.undo()
        put(raw, name, enabled=False)


def test_it_makes_no_more_fires_than_it_may(raw: RawDatabase, definition: Any) -> None:
    """Counted since its timing last changed, whatever changed besides."""
    last = latest(raw)
    schedule(definition, misfire="all", misfire_limit=50, max_fires=3)
    put(raw, NAME, created_at=ago(raw, hours=5))
    firer = Firer()
    for _ in range(3):
        firer(raw)
    assert (len(fires()), entry(NAME).status, entry(NAME).next_fires()) == (3, "ended", [])
    assert schedule(definition, misfire="once", max_fires=3).fires_made == 3
    firer(raw)
    assert len(fires()) == 3
    row = schedule(definition, misfire="once", max_fires=4)
    assert (row.fires_made, row.status, len(row.next_fires(9))) == (0, "on", 4)
    firer(raw)
    assert entry(NAME).next_fire_at == last + 10 * MINUTE


def test_a_schedule_that_is_off_does_not_fire_and_forgets_what_it_missed(raw: RawDatabase, definition: Any) -> None:
    """An operator's pause is another thing: registering does not end it."""
    assert schedule(definition, enabled=False).status == "off"
    put(raw, NAME, created_at=ago(raw, hours=5))
    firer = Firer()
    firer(raw)
    entry(NAME).pause(by="ann")
    assert schedule(definition).status == "paused"
    firer(raw)
    entry(NAME).resume()
    firer(raw)
    assert (fires(), entry(NAME).next_fire_at) == ([], latest(raw) + 10 * MINUTE)


def test_what_may_not_fire_is_put_aside_until_that_changes(raw: RawDatabase, definition: Any) -> None:
    """Paused, off, missing or used up: nobody reads them again and again; a pause that ends by itself is seen."""
    for number, expression in enumerate(["*/10 * * * *"] * 4):
        schedule(definition, expression, name=f"many:{number}")
    declare(raw, "code")
    put(raw, "many:0", paused_at=ago(raw))
    put(raw, "many:1", paused_at=ago(raw), paused_until=ago(raw, hours=-1), next_fire_at=ago(raw, minutes=5))
    put(raw, "many:2", enabled=False)
    put(raw, "many:3", max_fires=1, fires_made=1)
    put(raw, "code", missing_since=ago(raw))
    assert len(firing.shelve_crons(raw, seconds=3600)) == 5
    assert firing.shelve_crons(raw, seconds=3600) == []
    assert entry("many:1").check_at == entry("many:1").paused_until
    tick(raw)
    assert not CronEntry.objects.exclude(next_fire_at=None).exists()
    for name in ("many:0", "many:1"):
        entry(name).resume()
    schedule(definition, name="many:2", enabled=True)
    schedule(definition, name="many:3", max_fires=2)
    firing.refresh_crons(raw, ["code"], fresh_seconds=0)
    tick(raw)
    assert CronEntry.objects.exclude(next_fire_at=None).count() == 5


def test_each_fire_has_all_its_attempts_and_stopping_ends_it(raw: RawDatabase, definition: Any) -> None:
    """A27 A53 A55: whatever became of the last job; cancelled by the schedule's name while its job waits."""
    definition.using(max_attempts=3).schedule("*/10 * * * *", name=NAME, tz="UTC").register(7)
    for _ in range(2):
        put(raw, NAME, created_at=ago(raw, hours=1), last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
        tick(raw)
        raw.query("UPDATE pgjobs_job SET attempt = 2")
    put(raw, NAME, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    tick(raw)
    made = Job.objects.latest("pk")
    assert (made.attempt, made.max_attempts) == (0, 3)
    assert entry(NAME).stop(by="ann").changed == 3
    put(raw, NAME, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    tick(raw)
    assert Job.objects.count() == 3
