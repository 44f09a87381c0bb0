"""``manage.py pgjobs check``: it names problems and exits with 1; intended states are no problem."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError
from django.db.models.functions import Now

from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.health import OVERDUE_SECONDS
from django_pgjobs.diagnosis.problem import Limits
from django_pgjobs.models import CronEntry, Heartbeat, Job, LeaderTerm, QueueState
from django_pgjobs.store import finalising, leading
from django_pgjobs.store.database import on
from django_pgjobs.testing import backdate
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, job, register, wait_for_age
from tests.plugins.shell import pgjobs, run

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture
def led(raw: RawDatabase) -> RawDatabase:
    """A worker leads."""
    assert leading.take_term(raw, AUTHOR, seconds=60)
    return raw


def beat(**facts: Any) -> None:
    given = {"id": uuid4(), "name": "w", "host": "h", "pid": 1, "processes": 1, "threads": 2, "async_slots": 1}
    Heartbeat.objects.create(**{**given, "version": "1", **facts})


def problems(*options: object) -> list[tuple[str, str | None]]:
    """Return the codes of the problems, and their queues."""
    status, out, err = pgjobs("check", *options, "--format", "json")
    found = json.loads(out)
    assert err == ""
    assert (status, found["healthy"]) == ((1, False) if found["problems"] else (0, True))
    return [(problem["code"], problem["queue"]) for problem in found["problems"]]


def test_all_is_well(led: RawDatabase) -> None:
    beat()
    register()
    register(delay_seconds=3600, queue="mail")
    claim(led)
    assert problems() == []
    assert pgjobs("check") == (0, "healthy\n", "")


def test_due_jobs_without_a_worker_of_their_queue(led: RawDatabase) -> None:
    register()
    register(queue="mail")
    beat(queues=["mail"])
    assert problems() == [("no_worker", "default")]
    assert problems("--queue", "mail") == []
    beat(state="draining")
    beat(excluded_queues=["default"])
    assert problems() == [("no_worker", "default")]
    beat(queues=["default"], last_beat_at=Now())
    assert problems() == []
    Heartbeat.objects.update(last_beat_at=Now() - timedelta(seconds=61))
    assert problems() == [("no_worker", "default"), ("no_worker", "mail")]


def test_a_worker_that_is_silent_is_told_of_until_it_is_lost(led: RawDatabase) -> None:
    beat(name="web-1", queues=["mail"])
    beat(name="web-2")
    Heartbeat.objects.filter(name="web-1").update(last_beat_at=Now() - timedelta(seconds=19))
    assert problems() == []
    Heartbeat.objects.filter(name="web-1").update(last_beat_at=Now() - timedelta(seconds=21))
    assert problems("--queue", "default") == []
    assert problems("--queue", "mail") == [("silent", None)]
    status, out, err = pgjobs("check")
    assert (status, err) == (1, "")
    assert re.fullmatch(r"silent: Worker web-1 was last heard from [2-5]\d s ago, and has not stopped\.\n", out)
    Heartbeat.objects.filter(name="web-1").update(state="lost")
    assert problems() == problems("--max-lost", 1) == []
    assert problems("--max-lost", 0, "--since", "20s") == []
    assert problems("--max-lost", 0) == [("lost", None)]
    assert "1 of the workers heard from within 60 min are lost: web-1." in pgjobs("check", "--max-lost", 0)[1]
    Heartbeat.objects.filter(name="web-1").update(state="stopped")
    assert problems("--max-lost", 0) == []


def test_a_broken_cron_entry_unless_it_is_paused(led: RawDatabase) -> None:
    given = {"declared_expression": "* * * * *", "declared_zone": "UTC", "declared_payload": {}, "declared_options": {}}
    nightly = CronEntry(name="nightly", job_name="shop.report", broken="it has no\nnext fire", **given)
    CronEntry.objects.bulk_create([nightly, CronEntry(name="hourly", job_name="shop.report", **given)])
    beat()
    assert problems() == [("cron", None)]
    told = "cron: Cron entry nightly is broken and does not fire: it has no\\nnext fire\n"
    assert pgjobs("check") == (1, told, "")
    CronEntry.objects.filter(name="nightly").update(paused_at=Now())
    assert problems() == []
    CronEntry.objects.filter(name="nightly").update(paused_until=Now())
    assert problems() == [("cron", None)]


def test_a_job_that_has_been_due_for_too_long(led: RawDatabase) -> None:
    beat()
    backdate(job(register()[0]), run_at=240)
    assert problems() == []
    assert problems("--max-latency", "2m") == [("latency", "default")]
    backdate(job(register(queue="mail", priority=-3)[0]), run_at=400)
    assert problems() == [("latency", "mail")]
    status, out, _ = pgjobs("check")
    assert (status, out) == (1, "latency: The oldest due job of queue mail has waited for 7 min, more than 5 min.\n")


def test_a_paused_queue_is_meant_to_wait(led: RawDatabase) -> None:
    backdate(job(register()[0]), run_at=800)
    QueueState.objects.create(kind="queue", name="default")
    assert problems() == []
    QueueState.objects.update(until=Now() - timedelta(seconds=1))
    assert problems() == [("no_worker", "default")]
    QueueState.objects.update(until=Now() - timedelta(seconds=400))
    assert problems() == [("no_worker", "default"), ("latency", "default")]


def test_leases_that_nobody_takes_back(led: RawDatabase) -> None:
    register()
    held = claim(led)
    backdate(job(held.ids[0]), lease=45)
    assert problems() == []
    wait_for_age(led, OVERDUE_SECONDS)
    backdate(job(held.ids[0]), lease=45)
    assert problems() == [("overdue", None)]


def test_somebody_leads_or_did_a_moment_ago(raw: RawDatabase) -> None:
    assert problems() == [("leader", None)]
    leading.take_term(raw, AUTHOR, seconds=1)
    LeaderTerm.objects.update(expires_at=Now() - timedelta(seconds=20))
    assert problems() == []
    LeaderTerm.objects.update(expires_at=Now() - timedelta(seconds=40))
    assert problems() == [("leader", None)]
    assert "the last leader was test worker" in pgjobs("check")[1]


def test_thresholds_of_parked_and_abandoned_jobs(led: RawDatabase) -> None:
    beat()
    Job.objects.filter(pk__in=register(3)).update(hold="parked")
    register(2)
    failed = claim(led, 2)
    finalising.finalise_end(led, failed.ends(cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE), AUTHOR)
    assert problems() == [("parked", "default")]
    assert problems("--max-parked", 3, "--max-abandoned", 2) == []
    assert problems("--max-parked", 2, "--max-abandoned", 1) == [("parked", "default"), ("abandoned", None)]
    Job.objects.filter(outcome="abandoned").update(finished_at=Now() - timedelta(minutes=61))
    assert problems("--max-parked", 3, "--max-abandoned", 0) == []
    assert problems("--max-parked", 3, "--max-abandoned", 0, "--since", "2h") == [("abandoned", None)]


def test_one_parked_job_is_a_problem_everywhere(led: RawDatabase) -> None:
    """The overview, ``top``, ``stats`` and notices have no threshold to set."""
    beat()
    Job.objects.filter(pk__in=register()).update(hold="parked")
    [problem] = health.problems(on("default"), "default", Limits())
    assert (problem.code, problem.is_note) == ("parked", False)


def test_a_migration_that_is_missing(led: RawDatabase) -> None:
    led.query("UPDATE django_migrations SET name = '000x' WHERE app = 'pgjobs' AND name = '0001_initial'", ())
    try:
        assert problems() == [("migrations", None)]
        assert "Not applied: 0001_initial" in pgjobs("check")[1]
    finally:
        led.query("UPDATE django_migrations SET name = '0001_initial' WHERE name = '000x'", ())


def test_a_project_without_migrations_has_none_missing(led: RawDatabase, settings: Any) -> None:
    settings.MIGRATION_MODULES = {"pgjobs": None}
    assert problems() == []


def test_a_database_that_does_not_answer_is_told_as_a_problem() -> None:
    """A probe gets JSON whatever happens, and never waits for a lock."""
    found = run("check", "--format", "json", env={"DATABASE_URL": "postgres://postgres@127.0.0.1:1/none"})
    told = json.loads(found.stdout)
    assert (found.returncode, told["healthy"], told["problems"][0]["code"]) == (1, False, "database")


def test_a_statement_that_takes_too_long_is_told_as_a_problem(
    led: RawDatabase, other: RawDatabase, monkeypatch: Any
) -> None:
    monkeypatch.setattr("django_pgjobs.management.check.STATEMENT_TIMEOUT", "50ms")
    other.query("LOCK TABLE pgjobs_heartbeat IN ACCESS EXCLUSIVE MODE")
    assert problems() == [("database", None)]


@pytest.mark.parametrize("options", [["--max-parked", "-1"], ["--max-latency", "soon"], ["--max-abandoned", "x"]])
def test_wrong_limits_are_refused(led: RawDatabase, options: list[str]) -> None:
    with pytest.raises(CommandError):
        pgjobs("check", *options)


def test_a_hostile_queue_name_paints_nothing(led: RawDatabase) -> None:
    register()
    Job.objects.update(queue="\x1b[31mred\nhealthy")
    status, out, _ = pgjobs("check")
    assert (status, len(out.splitlines())) == (1, 1)
    assert "\\x1b[31mred\\nhealthy" in out
