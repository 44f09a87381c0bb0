"""The copy of a database: what a worker sees, and what ``pgjobs adopt`` makes of its jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.core.management import CommandError
from django.db.models.functions import Now

from django_pgjobs import Batch, JobContext, job
from django_pgjobs.maintenance import mending
from django_pgjobs.maintenance.unparking import Unparker
from django_pgjobs.models import CronEntry, Heartbeat, Job
from django_pgjobs.models.workers import Installation as Row
from django_pgjobs.running.worker import Worker, WorkerOptions
from django_pgjobs.store import installation
from django_pgjobs.store.installation import NotAdopted, Verdict
from django_pgjobs.testing import run_jobs
from tests import jobs
from tests.plugins.fix_db import WORKER, RawDatabase, claim, register
from tests.plugins.sabotage import lines_of, sabotage
from tests.plugins.shell import pgjobs, printed

NAME = jobs.succeeds.name
CALLED: list[str] = []


@job(name="copies.part", max_attempts=1)
def part(number: int) -> None: ...


@part.undo(max_attempts=1)
def undo_part(context: JobContext, number: int) -> None:
    CALLED.append("undo")


@job(name="copies.last")
def last() -> None: ...


@last.on_success
def after_success(context: JobContext) -> None:
    CALLED.append("success")


@last.on_cancel
def after_cancel(context: JobContext) -> None:
    CALLED.append("cancel")


@pytest.fixture(autouse=True)
def nothing_called() -> Iterator[None]:
    CALLED.clear()
    yield
    assert CALLED == []


@pytest.fixture
def copied(raw: RawDatabase) -> RawDatabase:
    """A database that was declared on another server."""
    installation.settle(raw, "")
    Row.objects.update(system="1", database_oid=5, database_name="shop")
    return raw


def test_the_first_worker_declares_a_database_and_the_next_ones_find_it(raw: RawDatabase) -> None:
    assert installation.settle(raw, "").declared is None
    assert installation.settle(raw, "").verdict is Verdict.SAME
    assert installation.settle(raw, "production").verdict is Verdict.MOVED
    assert Row.objects.get().environment == "production"
    with pytest.raises(NotAdopted, match="of environment 'production', and ENVIRONMENT names none"):
        installation.settle(raw, "")


def test_a_row_knows_whether_it_was_restored_from_a_dump(raw: RawDatabase) -> None:
    installation.settle(raw, "")
    raw.query("VACUUM FREEZE pgjobs_installation")
    assert installation.read(raw, "").untouched
    raw.query("CREATE TEMPORARY TABLE dump AS TABLE pgjobs_installation")
    raw.query("DELETE FROM pgjobs_installation")
    raw.query("INSERT INTO pgjobs_installation TABLE dump")
    assert not installation.read(raw, "").untouched
    raw.query("DROP TABLE dump")


def test_one_that_has_moved_is_declared_anew(raw: RawDatabase) -> None:
    installation.settle(raw, "production")
    Row.objects.update(system="1", database_oid=5)
    assert installation.settle(raw, "production").verdict is Verdict.MOVED
    assert installation.settle(raw, "production").verdict is Verdict.SAME


def test_what_another_declared_meanwhile_stays(copied: RawDatabase) -> None:
    seen = installation.read(copied, "")
    Row.objects.update(database_oid=6)
    assert not installation.adopt(copied, seen, "anna")
    assert Row.objects.get().system == "1"


def test_without_its_guard_what_another_declared_would_be_lost(
    copied: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin of the test above."""
    [(name, line)] = lines_of("before", ["declare_installation"])
    sabotage(monkeypatch, name, line)
    seen = installation.read(copied, "")
    Row.objects.update(database_oid=6)
    assert installation.adopt(copied, seen, "anna")


def test_a_copy_is_a_problem_for_alerts_and_the_overview(copied: RawDatabase) -> None:
    status, told = printed("check")
    assert status == 1
    assert "copied: This database is a copy of shop on server 1: none of its jobs is run." in told


