"""``context.each``: a job goes through rows behind a cursor on its own row, run by ``run_jobs``."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection

from django_pgjobs import JobContext, Next, Unique, job
from django_pgjobs.exceptions import JobSuspended, Release, WorkerStopping
from django_pgjobs.execution import walks
from django_pgjobs.models import Attempt, Job
from django_pgjobs.testing import context, run_job, run_jobs
from tests.db.each_ground import NAMES, NOW, atomic, cursors, effects, meet, plain, said, some_groups, stop, troubles
from tests.plugins.sabotage import lines_of, sabotage

__all__ = ["some_groups"]

pytestmark = pytest.mark.django_db

both = pytest.mark.parametrize("kind", [plain, atomic], ids=["plain", "atomic"])


@both
def test_it_goes_through_a_queryset_in_the_order_of_its_key(kind: Any) -> None:
    registered = kind.register()
    run_jobs()
    assert said == effects() == NAMES
    assert cursors(registered) == {"each": 8}
    assert (registered.result, registered.progress) == (8, {"n": 8, "total": 8, "message": ""})


@both
@pytest.mark.parametrize("at", [0, 1, 2, 4, 7])
def test_a_job_that_is_to_stop_is_released_and_goes_on_behind_the_row(
    kind: Any, at: int, some_groups: list[Group]
) -> None:
    """Uncharged, in its old place, and with one line in its history; a batch ends early for it."""
    troubles[NAMES[at]] = "stop"
    registered = kind.register()
    before = Job.objects.get().run_at
    run_job(registered)
    assert (registered.state, registered.attempt, registered.run_at) == ("ready", 0, before)
    at_stop = {"n": at + 1, "of": 8, "by": "auth.group.id", "at": some_groups[at].pk}
    assert cursors(registered) == {"each": at_stop}
    assert effects() == NAMES[: at + 1]
    attempt = Attempt.objects.get()
    assert (attempt.cause, attempt.exception) == ("released", "")
    assert attempt.message == "The job released itself (drain)."
    run_job(registered)
    assert (registered.outcome, registered.attempt, registered.result) == ("succeeded", 1, 7 - at)
    assert said == effects() == NAMES


@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("how", ["fail", "fail in the database"])
def test_a_row_that_fails_is_the_first_of_the_next_attempt(at: int, how: str) -> None:
    troubles[NAMES[at]] = how
    registered = plain.register()
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.attempt) == ("succeeded", 2)
    assert said == effects() == [*NAMES[: at + 1], *NAMES[at:]]


@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
def test_the_batch_of_a_row_that_fails_leaves_no_effect(at: int) -> None:
    """Each row has its effect once; those of the batch are done again."""
    troubles[NAMES[at]] = "fail"
    registered = atomic.register()
    run_job(registered)
    begins = at // 3 * 3
    assert effects() == NAMES[:begins]
    assert cursors(registered)["each"]["n"] == begins
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.attempt) == ("succeeded", 2)
    assert effects() == NAMES
    assert said == [*NAMES[: at + 1], *NAMES[begins:]]


def test_a_cursor_is_written_once_a_second_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And as it begins, with the number of rows."""
    written: list[str] = []
    keep = walks.Walks._write_cursor

    def write(memory: walks.Walks, name: str, cursor: str, *given: Any) -> bool:
        written.append(cursor)
        return keep(memory, name, cursor, *given)

    monkeypatch.setattr(walks.Walks, "_write_cursor", write)
    plain.register()
    run_jobs()
    assert written == ['{"n": 0, "of": 8, "by": "auth.group.id"}', "8"]
    written.clear()
    monkeypatch.setattr(walks, "KEEP_SECONDS", 0.0)
    plain.register()
    run_jobs()
    assert len(written) == 10


# A cancel, and a claim that is lost


@job(name="each.cancelled", takes_context=True)
def cancelled(context: JobContext, at: str) -> None:
    for group in context.each(Group.objects.all(), atomic=True):
        meet(context, group.name)
        if group.name == at:
            control: Any = context._cancellation
            control.requested, control.by = True, "anna"


def test_a_cancel_ends_the_job_behind_the_row() -> None:
    registered = cancelled.register(NAMES[2])
    run_jobs()
    assert effects() == NAMES[:3]
    assert (cursors(registered)["each"]["n"], registered.outcome) == (3, "cancelled")


