"""Bypassing the queue: run here and now, once, in a local worker, and stored nowhere."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgjobs import Abandon, Cancel, JobContext, Limit, Snooze, Unique, job, register_many, signals
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import DeadlinePassed, InvalidJob, JobDoesNotExist, NoWorkerAvailable
from django_pgjobs.models import Attempt, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.queues import Queue
from django_pgjobs.registering.local_pool import of_this_process
from django_pgjobs.testing import reset_rate_limits, wait_for_bypassed
from tests.plugins.fix_db import RawDatabase, patience, wait_until

pytestmark = pytest.mark.usefixtures("committed")

seen: list[Any] = []
go = threading.Event()


@job(queue="mail", takes_context=True)
def send(context: JobContext, what: object) -> None:
    seen.append((context, what, threading.current_thread().name))


@job(unique="only:{number}")
def keyed(number: int) -> None:
    seen.append(number)


@job
def fail(how: str) -> None:
    seen.append(how)
    match how:
        case "snooze":
            raise Snooze(1)
        case "cancel":
            raise Cancel("not wanted")
        case "abandon":
            raise Abandon("hopeless")
    raise ValueError(how)


@fail.on_abandon
def abandoned(context: JobContext, how: str) -> None:
    seen.append(("abandoned", how, context.error and context.error.summary, context.attempt))


@fail.on_cancel
def cancelled(context: JobContext, how: str) -> None:
    seen.append(("cancelled", how))


@job
def wait() -> None:
    assert go.wait(patience(20))


@job
def spin() -> None:
    seen.append("spinning")
    while True:
        time.sleep(0.001)


@spin.on_abandon
def spun(context: JobContext) -> None:
    seen.append(context.error and context.error.summary)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@job
def query() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(3600)")


@query.on_abandon
def queried(context: JobContext) -> None:
    seen.append(context.error and context.error.summary)


@job
async def sleep(seconds: float) -> None:
    seen.append("sleeping")
    await asyncio.sleep(seconds)
    seen.append("slept")


@sleep.on_abandon
async def overslept(context: JobContext, seconds: float) -> None:
    seen.append(context.error and context.error.summary)


@job
def write() -> None:
    send.register("from a local worker")
    seen.append((Job.objects.count(), connection.settings_dict["NAME"], connection.in_atomic_block))


@job
def stuck_callback() -> None:
    raise ValueError


@stuck_callback.on_abandon
def stuck(context: JobContext) -> None:
    seen.append("stuck")
    while True:
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    seen.clear()
    go.clear()
    reset_rate_limits()
    yield
    go.set()
    wait_for_bypassed(patience(10))


def done() -> list[Any]:
    wait_for_bypassed(patience(10))
    return seen


def nothing_stored() -> bool:
    return not (Job.objects.exists() or Claim.objects.exists() or Attempt.objects.exists())


# What it is


def test_it_runs_at_once_in_a_local_worker_and_is_stored_nowhere() -> None:
    """A37."""
    with CaptureQueriesContext(connection) as queries:
        registered = send.using(bypass=True).register({"day": datetime(2026, 11, 21, tzinfo=UTC)})
    assert len(queries) == 0
    [(context, what, thread)] = done()
    assert what == {"day": datetime(2026, 11, 21, tzinfo=UTC)}
    assert thread == "pgjobs-bypass"
    assert (context.id, context.attempt, context.max_attempts, context.queue) == (0, 1, 1, "mail")
    assert context.timeout == 1800
    assert nothing_stored()
    key: int | None = registered.pk
    assert key is None
    assert registered._state.adding
    assert (registered.name, registered.queue, registered.state, registered.label) == (
        send.name,
        "mail",
        "running",
        "running",
    )


def test_what_is_not_stored_can_be_neither_steered_nor_waited_for() -> None:
    registered = wait.using(bypass=True).register()
    assert registered.cancel().changed == 0
    with pytest.raises(JobDoesNotExist):
        registered.wait(0)
    with pytest.raises(TypeError):
        registered.save()


def test_what_it_gets_is_what_the_queue_would_have_given_it() -> None:
    """A37: arguments go through their JSON, so a worker never shares a list with the caller."""
    given = [1, 2]
    send.using(bypass=True).register(given)
    given.append(3)
    assert done()[0][1] == [1, 2]
    with pytest.raises(InvalidJob, match="cannot be stored"):
        send.using(bypass=True).register(object())
    with pytest.raises(TypeError):
        send.using(bypass=True).register()  # type: ignore[call-arg]


def test_no_queue_shows_it() -> None:
    """A41."""
    wait.using(bypass=True, queue="mail").register()
    assert of_this_process.running == 1
    assert list(Queue("mail").jobs()) == []
    assert not any(Queue("mail").status().jobs.values())
    with pytest.raises(JobDoesNotExist):
        Queue("mail").job(0)


def test_it_is_exempt_from_capacity_and_rate(settings: Any) -> None:
    """A42: with an empty bucket and a full queue it still runs, and takes no place and no token."""
    settings.PGJOBS = {"CAPACITY": {"mail": 1}, "REGISTRATION_RATE": {"mail": {"tokens": 3, "seconds_per_token": 600}}}
    for number in range(3):
        send.using(bypass=True).register(number)
        assert len(done()) == number + 1
    send.register("stored")
    send.using(bypass=True).register(4)
    assert len(done()) == 4


def test_asynchronous_callers_and_bound_calls_bypass_too() -> None:
    assert async_to_sync(send.using(bypass=True).aregister)(1).pk is None
    assert send.bind(2).using(bypass=True).register().pk is None
    assert send.using(bypass=True).bind(3).register().pk is None
    assert sorted(what for _, what, _ in done()) == [1, 2, 3]
    assert send.using(bypass=True).using(bypass=False).register(4).pk is not None
    assert len(done()) == 3


# All busy


def test_with_all_local_workers_busy_it_is_refused_and_nothing_is_queued(settings: Any) -> None:
    """A38."""
    settings.PGJOBS = {"BYPASS_WORKERS": 2}
    for _ in range(2):
        wait.using(bypass=True).register()
    with pytest.raises(NoWorkerAvailable, match="All local workers of this process are busy"):
        send.using(bypass=True).register(1)
    go.set()
    assert done() == []
    assert nothing_stored()
    send.using(bypass=True).register(2)
    assert len(done()) == 1


# Once


def test_a_failure_is_that_of_a_last_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """A39: never retried, and ``on_abandon`` runs."""
    with caplog.at_level(logging.INFO, "django_pgjobs"):
        fail.using(bypass=True).register("sadly")
        assert done() == ["sadly", ("abandoned", "sadly", "ValueError: sadly", 1)]
    assert [r.levelname for r in caplog.records if "job abandoned" in r.message] == ["ERROR"]
    assert nothing_stored()


@pytest.mark.parametrize(
    ("how", "then", "logged"),
    [("snooze", "abandoned", 1), ("cancel", "cancelled", 0), ("abandon", "abandoned", 0)],
)
def test_what_a_job_says_of_itself_is_heard_as_far_as_it_can_be(
    caplog: pytest.LogCaptureFixture, how: str, then: str, logged: int
) -> None:
    """A39: there is no queue that it could come back to."""
    fail.using(bypass=True).register(how)
    assert [entry if isinstance(entry, str) else entry[:2] for entry in done()] == [how, (then, how)]
    assert sum("cannot come back" in record.message for record in caplog.records) == logged


def test_receivers_hear_of_its_start_and_end_and_of_no_stored_job() -> None:
    heard: list[Any] = []

    def started(context: JobContext, **_: Any) -> None:
        heard.append(("started", context.name))

    def ended(decision: Any, **_: Any) -> None:
        heard.append(("ended", type(decision).__name__))

    def stored(**_: Any) -> None:
        heard.append("stored")

    pairs: list[tuple[Any, Any]] = [(signals.job_started, started), (signals.attempt_ended, ended)]
    pairs += [(signals.job_registered, stored), (signals.job_finished, stored)]
    for signal, receiver in pairs:
        signal.connect(receiver)
    try:
        send.using(bypass=True).register(1)
        done()
    finally:
        for signal, receiver in pairs:
            signal.disconnect(receiver)
    assert heard == [("started", send.name), ("ended", "Succeeded")]


# Apart


def test_it_is_outside_of_the_callers_transaction_and_leaves_no_connection(raw: RawDatabase) -> None:
    """A37: it sees nothing that is not committed, and what it writes stays though the caller rolls back."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    Job.objects.count()
    before = raw.value(sessions)
    with transaction.atomic():
        send.register("by the caller")
        write.using(bypass=True).register()
        [(visible, _, in_transaction)] = done()
        transaction.set_rollback(True)
    assert (visible, in_transaction) == (1, False)
    assert [found.payload["args"] for found in Job.objects.all()] == [["from a local worker"]]
    wait_until(lambda: raw.value(sessions) == before, 10, "its connection is closed")