def test_adopt_says_what_is_there_and_decides_nothing(copied: RawDatabase) -> None:
    register(name=NAME)
    status, told, _ = pgjobs("adopt")
    assert status == 1
    assert "It has 1 unfinished jobs and 0 schedules that fire." in told
    assert pgjobs("adopt", "--run", "--format", "json", "--yes")[0] == 0
    status, told, _ = pgjobs("adopt", "--format", "json")
    assert (status, json.loads(told)["copied"]) == (0, False)


@pytest.mark.parametrize("fate", ["run", "park", "cancel"])
def test_a_database_that_is_no_copy_is_not_adopted(raw: RawDatabase, fate: str) -> None:
    installation.settle(raw, "")
    register(name=NAME)
    status, told, _ = pgjobs("adopt", f"--{fate}", "--yes")
    assert (status, told) == (1, "This database is not the copy of another one: its jobs are run.\n")
    assert Job.objects.get().state == "ready"


def all_kinds(raw: RawDatabase) -> dict[str, int]:
    """One job of each state that is not an end, one of which only the callback is left, and one to be undone."""
    [running] = register(name=NAME, max_attempts=1)
    claim(raw)
    kinds = {"running": running}
    for hold in (None, "parked", "limited", "paused", "moving"):
        [kinds[hold or "ready"]] = register(name=NAME)
        Job.objects.filter(pk=kinds[hold or "ready"]).update(hold=hold)
    kinds["ending"] = last.register().pk
    Job.objects.filter(pk=kinds["ending"]).update(ending="succeeded")
    with Batch("parts", undo=True) as batch:
        batch.add(part.bind(1))
    kinds["member"] = Job.objects.get(name="copies.part").pk
    kinds["blocked"] = batch.job.pk
    kinds["undoing"] = part.register(2).pk
    Job.objects.filter(pk=kinds["undoing"]).update(outcome="abandoned", finished_at="2026-01-01T00:00Z", flow=4 + 256)
    last.schedule("0 3 * * *", name="nightly", tz="UTC").register()
    last.schedule("0 4 * * *", name="rests", tz="UTC").register().pause(until=3600)
    Heartbeat.objects.create(id=WORKER, name="production-1", pid=1, processes=1, threads=1, async_slots=1)
    Heartbeat.objects.update(last_beat_at=Now() - timedelta(hours=1))
    return kinds


def states(kinds: dict[str, int]) -> dict[str, str]:
    found = dict(Job.objects.values_list("pk", "state"))
    return {kind: found[number] for kind, number in kinds.items()}


def test_cancel_ends_all_and_calls_nothing(copied: RawDatabase) -> None:
    kinds = all_kinds(copied)
    status, told, _ = pgjobs("adopt", "--cancel", "--yes", "--by", "anna", "--reason", "staging")
    assert (status, told) == (0, "adopt: 9 jobs are cancelled, 2 schedules were paused.\n")
    ends = dict.fromkeys(kinds, "cancelled") | {"ending": "succeeded", "undoing": "abandoned"}
    assert states(kinds) == ends
    assert not Job.objects.filter(flow__gte=256).exists()
    assert not Heartbeat.objects.exists()
    assert copied.query("SELECT count(*) FROM pgjobs_claim") == [(0,)]
    ready = Job.objects.get(pk=kinds["ready"])
    assert (ready.cancel_by, ready.cancel_reason) == ("anna", "staging")
    assert set(CronEntry.objects.paused().values_list("paused_by", "paused_until")) == {("anna", None)}
    assert Row.objects.get().adopted_by == "anna"
    installation.settle(copied, "")
    run_jobs()
    assert states(kinds) == ends
    assert pgjobs("adopt")[0] == 0


