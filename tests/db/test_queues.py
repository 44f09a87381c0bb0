"""A queue as its producers see it: status, list, cancel; tokens are paid, ended jobs are gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_pgjobs import Backoff, current_context, job
from django_pgjobs.exceptions import InvalidJob, JobDoesNotExist, RateLimited
from django_pgjobs.models import Job
from django_pgjobs.queues import Queue
from django_pgjobs.queues import queue as module
from django_pgjobs.registering.token_bucket import of_this_process
from django_pgjobs.serialization.payload import HIDDEN
from django_pgjobs.states import Hold, JobState, Outcome
from django_pgjobs.steering.batching import Steered
from django_pgjobs.store import finalising
from django_pgjobs.testing import reset_rate_limits, run_jobs
from tests.plugins.explaining import analysed_while_empty, nodes
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
    seen.append([(found.pk, found.state) for found in Queue(current_context()).jobs()])
    seen.append(Queue(current_context()).job(current_context().id))


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


# One job, and the states


def test_a_job_says_what_was_registered(mail: Queue) -> None:
    """A58: id, function and arguments, start, state, timeout, attempts; the backoff is its definition's."""
    registered = send.using(delay=60).register(7, due=date(2026, 11, 21), password="secret")
    found = mail.job(registered.pk)
    assert found == registered
    assert found.arguments == {"user_id": 7, "due": date(2026, 11, 21), "password": HIDDEN}
    assert (found.name, found.queue, found.state, found.key) == (send.name, "mail", "ready", None)
    assert (found.run_at - found.created_at).total_seconds() == pytest.approx(60)
    assert (found.timeout_seconds, found.attempt, found.max_attempts) == (300, 0, 3)


def test_a_job_is_found_by_the_key_that_it_holds(mail: Queue, raw: RawDatabase) -> None:
    """A58."""
    first, second = send.register(1), send.using(queue="bulk").register(2)
    raw.query("UPDATE pgjobs_job SET key = 'welcome:1', unique_key = 'welcome:1', key_scope = 'until_finished'")
    assert (mail.job("welcome:1").pk, mail.job("welcome:1").key) == (first.pk, "welcome:1")
    assert Queue("bulk").job("welcome:1").pk == second.pk
    assert mail.cancel("welcome:1").changed == 1
    assert Job.objects.get(pk=second.pk).finished_at is None


def counted(queue: Queue) -> dict[str, int]:
    """How many jobs are in which state, by the status of the queue; its list says the same."""
    found = queue.status().jobs
    assert list(found) == [state for state in JobState if state.value not in list(Outcome)]
    assert found == {state: len(queue.jobs(state)) for state in found}
    assert sum(found.values()) == len(queue.jobs())
    return {state: jobs for state, jobs in found.items() if jobs}


def test_the_words_of_a_queue_are_the_states_of_its_jobs(mail: Queue, raw: RawDatabase) -> None:
    """A60: a retry is ready again, and counts attempts."""
    registered = send.using(delay=60).register(7)
    assert counted(mail) == {"ready": 1}
    registered.reschedule(delay=0)
    held = claim(raw, 1, MAIL)
    assert counted(mail) == {"running": 1}
    assert finalising.finalise_retry(raw, held.ends(delay=60.0, cause="failed", failure=FAILURE), AUTHOR)
    assert counted(mail) == {"ready": 1}
    assert (mail.job(registered.pk).attempt, mail.job(registered.pk).max_attempts) == (1, 3)
    registered.reschedule(delay=0)
    claim(raw, 1, MAIL)
    assert (counted(mail), mail.job(registered.pk).attempt) == ({"running": 1}, 2)


@pytest.mark.parametrize("hold", list(Hold))
def test_a_held_job_is_in_the_state_of_its_hold(mail: Queue, raw: RawDatabase, hold: str) -> None:
    """A60."""
    registered, _ = send.register(7), send.register(8)
    raw.query("UPDATE pgjobs_job SET hold = %s WHERE id = %s", [hold, registered.pk])
    assert mail.job(registered.pk).state == hold
    assert counted(mail) == {hold: 1, "ready": 1}
    assert [found.pk for found in mail.jobs(hold)] == [registered.pk]


def test_a_count_stops_at_its_bound(mail: Queue) -> None:
    register(25, queue="mail")
    with patch.object(module, "MOST", 20):
        assert mail.status().jobs["ready"] == 20


