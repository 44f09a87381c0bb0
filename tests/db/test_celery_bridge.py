"""Calls of Celery's tasks become jobs: which, in which transaction, with which options; and what is refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction
from django.test import TransactionTestCase, override_settings

pytest.importorskip("celery", reason="Celery is not installed, or does not allow this Python")

import celery
from celery import Celery
from celery.app.trace import trace_task
from celery.bootsteps import Step
from celery.exceptions import NotRegistered, Reject, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.schedules import crontab, schedule
from django.core.exceptions import ImproperlyConfigured
from kombu import Exchange, Queue

from django_pgjobs.celery_bridge import bridges, install
from django_pgjobs.celery_bridge.beat import when
from django_pgjobs.celery_bridge.checks import check
from django_pgjobs.cron_entries import Cron
from django_pgjobs.definition.registry import registry
from django_pgjobs.doctor.project import own_definitions
from django_pgjobs.exceptions import JobNotCommitted, MemoryExceeded, SoftDeadlinePassed
from django_pgjobs.models import Attempt, Job
from django_pgjobs.states import Cause
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.db.celery_ground import alone, cast_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def app() -> Iterator[Any]:
    """A new app with its cast, not bridged yet, whose broker is in memory."""
    made = Celery("bridge", broker="memory://bridge", backend="cache+memory://", set_as_current=False, fixups=[])
    made.conf.broker_transport_options = {"polling_interval": 0.01}
    cast_of(made)
    made.finalize()
    with isolated_registry(), alone():
        yield made


@pytest.fixture
def cast(app: Any) -> Any:
    """Its cast, all of it bridged."""
    install(app)
    return app.cast


def test_the_doctor_leaves_queues_to_celerys_workers_that_are_theirs(app: Any) -> None:
    """It named each queue of each task, whatever the patterns, in the first step of a move."""
    app.conf.task_routes = {"shop.add": {"queue": "sums"}, "shop.same": {"queue": "mirror"}}
    install(app, tasks=["shop.add"])
    assert {each.queue for each in own_definitions()} == {"sums"}
    install(app)
    assert {each.queue for each in own_definitions()} >= {"sums", "mirror"}


def nothing() -> int:
    return 7


class NoReads:
    """A router that sends reads to a replica, which is gone."""

    def db_for_read(self, model: type, **hints: object) -> str:
        return "replica"

    def db_for_write(self, model: type, **hints: object) -> str:
        return "default"


class Odd(schedule):
    """A schedule of the project's own."""


def sent(app: Any, queue: str = "celery") -> int:
    """Return how many messages the broker has."""
    with app.connection_for_read() as connection:
        return int(connection.default_channel._size(queue))


# Which calls, and whose transaction


def test_a_call_is_part_of_the_transaction(cast: Any) -> None:
    with transaction.atomic():
        cast.add.delay(1, 2)
        transaction.set_rollback(True)
    assert not Job.objects.exists()


def test_waiting_in_the_transaction_of_the_call_raises_at_once(cast: Any) -> None:
    with transaction.atomic(), pytest.raises(JobNotCommitted):
        cast.add.delay(1, 2).get(timeout=5)


def test_patterns_of_tasks_share_the_calls_with_the_broker(app: Any) -> None:
    install(app, tasks=["shop.add"])
    before = sent(app)
    app.cast.add.delay(1, 2)
    app.cast.same.delay(1)
    app.cast.add.chunks([(1, 2)], 1)()
    assert (Job.objects.count(), sent(app) - before) == (2, 1)


def test_patterns_of_queues_share_them_too(app: Any) -> None:
    install(app, tasks=[], queues=["mail*"])
    before = sent(app)
    app.cast.same.apply_async(queue="mail.high")
    app.cast.same.apply_async()
    assert (list(Job.objects.values_list("queue", flat=True)), sent(app) - before) == (["mail.high"], 1)


def test_the_way_back_runs_what_is_stored(app: Any) -> None:
    install(app)
    result = app.cast.add.delay(1, 2)
    install(app, tasks=[])
    before = sent(app)
    app.cast.add.delay(3, 4)
    assert (len(run_jobs().succeeded), sent(app) - before) == (1, 1)
    assert app.AsyncResult(result.id).get(timeout=5) == 3


