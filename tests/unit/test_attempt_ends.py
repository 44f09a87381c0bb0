"""From a decision to the statement that writes it, and the words for where a job is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings

from django_pgjobs import JobContext, conf, states
from django_pgjobs import decisions as decide
from django_pgjobs import job as define
from django_pgjobs.decisions import Failure, Unwritten
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.states import TRANSITIONS, JobState, Outcome
from django_pgjobs.store.finalising import End

FAILURE = Failure("ValueError", "no")


@define(name="ends.plain")
def plain() -> None: ...


@define(name="ends.careful", aliases=["ends.once"])
def careful() -> None: ...


@careful.on_abandon
def regrets(context: JobContext) -> None: ...


@careful.on_cancel
def forgets(context: JobContext) -> None: ...


ABANDONED = {"outcome": "abandoned", "cause": "failed", "failure": FAILURE}


@pytest.mark.parametrize(
    ("decision", "kind", "facts"),
    [
        (decide.Succeeded("7"), kinds.SUCCESS, {"seconds": 2.0, "result": "7"}),
        (decide.Succeeded(), kinds.SUCCESS, {"seconds": 2.0}),
        (
            decide.Retried(5.0, FAILURE),
            kinds.RETRY,
            {"seconds": 2.0, "delay": 5.0, "cause": "failed", "failure": FAILURE},
        ),
        (
            decide.Retried(5.0, FAILURE, "crashed"),
            kinds.RETRY,
            {"seconds": 2.0, "delay": 5.0, "cause": "crashed", "failure": FAILURE},
        ),
        (decide.Stepped("b", "{}"), kinds.NEXT, {"seconds": 2.0, "cause": "next", "columns": "{}"}),
        (decide.Snoozed(9.0), kinds.SNOOZE, {"seconds": 2.0, "delay": 9.0}),
        (decide.Parked("why", "f00"), kinds.PARK, {"reason": "why", "fingerprint": "f00"}),
        (decide.Released("why"), kinds.RELEASE, {"seconds": 2.0}),
        (decide.Released("why", FAILURE), kinds.RELEASE, {"seconds": 2.0, "cause": "released", "failure": FAILURE}),
        (decide.Abandoned("why", FAILURE), kinds.END, {"seconds": 2.0, **ABANDONED}),
        (decide.Abandoned("why", FAILURE, None), kinds.END, {"seconds": 2.0, **ABANDONED, "cause": None}),
        (decide.Abandoned("why"), kinds.END, {"seconds": 2.0, "outcome": "abandoned"}),
        (decide.Cancelled("why"), kinds.END, {"seconds": 2.0, "outcome": "cancelled", "reason": "why"}),
        (
            decide.Cancelled("", FAILURE),
            kinds.END,
            {"seconds": 2.0, "outcome": "cancelled", "cause": "cancelled", "failure": FAILURE},
        ),
        (
            decide.Cancelled("", FAILURE, "timeout"),
            kinds.END,
            {"seconds": 2.0, "outcome": "cancelled", "cause": "timeout", "failure": FAILURE},
        ),
    ],
)
def test_each_decision_has_its_statement(decision: Unwritten, kind: kinds.EndKind, facts: dict[str, object]) -> None:
    end = End(7, "c1a1", **facts)  # type: ignore[arg-type]
    assert finalise.end_of(decision, 7, "c1a1", "ends.plain", 2.0) == (kind, end)
    assert kind in kinds.KINDS


def test_there_is_no_other_decision() -> None:
    with pytest.raises(AssertionError):
        finalise.end_of("succeed", 7, "c1a1", "ends.plain", 2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ends.careful", "ends.once"])
@pytest.mark.parametrize(
    "decision", [decide.Abandoned("why", FAILURE), decide.Cancelled("why")], ids=["abandon", "cancel"]
)
def test_a_job_with_a_callback_is_marked_first(name: str, decision: Unwritten) -> None:
    """A5: fenced, before the callback starts."""
    marked, end = finalise.end_of(decision, 7, "c1a1", name, 2.0)
    assert marked is kinds.MARK
    assert end == finalise.end_of(decision, 7, "c1a1", "ends.plain", 2.0)[1]
    assert finalise.after_callback(7, "c1a1", end.outcome) == End(7, "c1a1", outcome=end.outcome)


def test_a_retry_without_a_duration_has_none() -> None:
    assert finalise.end_of(decide.Retried(5.0, FAILURE), 7, "c", "ends.plain", None)[1].seconds == 0.0


def test_who_has_a_callback() -> None:
    """A8: without one, and for a name unknown here, there is none."""
    assert kinds.has_callback("ends.careful", Outcome.ABANDONED)
    assert kinds.has_callback("ends.once", Outcome.CANCELLED)
    assert not kinds.has_callback("ends.plain", Outcome.ABANDONED)
    assert not kinds.has_callback("ends.no_such", Outcome.CANCELLED)


def test_a_callback_has_its_seconds_and_the_ladder() -> None:
    with override_settings(PGJOBS={"CALLBACK_SECONDS": 3}):
        assert kinds.callback_allowance() == 3 + conf.LADDER_SECONDS


NOW = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "later", "attempt", "word"),
    [
        ("ready", False, 0, "ready"),
        ("ready", False, 2, "ready"),
        ("ready", True, 0, "scheduled"),
        ("ready", True, 2, "retrying"),
        ("running", True, 1, "running"),
        ("abandoned", False, 5, "abandoned"),
    ],
)
def test_the_word_people_are_shown(state: str, later: bool, attempt: int, word: str) -> None:
    assert states.label(state, NOW + timedelta(seconds=1 if later else -1), attempt, NOW) == word


def test_every_state_has_a_way_out_or_is_an_end() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert all(set(following) <= set(JobState) for following in TRANSITIONS.values())
    assert set(states.LABELS).isdisjoint(JobState)
    assert {outcome.value for outcome in Outcome} <= {state.value for state in JobState}
