"""Rows with names that nothing here has imported: what reads, runs or steers them asks the resolvers first (O1, O2).

``distant`` stands for the code that only resolvers find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_pgjobs.context import JobContext
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.maintenance import unparking
from django_pgjobs.models import Job, QueueState
from django_pgjobs.presentation.sight import Hidden
from django_pgjobs.presentation.wording import arguments
from django_pgjobs.queues import pauses
from django_pgjobs.store import keeping
from django_pgjobs.store.database import on
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.plugins.fix_db import register

NAME = "distant.pay"
"""Found only by a resolver."""

said: list[str] = []


def pay(number: int, card: str = "") -> int:
    said.append("ran")
    return number


def note(what: str) -> Callable[..., None]:
    def callback(context: JobContext, number: int, card: str = "") -> None:
        said.append(what)

    return callback


def distant(name: str) -> JobPolicy | None:
    if name != NAME:
        return None
    options = {
        "name": name,
        "aliases": ("distant.settle",),
        "max_attempts": 9,
        "sensitive": ("card",),
        "schedulable": True,
    }
    found: JobDefinition[..., Any] = JobDefinition(pay, options)
    for what in ("on_success", "on_abandon", "on_cancel"):
        getattr(found, what)(note(what))
    return found


@pytest.fixture(autouse=True)
def _resolving() -> Iterator[None]:
    said.clear()
    with isolated_registry():
        registry.add_resolver(distant)
        yield


def waiting(**fields: Any) -> Job:
    payload = '{"args": [7], "kwargs": {"card": "4111-secret"}}'
    [job_id] = register(**{"name": NAME, "payload": payload, **fields})
    assert registry.find(NAME) is None
    return Job.objects.get(pk=job_id)


pytestmark = pytest.mark.django_db


def test_run_jobs_runs_it_with_its_callback() -> None:
    job = waiting()
    assert run_jobs().succeeded == [job.pk]
    assert said == ["ran", "on_success"]
    job.refresh_from_db()
    assert job.result == 7


def test_run_jobs_parks_what_cannot_be_imported_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """The reason says what to mend, so no line sends anybody to ``jobs.py``, where no task is."""

    def broken(name: str) -> JobPolicy | None:
        raise ImportError("No module named 'celery'")

    registry.add_resolver(broken)
    job = waiting(name="distant.gone")
    assert run_jobs().parked == [job.pk]
    job.refresh_from_db()
    assert job.hold_reason.startswith(
        "No job named 'distant.gone' is known to this process: ImportError: No module named 'celery'."
        " Parked by worker run_jobs, without a release."
    )
    [line] = [each for each in caplog.messages if each.startswith("job parked")]
    assert (line.endswith("'celery'."), "jobs.py" in line) == (True, False)


@pytest.mark.parametrize(("verb", "callback"), [("cancel", "on_cancel"), ("abandon", "on_abandon")])
def test_an_operators_action_leaves_it_its_callback(verb: str, callback: str) -> None:
    job = waiting()
    getattr(Job.objects.filter(pk=job.pk), verb)(by="ops", reason="not needed")
    job.refresh_from_db()
    assert (job.outcome, job.finished_at) == (None, None), "its callback is still to run"
    registry.forget_found()
    run_jobs()
    job.refresh_from_db()
    assert said == [callback]
    assert job.outcome == {"cancel": "cancelled", "abandon": "abandoned"}[verb]


def test_a_retry_gives_it_the_attempts_of_its_definition() -> None:
    job = waiting()
    ended = {"outcome": "abandoned", "finished_at": job.created_at}
    Job.objects.filter(pk=job.pk).update(attempt=3, max_attempts=3, **ended)
    Job.objects.filter(pk=job.pk).retry(by="ops")
    job.refresh_from_db()
    assert (job.outcome, job.max_attempts) == (None, 3 + 9)


def test_registered_again_it_has_the_attempts_of_its_definition() -> None:
    job = waiting()
    Job.objects.filter(pk=job.pk).update(outcome="succeeded", finished_at=job.created_at)
    assert job.register_again().max_attempts == 9


def test_only_its_sensitive_arguments_are_hidden() -> None:
    """A web process that never imported the module hides no more than it must, and no less."""
    job = waiting()
    text = '{"args": [7], "kwargs": {"card": "4111-secret"}}'
    shown = arguments(job.name, text, reveal=False)
    assert not isinstance(shown, Hidden)
    assert dict(shown)["number"] == "7"
    assert "secret" not in str(shown)
    assert isinstance(arguments("distant.gone", text, reveal=False), Hidden)


def test_it_can_be_paused_by_its_path() -> None:
    waiting()
    pauses.pause("job", NAME, by="ops")
    assert [pause.name for pause in QueueState.objects.current()] == [NAME, "distant.settle"]
    assert pauses.resume("job", NAME, by="ops")


def test_actions_ask_for_no_names_where_nobody_could_find_them() -> None:
    """Without a resolver an action costs the statements that it always did."""

    def asked() -> int:
        [job_id] = register(name="distant.other")
        with CaptureQueriesContext(connection) as found:
            Job.objects.filter(pk=job_id).cancel(by="ops")
        return sum('SELECT DISTINCT "pgjobs_job"."name"' in query["sql"] for query in found)

    assert asked() == 1
    with registry.without_resolvers():
        assert asked() == 0


# --- what a worker resolves when it starts


def park(*names: str) -> None:
    for name in names:
        register(name=name)
    Job.objects.filter(name__in=names).update(hold="parked")


def parked_names(known: list[str], limit: int = 10) -> list[str]:
    return keeping.list_parked_names(on("default"), known, limit=limit)


def test_a_worker_asks_for_the_parked_names_that_it_does_not_know() -> None:
    """O2: one probe for each name, however many jobs have it."""
    register(3, name="ready.one")
    park("a.known", "b.one", "b.two", "b.two", "c.three")
    assert parked_names(["a.known"]) == ["b.one", "b.two", "c.three"]
    assert parked_names(["a.known", "b.two"], limit=1) == ["b.one"]
    assert parked_names([]) == ["a.known", "b.one", "b.two", "c.three"]
    assert parked_names(["a.known", "b.one", "b.two", "c.three"]) == []


def test_it_asks_for_names_of_schedules_too() -> None:
    """Otherwise the leader would call a schedule broken that only needs an import."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgjobs_cron_entry (name, job_name, origin, declared_expression, declared_zone, "
            "declared_payload, declared_options, overlap) VALUES ('x', %s, 'row', '@daily', 'UTC', '{}', '{}', 'skip')",
            [NAME],
        )
    park("b.one", NAME)
    assert unparking.missing_names(on("default")) == ["b.one", NAME]
    registry.resolve(NAME)
    assert unparking.missing_names(on("default")) == ["b.one"]


def test_what_it_has_resolved_is_unblocked() -> None:
    park(NAME, "b.one")
    assert unparking.unpark(on("default")) == 0, "names are not resolved while threads run"
    for name in unparking.missing_names(on("default")):
        registry.resolved(name)
    assert unparking.unpark(on("default")) == 1
    assert list(Job.objects.filter(hold="parked").values_list("name", flat=True)) == ["b.one"]