@pytest.mark.parametrize("again", ["third_time", "counts", "replaced"])
def test_on_the_way_back_a_stored_task_stays_in_its_row(app: Any, again: str) -> None:
    """Else it would run twice: here, and in the message of its retry."""
    install(app)
    getattr(app.cast, again).delay(0)
    install(app, tasks=[])
    before = sent(app)
    run_jobs(include_scheduled=True)
    assert (Job.objects.get().state, sent(app) - before) == (Job.State.SUCCEEDED, 0)


@pytest.mark.parametrize("tasks", [[], ["*"]], ids=["way back", "way over"])
def test_a_failure_in_celerys_own_worker_leaves_no_row(app: Any, tasks: list[str]) -> None:
    """It runs what waits in the broker; without a result backend nobody asks how that ended."""
    app.conf.result_backend = None
    install(app, tasks=tasks)
    request = {"id": str(uuid4()), "task": "shop.fails"}
    traced = trace_task(app.cast.fails, request["id"], ("lost",), {}, request, app=app)
    assert (str(traced.info.retval), Job.objects.count()) == ("lost", 0)


@pytest.mark.parametrize(("backend", "messages"), [("cache+memory://", 2), ("file://{}", 3)], ids=["counts", "polls"])
def test_on_the_way_back_a_chord_is_celerys_as_a_whole(app: Any, backend: str, messages: int, tmp_path: Path) -> None:
    app.conf.result_backend = backend.format(tmp_path)
    install(app, tasks=[])
    before = sent(app)
    celery.chord([app.cast.add.s(1), app.cast.add.s(2)], app.cast.total.s())()
    assert (Job.objects.count(), sent(app) - before) == (0, messages)


