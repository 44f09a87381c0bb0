"""Durable functions with real workers: whoever is killed and wherever, they go on where they stopped."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.utils import timezone

from django_pgjobs.models import EventState, Job
from django_pgjobs.models.attempts import Claim
from tests.e2e import durable
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, patience, wait_for_age, wait_until
from tests.plugins.fix_worker import Workers, ended, history, read

QUICK = {"LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.5, "BEAT_SECONDS": 0.5, "STALE_SECONDS": 2.0}
ROUTE = ["first", "second", "third", "member0", "member1", "member2", "fourth"]
RESULT = ["go", 0, 10, 20]


def came(stage: Stage, key: str) -> list[str]:
    """The places where a job was, in order; members in the order of their numbers."""
    places = [trace.words[0] for trace in stage.traces() if trace.words[1:] == (key,)]
    members = sorted(place for place in places if place.startswith("member"))
    first = next((n for n, place in enumerate(places) if place.startswith("member")), len(places))
    rest = [place for place in places if not place.startswith("member")]
    before = sum(not place.startswith("member") for place in places[:first])
    return [*rest[:before], *members, *rest[before:]]


def arrived(stage: Stage, place: str, key: str) -> None:
    wait_until(lambda: stage.count(place, key) == 1, 30, f"{key} has come to {place}")


def suspended(job: Job, code: str) -> None:
    wait_until(lambda: read(job).why().code == code, 30, f"the job is {code}")


# Killed while it runs


@pytest.mark.parametrize("place", ["first", "second", "third", "member1", "fourth"])
def test_a_worker_that_is_killed_leaves_the_rest_to_another(
    worker: Workers, stage: Stage, raw: RawDatabase, place: str
) -> None:
    """kill -9 of all of it in a step, or in a job that it gathers: only that runs again."""
    wait_for_age(raw, 3)
    dying = worker(conf=QUICK)
    durable.opened.send("x", payload="go")
    job = durable.travels.register("x", place)
    arrived(stage, place, "x")
    if place.startswith("member"):
        others = Job.objects.filter(name="lasting.member", outcome="succeeded")
        wait_until(lambda: others.count() == 2, 20, "the other members have ended")
        suspended(job, "waiting_for_gather")
    dying.kill()
    stage.open(f"{place}-x")
    worker(conf=QUICK)
    (after,) = ended(job, timeout=40)
    assert came(stage, "x") == sorted([*ROUTE, place], key=ROUTE.index)
    assert (after.outcome, after.result) == ("succeeded", RESULT)
    assert history(after) == ([] if place.startswith("member") else [(1, "lost")])
    assert Job.objects.filter(name="lasting.member").count() == 3


@pytest.mark.parametrize("waits", ["sleep", "event", "gather"])
def test_an_executor_that_is_killed_before_its_suspension_is_written(worker: Workers, stage: Stage, waits: str) -> None:
    """kill -9 behind the raise: it comes to the same wait again, and what it waits for exists once."""
    process = worker(conf={"POLL_SECONDS": 60})
    job = durable.lingers.register("x", waits)
    arrived(stage, "suspends", "x")
    durable.opened.send("x", payload="go")
    os.kill(process.ready_executors()[0], signal.SIGKILL)
    (after,) = ended(job, timeout=30)
    assert (after.outcome, stage.count("first", "x"), history(after)) == ("succeeded", 1, [(1, "crashed")])
    assert after.result == {"sleep": None, "event": "go", "gather": [0, 10]}[waits]
    assert Job.objects.filter(name="lasting.member").count() == (2 if waits == "gather" else 0)


# Killed, drained and replaced while the job is nobody's


@pytest.mark.parametrize("leaves", ["kill", "drain"])
def test_workers_come_and_go_while_a_job_sleeps_waits_and_gathers(worker: Workers, stage: Stage, leaves: str) -> None:
    """A deploy in the midst of each: nothing is charged, and nothing is lost."""

    def replaced() -> None:
        if leaves == "kill":
            current[0].kill()
        else:
            assert current[0].stop() == 0
        current[0] = worker(conf=QUICK)

    current = [worker(conf=QUICK)]
    job = durable.travels.register("x", "member1", naps=patience(6.0))
    suspended(job, "sleeping")
    replaced()
    assert read(job).why().code == "sleeping"
    suspended(job, "waiting_for_event")
    replaced()
    assert durable.opened.send("x", payload="go")
    suspended(job, "waiting_for_gather")
    arrived(stage, "member1", "x")
    stage.open("member1-x")
    replaced()
    (after,) = ended(job, timeout=40)
    assert (after.outcome, after.result, after.attempt, history(after)) == ("succeeded", RESULT, 1, [])
    assert set(came(stage, "x")) == set(ROUTE)
    assert {place: stage.count(place, "x") for place in ("first", "second", "third", "fourth")} == dict.fromkeys(
        ("first", "second", "third", "fourth"), 1
    )


def test_an_event_that_is_sent_while_no_worker_lives_is_not_missed(worker: Workers, stage: Stage) -> None:
    first = worker()
    job = durable.travels.register("x", naps=0)
    suspended(job, "waiting_for_event")
    assert first.stop() == 0
    assert durable.opened.send("x", payload="go")
    assert not durable.opened.send("x", payload="too late")
    worker(conf={"POLL_SECONDS": 60})
    (after,) = ended(job)
    assert after.result == RESULT


def test_a_drain_hands_a_running_step_back_uncharged(worker: Workers, stage: Stage) -> None:
    """The deploy of a durable function in the middle of a step."""
    first = worker(conf={"DRAIN_SECONDS": 1.0})
    durable.opened.send("x", payload="go")
    job = durable.travels.register("x", "second")
    arrived(stage, "second", "x")
    assert first.stop() == 0, first.log
    assert (read(job).attempt, read(job).claim_id) == (0, None)
    stage.open("second-x")
    worker()
    (after,) = ended(job)
    assert (after.outcome, after.result, after.attempt) == ("succeeded", RESULT, 1)
    assert came(stage, "x") == sorted([*ROUTE, "second"], key=ROUTE.index)


# The ways to run


@pytest.mark.parametrize("way", ["threads", "event loop", "inline"])
def test_every_way_to_run_jobs_runs_durable_functions(worker: Workers, stage: Stage, way: str) -> None:
    """No poll comes in between: each wait ends by its instant or by a notification."""
    arguments, definition = ("--inline",) if way == "inline" else (), durable.travels
    if way == "event loop":
        definition = durable.atravels  # type: ignore[assignment]
    worker(*arguments, conf={"POLL_SECONDS": 60 if way != "inline" else 1}, ready=way != "inline")
    job = definition.register("x")
    suspended(job, "waiting_for_event")
    assert durable.opened.send("x", payload="go", by="anna")
    (after,) = ended(job)
    assert (after.outcome, after.result, after.attempt, history(after)) == ("succeeded", RESULT, 1, []), after.error
    assert came(stage, "x") == ROUTE
    [first], [second] = stage.traces("first", "x"), stage.traces("second", "x")
    assert second.at - first.at >= 1.0
    assert EventState.objects.get(name="e2e.opened:x").sent_by == "anna"
    wait_until(lambda: not Claim.objects.exists(), 10, "no lease is left")


def test_one_thread_serves_others_while_a_job_sleeps_and_gathers(worker: Workers, stage: Stage) -> None:
    """Its own members, too: a wait that held the thread would never end."""
    worker(threads=1, conf={"POLL_SECONDS": 60})
    durable.opened.send("x", payload="go")
    (after,) = ended(durable.travels.register("x"))
    assert after.result == RESULT


def test_a_step_with_attempts_is_tried_again_after_a_suspension(worker: Workers, stage: Stage) -> None:
    """The job's own attempts are not touched; its history has each failure."""
    worker(conf={"POLL_SECONDS": 60})
    good, bad = ended(durable.flaky.register("good", 2), durable.flaky.register("bad", 3))
    assert (good.outcome, good.result, stage.count("flake", "good")) == ("succeeded", "at last", 3)
    at = [trace.at for trace in stage.traces("flake", "good")]
    assert all(later - earlier >= 0.4 for earlier, later in pairwise(at))
    assert [cause for _, cause in history(good)] == ["failed", "failed"]
    assert (bad.outcome, stage.count("flake", "bad")) == ("abandoned", 3)
    assert "Step 'flake' failed: ValueError: not yet" in bad.error


