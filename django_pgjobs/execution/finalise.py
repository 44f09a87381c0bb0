"""From a decision to the fenced statement that writes it.

Shared by everything that ends attempts: the worker's finalise thread in batches, ``runjobs --inline`` and
``testing.run_jobs`` one by one. Only the fence of the statement decides whether an end was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

from django_pgjobs import decisions as decide
from django_pgjobs.conf import LADDER_SECONDS, get_conf
from django_pgjobs.decisions import Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.execution.attempt import ON_ABANDON, ON_CANCEL, ON_SUCCESS
from django_pgjobs.states import Outcome
from django_pgjobs.store import finalising, gates, memos, notifying
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import Author, End, FenceReading
from django_pgjobs.store.gates import Opened

SUCCESS, RETRY, SNOOZE, END, MARK, PARK, RELEASE = "success", "retry", "snooze", "end", "mark", "park", "release"
NEXT, HOLD = "next", "hold"
SUSPEND = "suspend"
AWAIT = "await"
"""A suspension until an event is sent: written by ``write_await``."""

DELETE = "delete"
"""A success or an end that keeps no row."""

COUNTED = "counted"
"""A success or an end that counts in a gate: written together with what it releases, by ``write_counted``."""

ACTIONS = {
    SUCCESS: "complete the job",
    RETRY: "schedule a retry",
    NEXT: "go on with the next step",
    SNOOZE: "snooze the job",
    SUSPEND: "suspend the job",
    AWAIT: "suspend the job",
    PARK: "park the job",
    HOLD: "hold the job",
    RELEASE: "release the job",
    MARK: "begin its callback",
    END: "end the job",
    DELETE: "end the job",
    COUNTED: "end the job",
}
"""Each kind of write, worded for log lines: "could not …"."""

KINDS = (SUCCESS, NEXT, RETRY, SNOOZE, SUSPEND, AWAIT, PARK, HOLD, RELEASE, MARK, END, DELETE, COUNTED)
"""The order in which a flush writes them."""

FAST = (SUCCESS, DELETE)
"""The kinds that have a statement which writes without a step that locks: see ``write``."""

REQUEUES = (NEXT, RETRY, SNOOZE, SUSPEND, AWAIT, PARK, HOLD, RELEASE)
"""The kinds after which a job starts again, which a job with a cancel request must not."""

CALLBACK_STARTS = 3
CALLBACK_OF: dict[str, str] = {
    Outcome.SUCCEEDED: ON_SUCCESS,
    Outcome.ABANDONED: ON_ABANDON,
    Outcome.CANCELLED: ON_CANCEL,
}


def has_callback(name: str, outcome: str) -> bool:
    """Whether the code of this worker defines a callback for this outcome of this job."""
    definition, callback = registry.find(name), CALLBACK_OF[outcome]
    if definition is None:
        return callback in (registry.learned(name) or ())
    return getattr(definition, f"{callback}_func") is not None


def end_of(decision: Unwritten, job_id: int, claim_id: str, name: str, seconds: float | None) -> tuple[str, End]:
    """Return the kind of the statement that writes ``decision`` about a job's body, and its parameters."""
    match decision:
        case decide.Succeed(result=result):
            if has_callback(name, Outcome.SUCCEEDED):
                return MARK, End(job_id, claim_id, seconds, result=result, outcome=Outcome.SUCCEEDED)
            return SUCCESS, End(job_id, claim_id, seconds, result=result)
        case decide.Next(columns=columns):
            return NEXT, End(job_id, claim_id, seconds, cause=NEXT, columns=columns)
        case decide.Retry(seconds=delay, failure=failure, cause=cause):
            return RETRY, End(job_id, claim_id, seconds or 0.0, delay=delay, cause=cause, failure=failure)
        case decide.Snooze(seconds=delay):
            return SNOOZE, End(job_id, claim_id, seconds, delay=delay)
        case decide.Suspend(failure=failure):
            sent = tuple(wait.event for wait in decision.all if wait.event is not None)
            kind, cause = AWAIT if sent else SUSPEND, "failed" if failure else SUSPEND
            about = {
                **_of_wait(decision),
                "progressed": decision.progressed,
                "besides": [_of_wait(wait) for wait in decision.besides],
            }
            return kind, End(
                job_id, claim_id, seconds, cause=cause, failure=failure, columns=json.dumps(about), events=sent
            )
        case decide.Park(reason=reason, fingerprint=fingerprint):
            return PARK, End(job_id, claim_id, reason=reason, fingerprint=fingerprint)
        case decide.Hold(reason=reason):
            return HOLD, End(job_id, claim_id, reason=reason)
        case decide.Release(failure=failure):
            return RELEASE, End(job_id, claim_id, seconds, cause="released" if failure else None, failure=failure)
        case decide.Abandon(reason=reason, failure=failure, cause=cause):
            kind = MARK if has_callback(name, Outcome.ABANDONED) else END
            cause = cause if failure else None
            return kind, End(job_id, claim_id, seconds, outcome=Outcome.ABANDONED, cause=cause, failure=failure)
        case decide.Cancel(reason=reason, failure=failure, cause=cause):
            kind = MARK if has_callback(name, Outcome.CANCELLED) else END
            cause = cause if failure else None
            return kind, End(
                job_id, claim_id, seconds, outcome=Outcome.CANCELLED, cause=cause, reason=reason, failure=failure
            )
        case _:
            assert_never(decision)


def _of_wait(wait: decide.Suspend) -> dict[str, Any]:
    failed = {} if wait.failure is None else {"error": wait.failure.summary}
    return {
        "memo": wait.memo,
        "kind": wait.kind,
        "event": wait.event,
        "delay": wait.seconds,
        "failures": wait.failures,
        **failed,
    }