def test_on_the_way_back_the_projects_backend_counts_the_header(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis needs the size of a chord's header to call its body."""
    app.conf.result_backend = "cache+memory://"
    install(app, tasks=[])
    told: list[object] = []
    monkeypatch.setattr(app.backend.elsewhere, "set_chord_size", lambda *given: told.append(given[1]))
    monkeypatch.setattr(app.backend.elsewhere, "add_to_chord", lambda *given: told.append(given))
    celery.chord([app.cast.add.s(1), app.cast.add.s(2)], app.cast.total.s())()
    app.backend.add_to_chord("chord", "result")
    assert told == [2, ("chord", "result")]


def test_the_projects_backend_keeps_groups(app: Any) -> None:
    """Redis asks for the group of a chord before it calls the body."""
    app.conf.result_backend = "cache+memory://"
    install(app, tasks=["shop.add"])
    group = app.GroupResult("group", [app.AsyncResult("one"), app.AsyncResult("two")])
    assert app.GroupResult.restore("group") is None
    group.save()
    assert app.GroupResult.restore("group") == group
    group.delete()
    assert app.GroupResult.restore("group") is None


def test_an_exchange_of_the_brokers_is_no_matter_of_ours(app: Any) -> None:
    install(app, tasks=["shop.add"], queues=["mail"])
    app.amqp.queues.add(Queue("topics", Exchange("news", type="topic"), routing_key="a.b"))
    before = sent(app, "topics")
    app.cast.same.apply_async(
        exchange="news", exchange_type="topic", routing_key="a.b", declare=[app.amqp.queues["topics"]]
    )
    assert (Job.objects.count(), sent(app, "topics") - before) == (0, 1)


def test_a_route_to_an_exchange_of_the_brokers_stops_no_start(app: Any) -> None:
    app.conf.task_routes = {"shop.same": {"exchange": "news", "exchange_type": "topic", "routing_key": "a.b"}}
    install(app, tasks=["shop.add"])
    assert registry.get("shop.same").queue == "celery"
    install(app)
    with pytest.raises(ImproperlyConfigured, match="leads to no queue"):
        app.cast.same.delay(1)


def test_a_call_logs_nothing_of_a_broker(cast: Any, caplog: pytest.LogCaptureFixture) -> None:
    cast.add.delay(1, 2)
    assert [record for record in caplog.records if record.name.startswith("kombu")] == []


def test_patterns_are_lists(app: Any) -> None:
    with pytest.raises(TypeError, match="lists of patterns"):
        install(app, tasks="shop.*")


def test_the_soft_limit_of_plain_jobs_keeps_its_words() -> None:
    from django_pgjobs.celery_bridge import running  # noqa: F401, which exchanges its base

    assert str(SoftDeadlinePassed("so many seconds")) == "so many seconds"


def test_a_second_app_is_refused(cast: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="takes one app of Celery, and has 'bridge'"):
        install(Celery("second", set_as_current=False, fixups=[]))


def test_no_replica_is_asked_about_tasks(cast: Any, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [NoReads()]
    results = [cast.third_time.delay("x"), cast.fails.delay("no")]
    run_jobs(include_scheduled=True)
    assert (results[0].get(timeout=5), repr(results[1].result)) == ("x", "ValueError('no')")


def test_eager_calls_are_celerys(cast: Any) -> None:
    cast.app.conf.task_always_eager = True
    assert cast.add.delay(1, 2).result == 3
    assert not Job.objects.exists()


def test_publishing_sends_its_signals(cast: Any) -> None:
    heard: list[Any] = []

    def before(sender: str, body: Any, headers: Any, routing_key: str, **_: Any) -> None:
        headers["x_mine"] = "from a receiver"
        heard.append((sender, body[0], routing_key, Job.objects.count()))

    def after(sender: str, **_: Any) -> None:
        heard.append((sender, Job.objects.count()))

    celery.signals.before_task_publish.connect(before)
    celery.signals.after_task_publish.connect(after)
    try:
        result = cast.asks.apply_async((1,), queue="mail")
    finally:
        celery.signals.before_task_publish.disconnect(before)
        celery.signals.after_task_publish.disconnect(after)
    assert heard == [("shop.asks", (1,), "mail", 0), ("shop.asks", 1)]
    run_jobs()
    assert result.get(timeout=5)["mine"] == "from a receiver"


# Options


def test_options_are_those_of_the_job(cast: Any) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    cast.add.apply_async((1, 2), queue="mail", priority=7, eta=soon, expires=soon + timedelta(hours=1), time_limit=60)
    job = Job.objects.get()
    assert (job.queue, job.priority, job.run_at, job.timeout_seconds) == ("mail", 7, soon, 60)
    assert job.expires_at == soon + timedelta(hours=1)
    assert job.max_attempts == 4, "three retries are Celery's default"


def test_a_countdown_is_on_the_databases_clock(cast: Any) -> None:
    cast.add.apply_async((1, 2), countdown=600)
    job = Job.objects.get()
    assert job.run_at - job.created_at == timedelta(seconds=600)


def test_a_naive_eta_is_in_utc_whatever_the_zone_of_the_app(app: Any) -> None:
    """As Celery's workers read it."""
    app.conf.timezone = "Asia/Tokyo"
    install(app)
    app.cast.add.apply_async((1, 2), eta=datetime(2027, 1, 2, 12, 0))
    assert Job.objects.get().run_at == datetime(2027, 1, 2, 12, 0, tzinfo=UTC)


def test_with_redis_the_smaller_priority_runs_first(app: Any) -> None:
    """Neither a server nor its client is there: no task of this app goes to the broker."""
    app.conf.broker_url = "redis://localhost"
    install(app)
    cast = app.cast
    for priority in (9, 0, 3):
        cast.asks.apply_async((priority,), priority=priority)
    run_jobs()
    by_end = Job.objects.order_by("claimed_at").values_list("payload", flat=True)
    assert [payload["args"][0] for payload in by_end] == [0, 3, 9]


def test_a_queue_is_found_by_exchange_and_key(cast: Any) -> None:
    cast.app.amqp.queues.add(Queue("mail", Exchange("post", type="direct"), routing_key="letters"))
    cast.same.apply_async(exchange="post", routing_key="letters")
    assert Job.objects.get().queue == "mail"
    with pytest.raises(ImproperlyConfigured, match="leads to no queue"):
        cast.same.apply_async(exchange="post", routing_key="parcels")


def test_routes_of_the_settings_hold(app: Any) -> None:
    app.conf.task_routes = {"shop.add": {"queue": "sums", "priority": 2}}
    install(app)
    app.cast.add.delay(1, 2)
    assert Job.objects.values_list("queue", "priority").get() == ("sums", 2)


@pytest.mark.parametrize(("late", "on_crash"), [(None, "abandon"), (True, "retry")])
def test_a_crash_is_final_unless_acks_late_says_otherwise(app: Any, late: bool | None, on_crash: str) -> None:
    made = app.task(name="shop.crashing", shared=False, base=celery.Task, acks_late=late)(nothing)
    install(app)
    made.delay()
    assert (Job.objects.get().options or {}).get("on_crash", "retry") == on_crash


def test_limits_become_the_pair_of_the_timeout(app: Any) -> None:
    made = app.task(name="shop.slow", shared=False, base=celery.Task, soft_time_limit=5, time_limit=8)(nothing)
    install(app)
    made.delay()
    made.apply_async(time_limit=20)
    found = {(job.timeout_seconds, (job.options or {}).get("soft_timeout")) for job in Job.objects.all()}
    assert found == {(8, 5), (20, 5)}


def test_pickle_is_refused_where_it_is_asked_for(cast: Any) -> None:
    with pytest.raises(Exception, match="as JSON, not by the serializer 'pickle'"):
        cast.same.apply_async((1,), serializer="pickle")


def test_a_name_that_no_task_has_is_refused_at_the_call(cast: Any) -> None:
    with pytest.raises(NotRegistered):
        cast.app.send_task("shop.nothing")


# Rows


def test_a_retry_with_the_same_arguments_is_an_attempt_of_the_row(cast: Any) -> None:
    result = cast.third_time.delay("x")
    run_jobs(include_scheduled=True)
    job = Job.objects.get()
    assert (result.get(timeout=5), job.attempt, job.attempts.count()) == ("x", 3, 2)
    assert job.attempts.all()[0].chain[1] == ["ValueError", "not yet"]


def test_a_retry_with_others_is_its_next_step(cast: Any) -> None:
    cast.counts.delay(0)
    run_jobs(include_scheduled=True)
    job = Job.objects.get()
    assert (job.result, job.attempts.count(), job.steps.count()) == (3, 0, 3)


def test_replace_is_the_next_step(cast: Any) -> None:
    result = cast.replaced.delay(4)
    run_jobs()
    assert (Job.objects.get().name, result.get(timeout=5)) == ("shop.add", 5)


def test_a_task_that_a_chain_replaces_is_pending_until_the_chain_has_ended(cast: Any) -> None:
    result, broken = cast.chained.delay(False), cast.breaks.delay()
    run_jobs(limit=2)
    assert (result.state, broken.state) == ("PENDING", "PENDING")
    run_jobs()
    assert (result.get(timeout=5), broken.state) == (3, "FAILURE")


def test_a_task_that_waits_to_be_retried_says_so(cast: Any) -> None:
    result = cast.never.delay(named=True)
    run_jobs(limit=1)
    assert (result.state, repr(result.result)) == ("RETRY", "ValueError('never')")


def test_a_job_is_found_in_the_admin_by_the_tasks_id(cast: Any) -> None:
    result = cast.add.delay(1, 2)
    assert Job.objects.tagged(f"celery:{result.id}").get().name == "shop.add"
    long = cast.add.apply_async((1, 2), task_id="x" * 300)
    run_jobs()
    assert long.get(timeout=5) == 3


def test_a_chain_continues_when_an_operator_retries_its_failed_member(cast: Any) -> None:
    result = celery.chain(cast.mended.s(1), cast.add.s(3))()
    run_jobs()
    assert result.state == "FAILURE", "the rest of the chain has failed with it"
    cast.app.broken = False
    Job.objects.filter(name="shop.mended").retry(by="me")
    run_jobs()
    assert cast.app.AsyncResult(result.id).get(timeout=5) == 4


def test_a_second_run_calls_though_a_call_of_others_had_the_id(cast: Any) -> None:
    cast.same.apply_async((1,), task_id="fixed")
    run_jobs()
    cast.calls_fixed.delay()
    run_jobs(include_scheduled=True)
    found = Job.objects.tagged("celery:fixed").order_by("id")
    assert [job.payload["args"] for job in found] == [[1], [2]]


@pytest.mark.parametrize(
    ("cause", "options", "error"),
    [
        (Cause.TIMEOUT, {}, TimeLimitExceeded),
        (Cause.CRASHED, {}, WorkerLostError),
        (Cause.CRASHED, {"reject_on_worker_lost": True}, None),
        (Cause.LOST, {}, None),
    ],
)
def test_a_late_task_runs_again_if_its_worker_is_lost(
    app: Any, cause: Cause, options: dict[str, Any], error: type[Exception] | None
) -> None:
    """But not if its limit or its process alone has ended it, as with Celery; an operator may retry it all the same."""
    made = app.task(name="shop.late", shared=False, base=celery.Task, acks_late=True, **options)(nothing)
    install(app)
    result = made.delay()
    Job.objects.update(attempt=1)
    Attempt.objects.create(job=Job.objects.get(), claim_id=uuid4(), number=1, cause=cause, message="so")
    run_jobs()
    assert type(result.result) is (error or int)
    if error is not None:
        Attempt.objects.filter(exception__contains="celery_bridge").delete()
        Job.objects.all().retry(by="me")
        run_jobs()
        assert app.AsyncResult(result.id).get(timeout=5) == 7


@pytest.mark.parametrize(("options", "runs_again"), [({}, False), ({"reject_on_worker_lost": True}, True)])
def test_too_much_memory_is_the_death_of_a_process(app: Any, options: dict[str, Any], runs_again: bool) -> None:
    made = app.task(name="shop.late", shared=False, base=celery.Task, acks_late=True, **options)(nothing)
    install(app)
    result = made.delay()
    Job.objects.update(attempt=1)
    Attempt.objects.create(
        job=Job.objects.get(), claim_id=uuid4(), number=1, cause=Cause.FAILED, message="so",
        exception="django_pgjobs.exceptions.MemoryExceeded",
    )  # fmt: skip
    run_jobs()
    assert type(result.result) is (int if runs_again else WorkerLostError)


def test_a_task_stopped_for_its_memory_calls_its_errback(app: Any) -> None:
    def grows() -> None:
        raise MemoryExceeded("too much")

    made = app.task(name="shop.grows", shared=False, base=celery.Task)(grows)
    install(app)
    result = made.apply_async(link_error=app.cast.errback.s())
    run_jobs()
    assert Job.objects.get(name="shop.grows").attempt == 1
    assert app.cast.log == [("errback", "shop.grows", "WorkerLostError('too much')")]
    with pytest.raises(WorkerLostError, match="too much"):
        result.get(timeout=5)


def test_the_rest_of_a_chain_fails_with_a_member_that_an_operator_abandons(cast: Any) -> None:
    result = celery.chain(cast.add.s(1, 2), cast.add.s(3)).apply_async(countdown=600, link_error=cast.errback.s())
    Job.objects.all().abandon(by="me", reason="no more of these")
    run_jobs()
    assert [each[:2] for each in cast.log] == [("errback", "shop.add")]
    for each in (result.parent, result):
        with pytest.raises(WorkerLostError, match="no more of these"):
            each.get(timeout=5)


def test_an_errback_is_called_once_however_long_the_error(cast: Any) -> None:
    cast.fails.apply_async(("x" * 3000,), link_error=cast.errback.s())
    run_jobs()
    assert [each[:2] for each in cast.log] == [("errback", "shop.fails")]


def test_an_errback_is_called_once_though_a_process_dies_in_the_callback(cast: Any) -> None:
    result = cast.fails.apply_async(("no",), link_error=cast.errback.s())
    run_jobs()
    job = Job.objects.tagged(f"celery:{result.id}").get()
    Attempt.objects.create(job=job, claim_id=uuid4(), number=1, cause=Cause.LOST)
    unended = {"finished_at": None, "outcome": None, "claim_id": None}
    Job.objects.filter(pk=job.pk).update(ending="abandoned", ending_attempt=1, **unended)
    run_jobs()
    assert Job.objects.get(pk=job.pk).ending_attempt == 2
    assert [each[:2] for each in cast.log] == [("errback", "shop.fails")]


def test_a_task_that_an_operator_abandons_before_its_start_has_no_retries(cast: Any) -> None:
    told: list[int] = []

    def tells(request: Any, exc: BaseException, traceback: Any) -> None:
        told.append(request.retries)

    made = cast.app.task(name="shop.tells", shared=False, base=celery.Task)(tells)
    cast.add.apply_async((1, 2), countdown=600, link_error=made.s())
    Job.objects.all().abandon(by="me", reason="no more of these")
    run_jobs()
    assert told == [0]


def test_a_retry_with_another_expiry_has_it(cast: Any) -> None:
    result = cast.limited.apply_async(kwargs={"expires": 3600})
    run_jobs(limit=1)
    job = Job.objects.get()
    assert job.payload["kwargs"]["celery_message"]["expires"], result.state


@pytest.mark.parametrize("again", ["third_time", "counts", "endless"])
def test_a_retry_expires_with_its_call(cast: Any, again: str) -> None:
    task = getattr(cast, again)
    result = task.apply_async(() if again == "endless" else (0,), expires=datetime.now(UTC) + timedelta(hours=1))
    run_jobs(limit=1)
    job = Job.objects.get()
    job.payload["kwargs"]["celery_message"]["expires"] = "2026-01-01T00:00:00+00:00"
    Job.objects.update(payload=job.payload)
    heard: list[bool] = []

    def hear(expired: bool, **_: Any) -> None:
        heard.append(expired)

    celery.signals.task_revoked.connect(hear)
    try:
        run_jobs(include_scheduled=True)
    finally:
        celery.signals.task_revoked.disconnect(hear)
    assert (result.state, heard) == ("REVOKED", [True])
    Job.objects.all().retry(by="me")
    run_jobs(limit=1)
    assert cast.app.AsyncResult(result.id).state != "REVOKED", "an operator's retry runs"
    run_jobs(include_scheduled=True, max_rounds=100)
    assert cast.app.AsyncResult(result.id).state in ("SUCCESS", "FAILURE"), "and so do its own"


def test_a_task_that_expired_before_its_start_runs_to_its_end_if_an_operator_retries_it(cast: Any) -> None:
    result = cast.third_time.apply_async(("x",), expires=datetime.now(UTC) - timedelta(hours=1))
    run_jobs()
    assert result.state == "REVOKED"
    Job.objects.all().retry(by="me")
    run_jobs(include_scheduled=True)
    assert cast.app.AsyncResult(result.id).get(timeout=5) == "x"


def test_a_retry_with_other_limits_has_them(cast: Any) -> None:
    cast.limited.apply_async(kwargs={"time_limit": 30}, time_limit=20, soft_time_limit=9)
    run_jobs(limit=1)
    job = Job.objects.get()
    assert (job.timeout_seconds, (job.options or {}).get("soft_timeout")) == (30, 9)


def test_revoking_cancels_what_waits(cast: Any) -> None:
    results = [cast.add.apply_async((1, 2), countdown=600) for _ in range(2)]
    results[0].revoke()
    cast.app.control.revoke([results[1].id, "unknown"])
    run_jobs(include_scheduled=True)
    for result in results:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=5)
        assert result.state == "REVOKED"
    assert cast.log == []


def test_a_running_task_that_is_revoked_goes_on_and_is_not_retried(cast: Any) -> None:
    """Celery's workers remember the id, and discard the message of its retry."""
    results = [cast.revoked_at_work.delay(fails) for fails in (False, True)]
    run_jobs(include_scheduled=True)
    assert results[0].get(timeout=5) == "it went on"
    assert [(job.state, job.attempt) for job in Job.objects.order_by("id")] == [("succeeded", 1), ("cancelled", 1)]
    assert results[1].state == "REVOKED"


def test_reject_gives_the_job_up_or_back(cast: Any) -> None:
    result = cast.rejects.delay(False)
    run_jobs()
    assert (result.state, type(result.result)) == ("FAILURE", Reject)
    cast.rejects.delay(True)
    run_jobs(limit=1)
    assert Job.objects.get(finished_at=None).state == Job.State.READY


# Checks


def refused(app: Any, **options: Any) -> list[tuple[str | None, str]]:
    install(app, **options)
    return [(message.id, message.msg) for message in check(bridges.bridge_of(app))]


def test_what_can_be_passes_the_checks(app: Any) -> None:
    assert refused(app) == []


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"task_serializer": "pickle"}, "task_serializer is 'pickle'"),
        ({"task_protocol": 1}, "task_protocol is 1"),
        ({"task_queues": [Queue("news", Exchange("news", type="topic"))]}, "queue 'news' has a topic exchange"),
    ],
)
def test_settings_that_cannot_be_are_named(app: Any, conf: dict[str, Any], words: str) -> None:
    app.conf.update(conf)
    assert [found for found in refused(app) if found[0] == "pgjobs.E026" and words in found[1]]
    assert not [found for found in refused(app, tasks=[]) if words in found[1] and "queue" in words]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate_limit": "10/m"}, "rate_limit='10/m'"),
        ({"serializer": "pickle"}, "the serializer 'pickle'"),
        ({"Request": "shop.requests:Request"}, "a Request of its own"),
    ],
)
def test_tasks_that_cannot_be_are_named(app: Any, options: dict[str, Any], words: str) -> None:
    app.task(name="shop.odd", shared=False, base=celery.Task, **options)(nothing)
    assert [(id_, "shop.odd" in text and words in text) for id_, text in refused(app)] == [("pgjobs.E026", True)]
    assert refused(app, tasks=["shop.add"]) == []