# Limits in time


def test_a_wait_ends_when_its_time_is_over(worker: Workers, stage: Stage) -> None:
    worker(conf={"POLL_SECONDS": 60})
    raises, catches = ended(durable.expects.register("x", 1.0), durable.expects.register("y", 1.0, True))
    assert (raises.outcome, "WaitTimedOut: e2e.opened:x was not sent in time." in raises.error) == ("abandoned", True)
    assert (catches.outcome, catches.result) == ("succeeded", "nobody: e2e.opened:y")
    assert raises.finished_at is not None
    assert (raises.finished_at - raises.created_at).total_seconds() >= 1.0


def test_the_timeout_of_an_attempt_does_not_count_what_the_job_sleeps(worker: Workers) -> None:
    worker(conf={"POLL_SECONDS": 60})
    (after,) = ended(durable.hurries.register("x"))
    assert (after.outcome, history(after)) == ("succeeded", [])


def test_a_deadline_ends_a_job_that_waits_and_one_that_would_sleep_beyond_it(worker: Workers, stage: Stage) -> None:
    """Somebody may send the event before; a sleep has no such hope, so the job need not begin it."""
    worker(conf={"POLL_SECONDS": 60})
    by = timezone.now() + timedelta(seconds=3)
    waiter = durable.expects.using(deadline=by).register("x", 600.0, catches=True)
    sleeper = durable.travels.using(deadline=by).register("y", naps=600.0)
    waits, sleeps = ended(waiter, sleeper, timeout=15)
    assert (sleeps.outcome, sleeps.error) == (
        "abandoned",
        "DeadlinePassed: The job's deadline would pass while it sleeps.",
    )
    assert came(stage, "y") == ["first"]
    assert (waits.outcome, waits.error.partition(":")[0]) == ("abandoned", "DeadlinePassed")
    assert sleeps.finished_at is not None
    assert waits.finished_at is not None
    assert sleeps.finished_at < by <= waits.finished_at