def atomic_end_of(decision: decide.Committed, job_id: int, claim_id: str, seconds: float | None) -> tuple[str, End]:
    """Return what a job's own transaction has written, as the kind of write and its parameters."""
    if decision.marked:
        return MARK, End(job_id, claim_id, seconds, outcome=Outcome.SUCCEEDED)
    if decision.stepped:
        return NEXT, End(job_id, claim_id, seconds, cause=NEXT)
    return SUCCESS, End(job_id, claim_id, seconds)


def after_callback(job_id: int, claim_id: str, outcome: str) -> End:
    """Return the end to write after the callback. The error that ended the body was recorded before it."""
    return End(job_id, claim_id, outcome=outcome)


def write_counted(
    db: Database, ends: Sequence[End], author: Author, *, remember: bool = False, lock_seconds: float | None = None
) -> tuple[dict[int, Any], list[Opened]]:
    """Write ends that count in gates, in the open transaction: return id → row of those recorded, and released jobs.

    Raises ``LockNotAvailable`` for a gate that stays locked for ``lock_seconds``; then roll back.
    """
    successes = [end for end in ends if not end.outcome]
    others = [end for end in ends if end.outcome]
    ids: list[int] = []
    if successes:
        ids += finalising.finalise_success(db, successes, author, remember=remember, settled=True)
    if others:
        ids += finalising.finalise_end(db, others, author, settled=True)
    opened = gates.settle_ends(db, ids, lock_seconds=lock_seconds) if ids else []
    cancels = memos.cancel_gathered(db, _unsuccessful(others, ids))
    return {each: each for each in ids}, [*opened, *(Opened(*one, old=False) for one in cancels)]


def _unsuccessful(ends: Sequence[End], recorded: Sequence[int]) -> list[int]:
    return [end.id for end in ends if end.outcome != Outcome.SUCCEEDED and end.id in recorded]


def _write_end(db: Database, ends: Sequence[End], author: Author) -> list[int]:
    """End jobs, and let those not go on that they have gathered."""
    ids = finalising.finalise_end(db, ends, author)
    cancels = memos.cancel_gathered(db, _unsuccessful(ends, ids))
    notifying.notify(db, {notifying.wake_up(one.queue, one.priority) for one in cancels})
    return ids


def write_await(
    db: Database, ends: Sequence[End], author: Author, *, lock_seconds: float | None = None
) -> dict[int, Any]:
    """Suspend jobs until events are sent, in the open transaction: return id → row of those recorded.

    Raises ``LockNotAvailable`` for an event that stays locked for ``lock_seconds``; then roll back.
    """
    memos.await_events(db, [event for end in ends for event in end.events], lock_seconds=lock_seconds)
    return {row.id: row for row in memos.suspend_jobs(db, ends, author)}


def is_counted(extras: Mapping[str, Any] | None) -> bool:
    """Whether the end of a claimed job counts in a gate; it may count in one since its claim, too."""
    return gate_of(extras) is not None


def gate_of(extras: Mapping[str, Any] | None) -> int | None:
    """Return the only gate in which the end of a claimed job counts; 0 for others, None if it counts in none."""
    gate = None if extras is None else extras.get("gate")
    return gate if isinstance(gate, int) else None


def kept_as(end: End) -> str:
    """Return the kind that writes a success or an end and keeps the row."""
    return END if end.outcome else SUCCESS


def write(
    db: Database, kind: str, ends: Sequence[End], author: Author, *, remember: bool = False, fast: bool = False
) -> dict[int, Any]:
    """Write ends of one kind by one fenced statement; return id → row of those recorded.

    ``remember``: some jobs have an idempotency key, under which the statement stores the result of a success.
    ``fast``, not beside ``remember``: use the statement that waits for locked rows and may raise, where a kind of
    ``FAST`` has one; a next step waits for a key no longer then either.
    """
    writers: dict[str, Callable[[], Sequence[Any]]] = {
        SUCCESS: lambda: finalising.finalise_success(db, ends, author, remember=remember),
        NEXT: lambda: finalising.next_step(db, ends, author, hurried=fast),
        RETRY: lambda: finalising.finalise_retry(db, ends, author),
        SNOOZE: lambda: finalising.finalise_snooze(db, ends),
        SUSPEND: lambda: memos.suspend_jobs(db, ends, author),
        PARK: lambda: finalising.park_jobs(db, ends, author),
        HOLD: lambda: finalising.hold_jobs(db, ends),
        RELEASE: lambda: finalising.release_jobs(db, ends, author),
        MARK: lambda: finalising.mark_ending(db, ends, author, allowance_seconds=callback_allowance()),
        END: lambda: _write_end(db, ends, author),
        DELETE: lambda: finalising.finalise_delete(db, ends, remember=remember),
    }
    if fast:
        writers[SUCCESS] = lambda: finalising.finalise_success_fast(db, ends, author)
        writers[DELETE] = lambda: finalising.finalise_delete_fast(db, ends)
    return {(row if isinstance(row, int) else row.id): row for row in writers[kind]()}


def refusal(reading: FenceReading | None) -> str:
    """Return why a write was refused, by the row as it is now; None if the row is gone."""
    if reading is None:
        return "its row is gone"
    if reading.ours:
        return "rescue has ended it"
    if reading.ended:
        return "it has ended under another claim"
    return "another claim has it" if reading.claimed else "it was rescued or released"


def callback_allowance() -> float:
    """Return how many seconds a callback may take, kill ladder included, before other workers may rescue the job."""
    return get_conf().callback_seconds + LADDER_SECONDS