def test_receivers_that_only_celerys_workers_call_are_named(app: Any) -> None:
    def receiver(**_: Any) -> None: ...

    celery.signals.worker_process_init.connect(receiver)
    try:
        assert [id_ for id_, text in refused(app) if "worker_process_init" in text] == ["pgjobs.W018"]
    finally:
        celery.signals.worker_process_init.disconnect(receiver)


def test_boot_steps_that_only_celerys_workers_take_are_named(app: Any) -> None:
    """django-structlog connects its receivers by one."""

    class ConnectsReceivers(Step): ...

    app.steps["worker"].add(ConnectsReceivers)
    assert [id_ for id_, text in refused(app) if "ConnectsReceivers" in text] == ["pgjobs.W018"]
    assert refused(app, tasks=["shop.*"]) == []


# Schedules


@pytest.mark.parametrize(
    ("given", "expression"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute=0, hour="*/3"), "0 */3 * * *"),
        (crontab(minute="0,30", hour="8-10", day_of_week="mon-fri"), "0,30 8,9,10 * * 1,2,3,4,5"),
        (crontab(minute=5, hour=4, day_of_month="1-7"), "5 4 1,2,3,4,5,6,7 * *"),
        (crontab(minute=0, hour=0, day_of_week="sunday"), "0 0 * * 0"),
        (crontab(minute=0, hour=0, day_of_month=1, month_of_year="*/6"), "0 0 1 */6 *"),
    ],
)
def test_a_crontab_fires_when_celerys_does(given: crontab, expression: str) -> None:
    assert when(given) == {"expression": expression}
    at = datetime(2026, 11, 28, 9, 30, tzinfo=UTC)
    given.nowfun = lambda: at
    theirs = []
    for _ in range(5):
        at = at + given.remaining_estimate(at)
        theirs.append(at.replace(microsecond=0))
    assert Cron(expression, tz="UTC").next_fires(5, after=datetime(2026, 11, 28, 9, 30, tzinfo=UTC)) == theirs