# Cancel


def test_a_sleeping_job_is_cancelled_at_once(worker: Workers, stage: Stage) -> None:
    worker(conf={"POLL_SECONDS": 60})
    job = durable.travels.register("x", naps=600.0)
    suspended(job, "sleeping")
    assert job.cancel(by="anna", reason="enough").changed == 1
    (after,) = ended(job, timeout=5)
    assert (after.outcome, after.cancel_by, came(stage, "x")) == ("cancelled", "anna", ["first"])


@pytest.mark.parametrize("mode", ["ask", "interrupt"])
def test_the_cancel_of_a_job_reaches_those_that_it_gathers(worker: Workers, stage: Stage, mode: str) -> None:
    """Members that run get the request, and those that have not begun do not begin."""
    worker(conf={"POLL_SECONDS": 60})
    job = durable.gathers.register("x")
    wait_until(lambda: stage.count("member") == 2, 20, "two members run")
    suspended(job, "waiting_for_gather")
    assert job.cancel(mode=mode, by="anna", reason="enough").changed == 1
    members = Job.objects.filter(name="lasting.book")
    if mode == "ask":
        wait_until(lambda: members.exclude(cancel_mode="").count() == 4, 20, "each member has the request")
        stage.open("member-x")
    (after,) = ended(job)
    assert (after.outcome, after.cancel_by) == ("cancelled", "anna")
    everything = ended(*Job.objects.all())
    outcomes = sorted(str(member.outcome) for member in members.all())
    assert outcomes == ["cancelled"] * (4 if mode == "interrupt" else 2) + ["succeeded"] * (2 if mode == "ask" else 0)
    assert stage.count("member") == 2
    assert {each.name: each.outcome for each in everything if each.name != "lasting.book"} == {
        "lasting.gathers": "cancelled",
        "pgjobs.batch": "cancelled",
        "pgjobs.cancel_members": "succeeded",
        "pgjobs.wake": "succeeded",
    }


# Undo


def undone(stage: Stage, key: str) -> list[str]:
    places = [trace.words[0] for trace in stage.traces() if trace.words[1:] == (key,)]
    return [place.removeprefix("undo-") for place in places if place.startswith("undo-")]


def all_ended(count: int) -> list[Job]:
    """Wait until so many jobs are there and have ended."""
    wait_until(lambda: Job.objects.exclude(finished_at=None).count() == count, 40, f"{count} jobs have ended")
    assert Job.objects.count() == count
    return list(Job.objects.order_by("pk"))


OF_UNDO = 2 + 3 * 3
"""The job, what undoes it, and for each part a batch, its compensation and the job that wakes the one who waits."""


def test_what_an_abandoned_job_has_done_is_undone_the_latest_first(worker: Workers, stage: Stage) -> None:
    worker(conf={"POLL_SECONDS": 60})
    job = durable.fails.register("x")
    found = all_ended(OF_UNDO)
    assert [read(job).outcome, read(job).error] == ["abandoned", "Abandon: all for nothing"]
    assert undone(stage, "x") == ["c", "b", "a"]
    [undo] = job.compensations.filter(name="pgjobs.undo")
    parts = job.compensations.filter(name="lasting.book.undo").order_by("pk")
    assert (undo.outcome, [part.result for part in parts]) == ("succeeded", ["c", "b", "a"])
    assert {each.outcome for each in found if each.pk != job.pk} == {"succeeded"}
    targets = [trace.words[2:] for trace in stage.traces("target", "x")]
    assert targets == [(f"{job.pk}/lasting.book[{place}]", f"{place}_of_x") for place in "cba"]


