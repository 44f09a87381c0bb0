"""What an operator may do, on one job and on many, against every state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Count
from django.template import Context, Template
from django.test.utils import CaptureQueriesContext

from django_pgjobs import job as define
from django_pgjobs.context import JobContext
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job, JobQuerySet, Steerable
from django_pgjobs.steering.batching import Steered
from django_pgjobs.store import finalising, steering
from django_pgjobs.store.notifying import scan_behind, wake_up
from tests.db.steering_ground import (
    ACTIONS,
    ARGUMENTS,
    BECOMES,
    abandoned,
    cancelled,
    ending,
    limited,
    parked,
    paused,
    ready,
    running,
    scheduled,
    succeeded,
    waiting,
)
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, blocked_by, claim, job, register, wait_until


@define(name="steering.plain", max_attempts=3)
def plain() -> None: ...


@define(name="steering.careful")
def careful() -> None: ...


@careful.on_cancel
def undo(context: JobContext) -> None: ...


@careful.on_abandon
def apologise(context: JobContext) -> None: ...


MAKERS = (ready, scheduled, running, parked, waiting, limited, paused, succeeded, cancelled, abandoned, ending)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_changes_what_it_may_and_names_why_it_skipped_the_rest(
    raw: RawDatabase, action: str, maker: Callable[[RawDatabase], int]
) -> None:
    """A53, A54, C46: a claimed job's attempt is never overwritten, an ended job is left alone."""
    one = maker(raw)
    state = job(one).state
    before = raw.row(one)
    done = getattr(job(one), action)(**ARGUMENTS.get(action, {}))
    after = BECOMES[action].get(maker)
    if after is None:
        assert done == Steered(0, {"ending" if maker is ending else state: 1})
        assert raw.row(one) == before
    else:
        assert done == Steered(1, {})
        assert job(one).state == after