def test_intervals_are_intervals() -> None:
    assert when(30.0) == {"every": 30.0}
    assert when(schedule(timedelta(minutes=45))) == {"every": timedelta(minutes=45)}


def test_a_beat_schedule_becomes_entries(app: Any) -> None:
    app.conf.beat_schedule = {
        "sums": {"task": "shop.add", "schedule": crontab(minute=0, hour=3), "args": (1,), "kwargs": {"b": 5}},
        "mail": {"task": "shop.same", "schedule": 30, "options": {"queue": "mail", "expires": 60}},
        "own": {"task": "shop.same", "schedule": Odd(30)},
        "both": {"task": "shop.same", "schedule": crontab(minute=0, day_of_month=1, day_of_week=1)},
        "gone": {"task": "shop.gone", "schedule": 30},
        "odd": {"task": "shop.same", "schedule": 30, "options": {"countdown": 3}},
    }
    app.conf.timezone = "Europe/Berlin"
    install(app, beat=True)
    found = {entry.name: entry.declared() for entry in registry.crons()}
    assert sorted(found) == ["mail", "sums"]
    assert (found["sums"].expression, found["sums"].zone) == ("0 3 * * *", "Europe/Berlin")
    wrong = {text.split("'")[3] for id_, text in refused(app, beat=True) if id_ == "pgjobs.E027"}
    assert wrong == {"both", "gone", "odd", "own"}
    assert not [text for id_, text in refused(app) if id_ == "pgjobs.E027"]


