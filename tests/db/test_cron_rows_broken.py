"""Schedules made at run time that new code breaks, and that fitting code mends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs import job
from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance import cron_declaring
from django_pgjobs.maintenance.cron_declaring import CronRows, MarkMissing
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing, scheduling
from django_pgjobs.store.database import on
from tests.db.cron_ground import ago, entry, fires, latest, put, tick
from tests.db.cron_rows_ground import NAME, OTHER, definition, report, schedule, wider
from tests.plugins.fix_db import AUTHOR, RawDatabase

__all__ = ["definition"]

pytestmark = pytest.mark.usefixtures("no_other_entries", "steady")


def confirm(raw: RawDatabase, leader: Leader | None = None) -> None:
    """Look as a worker that has just started."""
    CronRows(leader or Leader(OTHER)).tick(raw)


def deploy(func: Callable[..., None] | None) -> None:
    """Be a process with other code."""
    registry._by_name.clear()
    if func is not None:
        job(name="shop.report", queue="slow", schedulable=True)(func)


def test_a_schedule_is_never_missing(raw: RawDatabase, definition: Any) -> None:
    schedule(definition)
    put(raw, NAME, declared_at=ago(raw, days=3), missing_since=None)
    MarkMissing()(on("default"))
    assert entry(NAME).missing_since is None
    put(raw, NAME, missing_since=ago(raw), created_at=ago(raw, hours=1))
    assert entry(NAME).status == "on", "a worker of an older version marked it"
    tick(raw)
    assert Job.objects.count() == 1


def test_arguments_that_do_not_fit_new_code_break_it_at_once_and_fitting_code_mends_it(
    raw: RawDatabase, definition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker that starts with the new code finds it; the leader does not fire it meanwhile."""
    caplog.set_level(logging.INFO)
    schedule(definition)
    put(raw, NAME, created_at=ago(raw, hours=1))
    deploy(wider)
    confirm(raw)
    reason = "its arguments do not fit its job shop.report: The stored arguments do not fit: shop.report() missing 1 "
    assert entry(NAME).broken.startswith(reason)
    assert (entry(NAME).status, "'language'" in entry(NAME).broken) == ("broken", True)
    for _ in range(2):
        tick(raw)
        confirm(raw)
    assert Job.objects.count() == 0
    assert caplog.text.count("cron entry is broken") == 1
    deploy(report)
    confirm(raw)
    assert (entry(NAME).broken, "cron entry is mended cron=report:acme" in caplog.text) == ("", True)
    tick(raw)
    assert fires() == [latest(raw)], "as after an outage"


def test_a_job_that_no_worker_knows_breaks_it_and_the_next_deploy_mends_it(
    raw: RawDatabase, definition: Any, time: Callable[[float], None]
) -> None:
    """As the leader sees it, once nobody has confirmed the job for minutes: another application may know it."""
    schedule(definition)
    confirm(raw)
    deploy(None)
    leader = Leader(AUTHOR)
    leader.tick(raw)
    rows = CronRows(leader)
    rows.tick(raw)
    assert entry(NAME).broken == ""
    raw.query("UPDATE pgjobs_known_job SET confirmed_at = confirmed_at - interval '301 seconds'")
    time(cron_declaring.SYNC_SECONDS)
    leader.tick(raw)
    rows.tick(raw)
    assert entry(NAME).broken == "", "it is new: workers with its code may start"
    put(raw, NAME, declared_at=ago(raw, seconds=301))
    CronRows(Leader(OTHER)).tick(raw)
    assert entry(NAME).broken == "", "only the leader says so"
    time(cron_declaring.SYNC_SECONDS)
    leader.tick(raw)
    rows.tick(raw)
    assert entry(NAME).broken == "no worker's code knows its job shop.report"
    tick(raw)
    assert entry(NAME).status == "broken"
    deploy(report)
    confirm(raw)
    assert entry(NAME).broken == ""