def test_what_nobody_here_can_read_is_shown_without_its_arguments(mail: Queue, raw: RawDatabase) -> None:
    register(queue="mail", name="of.another.deployment")
    send.register(1)
    raw.query("UPDATE pgjobs_job SET payload = '7' WHERE name = %s", [send.name])
    assert [found.arguments for found in mail.jobs()] == [None, None]


@pytest.mark.parametrize("which", [0, -1, 2**70, "welcome:7", "", "a\0", "\ud800"])
def test_an_unknown_job_is_an_error(mail: Queue, which: int | str) -> None:
    """A56, A59."""
    send.using(queue="bulk").register(7)
    with pytest.raises(JobDoesNotExist, match="Queue 'mail' has no unfinished job"):
        mail.job(which)
    with pytest.raises(JobDoesNotExist):
        mail.cancel(which)


def test_a_job_of_another_queue_is_unknown(mail: Queue) -> None:
    """A57: a queue object does not reach jobs of other queues."""
    elsewhere = send.using(queue="bulk").register(7)
    with pytest.raises(JobDoesNotExist):
        mail.job(elsewhere.pk)
    with pytest.raises(JobDoesNotExist):
        mail.cancel(elsewhere.pk)
    assert list(mail.jobs()) == []
    assert mail.jobs().cancel().changed == 0
    assert counted(mail) == {}
    assert Queue("bulk").job(elsewhere.pk).state == "ready"


@pytest.mark.parametrize("which", [True, 1.5, None])
def test_a_job_is_named_by_id_or_key(mail: Queue, which: Any) -> None:
    with pytest.raises(TypeError, match="name a job by its id"):
        mail.job(which)


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


def test_a_queue_is_a_value() -> None:
    assert Queue("mail") == Queue("mail", "default")
    assert len({Queue("mail"), Queue("mail"), Queue("bulk")}) == 2


# Its jobs


def test_jobs_are_by_time_then_id_over_priorities_and_holds(mail: Queue, raw: RawDatabase) -> None:
    """A61: sorted by time, then id."""
    at = timezone.now() - timedelta(days=1)
    for number in range(30):
        send.using(run_at=at + timedelta(seconds=number % 7), priority=number % 3).register(number)
    send.using(queue="bulk").register(99)
    raw.query("UPDATE pgjobs_job SET hold = 'parked' WHERE id %% 5 = 0 AND queue = 'mail'", [])
    raw.query("UPDATE pgjobs_job SET hold = 'paused' WHERE id %% 7 = 0 AND queue = 'mail'", [])
    expected = list(Job.objects.filter(queue="mail").order_by("run_at", "id").values_list("run_at", "id", "state"))
    assert list(mail.jobs().values_list("run_at", "id", "state")) == expected
    assert {state for _, _, state in expected} == {"ready", "parked", "paused"}


def test_what_has_ended_is_listed_only_by_its_state(mail: Queue) -> None:
    """A23, A63: succeeded, abandoned or cancelled, a job has left the queue."""
    ids = [send.register(1).pk, send.using(max_attempts=1).register(-1).pk, send.register(2).pk]
    Job.objects.filter(pk=ids[2]).cancel()
    run_jobs()
    assert list(mail.jobs()) == []
    assert counted(mail) == {}
    for job_id in ids:
        with pytest.raises(JobDoesNotExist):
            mail.job(job_id)
        with pytest.raises(JobDoesNotExist):
            mail.cancel(job_id)
    assert [[found.pk for found in mail.jobs(state)] for state in ("succeeded", "abandoned", "cancelled")] == [
        [each] for each in ids
    ]
    assert {found.pk for found in mail.jobs("succeeded", "abandoned")} == {*ids[:2]}


def test_a_word_that_is_no_state_is_refused(mail: Queue) -> None:
    with pytest.raises(ValueError, match=r"^no job is 'runnable': its states are ready, running, "):
        mail.jobs("runnable")


def test_jobs_of_a_queue_are_steered_together(mail: Queue) -> None:
    send.using(max_attempts=1).register(-1)
    see.register()
    elsewhere = send.using(queue="bulk").register(1)
    assert mail.jobs().filter(name=see.name).cancel(by="anna") == Steered(changed=1)
    run_jobs(queues=["mail"])
    assert mail.jobs("abandoned").retry(by="anna") == Steered(changed=1)
    assert counted(mail) == {"ready": 1}
    assert Job.objects.get(pk=elsewhere.pk).finished_at is None


