"""A queue as its producers see it: status, list, cancel; tokens are paid, ended jobs are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_pgjobs import Backoff, current_context, job, queues
from django_pgjobs.exceptions import InvalidJob, JobDoesNotExist, RateLimited
from django_pgjobs.models import Job
from django_pgjobs.pausing import pause_job, pause_queue
from django_pgjobs.queues import Queue, QueuedJob
from django_pgjobs.registering.token_bucket import of_this_process
from django_pgjobs.serialization.payload import HIDDEN
from django_pgjobs.steering.batching import Steered
from django_pgjobs.store import finalising, gating
from django_pgjobs.store.database import statement
from django_pgjobs.testing import reset_rate_limits, run_jobs
from tests.plugins.explaining import nodes
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, from_the_beginning, register

pytestmark = pytest.mark.usefixtures("committed")

MAIL = from_the_beginning(("mail", 0), ("mail", 5))
ran: list[int] = []
seen: list[Any] = []


@job(queue="mail", max_attempts=3, timeout=300, backoff=Backoff(5, factor=2), sensitive=["password"])
def send(user_id: int, *, due: date | None = None, password: str = "") -> None:
    ran.append(user_id)
    if user_id < 0:
        raise ValueError("no such user")


@job(queue="mail")
def see() -> None:
    seen.append(list(Queue(current_context()).list()))
    seen.append(Queue(current_context()).status(current_context().id))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    ran.clear()
    seen.clear()
    reset_rate_limits()
    yield
    reset_rate_limits()


@pytest.fixture
def mail() -> Queue:
    return Queue("mail")


# Status


def test_a_status_says_what_was_registered(mail: Queue) -> None:
    """A58: id, app, function and arguments, start, state, timeout, attempts, remaining attempts, backoff."""
    registered = send.using(delay=60).register(7, due=date(2026, 11, 21), password="secret")
    stored = Job.objects.get(pk=registered.pk)
    assert mail.status(registered.pk) == QueuedJob(
        id=registered.pk,
        key=None,
        name=send.name,
        app="tests",
        queue="mail",
        arguments={"user_id": 7, "due": date(2026, 11, 21), "password": HIDDEN},
        description="",
        registered_at=stored.created_at,
        run_at=stored.run_at,
        state="waiting",
        timeout=300,
        attempt=0,
        max_attempts=3,
        remaining_attempts=3,
        backoff=Backoff(5, factor=2),
    )


def test_a_job_is_found_by_the_key_that_it_holds(mail: Queue, raw: RawDatabase) -> None:
    """A58."""
    first, second = send.register(1), send.using(queue="bulk").register(2)
    raw.query("UPDATE pgjobs_job SET key = 'welcome:1', unique_key = 'welcome:1', key_scope = 'until_finished'")
    assert (mail.status("welcome:1").id, mail.status("welcome:1").key) == (first.pk, "welcome:1")
    assert Queue("bulk").status("welcome:1").id == second.pk
    assert mail.cancel("welcome:1").changed == 1
    assert Job.objects.get(pk=second.pk).finished_at is None


def test_the_states_are_waiting_runnable_and_running(mail: Queue, raw: RawDatabase) -> None:
    """A60: exactly these; attempts that are left count down, one that runs included."""
    registered = send.using(delay=60).register(7)

    def now() -> tuple[str, int, int]:
        found = mail.status(registered.pk)
        listed = [entry.label for entry in mail.list()]
        assert listed == [found.state]
        return found.state, found.attempt, found.remaining_attempts

    assert now() == (queues.WAITING, 0, 3)
    registered.reschedule(delay=0)
    assert now() == (queues.RUNNABLE, 0, 3)
    held = claim(raw, 1, MAIL)
    assert now() == (queues.RUNNING, 1, 3)
    assert finalising.finalise_retry(raw, held.ends(delay=60.0, cause="failed", failure=FAILURE), AUTHOR)
    assert now() == (queues.WAITING, 1, 2)
    registered.reschedule(delay=0)
    claim(raw, 1, MAIL)
    assert now() == (queues.RUNNING, 2, 2)


@pytest.mark.parametrize("hold", ["parked", "limited", "paused", "waiting"])
def test_a_job_that_is_held_waits_though_it_is_due(mail: Queue, raw: RawDatabase, hold: str) -> None:
    """A60."""
    registered = send.register(7)
    raw.query("UPDATE pgjobs_job SET hold = %s", [hold])
    assert mail.status(registered.pk).state == "waiting"
    assert [entry.label for entry in mail.list()] == ["waiting"]


def test_a_job_that_is_paused_waits_though_it_is_due(mail: Queue, raw: RawDatabase) -> None:
    """A60: by its queue or by its name; another queue's pause, and one that is over, are nothing to it."""
    registered, other = send.register(7), see.register()

    def labels() -> list[str]:
        assert [entry.label for entry in mail.list()] == [mail.status(each.pk).state for each in (registered, other)]
        return [entry.label for entry in mail.list()]

    pause_queue("bulk")
    assert labels() == ["runnable", "runnable"]
    pause_job(send)
    assert labels() == ["waiting", "runnable"]
    pause_queue("mail")
    assert labels() == ["waiting", "waiting"]
    raw.query("UPDATE pgjobs_queue_state SET until = statement_timestamp() - interval '1 s'")
    assert labels() == ["runnable", "runnable"]