def test_park_holds_all_that_could_run_until_it_is_retried(copied: RawDatabase) -> None:
    kinds = all_kinds(copied)
    status, told, _ = pgjobs("adopt", "--park", "--yes", "--by", "anna")
    assert (status, told) == (0, "adopt: 7 jobs are parked, 2 schedules were paused.\n")
    held = dict.fromkeys(kinds, "parked") | {"moving": "moving", "blocked": "blocked", "undoing": "abandoned"}
    assert states(kinds) == held
    assert Unparker()(copied) == 0
    run_jobs()
    assert states(kinds) == held
    ready = Job.objects.get(pk=kinds["ready"])
    assert ready.hold_reason == "Held when this copy of a database was adopted."
    assert ready.why().text.startswith("It is parked since its database, a copy, was adopted: Held when this copy")
    assert Job.objects.filter(pk__in=[ready.pk, kinds["running"]]).retry().changed == 2
    run_jobs()
    assert states(kinds) == {**held, "ready": "succeeded", "running": "succeeded"}


def test_what_is_parked_does_not_expire(copied: RawDatabase) -> None:
    one, other = last.using(expires=60).register(), last.using(expires=60).register()
    Job.objects.update(expires_at=Now() - timedelta(hours=1))
    Job.objects.filter(pk=other.pk).update(hold="blocked")
    assert pgjobs("adopt", "--park", "--yes")[0] == 0
    run_jobs()
    assert states({"one": one.pk, "other": other.pk}) == {"one": "parked", "other": "blocked"}
    assert not Job.objects.exclude(expires_at=None).exists()


@pytest.mark.parametrize("fate", ["park", "cancel"])
def test_what_workers_serve_is_no_copy(copied: RawDatabase, fate: str) -> None:
    """Production, seen from a shell that names another environment."""
    register(name=NAME)
    Heartbeat.objects.create(id=WORKER, name="production-1", pid=1, processes=1, threads=1, async_slots=1)
    with pytest.raises(CommandError, match="Workers serve this database: production-1"):
        pgjobs("adopt", f"--{fate}", "--yes")
    assert Job.objects.get().state == "ready"
    assert Row.objects.get().system == "1"


def test_without_its_guard_a_worker_would_resume_what_an_operator_held(
    copied: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin of the test above."""
    register(name=NAME)
    pgjobs("adopt", "--park", "--yes")
    sabotage(monkeypatch, "unpark_jobs", "AND j.hold_fingerprint <> 'adopt'")
    assert Unparker()(copied) == 1


def test_run_leaves_them_as_they_are(copied: RawDatabase) -> None:
    kinds = all_kinds(copied)
    before = states(kinds)
    assert pgjobs("adopt", "--run", "--yes")[:2] == (0, "adopt: 9 jobs are run, 0 schedules were paused.\n")
    assert states(kinds) == before
    installation.settle(copied, "")


def test_members_that_are_parked_are_not_cancelled_for_their_batch(
    copied: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cancelled before the copy was made, and they had not been asked yet."""
    monkeypatch.setattr(mending, "CANCEL_SECONDS", 0.0)
    with Batch("parts") as batch:
        batch.add_many([part.bind(1), part.bind(2)])
    batch.job.cancel(by="anna")
    copied.query("DELETE FROM pgjobs_job WHERE name = 'pgjobs.cancel_members'")
    assert pgjobs("adopt", "--park", "--yes")[0] == 0
    assert mending.Mender()(copied) == 0
    assert set(Job.objects.filter(name="copies.part").values_list("state", flat=True)) == {"parked"}


@pytest.mark.parametrize("role", ["claim", "inline", "maintenance"])
def test_no_connection_that_brings_jobs_to_run_is_opened_on_a_copy(copied: RawDatabase, role: str) -> None:
    worker = Worker.of(WorkerOptions())
    with pytest.raises(NotAdopted, match="This database is a copy of shop on server 1"):
        worker.connect(role)
    worker.connect("finalise").close()  # what has begun may end


def test_without_the_guard_of_roles_a_claim_would_be_opened(
    copied: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin of the test above."""
    monkeypatch.setattr("django_pgjobs.running.worker.GUARDED", frozenset())
    Worker.of(WorkerOptions()).connect("claim").close()