# Its time


def test_a_timeout_interrupts_what_comes_back_to_python() -> None:
    """A42: a bypassed job still has its timeout; then ``on_abandon``, on a connection that works."""
    spin.using(bypass=True, timeout=0.05).register()
    assert done() == ["spinning", f"DeadlinePassed: {DeadlinePassed()}"]


def test_a_timeout_cancels_the_query_that_it_waits_for(raw: RawDatabase) -> None:
    """A42."""
    asleep = (
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(3600)%%' AND state = 'active'"
        " AND datname = current_database()"
    )
    query.using(bypass=True, timeout=0.3).register()
    assert len(done()) == 1
    wait_until(lambda: raw.value(asleep, []) == 0, 10, "the server has stopped it")


def test_a_timeout_interrupts_a_coroutine() -> None:
    """A42."""
    sleep.using(bypass=True, timeout=0.05).register(3600.0)
    assert done() == ["sleeping", f"DeadlinePassed: {DeadlinePassed()}"]
    seen.clear()
    sleep.using(bypass=True, timeout=None).register(0.0)
    assert done() == ["sleeping", "slept"]


def test_a_callback_has_its_time_too(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.PGJOBS = {"CALLBACK_SECONDS": 0.05}
    stuck_callback.using(bypass=True).register()
    assert done() == ["stuck"]
    assert any("callback failed callback=on_abandon " in record.message for record in caplog.records)


def test_a_job_whose_timeout_cannot_be_kept_runs_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with patch.object(threading.Timer, "start", refuse):
        send.using(bypass=True).register(1)
        assert len(done()) == 1
    assert [record.levelname for record in caplog.records if "cannot be kept" in record.message] == ["ERROR"]


# What does not go with it


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"delay": 0},
        {"delay": 60},
        {"max_attempts": 1},
        {"backoff": 5},
        {"priority": 3},
        {"database": "default"},
        {"unique": "welcome"},
        {"unique": Unique(on_conflict="raise")},
        {"idempotency_key": "welcome"},
    ],
)
def test_an_option_that_means_nothing_to_it_is_refused_by_both_names(options: dict[str, Any]) -> None:
    """A40: with a start, attempts or a backoff, in either order."""
    [option] = options
    words = f"job {send.name!r}: {option} and bypass exclude each other"
    with pytest.raises(InvalidJob, match=words):
        send.using(bypass=True, **options)
    if option != "backoff":
        with pytest.raises(InvalidJob, match=words):
            send.using(**options).using(bypass=True)
        with pytest.raises(InvalidJob, match=words):
            send.using(bypass=True).using(**options)
    assert done() == []