@pytest.mark.parametrize("place", ["c", "undo-c", "undo-b", "undo-a"])
def test_a_worker_that_is_killed_leaves_the_rest_of_an_undo_to_another(
    worker: Workers, stage: Stage, raw: RawDatabase, place: str
) -> None:
    """kill -9 in the last step, or in a compensation: that runs again, those before it do not."""
    wait_for_age(raw, 3)
    dying = worker(conf=QUICK)
    job = durable.fails.register("x", place)
    arrived(stage, place, "x")
    dying.kill()
    stage.open(f"{place}-x")
    worker(conf=QUICK)
    all_ended(OF_UNDO)
    assert read(job).outcome == "abandoned"
    again = place.removeprefix("undo-") if place != "c" else ""
    assert undone(stage, "x") == [each for each in "cba" for _ in range(2 if each == again else 1)]
    assert (stage.count("a", "x"), stage.count("b", "x")) == (1, 1)
    assert stage.count("c", "x") == (2 if place == "c" else 1)


def test_a_cancelled_job_is_undone_too_and_is_not_retried_after_that(worker: Workers, stage: Stage) -> None:
    worker(conf={"POLL_SECONDS": 60})
    job = durable.fails.register("x", wakes=True)
    suspended(job, "waiting_for_event")
    assert job.cancel(by="anna").changed == 1
    all_ended(OF_UNDO)
    assert (read(job).outcome, undone(stage, "x")) == ("cancelled", ["c", "b", "a"])
    assert read(job).retry().skipped == {"undone": 1}


# Compensation, told


TOLD: dict[str, Any] = {"conf": {"POLL_SECONDS": 60}, "env": {"PGJOBS_TEST_RECEIVERS": "1"}}


def told(stage: Stage, job: Job, count: int) -> list[tuple[str, ...]]:
    """Wait for so many signals about a job; return their words."""
    wait_until(lambda: stage.count("signal", job.pk) >= count, 20, f"{count} signals about {job.pk} were heard")
    assert stage.count("signal", job.pk) == count
    return [trace.words[2:] for trace in stage.traces("signal", job.pk)]


def compensation_of(job: Job) -> Job:
    compensations = job.compensations.filter(name="lasting.pays.undo").exclude(finished_at=None)
    wait_until(lambda: compensations.count() == 1, 30, "it is undone, or could not be")
    return compensations.get()


def test_compensations_have_signals_of_their_own_which_name_what_they_undo(worker: Workers, stage: Stage) -> None:
    """C68 C70: names, ``target_id`` and no function; a failed attempt is told by the ordinary signal."""
    worker(**TOLD)
    job = durable.shops.register("flaky")
    one = compensation_of(job)
    about = (f"job_id={one.pk}", "sender=None", f"target_id={job.pk}")
    found = told(stage, one, 9)
    assert [words for words in found if words[0].startswith("compensation")] == [
        ("compensation.started", "attempt=1", *about),
        ("compensation.started", "attempt=2", *about),
        ("compensation.completed", *about),
    ]
    assert [words for words in found if words[0] == "retried"] == [("retried", "1", "0.25", "ready")]
    order = [words[0] for words in found]
    assert order[-2:] == ["finished", "compensation.completed"]
    assert (one.outcome, one.attempt, history(one)) == ("succeeded", 2, [(1, "failed")])
    assert not [trace for trace in stage.traces("signal", job.pk) if "compensation" in trace.words[2]]


def test_a_compensation_that_fails_for_good_is_told_so(worker: Workers, stage: Stage) -> None:
    """C68 C70: as many attempts as its own policy says."""
    worker(**TOLD)
    job = durable.shops.register("broken")
    one = compensation_of(job)
    found = told(stage, one, 9)
    assert found[-1] == (
        "compensation.failed", "error=ValueError:_the_bank_is_closed", f"job_id={one.pk}", "outcome=abandoned",
        "sender=None", f"target_id={job.pk}",
    )  # fmt: skip
    assert (one.outcome, stage.count("refunds", "broken")) == ("abandoned", 2)
    undo = job.compensations.get(name="pgjobs.undo")
    (undo,) = ended(undo)
    assert undo.outcome == "abandoned"
    assert "1 of 1 parts were not undone. step lasting.pays: " in undo.error


def test_a_compensation_stores_its_idempotent_result_and_announces_no_hit(worker: Workers, stage: Stage) -> None:
    """C69, and C71: the same function without a target is an ordinary job, whose hit is announced."""
    worker(**TOLD)
    first = compensation_of(durable.shops.register("k"))
    second = compensation_of(durable.shops.register("k"))
    (plain,) = ended(durable.refunds.register("k"))
    assert [each.result for each in (first, second, plain)] == ["refunded k"] * 3
    assert stage.count("refunds", "k") == 1
    silent = ["started", "compensation.started", "ended", "finished", "compensation.completed"]
    assert [words[0] for words in told(stage, second, 5)] == silent
    assert [words[0] for words in told(stage, plain, 4)] == ["started", "hit", "ended", "finished"]