def test_what_nobody_here_can_read_is_shown_without_its_arguments(mail: Queue, raw: RawDatabase) -> None:
    register(queue="mail", name="of.another.deployment")
    send.register(1)
    raw.query("UPDATE pgjobs_job SET payload = '7' WHERE name = %s", [send.name])
    unknown, malformed = [mail.status(entry.id) for entry in mail.list()]
    assert (unknown.arguments, unknown.app, unknown.backoff) == (None, "", None)
    assert (malformed.arguments, malformed.app) == (None, "tests")


@pytest.mark.parametrize("which", [0, -1, 2**70, "welcome:7", ""])
def test_an_unknown_job_is_an_error(mail: Queue, which: int | str) -> None:
    """A56, A59."""
    send.using(queue="bulk").register(7)
    with pytest.raises(JobDoesNotExist, match="Queue 'mail' has no unfinished job"):
        mail.status(which)
    with pytest.raises(JobDoesNotExist):
        mail.cancel(which)


def test_a_job_of_another_queue_is_unknown(mail: Queue) -> None:
    """A57: a queue object does not reach jobs of other queues."""
    elsewhere = send.using(queue="bulk").register(7)
    with pytest.raises(JobDoesNotExist):
        mail.status(elsewhere.pk)
    with pytest.raises(JobDoesNotExist):
        mail.cancel(elsewhere.pk)
    assert list(mail.list()) == []
    assert Queue("bulk").status(elsewhere.pk).state == "runnable"


@pytest.mark.parametrize("which", [True, 1.5, None])
def test_a_job_is_named_by_id_or_key(mail: Queue, which: Any) -> None:
    with pytest.raises(TypeError, match="name a job by its id"):
        mail.status(which)


def test_a_queue_that_cannot_be_is_refused(settings: Any) -> None:
    """A56, A57: a queue that the project does not have is its own error."""
    with pytest.raises(InvalidJob, match="queue must be 1 to 100"):
        Queue("a b")
    with pytest.raises(InvalidJob, match="there is no database 'elsewhere'"):
        Queue("mail", "elsewhere")
    settings.PGJOBS = {"QUEUES": ["mail"]}
    with pytest.raises(InvalidJob, match="queue 'mial' is not in PGJOBS"):
        Queue("mial")
    assert repr(Queue("mail")) == "<Queue mail>"


# List


def test_the_list_is_by_time_then_id_over_priorities_and_holds(mail: Queue, raw: RawDatabase) -> None:
    """A61: (time, id, state), sorted by time, then id."""
    at = timezone.now() - timedelta(days=1)
    for number in range(30):
        send.using(run_at=at + timedelta(seconds=number % 7), priority=number % 3).register(number)
    send.using(queue="bulk").register(99)
    raw.query("UPDATE pgjobs_job SET hold = 'parked' WHERE id %% 5 = 0 AND queue = 'mail'", [])
    raw.query("UPDATE pgjobs_job SET hold = 'paused' WHERE id %% 7 = 0 AND queue = 'mail'", [])
    expected = list(Job.objects.filter(queue="mail").order_by("run_at", "id").values_list("run_at", "id"))
    for page in (1, 2, 7, 30, 1000):
        with patch.object(queues, "PAGE", page):
            assert [(entry.run_at, entry.id) for entry in mail.list()] == expected
    assert {entry.label for entry in mail.list()} == {"waiting", "runnable"}