def test_a_bypassed_job_may_be_described() -> None:
    registered = send.using(bypass=True, description="Send one by hand").register(1)
    [(context, _, _)] = done()
    assert context.description == registered.description == "Send one by hand"


def test_a_job_declared_with_a_key_bypasses_when_told_to_do_without() -> None:
    """A40: a key that is not stored would stop nobody."""
    with pytest.raises(InvalidJob, match=r"unique and bypass exclude each other: .*; pass unique=None"):
        keyed.using(bypass=True).register(1)
    keyed.using(bypass=True, unique=None).register(2)
    assert done() == [2]


@pytest.mark.parametrize(
    "limits", [Limit(1), Limit(rate=1), Limit(1, key="{number}"), Limit(1, key=lambda number: None)]
)
def test_a_job_with_limits_cannot_bypass(limits: Limit) -> None:
    """What is not stored takes no place: it would run past the limit."""
    with registry.isolated():
        limited = job(name="limited", limits=limits)(keyed.func)
        with pytest.raises(InvalidJob, match=r"'limited': limits and bypass exclude each other: .* no limit counts it"):
            limited.using(bypass=True)
        with pytest.raises(InvalidJob, match="limits and bypass"):
            limited.bind(1).using(bypass=True)
    assert done() == []


def test_nor_can_a_job_of_a_queue_with_a_limit(settings: Any) -> None:
    """The queue it would have is the one that counts; and what the settings say when it is run."""
    bypassing = send.using(bypass=True)
    settings.PGJOBS = {"QUEUE_LIMITS": {"*": {"concurrency": 1}, "free": None}}
    words = r"PGJOBS\['QUEUE_LIMITS'\] limits queue 'mail', and limits and bypass exclude each other"
    with pytest.raises(InvalidJob, match=words):
        send.using(bypass=True)
    with pytest.raises(InvalidJob, match=words):
        bypassing.register(1)
    registered = send.using(bypass=True, queue="free").register(2)
    assert (registered.state, registered.hold) == ("running", None)
    assert [what for _, what, _ in done()] == [2]


@pytest.mark.parametrize("kind", ["queue", "job"])
def test_no_pause_stops_it(kind: str) -> None:
    """A pause is stored in the database, which is not asked."""
    Queue("mail").pause() if kind == "queue" else send.pause()
    with CaptureQueriesContext(connection) as queries:
        send.using(bypass=True).register(1)
    assert len(queries) == 0
    assert len(done()) == 1


def test_what_is_not_given_does_not_collide() -> None:
    send.using(bypass=True, run_at=None, delay=None, database=None, timeout=5, queue="bulk").register(1)
    [(context, _, _)] = done()
    assert (context.timeout, context.queue) == (5, "bulk")
    with pytest.raises(InvalidJob, match="bypass must be True or False"):
        send.using(bypass=1)  # type: ignore[arg-type]


def test_many_cannot_bypass() -> None:
    for register in (
        lambda: send.using(bypass=True).register_many([(1,)]),
        lambda: register_many([send.bind(1), send.using(bypass=True).bind(2)]),
    ):
        with pytest.raises(InvalidJob, match=r"row \d: bypass=True stores nothing, and register_many only stores jobs"):
            register()
    assert done() == []
    assert nothing_stored()