@pytest.mark.parametrize(("seconds", "broken"), [(43_200, False), (86_401, True)])
def test_in_one_of_many_schemas_a_job_is_unknown_after_a_day(
    raw: RawDatabase, definition: Any, seconds: int, broken: bool
) -> None:
    """Workers of two deployments visit it in turns, each after five minutes, and lead there."""
    schedule(definition)
    confirm(raw)
    deploy(None)
    raw.query("UPDATE pgjobs_known_job SET confirmed_at = confirmed_at - make_interval(secs => %s)", [seconds])
    put(raw, NAME, declared_at=ago(raw, seconds=seconds))
    leader = Leader(AUTHOR)
    leader.tick(raw)
    with override_settings(PGJOBS={"SCHEMAS": lambda: ["tenant"]}):
        CronRows(leader).tick(raw)
    assert bool(entry(NAME).broken) is broken


def test_old_workers_do_not_undo_what_the_newest_code_says(
    raw: RawDatabase, definition: Any, time: Callable[[float], None]
) -> None:
    """Beside a deploy; but once no worker with the newest code is left, the old ones count again."""
    schedule(definition)
    old = CronRows(Leader(OTHER))
    old.tick(raw)
    deploy(wider)
    confirm(raw)
    deploy(report)
    time(cron_declaring.SYNC_SECONDS)
    old.tick(raw)
    assert entry(NAME).broken
    raw.query("UPDATE pgjobs_known_job SET confirmed_at = confirmed_at - interval '301 seconds'")
    time(cron_declaring.SYNC_SECONDS)
    old.tick(raw)
    assert entry(NAME).broken == ""


def test_an_old_worker_that_becomes_the_leader_does_not_undo_what_the_newest_code_says(
    raw: RawDatabase, definition: Any
) -> None:
    """The leader drains first at a deploy, so an old worker is often elected beside new ones."""
    deploy(wider)
    newest: Any = registry.find("shop.report")
    newest.schedule("@hourly", name=NAME).register(tenant_id=7, language="en")
    CronRows(Leader(OTHER)).tick(raw)
    deploy(report)
    leader = Leader(AUTHOR)
    old = CronRows(leader)
    old.started = True
    leader.tick(raw)
    assert leader.leads
    old.tick(raw)
    assert entry(NAME).broken == ""


def test_many_schedules_are_checked_in_turns(
    raw: RawDatabase, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        schedule(definition, name=f"many:{number}")
    deploy(wider)
    monkeypatch.setattr(cron_declaring, "BATCH", 2)
    monkeypatch.setattr(cron_declaring, "TURN_SECONDS", 0.0)
    rows = CronRows(Leader(OTHER))
    counts = []
    for _ in range(4):
        rows.tick(raw)
        counts.append(CronEntry.objects.exclude(broken="").count())
    assert counts == [2, 4, 6, 7]


@pytest.mark.parametrize("changed", ["fingerprint", "declared_payload"])
def test_a_judgement_of_a_schedule_that_has_changed_meanwhile_is_dropped(
    raw: RawDatabase, definition: Any, changed: str
) -> None:
    schedule(definition)
    [read] = scheduling.list_unchecked_crons(raw, "shop.report", "other", most=10)
    put(raw, NAME, **{changed: "[]"})
    assert scheduling.judge_crons(raw, "shop.report", "other", [(read, "bad")]) == []
    assert entry(NAME).broken == ""
    [read] = scheduling.list_unchecked_crons(raw, "shop.report", "other", most=10)
    assert scheduling.judge_crons(raw, "shop.report", "other", [(read, "bad")]) == [(NAME, "bad")]


def test_a_row_that_somebody_holds_is_not_waited_for(raw: RawDatabase, definition: Any, other: RawDatabase) -> None:
    """Rescue shares this thread."""
    schedule(definition)
    deploy(wider)
    other.query("BEGIN")
    other.query("SELECT name FROM pgjobs_cron_entry FOR UPDATE")
    raw.query("SET lock_timeout = '100ms'")
    confirm(raw)
    firing.shelve_crons(raw, seconds=1)
    scheduling.orphan_crons(raw, "shop.report", "bad", older_seconds=-1, most=5)
    other.rollback()
    assert entry(NAME).broken == ""