@pytest.mark.parametrize("action", ACTIONS)
def test_a_queryset_is_steered_as_a_whole(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """The answer adds up over batches: how many changed, and why not the others."""
    monkeypatch.setattr("django_pgjobs.steering.batching.BATCH", 3)
    expected = Steered()
    for maker in MAKERS:
        one = maker(raw)
        Job.objects.filter(pk=one, claim_id__isnull=True, finished_at__isnull=True).update(queue="aside")
        reason = "ending" if maker is ending else job(one).state
        expected += Steered(1) if maker in BECOMES[action] else Steered(0, {reason: 1})
    assert getattr(Job.objects.all(), action)(**ARGUMENTS.get(action, {})) == expected


@pytest.mark.parametrize("action", ["cancel", "abandon", "release", "reschedule"])
def test_an_action_may_be_repeated(raw: RawDatabase, action: str) -> None:
    one = running(raw) if action == "release" else ready(raw)
    first, second = (getattr(job(one), action)(**ARGUMENTS.get(action, {})) for _ in range(2))
    assert first.changed == 1
    assert second in {1: [Steered(1)], 0: [Steered(0, {"cancelled": 1}), Steered(0, {"abandoned": 1})]}[second.changed]


def test_a_job_that_is_gone_is_unknown(raw: RawDatabase, other: RawDatabase, background: Background) -> None:
    """A56: before the cancel looks for it, or while it waits for the row."""
    one = job(ready(raw))
    other.query("DELETE FROM pgjobs_job WHERE id = %s", [one.pk])
    done = background(one.cancel)
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the cancel waits for the row")
    other.commit()
    assert done.result() == Steered(0, {"unknown": 1})
    assert one.cancel() == Steered()


def test_a_slice_of_a_queryset_is_steered(raw: RawDatabase) -> None:
    ids = register(3)
    assert Job.objects.order_by("-pk")[:2].cancel() == Steered(2)
    assert [job(one).state for one in ids] == ["ready", "cancelled", "cancelled"]


def test_every_kind_of_queryset_is_steered(raw: RawDatabase) -> None:
    """What is compared again under the lock is the condition, whatever else the query says."""
    ids = register(6)
    jobs = Job.objects.filter(pk__gte=0)
    assert jobs.filter(pk=ids[0]).union(jobs.filter(pk=ids[1])).cancel() == Steered(2)
    assert jobs.filter(pk=ids[2]).distinct().order_by("-run_at").cancel() == Steered(1)
    assert jobs.filter(queue="default", pk=ids[3]).distinct("queue").order_by("queue").cancel() == Steered(1)
    assert jobs.annotate(tries=Count("attempts")).filter(tries=0, pk=ids[4]).cancel() == Steered(1)
    assert jobs.filter(attempts=None, pk__in=ids[4:]).exclude(pk=ids[4]).cancel() == Steered(1)
    assert jobs.none().cancel() == Steered()


# --- cancel and abandon ----------------------------------------------------------------------------------------------


def test_a_cancelled_job_is_never_claimed(raw: RawDatabase) -> None:
    """A53."""
    [one] = register()
    job(one).cancel(by="anna", reason="not needed")
    assert claim(raw, 5).ids == []
    found = job(one)
    assert (found.cancel_by, found.cancel_reason, found.cancel_mode) == ("anna", "not needed", "ask")
    assert found.finished_at == found.cancel_requested_at


def test_a_running_job_gets_the_request_and_keeps_its_claim(raw: RawDatabase) -> None:
    """A54: only its worker may end its attempt."""
    one = running(raw)
    before = job(one)
    job(one).cancel(mode="kill", by="anna", reason="too slow")
    after = job(one)
    assert (after.claim_id, after.attempt, after.outcome, after.run_at) == (before.claim_id, 1, None, before.run_at)
    assert (after.cancel_mode, after.cancel_by, after.cancel_reason) == ("kill", "anna", "too slow")


@pytest.mark.parametrize("hold", ["parked", None])
def test_a_job_whose_ending_no_code_knows_can_be_cancelled(raw: RawDatabase, hold: str | None) -> None:
    """A54: no worker can run it, so it would stay parked forever."""
    [one] = register(max_attempts=1)
    Job.objects.filter(pk=one).update(ending="exploded", hold=hold)
    assert job(one).cancel(by="anna") == Steered(1)
    found = job(one)
    assert (found.state, found.outcome, found.hold, found.cancel_by) == ("cancelled", "cancelled", None, "anna")


def test_a_second_cancel_may_be_harder_and_keeps_the_first_instant(raw: RawDatabase) -> None:
    """X10: a mode only becomes stronger."""
    one = running(raw)
    job(one).cancel()
    first = job(one).cancel_requested_at
    for mode, kept in [("interrupt", "interrupt"), ("kill", "kill"), ("ask", "kill"), ("interrupt", "kill")]:
        job(one).cancel(mode=mode, reason=mode)
        after = job(one)
        assert (after.cancel_requested_at, after.cancel_mode, after.cancel_reason) == (first, kept, mode)


def test_an_unknown_mode_is_refused(raw: RawDatabase) -> None:
    one = ready(raw)
    with pytest.raises(ValueError, match="'ask', 'interrupt', 'kill', not 'gently'"):
        job(one).cancel(mode="gently")
    assert job(one).state == "ready"


@pytest.mark.parametrize(("action", "ends"), [("cancel", "cancelled"), ("abandon", "abandoned")])
def test_a_job_with_a_callback_is_left_for_a_worker_to_call_it_now(raw: RawDatabase, action: str, ends: str) -> None:
    """X8: neither ended nor run: only the callback is left, and it does not wait for the schedule."""
    [one] = register(name="steering.careful", delay_seconds=3600)
    raw.query("LISTEN pgjobs")
    assert getattr(job(one), action)() == Steered(1)
    assert (job(one).state, job(one).ending, job(one).outcome) == ("ready", ends, None)
    assert getattr(job(one), action)() == Steered(0, {"ending": 1})
    assert [note.payload for note in raw.raw.notifies(timeout=1, stop_after=1)] == ["0:default"]
    [taken] = claim(raw).jobs
    assert (taken.id, taken.ending, taken.attempt, taken.ending_attempt) == (one, ends, 0, 1)


@pytest.mark.parametrize("action", ["cancel", "abandon"])
def test_a_callback_that_is_due_for_long_is_told_of_as_one_behind_the_others(raw: RawDatabase, action: str) -> None:
    [one] = register(name="steering.careful")
    raw.query("UPDATE pgjobs_job SET run_at = run_at - interval '1 minute' WHERE id = %s", [one])
    raw.query("LISTEN pgjobs")
    assert getattr(job(one), action)() == Steered(1)
    assert [note.payload for note in raw.raw.notifies(timeout=1, stop_after=2)] == ["0:default", "behind:default"]


def test_a_parked_job_with_a_callback_is_let_out_for_it(raw: RawDatabase) -> None:
    [one] = register(name="steering.careful")
    Job.objects.filter(pk=one).update(hold="parked")
    job(one).cancel()
    assert (job(one).state, job(one).hold, job(one).ending) == ("ready", None, "cancelled")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({}, "Abandoned by an operator"),
        ({"by": "anna"}, "Abandoned by anna"),
        ({"by": "anna", "reason": "obsolete"}, "Abandoned by anna: obsolete"),
    ],
    ids=["nobody", "somebody", "with a reason"],
)
def test_an_abandoned_job_says_by_whom_and_why(raw: RawDatabase, words: dict[str, str], error: str) -> None:
    one = ready(raw)
    job(one).abandon(**words)
    assert job(one).error == error


