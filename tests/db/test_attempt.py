"""Attempts from the claim to the stored end, on a worker's connection and on committed rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs import Abandon, Backoff, Cancel, JobContext, Snooze, current_context
from django_pgjobs import decisions as decide
from django_pgjobs import job as define
from django_pgjobs.decisions import Decision, Unwritten
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.ends.kinds import END, MARK, PARK, RELEASE, RETRY, SNOOZE, SUCCESS, EndKind, EndTerms
from django_pgjobs.execution import attempt
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.execution.single_job import Performer, WrittenEnd
from django_pgjobs.models import Attempt, Job
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.finalising import Author
from django_pgjobs.values.backoff import LONGEST_SECONDS
from tests.plugins.fix_db import AUTHOR, RawDatabase, claim, from_the_beginning, job

said: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    said.clear()


def raises(error: Callable[..., BaseException], *args: Any) -> Callable[[], Any]:
    def run() -> Any:
        raise error(*args)

    return run


CHOICES: dict[str, Callable[[], Any]] = {
    "ends": lambda: {"a": [1, 1.5, None]},
    "nothing": lambda: None,
    "fails": raises(ValueError, "no"),
    "nul": raises(ValueError, "a\0b \ud800"),
    "snoozes": raises(Snooze, 3600),
    "eternity": raises(Snooze, 1e300),
    "cancels": raises(Cancel, "why\0"),
    "abandons": raises(Abandon, "why"),
    "nonsense": object,
}


@define(name="attempts.does", backoff=Backoff(60), max_attempts=3, strict_results=True)
def does(what: str) -> Any:
    current_context().progress(1, 2, "half")
    return CHOICES[what]()


@define(name="attempts.careful", backoff=Backoff(60), max_attempts=1)
def careful(what: str) -> Any:
    return CHOICES[what]()


@careful.on_abandon
def regrets(context: JobContext, what: str) -> None:
    said.append((job(context.id).state, job(context.id).ending, getattr(context.error, "summary", None)))


@careful.on_cancel
def forgets(context: JobContext, what: str) -> None:
    said.append((job(context.id).state, job(context.id).ending, context.error))


def perform(raw: RawDatabase, **parts: Any) -> WrittenEnd:
    """Claim the one job that is due and perform it."""
    taken = claim(raw)
    [one] = taken.jobs
    return Performer(raw, AUTHOR, **parts).perform(one)


def stored(job_id: int) -> dict[str, Any]:
    """What a job and its history say."""
    row = job(job_id)
    history = Attempt.objects.filter(job_id=job_id).order_by("number").values_list("number", "cause", "exception")
    return {"state": row.state, "attempt": row.attempt, "error": row.error, "history": list(history)}


FAILED = [(1, "failed", "ValueError")]


@pytest.mark.parametrize(
    ("what", "kind", "expected"),
    [
        ("ends", SUCCESS, {"state": "succeeded", "attempt": 1, "error": "", "history": []}),
        ("nothing", SUCCESS, {"state": "succeeded", "attempt": 1, "error": "", "history": []}),
        ("fails", RETRY, {"state": "ready", "attempt": 1, "error": "ValueError: no", "history": FAILED}),
        ("nul", RETRY, {"state": "ready", "attempt": 1, "error": "ValueError: a\\0b \\ud800", "history": FAILED}),
        ("snoozes", SNOOZE, {"state": "ready", "attempt": 0, "error": "", "history": []}),
        ("cancels", END, {"state": "cancelled", "attempt": 1, "error": "", "history": []}),
    ],
)
def test_each_end_is_stored(raw: RawDatabase, what: str, kind: EndKind, expected: dict[str, Any]) -> None:
    """A2, A3, C27, C31, C61, P24: under the fence of its claim, by the database's clock."""
    one = does.register(what)
    ended = perform(raw)
    assert (ended.kind, ended.recorded) == (kind, True)
    assert stored(one.pk) == expected
    found = job(one.pk)
    assert found.result == ({"a": [1, 1.5, None]} if what == "ends" else None)
    assert found.cancel_reason == ("why\\0" if what == "cancels" else "")
    assert (found.progress is None) is (kind in (RETRY, SNOOZE))
    if kind in (RETRY, SNOOZE):
        assert found.claim_id is None
        assert (found.run_at - found.created_at).total_seconds() >= (60 if kind == RETRY else 3600)


@pytest.mark.parametrize(("what", "exception"), [("abandons", "Abandon"), ("nonsense", "UnstorableResult")])
def test_a_job_that_is_given_up_keeps_its_last_error(raw: RawDatabase, what: str, exception: str) -> None:
    """C37, P40: with attempts left; payload and error stay for people to look at."""
    one = does.register(what)
    assert perform(raw).kind == END
    kind = f"django_pgjobs.exceptions.{exception}"
    found = stored(one.pk)
    assert (found["state"], found["history"]) == ("abandoned", [(1, "failed", kind)])
    assert found["error"].startswith(f"{exception}: ")
    assert job(one.pk).payload == {"args": [what], "kwargs": {}}


def test_a_snooze_for_ever_can_still_be_read(raw: RawDatabase) -> None:
    """Python's calendar ends with the year 9999, PostgreSQL's much later."""
    one = does.register("eternity")
    assert perform(raw).kind == SNOOZE
    found = job(one.pk)
    assert (found.run_at - found.created_at).total_seconds() == pytest.approx(LONGEST_SECONDS, abs=60)


