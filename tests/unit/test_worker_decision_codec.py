"""Decisions travel in frames and arrive as they were."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision, Failure
from django_pgjobs.worker.shared import decision_codec
from django_pgjobs.worker.shared.decision_codec import pack_decision, unpack_decision

FAILURE = Failure("ValueError", "no", (("ValueError", "no"), ("OSError", "cause")), "Traceback: …")


@pytest.mark.parametrize(
    "decision",
    [
        decide.Succeed(),
        decide.Succeed('{"a": 1}'),
        decide.Next("shop.publish", '{"name": "shop.publish"}'),
        decide.Retry(1.5, FAILURE),
        decide.Retry(0.0, FAILURE, "crashed"),
        decide.Snooze(9.0),
        decide.Suspend("sleep", "sleep", 60.0),
        decide.Suspend("order.approval:7", "event", 86400.0, event="order.approval:7", progressed=True),
        decide.Suspend("charge[7]", "step", 1.5, failures=2, failure=FAILURE),
        decide.Suspend(
            "nap", "sleep", 1.5, besides=(decide.Suspend("charge[7]", "step", 2.5, failures=2, failure=FAILURE),)
        ),
        decide.Abandon("why", FAILURE, "timeout"),
        decide.Abandon("why", None, None),
        decide.Cancel("why", FAILURE),
        decide.Cancel("", FAILURE, "failed"),
        decide.Cancel(),
        decide.Park("why", "f00"),
        decide.Release("why"),
        decide.Release("why", FAILURE),
        decide.Committed(),
        decide.Committed(marked=True),
        decide.Committed(stepped=True, step_in=("default", 3)),
        decide.Hold("why"),
        decide.Lost(),
        decide.InDoubt(decide.Retry(1.5, FAILURE)),
    ],
)
def test_a_decision_arrives_as_it_was(decision: Decision) -> None:
    assert unpack_decision(json.loads(json.dumps(pack_decision(decision)))) == decision


def test_a_retry_without_a_failure_gets_an_empty_one() -> None:
    assert unpack_decision(["retry", 1.0, None, "failed"]) == decide.Retry(1.0, Failure("", ""))


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["dance"],
        ["succeed"],
        ["retry", 1.0],
        ["suspend", "sleep", "sleep", 60.0],
        ["indoubt", ["lost"]],
        ["indoubt", "lost"],
        [["retry"], 1.0, None, "failed"],
    ],
)
def test_what_is_no_decision_is_refused(values: list[object]) -> None:
    with pytest.raises(ValueError, match="not a decision"):
        unpack_decision(values)


def test_each_annotation_that_is_no_json_has_its_codec() -> None:
    """A field of a new type would otherwise arrive as a list."""
    plain = {"str", "str | None", "float", "int", "bool"}
    for each in get_args(Decision):
        written = {each.__annotations__[name] for name in each.__match_args__ if each is not decide.Succeed}
        assert written <= plain | set(decision_codec._CODECS), each