@pytest.mark.parametrize(
    ("by", "text"),
    [(None, ""), ("a script", "a script"), (User(pk=42, username="anna"), "auth.User:42 anna"), (7, "7")],
    ids=["nobody", "text", "user", "anything"],
)
def test_who_did_it_is_kept_as_text(raw: RawDatabase, by: object, text: str) -> None:
    """There is no foreign key to the user model: the row outlives the user."""
    one = ready(raw)
    job(one).cancel(by=by)
    assert job(one).cancel_by == text


# --- retry, release, reschedule --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "more"), [("steering.plain", 3), ("nobody.knows", 5)])
def test_after_a_retry_the_numbers_of_attempts_go_on(raw: RawDatabase, name: str, more: int) -> None:
    """P7, C33: as many more as the definition gives, so no number repeats in the history."""
    [one] = register(name=name, max_attempts=2)
    Job.objects.filter(pk=one).update(attempt=1)
    finalising.finalise_end(raw, claim(raw).ends(outcome="abandoned"), AUTHOR)
    assert job(one).retry() == Steered(1)
    assert (job(one).attempt, job(one).max_attempts) == (2, 2 + more)
    assert claim(raw).jobs[0].attempt == 3


def test_a_retry_leaves_no_trace_of_the_end_but_the_error(raw: RawDatabase) -> None:
    """P7: as a job that was just registered, due now."""
    [one] = register(name="steering.careful", delay_seconds=3600)
    job(one).cancel(by="anna", reason="no")
    Job.objects.filter(pk=one).update(error="the last one", ending_attempt=2)
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'cancelled', finished_at = statement_timestamp(), result = '1', progress = '2'"
    )
    raw.query("LISTEN pgjobs")
    job(one).retry()
    found = job(one)
    assert (found.state, found.finished_at, found.result, found.progress, found.claim_id) == ("ready", *[None] * 4)
    assert (found.ending, found.ending_attempt, found.cancel_requested_at, found.error) == (
        None,
        0,
        None,
        "the last one",
    )
    assert (found.cancel_mode, found.cancel_by, found.cancel_reason) == ("", "", "")
    assert claim(raw).ids == [one]
    assert [note.payload for note in raw.raw.notifies(timeout=1, stop_after=1)] == ["0:default"]


def test_a_retried_parked_job_keeps_what_it_was_parked_with(raw: RawDatabase) -> None:
    """It has not ended: its attempts and its pending callback stay."""
    [one] = register(max_attempts=4)
    Job.objects.filter(pk=one).update(hold="parked", hold_reason="x", ending="cancelled", ending_attempt=1, attempt=2)
    assert job(one).retry() == Steered(1)
    found = job(one)
    assert (found.state, found.hold_reason, found.ending, found.ending_attempt) == ("ready", "", "cancelled", 1)
    assert (found.attempt, found.max_attempts) == (2, 4)


def test_a_release_asks_the_worker_and_changes_nothing_else(raw: RawDatabase) -> None:
    one = running(raw)
    before = raw.row(one)
    job(one).release()
    after = raw.row(one)
    assert after.pop("release_requested_at") is not None
    assert before.pop("release_requested_at") is None
    assert after == before


def test_a_job_is_moved_to_another_instant_queue_and_priority(raw: RawDatabase) -> None:
    one = ready(raw)
    at = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    raw.query("LISTEN pgjobs")
    job(one).reschedule(run_at=at, queue="mail", priority=-5)
    assert raw.query("SELECT run_at, queue, priority FROM pgjobs_job") == [(at, "mail", -5)]
    assert [note.payload for note in raw.raw.notifies(timeout=1, stop_after=1)] == ["-5:mail"]