@pytest.mark.parametrize(
    ("what", "state", "told", "history"),
    [
        ("fails", "abandoned", ("running", "abandoned", "ValueError: no"), FAILED),
        ("cancels", "cancelled", ("running", "cancelled", None), []),
    ],
)
def test_the_ending_is_written_before_the_callback_starts(
    raw: RawDatabase, what: str, state: str, told: Any, history: Any
) -> None:
    """A5: after a crash of the callback, the row would still say that the callback is due."""
    one = careful.register(what)
    assert perform(raw).kind == END
    assert said == [told]
    assert stored(one.pk)["state"] == state
    assert stored(one.pk)["history"] == history


def test_a_callback_that_cannot_be_read_is_parked_and_loses_nothing(raw: RawDatabase) -> None:
    """Newer code will know it: the ending stays."""
    one = careful.register("fails")
    one.abandon()
    Job.objects.update(payload={"args": []})
    ended = perform(raw)
    assert (ended.kind, ended.recorded) == (PARK, True)
    found = job(one.pk)
    assert (found.state, found.ending, found.ending_attempt) == ("parked", "abandoned", 0)
    assert found.hold_fingerprint == careful._fingerprint


def test_a_callback_whose_row_was_taken_ends_nothing(raw: RawDatabase) -> None:
    one = careful.register("fails")

    def taken_away(prepared: Prepared) -> Decision:
        decision = attempt.run_here(prepared)
        raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid()")
        return decision

    ended = perform(raw, run=taken_away)
    assert (ended.kind, ended.recorded) == (MARK, False)
    assert said == []
    assert stored(one.pk) == {"state": "running", "attempt": 1, "error": "", "history": []}


def test_an_end_that_was_recorded_before_is_not_recorded_twice(raw: RawDatabase) -> None:
    one = does.register("ends")
    taken = claim(raw)
    performer = Performer(raw, AUTHOR)
    assert performer.perform(taken.jobs[0]).recorded
    before = raw.row(one.pk)
    assert not performer.perform(taken.jobs[0]).recorded
    assert raw.row(one.pk) == before


def test_a_job_is_given_back_uncharged(raw: RawDatabase) -> None:
    one = does.register("ends")
    taken = claim(raw)
    assert Performer(raw, AUTHOR).release(taken.jobs[0]).kind == RELEASE
    assert stored(one.pk) == {"state": "ready", "attempt": 0, "error": "", "history": []}


def test_a_job_that_was_cancelled_meanwhile_is_not_given_back(raw: RawDatabase) -> None:
    one = does.register("ends")
    taken = claim(raw)
    one.cancel()
    ended = Performer(raw, AUTHOR).release(taken.jobs[0])
    assert (ended.kind, ended.end.outcome, ended.recorded) == (END, "cancelled", True)


def test_reports_go_where_the_caller_says(raw: RawDatabase) -> None:
    reports: list[Any] = []
    one = does.register("ends")
    perform(raw, reporter_of=lambda db, job: lambda *report: reports.append((job.id, *report)))
    assert reports == [(one.pk, 1, 2, "half")]
    assert job(one.pk).progress is None


def test_several_kinds_of_jobs_of_one_module_are_told_apart(raw: RawDatabase) -> None:
    """A12."""
    ids = [does.register("ends").pk, careful.register("fails").pk]
    for _ in ids:
        perform(raw)
    assert [job(one).state for one in ids] == ["succeeded", "abandoned"]
    assert said == [("running", "abandoned", "ValueError: no")]


def claimed(raw: RawDatabase, number: int, name: str = "attempts.does") -> tuple[list[ClaimedJob], str]:
    for _ in range(number):
        does.register("ends")
    taken = claim(raw, number, from_the_beginning(("default", 0)))
    return taken.jobs, str(taken.claim_id)


@pytest.mark.parametrize(
    ("decision", "state"),
    [
        (decide.Succeeded("1"), "succeeded"),
        (decide.Retried(5.0, decide.Failure("ValueError", "no")), "ready"),
        (decide.Snoozed(5.0), "ready"),
        (decide.Parked("why", "f00"), "parked"),
        (decide.Released(), "ready"),
        (decide.Abandoned("why"), "abandoned"),
        (decide.Cancelled("why"), "cancelled"),
    ],
)
def test_many_ends_of_a_kind_are_one_statement(raw: RawDatabase, decision: Unwritten, state: str) -> None:
    jobs, claim_id = claimed(raw, 3)
    ends = [finalise.end_of(decision, one.id, claim_id, one.name, 0.5) for one in jobs]
    [kind] = {kind for kind, _ in ends}
    recorded = kinds.write(raw, kind, [end for _, end in ends], EndTerms(Author(AUTHOR.worker)))
    assert set(recorded) == {one.id for one in jobs}
    assert {job(one.id).state for one in jobs} == {state}


def test_marked_jobs_stay_with_their_claim(raw: RawDatabase) -> None:
    jobs, claim_id = claimed(raw, 2)
    ends = [finalise.end_of(decide.Abandoned("why"), one.id, claim_id, "attempts.careful", 0.5)[1] for one in jobs]
    assert set(kinds.write(raw, MARK, ends, EndTerms(AUTHOR))) == {one.id for one in jobs}
    assert {(job(one.id).state, job(one.id).ending) for one in jobs} == {("running", "abandoned")}