def test_a_schedule_has_the_options_of_its_task_and_of_its_route(app: Any) -> None:
    app.conf.broker_url = "redis://localhost"
    app.conf.task_routes = {"shop.add": {"queue": "sums", "priority": 2}}
    with warnings.catch_warnings(action="ignore"):  # newer Celery wants a route instead
        app.task(name="shop.eager", shared=False, base=celery.Task, priority=3, expires=60)(nothing)
    app.conf.beat_schedule = {
        "by route": {"task": "shop.add", "schedule": 30, "args": (1,)},
        "by task": {"task": "shop.eager", "schedule": 30},
        "by itself": {"task": "shop.eager", "schedule": 30, "options": {"priority": 5, "expires": 9}},
    }
    install(app, beat=True)
    kept = {entry.name: json.loads(entry.declared().options) for entry in registry.crons()}
    found = {name: (each["queue"], each["priority"], each.get("expires_seconds")) for name, each in kept.items()}
    assert found == {"by route": ("sums", -2, None), "by task": ("celery", -3, 60), "by itself": ("celery", -5, 9)}


def test_a_schedule_of_a_task_of_the_brokers_is_refused(app: Any) -> None:
    app.conf.beat_schedule = {"theirs": {"task": "shop.same", "schedule": 30}}
    wrong = refused(app, tasks=["shop.add"], beat=True)
    assert [(id_, "leave its task to the broker" in text) for id_, text in wrong] == [("pgjobs.E027", True)]
    assert not list(registry.crons())