def test_a_job_that_is_moved_into_the_past_is_told_of_as_one_behind_the_others(raw: RawDatabase) -> None:
    one = ready(raw)
    raw.query("LISTEN pgjobs")
    job(one).reschedule(run_at=datetime(2020, 1, 2, 3, 4, tzinfo=UTC), queue="mail")
    assert [note.payload for note in raw.raw.notifies(timeout=1, stop_after=2)] == ["0:mail", "behind:mail"]


def test_a_limited_job_that_is_moved_is_told_to_those_who_let_jobs_in(raw: RawDatabase) -> None:
    """No claim finds it, at the frontier or behind, however early it is due now."""
    one, at = limited(raw), datetime(2020, 1, 2, 3, 4, tzinfo=UTC)
    moved = steering.reschedule_jobs(raw, [one], run_at=at, delay_seconds=None, queue="mail", priority=None)
    assert (moved.changed, moved.notices) == ([one], [wake_up("mail", None)])


@pytest.mark.parametrize(("delay", "seconds"), [(0, 0), (90, 90), (timedelta(minutes=2), 120)], ids=str)
def test_a_delay_counts_from_now_by_the_clock_of_the_database(raw: RawDatabase, delay: Any, seconds: float) -> None:
    """C35; ``delay=0`` is the admin's "Run now"."""
    one = scheduled(raw)
    job(one).reschedule(delay=delay)
    ahead = raw.value("SELECT extract(epoch FROM run_at - statement_timestamp())::float8 FROM pgjobs_job")
    assert ahead == pytest.approx(seconds, abs=5)
    assert claim(raw).ids == ([one] if delay == 0 else [])