def test_what_has_ended_is_neither_listed_nor_found(mail: Queue) -> None:
    """A23, A63: succeeded, abandoned or cancelled, a job has left the queue."""
    ids = [send.register(1).pk, send.using(max_attempts=1).register(-1).pk, send.register(2).pk]
    Job.objects.filter(pk=ids[2]).cancel()
    run_jobs()
    assert {found.state for found in Job.objects.all()} == {"succeeded", "abandoned", "cancelled"}
    assert list(mail.list()) == []
    for job_id in ids:
        with pytest.raises(JobDoesNotExist):
            mail.status(job_id)
        with pytest.raises(JobDoesNotExist):
            mail.cancel(job_id)


def test_a_job_asks_for_its_own_queue_by_its_context() -> None:
    """A62: a queue is named by its name or by a context."""
    registered = see.register()
    run_jobs()
    listed, status = seen
    assert [(entry.id, entry.label) for entry in listed] == [(registered.pk, "running")]
    assert (status.id, status.state, status.queue) == (registered.pk, "running", "mail")


def test_a_list_is_read_a_page_at_a_time(mail: Queue) -> None:
    register(25, queue="mail")
    with patch.object(queues, "PAGE", 10), patch.object(gating, "list_queue", wraps=gating.list_queue) as read:
        listed = mail.list()
        assert read.call_count == 0
        next(listed)
        assert read.call_count == 1
        assert len(list(listed)) == 24
        assert read.call_count == 3


# Cancel


def test_a_cancelled_job_never_runs(mail: Queue) -> None:
    """A53: waiting or runnable, it ends."""
    ids = [send.register(1).pk, send.using(delay=60).register(2).pk]
    assert [mail.cancel(job_id, by="anna", reason="not wanted") for job_id in ids] == [Steered(changed=1)] * 2
    run_jobs(include_scheduled=True)
    assert ran == []
    assert set(Job.objects.values_list("state", "cancel_by", "cancel_reason")) == {("cancelled", "anna", "not wanted")}


def test_a_running_job_is_told_and_not_stopped(mail: Queue, raw: RawDatabase) -> None:
    """A54: ok; the execution is not stopped, and a failure of it is not retried."""
    registered = send.register(7)
    held = claim(raw, 1, MAIL)
    assert mail.cancel(registered.pk).changed == 1
    assert mail.cancel(registered.pk).changed == 1
    found = mail.status(registered.pk)
    assert found.state == "running"
    assert Job.objects.get(pk=registered.pk).cancel_mode == "ask"
    assert not finalising.finalise_retry(raw, held.ends(delay=1.0, cause="failed", failure=FAILURE), AUTHOR)


def test_a_job_that_ends_meanwhile_is_unknown(mail: Queue) -> None:
    """A56: found, and then somebody else's end comes first."""
    registered = send.register(7)
    with (
        patch.object(Job, "cancel", lambda *_, **__: Steered(skipped={"succeeded": 1})),
        pytest.raises(JobDoesNotExist),
    ):
        mail.cancel(registered.pk)
    with patch.object(Job, "cancel", lambda *_, **__: Steered(skipped={"busy": 1})):
        assert mail.cancel(registered.pk) == Steered(skipped={"busy": 1})


def test_in_a_transaction_an_unknown_job_leaves_it_usable(mail: Queue) -> None:
    with transaction.atomic():
        with pytest.raises(JobDoesNotExist):
            mail.cancel(1)
        send.register(1)
    assert len(list(mail.list())) == 1


def test_asynchronous_callers_have_the_same(mail: Queue) -> None:
    ids = [send.register(number).pk for number in range(5)]

    async def see() -> tuple[str, list[int], int]:
        listed = [entry.id async for entry in mail.alist()]
        return (await mail.astatus(ids[0])).state, listed, (await mail.acancel(ids[0])).changed

    with patch.object(queues, "PAGE", 2):
        assert async_to_sync(see)() == ("runnable", ids, 1)


# Tokens


