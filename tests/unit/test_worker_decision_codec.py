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
        decide.Succeeded(),
        decide.Succeeded('{"a": 1}'),
        decide.Stepped("shop.publish", '{"name": "shop.publish"}'),
        decide.Retried(1.5, FAILURE),
        decide.Retried(0.0, FAILURE, "crashed"),
        decide.Snoozed(9.0),
        decide.Suspended("sleep", "sleep", 60.0),
        decide.Suspended("order.approval:7", "event", 86400.0, event="order.approval:7", progressed=True),
        decide.Suspended("charge[7]", "step", 1.5, failures=2, failure=FAILURE),
        decide.Suspended(
            "nap", "sleep", 1.5, besides=(decide.Suspended("charge[7]", "step", 2.5, failures=2, failure=FAILURE),)
        ),
        decide.Abandoned("why", FAILURE, "timeout"),
        decide.Abandoned("why", None, None),
        decide.Cancelled("why", FAILURE),
        decide.Cancelled("", FAILURE, "failed"),
        decide.Cancelled(),
        decide.Parked("why", "f00"),
        decide.Released("why"),
        decide.Released("why", FAILURE),
        decide.Committed(),
        decide.Committed(marked=True),
        decide.Committed(stepped=True, step_in=("default", 3)),
        decide.Held("why"),
        decide.Lost(),
        decide.InDoubt(decide.Retried(1.5, FAILURE)),
    ],
)
def test_a_decision_arrives_as_it_was(decision: Decision) -> None:
    assert unpack_decision(json.loads(json.dumps(pack_decision(decision)))) == decision


def test_a_retry_without_a_failure_gets_an_empty_one() -> None:
    assert unpack_decision(["retried", 1.0, None, "failed"]) == decide.Retried(1.0, Failure("", ""))


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["dance"],
        ["succeeded"],
        ["retried", 1.0],
        ["suspend", "sleep", "sleep", 60.0],
        ["indoubt", ["lost"]],
        ["indoubt", "lost"],
        [["retried"], 1.0, None, "failed"],
    ],
)
def test_what_is_no_decision_is_refused(values: list[object]) -> None:
    with pytest.raises(ValueError, match="not a decision"):
        unpack_decision(values)


def test_each_annotation_that_is_no_json_has_its_codec() -> None:
    """A field of a new type would otherwise arrive as a list."""
    plain = {"str", "str | None", "float", "int", "bool"}
    for each in get_args(Decision):
        written = {each.__annotations__[name] for name in each.__match_args__ if each is not decide.Succeeded}
        assert written <= plain | set(decision_codec._CODECS), each