@both
def test_a_claim_that_is_lost_takes_nothing_with_it(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence is asked in the transaction of the batch."""
    registered = kind.register()
    take = f"UPDATE pgjobs_job SET claim_id = '{uuid4()}', options = NULL WHERE id = {registered.pk}"

    def meet_and_lose(context: JobContext, name: str) -> None:
        said.append(name)
        User.objects.create(username=name, first_name=name)
        if name == NAMES[4]:
            with connection.cursor() as cursor:
                cursor.execute(take)

    monkeypatch.setattr("tests.db.each_ground.meet", meet_and_lose)
    with pytest.raises(WorkerStopping):
        run_jobs()
    registered.refresh_from_db()
    if kind is plain:  # its last write was refused; what each row has done stays
        assert (registered.options, effects()) == (None, NAMES)
    else:  # with the batch the claim came back
        assert (cursors(registered)["each"]["n"], effects()) == (3, NAMES[:3])


@pytest.mark.parametrize(("name", "line"), lines_of("j.claim_id = ", ["write_cursor"]), ids=["claim"])
def test_without_its_fence_a_lost_claim_would_commit(monkeypatch: pytest.MonkeyPatch, name: str, line: str) -> None:
    """The sabotaged twin of the test above."""
    sabotage(monkeypatch, name, line)
    registered = atomic.register()

    def meet_and_lose(context: JobContext, name: str) -> None:
        User.objects.create(username=name, first_name=name)
        Job.objects.filter(pk=registered.pk).update(claim_id=uuid4())

    monkeypatch.setattr("tests.db.each_ground.meet", meet_and_lose)
    run_jobs()
    assert effects() == NAMES


# What is retried, registered again, and replaced


def test_a_retry_goes_on_and_a_new_job_begins_anew() -> None:
    registered = plain.using(max_attempts=1).register()
    troubles[NAMES[4]] = "fail"
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    again = registered.register_again()
    assert again.options is None
    assert registered.retry().changed == 1
    said.clear()
    run_job(registered)
    assert said == NAMES[4:]
    said.clear()
    run_job(again)
    assert said == NAMES


def test_what_has_a_cursor_is_not_replaced() -> None:
    """What it has done is done: other arguments could not continue behind it."""
    unique = plain.using(unique=Unique("all", on_conflict="replace"))
    registered = unique.register()
    troubles[NAMES[1]] = "stop"
    run_job(registered)
    with pytest.raises(Exception, match="has the key 'all'"):
        unique.register(5)


@job(name="each.steps", takes_context=True)
def steps(context: JobContext) -> Next:
    for group in context.each(Group.objects.all()):
        said.append(group.name)
    return Next(plain.bind())


def test_the_next_step_has_cursors_of_its_own() -> None:
    registered = steps.register()
    run_jobs()
    assert said == [*NAMES, *NAMES]
    assert (cursors(registered), registered.outcome) == ({"each": 8}, "succeeded")


@job(name="each.releases", takes_context=True, max_attempts=1)
def releases(context: JobContext) -> str:
    said.append("run")
    if len(said) < 3:
        raise Release
    return "done"


def test_a_job_releases_itself() -> None:
    """Uncharged, due at once, in its old place."""
    registered = releases.register()
    before = Job.objects.get().run_at
    run_job(registered)
    assert (registered.state, registered.attempt, registered.run_at) == ("ready", 0, before)
    run_jobs()
    registered.refresh_from_db()
    assert (registered.result, registered.attempt) == ("done", 1)
    assert list(Attempt.objects.values_list("cause", "exception")) == [("released", "")] * 2


# Several in one job


@job(name="each.two", takes_context=True)
def two(context: JobContext, names: list[str], stops: list[str]) -> None:
    for name in names:
        for group in context.each(Group.objects.all(), name=name):
            said.append(f"{name} {group.name}")
            if said[-1] in stops:
                stop(context)


def test_two_have_a_name_each_and_the_first_is_passed_once_it_is_done() -> None:
    registered = two.register(["one", "two"], ["two g003"])
    run_job(registered)
    assert cursors(registered)["one"] == 8
    run_job(registered)
    assert said == [f"{name} {each}" for name in ("one", "two") for each in NAMES]


def test_two_of_one_name_are_refused() -> None:
    registered = two.using(max_attempts=1).register(["one", "one"], [])
    run_jobs()
    registered.refresh_from_db()
    assert "each: 'one' was used before in this run of the job: give each a name=…" in registered.error


def test_more_cursors_than_a_row_has_room_for_are_refused() -> None:
    registered = two.using(max_attempts=1).register([f"number {number}" for number in range(50)], [])
    run_jobs()
    registered.refresh_from_db()
    assert "a job may have 25 cursors, and 600 bytes for them and other options" in registered.error


def test_the_number_of_short_cursors_is_limited_too() -> None:
    names = [chr(ord("a") + number) for number in range(26)]
    enough, many = two.register(names[:25], []), two.using(max_attempts=1).register(names, [])
    run_jobs()
    assert cursors(enough) == dict.fromkeys(names[:25], 8)
    assert enough.outcome == "succeeded"
    many.refresh_from_db()
    assert "each 'z': a job may have 25 cursors" in many.error


# In a coroutine, and without a job


@job(name="each.async", takes_context=True, max_attempts=2, backoff=NOW)
async def in_a_coroutine(context: JobContext, stops: str) -> int:
    done = 0
    async for group in context.aeach(Group.objects.all(), every=3):
        said.append(group.name)
        done += 1
        match troubles.pop(group.name, ""):
            case "fail":
                raise ValueError(group.name)
            case "sleep":
                await context.asleep(0.001, name=f"behind {group.pk}")
            case "sleep in a task":
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(context.asleep(60, name="x"))
        if group.name == stops:
            stop(context)
    return done


@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("how", ["fail", "sleep"])
def test_a_coroutine_goes_on_with_the_row_that_failed_or_slept(at: int, how: str) -> None:
    """What was done in the last second before that is not done again."""
    troubles[NAMES[at]] = how
    registered = in_a_coroutine.register("")
    run_job(registered)
    assert cursors(registered)["each"]["n"] == at
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert (registered.outcome, said) == ("succeeded", [*NAMES[: at + 1], *NAMES[at:]])


def test_a_coroutine_whose_tasks_sleep_keeps_its_cursor() -> None:
    """What leaves it is a group of suspensions."""
    troubles[NAMES[4]] = "sleep in a task"
    registered = in_a_coroutine.register("")
    run_job(registered)
    assert (registered.outcome, cursors(registered)["each"]["n"]) == (None, 4)


def test_a_coroutine_goes_through_rows() -> None:
    registered = in_a_coroutine.register(NAMES[3])
    run_job(registered)
    assert (registered.state, registered.attempt, cursors(registered)["each"]["n"]) == ("ready", 0, 4)
    run_job(registered)
    assert (registered.result, said) == (4, NAMES)


def test_a_test_goes_through_rows_without_a_job() -> None:
    running = context()
    assert plain.func(running) == 8
    assert said == NAMES
    running = context()
    troubles[NAMES[2]] = "stop"
    with pytest.raises(JobSuspended):
        atomic.func(running)
