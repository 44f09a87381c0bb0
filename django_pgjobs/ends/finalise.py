"""From a decision to the end that a fenced statement writes, and why one that it refuses is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import assert_never

from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Unwritten
from django_pgjobs.ends.kinds import (
    AWAIT,
    END,
    HOLD,
    MARK,
    NEXT,
    PARK,
    RELEASE,
    RETRY,
    SNOOZE,
    SUCCESS,
    SUSPEND,
    EndKind,
    has_callback,
)
from django_pgjobs.states import Cause, Hold, Outcome
from django_pgjobs.store.finalising import End, FenceReading


def end_of(decision: Unwritten, job_id: int, claim_id: str, name: str, seconds: float | None) -> tuple[EndKind, End]:
    """Return the kind of the statement that writes ``decision`` about a job's body, and its parameters."""
    match decision:
        case decide.Succeeded(result=result):
            if has_callback(name, Outcome.SUCCEEDED):
                return MARK, End(job_id, claim_id, seconds, result=result, outcome=Outcome.SUCCEEDED)
            return SUCCESS, End(job_id, claim_id, seconds, result=result)
        case decide.Stepped(columns=columns):
            return NEXT, End(job_id, claim_id, seconds, cause=NEXT.name, columns=columns)
        case decide.Retried(seconds=delay, failure=failure, cause=cause):
            return RETRY, End(job_id, claim_id, seconds or 0.0, delay=delay, cause=cause, failure=failure)
        case decide.Snoozed(seconds=delay):
            return SNOOZE, End(job_id, claim_id, seconds, delay=delay)
        case decide.Suspended(failure=failure):
            sent = tuple(wait.event for wait in decision.all if wait.event is not None)
            kind = AWAIT if sent else SUSPEND
            cause = Cause.FAILED if failure else SUSPEND.name
            about = {
                **_of_wait(decision),
                "progressed": decision.progressed,
                "besides": [_of_wait(wait) for wait in decision.besides],
            }
            return kind, End(
                job_id, claim_id, seconds, cause=cause, failure=failure, columns=json.dumps(about), events=sent
            )
        case decide.Parked(reason=reason, fingerprint=fingerprint):
            return PARK, End(job_id, claim_id, reason=reason, fingerprint=fingerprint)
        case decide.Held(reason=reason, limited=limited):
            return HOLD, End(job_id, claim_id, reason=reason, outcome=Hold.LIMITED if limited else "")
        case decide.Released(failure=failure):
            return RELEASE, End(job_id, claim_id, seconds, cause=Cause.RELEASED if failure else None, failure=failure)
        case decide.Abandoned() | decide.Cancelled():
            end = End(job_id, claim_id, seconds, outcome=decision.outcome, failure=decision.failure)
            end.cause = decision.cause if decision.failure else None
            end.reason = decision.reason if isinstance(decision, decide.Cancelled) else ""
            return MARK if has_callback(name, decision.outcome) else END, end
        case _:
            assert_never(decision)


def _of_wait(wait: decide.Suspended) -> dict[str, object]:
    failed = {} if wait.failure is None else {"error": wait.failure.summary}
    return {
        "memo": wait.memo,
        "kind": wait.kind,
        "event": wait.event,
        "delay": wait.seconds,
        "failures": wait.failures,
        **failed,
    }


def atomic_end_of(decision: decide.Committed, job_id: int, claim_id: str, seconds: float | None) -> tuple[EndKind, End]:
    """Return what a job's own transaction has written, as the kind of write and its parameters."""
    if decision.marked:
        return MARK, End(job_id, claim_id, seconds, outcome=Outcome.SUCCEEDED)
    if decision.stepped:
        return NEXT, End(job_id, claim_id, seconds, cause=NEXT.name)
    return SUCCESS, End(job_id, claim_id, seconds)


def cancel_instead(end: End, name: str) -> tuple[EndKind, End]:
    """Return the cancel to write for a job that was cancelled before ``end`` let it start again."""
    return end_of(decide.Cancelled("", end.failure, end.cause), end.id, end.claim_id, name, end.seconds)


def after_callback(job_id: int, claim_id: str, outcome: str) -> End:
    """Return the end to write after the callback. The error that ended the body was recorded before it."""
    return End(job_id, claim_id, outcome=outcome)


def is_counted(extras: Mapping[str, object] | None) -> bool:
    """Return whether the end of a claimed job counts in a gate; it may count in one since its claim, too."""
    return gate_of(extras) is not None


def gate_of(extras: Mapping[str, object] | None) -> int | None:
    """Return the only gate in which the end of a claimed job counts; 0 for others, None if it counts in none."""
    gate = None if extras is None else extras.get("gate")
    return gate if isinstance(gate, int) else None


def refusal(reading: FenceReading | None) -> str:
    """Return why a write was refused, by the row as it is now; None if the row is gone."""
    if reading is None:
        return "its row is gone"
    if reading.ours:
        return "rescue has ended it"
    if reading.ended:
        return "it has ended under another claim"
    return "another claim has it" if reading.claimed else "it was rescued or released"