class Time:
    """A clock that advances when a caller sleeps."""

    def __init__(self) -> None:
        self.at = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


@pytest.fixture
def slow(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Time:
    """Antikythera's bucket, on a clock of the test."""
    settings.PGJOBS = {"REGISTRATION_RATE": {"mail": {}}}
    time = Time()
    monkeypatch.setattr(of_this_process, "now", lambda: time.at)
    monkeypatch.setattr(of_this_process, "sleep", time.sleep)
    return time


def test_every_action_takes_its_tokens(mail: Queue, slow: Time) -> None:
    """A48: register 3, cancel 3, status 1, list 1, out of one bucket of 30."""
    ids = [send.register(number).pk for number in range(8)]
    mail.status(ids[0])
    mail.list()
    mail.cancel(ids[0])
    mail.list()
    with pytest.raises(RateLimited):
        send.register(9)
    assert Queue("bulk").list() is not None


def test_cancelling_without_tokens_is_refused(mail: Queue, slow: Time) -> None:
    """A49, A56: at once, with the time to wait; then it succeeds."""
    ids = [send.register(number).pk for number in range(10)]
    with pytest.raises(RateLimited) as caught:
        mail.cancel(ids[0])
    assert Job.objects.filter(finished_at=None).count() == 10
    slow.at += caught.value.retry_after
    assert mail.cancel(ids[0]).changed == 1


def test_looking_without_tokens_comes_late(mail: Queue, slow: Time) -> None:
    """A50: status and list wait instead of failing."""
    ids = [send.register(number).pk for number in range(10)]
    assert mail.status(ids[0]).id == ids[0]
    assert len(list(mail.list())) == 10
    assert slow.slept == [pytest.approx(0.5)] * 2


def test_looking_behind_the_debt_of_a_batch_is_refused_at_once(mail: Queue, slow: Time) -> None:
    """A50: it would be paid in ten minutes. What costs nothing is not refused."""
    ids = send.register_many([(number,) for number in range(400)])
    for look_at in (lambda: mail.status(ids[0]), mail.list, lambda: async_to_sync(mail.astatus)(ids[0])):
        with pytest.raises(RateLimited) as caught:
            look_at()
        assert caught.value.retry_after == pytest.approx(585.5)
    assert slow.slept == []


def test_async_callers_who_wait_for_tokens_keep_no_thread(
    mail: Queue, slow: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A50: the one thread that runs all ORM calls of an event loop stays free for others."""
    ids = [send.register(number).pk for number in range(10)]

    async def see() -> list[int]:
        others, waiting = asyncio.Event(), asyncio.Event()

        async def asleep(seconds: float) -> None:
            waiting.set()
            await others.wait()
            slow.sleep(seconds)

        monkeypatch.setattr(of_this_process, "asleep", asleep)
        status = asyncio.create_task(mail.astatus(ids[0]))
        await asyncio.wait({status, asyncio.create_task(waiting.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not status.done()
        assert await Job.objects.acount() == 10
        others.set()
        return [(await status).id, len([found async for found in mail.alist()])]

    assert async_to_sync(see)() == [ids[0], 10]
    assert slow.slept == [pytest.approx(0.5)] * 2


# The plan


def test_a_page_reads_no_more_than_a_page_of_each_range(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase]
) -> None:
    """On a reader's connection, without a worker's pins, and analysed while empty: by index, and no further."""
    raw.query("ANALYZE pgjobs_job")
    for priority in (0, 5):
        register(15_000, queue="mail", priority=priority)
    register(10_000, queue="bulk")
    raw.query("UPDATE pgjobs_job SET hold = 'paused' WHERE id %% 3 = 0", [])
    raw.query("VACUUM pgjobs_job")
    cursor = psycopg.ClientCursor(db_connection(pins=False).raw)
    params = {"queue": "mail", "run_at": "-infinity", "id": 0, "limit": 100}
    cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement('list_queue')}", params)
    row = cursor.fetchone()
    assert row is not None
    found = list(nodes(row[0][0]["Plan"]))
    assert not [node for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "pgjobs_job"]
    read = sum(
        node["Actual Rows"] * node["Actual Loops"] for node in found if "Index Name" in node and node["Actual Rows"] > 1
    )
    assert read <= 300