@pytest.mark.parametrize(
    ("to", "complaint"),
    [
        ({}, "needs run_at, delay, queue or priority"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
        ({"delay": -1}, "delay must be"),
        ({"delay": float("inf")}, "delay must be"),
        ({"delay": float("nan")}, "delay must be"),
        ({"delay": True}, "delay must be seconds or a timedelta, not True"),
        ({"delay": "1"}, "delay must be seconds or a timedelta, not '1'"),
        ({"delay": 5e11}, "delay must be at most 3650 days"),
        ({"delay": 1e300}, "delay must be at most 3650 days"),
        ({"run_at": date(2030, 1, 1)}, "run_at must be a datetime, not"),
        ({"run_at": "2030-01-01"}, "run_at must be a datetime, not"),
        ({"run_at": datetime(2090, 1, 1, tzinfo=UTC)}, "run_at must be at most 3650 days ahead"),
        (
            {"run_at": datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=5)))},
            "run_at must be from 0001-01-03",
        ),
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))}, "run_at must be from 0001-01-03"),
        ({"priority": 101}, "priority must be an integer from -100 to 100"),
        ({"priority": 1.5}, "priority must be an integer from -100 to 100, not 1.5"),
        ({"priority": True}, "priority must be an integer from -100 to 100, not True"),
        ({"priority": "1"}, "priority must be an integer from -100 to 100, not '1'"),
        ({"queue": ""}, "queue must be 1 to 100 of the characters"),
        ({"queue": 7}, "queue must be 1 to 100 of the characters"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_a_move_to_nowhere_is_refused(raw: RawDatabase, to: dict[str, Any], complaint: str) -> None:
    """C35: by the rules of a registration, before anything is read or written."""
    one = ready(raw)
    before = raw.row(one)
    with transaction.atomic():
        with pytest.raises(InvalidJob, match=complaint), CaptureQueriesContext(connection) as asked:
            job(one).reschedule(**to)
        assert len(asked) == 1, "the test's own"
        assert Job.objects.count() == 1
    assert raw.row(one) == before


@pytest.mark.parametrize("verb", ["cancel", "abandon"])
def test_words_that_postgresql_cannot_hold_keep_no_job_from_ending(raw: RawDatabase, verb: str) -> None:
    """A NUL or a lone surrogate in what somebody caught and passed on; it is written as its number."""
    one = ready(raw)
    with transaction.atomic():
        assert getattr(job(one), verb)(by="a\0b", reason="half \ud800, nothing \0.") == Steered(1)
        ended = job(one)
    said = f"{ended.cancel_by}: {ended.cancel_reason}" if verb == "cancel" else ended.error
    assert said.endswith("a\\0b: half \\ud800, nothing \\0.")


@pytest.mark.skipif(not settings.USE_TZ, reason="instants are naive without USE_TZ")
def test_a_naive_instant_is_refused(raw: RawDatabase) -> None:
    with pytest.raises(InvalidJob, match="aware"):
        job(ready(raw)).reschedule(run_at=datetime(2030, 1, 1))


def test_only_known_queues_are_taken_where_they_are_listed(raw: RawDatabase, settings: Any) -> None:
    settings.PGJOBS = {"QUEUES": ["default", "mail"]}
    one = ready(raw)
    with pytest.raises(InvalidJob, match="queue 'mial' is not in PGJOBS"):
        job(one).reschedule(queue="mial")
    assert job(one).reschedule(queue="mail") == Steered(1)


# --- the surface -----------------------------------------------------------------------------------------------------


def methods(of: type) -> Iterator[tuple[str, Any]]:
    for name in (*ACTIONS, *(f"a{name}" for name in ACTIONS)):
        yield name, inspect.getattr_static(of, name)


def test_a_template_cannot_call_and_a_manager_does_not_have_the_actions() -> None:
    """``Job.objects.cancel()`` would cancel everything by slip of the keyboard."""
    assert all(method.alters_data and method.queryset_only for _, method in methods(JobQuerySet))
    assert all(method.alters_data for _, method in methods(Steerable))
    assert not [name for name, _ in methods(JobQuerySet) if hasattr(Job.objects, name)]
    assert all(getattr(Steerable, name).alters_data for name in ("register_again", "wait", "await_end"))


def test_a_template_that_tries_changes_nothing(raw: RawDatabase) -> None:
    one = job(ready(raw))
    assert (
        Template("{{ job.cancel }}|{{ jobs.cancel }}").render(Context({"job": one, "jobs": Job.objects.all()})) == "|"
    )
    assert job(one.pk).state == "ready"


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_has_its_asynchronous_twin(raw: RawDatabase, action: str) -> None:
    maker = next(iter(BECOMES[action]))
    first, second = maker(raw), maker(raw)
    arguments = ARGUMENTS.get(action, {})
    assert async_to_sync(getattr(job(first), f"a{action}"))(**arguments) == Steered(1)
    found = Job.objects.filter(pk=second)
    assert async_to_sync(getattr(found, f"a{action}"))(**arguments) == Steered(1)
    assert {job(first).state, job(second).state} == {BECOMES[action][maker]}


def test_a_job_is_not_saved(raw: RawDatabase) -> None:
    with pytest.raises(TypeError, match="register it by its definition"):
        job(ready(raw)).save()


def test_a_job_is_registered_again_as_it_was(raw: RawDatabase) -> None:
    """A new job, due at once, with attempts of its own; a succeeded job is no matter of retry."""
    [one] = register(
        name="shop.pay", queue="mail", priority=3, max_attempts=7, timeout_seconds=9.0, headers='{"a": 1}',
        description="pay 7", payload='{"args": [{"$": "x"}], "kwargs": {"é": 1}}', delay_seconds=3600,
    )  # fmt: skip
    again = job(one).register_again()
    same = ("name", "queue", "priority", "max_attempts", "timeout_seconds", "headers", "description", "payload")
    assert {field: getattr(again, field) for field in same} == {field: getattr(job(one), field) for field in same}
    assert (again.state, again.attempt) == ("ready", 0)
    assert again.pk != one
    assert async_to_sync(job(one).aregister_again)().pk > again.pk
    assert raw.value("SELECT run_at <= statement_timestamp() FROM pgjobs_job WHERE id = %s", [again.pk]) is True


@pytest.mark.parametrize(("seconds", "told"), [(0, False), (60, False), (-0.5, False), (-60, True)])
def test_only_a_job_moved_far_into_the_past_is_looked_for_behind_what_is_claimed_now(
    raw: RawDatabase, seconds: float, told: bool
) -> None:
    """Claims find anything else at the frontier or a little behind it, where each of them looks."""
    [one] = register()
    run_at = raw.value("SELECT statement_timestamp() + make_interval(secs => %s)", [seconds])
    moved = steering.reschedule_jobs(raw, [one], run_at=run_at, delay_seconds=None, queue=None, priority=None)
    assert moved.changed == [one]
    assert (scan_behind("default") in moved.notices) is told