def test_a_job_knows_the_arguments_of_its_task(cast: Any) -> None:
    """So an importer and the check of what is in flight can bind a call, and our own JSON keeps its values."""
    from django_pgjobs.celery_bridge.definitions import definition_of

    definition = definition_of(cast.app, "shop.add")
    with pytest.raises(TypeError):
        definition.register(1, 2, 3)
    definition_of(cast.app, "shop.types").register([datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.5"), (1, 2)])
    run_jobs()
    assert Job.objects.get().result == ["datetime", "Decimal", "list"]


def test_a_call_that_came_past_celery_has_an_id(cast: Any) -> None:
    from django_pgjobs.celery_bridge.definitions import definition_of

    job = definition_of(cast.app, "shop.asks").register(1, b=2)
    run_jobs()
    found: Any = Job.objects.get().result
    assert (found["args"], found["kwargs"]) == ([1], {"b": 2})
    assert cast.app.AsyncResult(found["id"]).get(timeout=5)["id"] == found["id"]
    assert Job.objects.get().pk == job.pk


class OnCommit(TransactionTestCase):
    """Django's own ways of Celery, on a real commit."""

    databases = {"default"}

    @override_settings(DEBUG=False)
    def test_delay_on_commit_waits_for_the_commit(self) -> None:
        app = Celery("on-commit", broker="memory://", set_as_current=False)
        made = app.task(name="shop.committed", shared=False)(nothing)
        with isolated_registry(), alone():
            install(app)
            with transaction.atomic():
                made.delay_on_commit()
                assert not Job.objects.exists()
            run_jobs()
            assert Job.objects.get().result == 7