def test_a_job_asks_for_its_own_queue_by_its_context() -> None:
    """A62: a queue is named by its name or by a context."""
    registered = see.register()
    run_jobs()
    listed, found = seen
    assert listed == [(registered.pk, "running")]
    assert (found.pk, found.state, found.queue) == (registered.pk, "running", "mail")


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
    found = mail.job(registered.pk)
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
    assert len(mail.jobs()) == 1


def test_asynchronous_callers_have_the_same(mail: Queue) -> None:
    ids = [send.register(number).pk for number in range(5)]

    async def see() -> tuple[str, dict[str, int], list[int], int]:
        status = await mail.astatus()
        listed = [found.pk async for found in await mail.ajobs("ready")]
        return (await mail.ajob(ids[0])).state, status.jobs, listed, (await mail.acancel(ids[0])).changed

    state, jobs, listed, changed = async_to_sync(see)()
    assert (state, jobs["ready"], listed, changed) == ("ready", 5, ids, 1)


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
    """A48: register 3, cancel 3, a job or the status 1, list 1, out of one bucket of 30."""
    ids = [send.register(number).pk for number in range(8)]
    mail.job(ids[0])
    mail.status()
    mail.cancel(ids[0])
    mail.jobs()
    with pytest.raises(RateLimited):
        send.register(9)
    assert Queue("bulk").jobs() is not None


def test_cancelling_without_tokens_is_refused(mail: Queue, slow: Time) -> None:
    """A49, A56: at once, with the time to wait; then it succeeds."""
    ids = [send.register(number).pk for number in range(10)]
    with pytest.raises(RateLimited) as caught:
        mail.cancel(ids[0])
    assert Job.objects.filter(finished_at=None).count() == 10
    slow.at += caught.value.retry_after
    assert mail.cancel(ids[0]).changed == 1


def test_looking_without_tokens_comes_late(mail: Queue, slow: Time) -> None:
    """A50: they wait instead of failing."""
    ids = [send.register(number).pk for number in range(10)]
    assert mail.job(ids[0]).pk == ids[0]
    assert len(mail.jobs()) == 10
    assert mail.status().jobs["ready"] == 10
    assert slow.slept == [pytest.approx(0.5)] * 3


def test_looking_behind_the_debt_of_a_batch_is_refused_at_once(mail: Queue, slow: Time) -> None:
    """A50: it would be paid in ten minutes. What costs nothing is not refused."""
    ids = send.register_many([(number,) for number in range(400)])
    later: list[Callable[[], object]] = [async_to_sync(mail.astatus), async_to_sync(mail.ajobs)]
    for look_at in (lambda: mail.job(ids[0]), mail.status, mail.jobs, *later):
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
        job = asyncio.create_task(mail.ajob(ids[0]))
        await asyncio.wait({job, asyncio.create_task(waiting.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not job.done()
        assert await Job.objects.acount() == 10
        others.set()
        return [(await job).pk, len([found async for found in await mail.ajobs()])]

    assert async_to_sync(see)() == [ids[0], 10]
    assert slow.slept == [pytest.approx(0.5)] * 2


# The plan


@pytest.mark.parametrize("analysed", ["while empty", "as it is"])
@pytest.mark.parametrize("states", [(), ("ready",)])
def test_the_jobs_of_a_queue_are_read_by_index(
    mail: Queue, raw: RawDatabase, states: tuple[str, ...], analysed: str
) -> None:
    """Neither what other queues hold nor what has ended is read."""
    with analysed_while_empty(raw) if analysed == "while empty" else nullcontext():
        register(500, queue="mail")
        register(15_000, queue="bulk")
        raw.query("UPDATE pgjobs_job SET hold = 'paused' WHERE id %% 3 = 0", [])
        raw.query("UPDATE pgjobs_job SET hold = NULL, outcome = 'succeeded', finished_at = now() WHERE id %% 2 = 0", [])
        raw.query("VACUUM pgjobs_job" if analysed == "while empty" else "VACUUM ANALYZE pgjobs_job")
        plan = json.loads(mail.jobs(*states).explain(format="json", analyze=True))
    found = list(nodes(plan[0]["Plan"]))
    assert not [node for node in found if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "pgjobs_job"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in found if "Index Name" in node) <= 500
