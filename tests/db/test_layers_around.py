"""What middleware learns where jobs are registered and where duties are performed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_pgjobs import Batch, Cron, Flow, Unique, job
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.maintenance.cron_declaring import CronSync
from django_pgjobs.maintenance.duties import DutyProgress, TimedDuty, duties, upkeep
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.middleware import Registration
from django_pgjobs.models import Job
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests.plugins.fix_db import AUTHOR, RawDatabase, patience

pytestmark = pytest.mark.usefixtures("committed")

seen: list[Any] = []


def noting(run: Any) -> Any:
    return run


@contextmanager
def _registering(registration: Registration) -> Iterator[None]:
    seen.append(("in", registration.name, registration.queue, registration.count, registration.job))
    try:
        yield
    except Exception as error:
        seen.append(type(error))
        raise
    seen.append(("out", registration.name, registration.queue, registration.count, registration.job))


@contextmanager
def _duty(name: str) -> Iterator[None]:
    seen.append(name)
    yield


def _capture() -> dict[str, str]:
    seen.append("capture")
    return {}


noting.registering = _registering  # type: ignore[attr-defined]
noting.capture = _capture  # type: ignore[attr-defined]
noting.duty = _duty  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _noted(settings: Any) -> None:
    seen.clear()
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": [f"{__name__}.noting"]}


@job(name="around.keyed", queue="mail", unique="around")
def keyed() -> None: ...


@job(name="around.plain")
def plain(text: str = "") -> None: ...


def test_one_registration_is_told_with_its_job() -> None:
    registered = plain.using(queue="mail").register("a")
    assert seen == [
        ("in", "around.plain", "mail", 0, None),
        "capture",
        ("out", "around.plain", "mail", 1, registered.pk),
    ]


def test_a_key_that_is_taken_is_told_as_no_new_job() -> None:
    first = keyed.register()
    seen.clear()
    assert keyed.register().pk == first.pk
    assert seen[-1] == ("out", "around.keyed", "mail", 0, first.pk)


def test_a_refusal_passes_through() -> None:
    with pytest.raises(InvalidJob):
        plain.register(object())  # type: ignore[arg-type]
    assert seen == [("in", "around.plain", "default", 0, None), "capture", InvalidJob]
    keyed.register()
    seen.clear()
    with pytest.raises(DuplicateJob):
        keyed.using(unique=Unique(on_conflict="raise")).register()
    assert seen[-1] is DuplicateJob
    assert Job.objects.count() == 1


def test_many_registrations_are_told_once_with_what_they_have_in_common() -> None:
    plain.register_many([("a",), ("b",)])
    assert seen == [("in", "", "", 0, None), "capture", ("out", "around.plain", "default", 2, None)]


def test_an_empty_batch_of_registrations_is_told_as_none() -> None:
    assert plain.register_many([]) == []
    assert seen[-1] == ("out", "", "", 0, None)


def test_a_flow_and_a_batch_are_told_as_one() -> None:
    flow = Flow()
    flow.add(plain.bind("a"))
    flow.add(plain.bind("b"))
    own = flow.register()
    assert seen[0] == ("in", own.name, "default", 0, None)
    assert seen[-1] == ("out", own.name, "default", 3, own.pk)
    seen.clear()
    with Batch() as batch:
        batch.add_many([plain.bind("a"), keyed.bind()])
    told = [words for words in seen if words != "capture"]
    assert told == [
        ("in", batch.job.name, "default", 0, None),
        ("out", batch.job.name, "default", 1, batch.job.pk),
        ("in", "", "", 0, None),
        ("out", "", "", 2, None),
    ]


def test_a_job_that_bypasses_the_queue_is_told_too() -> None:
    plain.using(bypass=True).register("a")
    assert seen == [("in", "around.plain", "default", 0, None), "capture", ("out", "around.plain", "default", 1, None)]


# Duties


def test_each_turn_of_each_duty_is_told_by_its_name() -> None:
    """W54: what has a turn of its own is told when that comes, and not at each tick."""
    leader = Leader(AUTHOR)
    progress = DutyProgress(leader, {})
    everything = [*duties(progress, lambda rescued: None), *upkeep(progress, lambda: pytest.fail("connected"))]
    db = WorkerConnection("default", "pgjobs test maintenance", statement_seconds=patience(10))
    for duty in everything:
        duty.tick(db)
    names = {duty.name for duty in everything} - {"cron_sync", "heartbeats"}  # no entries, and not due for a minute
    assert set(seen) == names
    assert {"lead", "rescue", "cron_eval", "cron_rows", "expire_jobs", "prune"} <= names
    seen.clear()
    leader.tick(db)
    db.close()
    assert seen == [], "its term is fresh"


def test_the_entries_that_code_declares_are_told(raw: RawDatabase) -> None:
    entry = Cron("@daily", plain.bind("a"), name="around.daily")
    CronSync({entry.name: entry.declared()}, Leader(AUTHOR)).tick(raw)
    assert seen == ["cron_sync"]


def test_the_last_turn_of_a_duty_is_told(raw: RawDatabase) -> None:
    duty = TimedDuty("claims in doubt", lambda db: seen.append("performed"), 60.0, first=60.0, last=True)
    duty.tick(raw)
    assert seen == []
    duty.leave(raw)
    assert seen == ["claims in doubt", "performed"]
