"""The fence of every write made for an attempt, and proof that each of its lines is needed.

A *scenario* makes a claim that has no right to its job any more. A *violation* is any trace that a write under
such a claim leaves: an id in its answer, a changed row, a row of history. With the statement as it stands there
is none; with one ``-- fence`` line taken out (the sabotaged twin) there must be, or the line guards nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from django_pgjobs import sql
from django_pgjobs.models import Attempt, JobStack, LogLine, Memo, Step
from django_pgjobs.store import atomic, finalising, keeping, memos, stacks, steering
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import Rescued
from django_pgjobs.store.memos import NewMemo
from django_pgjobs.store.stacks import StackAnswer
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    WORKER,
    Background,
    Claimed,
    RawDatabase,
    blocked_by,
    claim,
    from_the_beginning,
    register,
    wait_until,
)
from tests.plugins.sabotage import fence_lines, line_id, lines_of, sabotage

LATER = '{"memo": "sleep", "kind": "sleep", "event": null, "delay": 60, "failures": 0, "progressed": true}'
NEXT = '{"name": "test.next", "queue": "default", "max_attempts": 5, "payload": {}}'

LINE = '[{"number": 1, "level": 20, "logger": "shop", "message": "late", "at": 1.5}]'

WRITES: dict[str, Callable[[Database, End], object]] = {
    "finalise_success": lambda db, end: finalising.finalise_success(db, [end], AUTHOR),
    "finalise_success_fast": lambda db, end: finalising.finalise_success_fast(db, [end], AUTHOR),
    "finalise_retry": lambda db, end: finalising.finalise_retry(db, [end], AUTHOR),
    "finalise_snooze": lambda db, end: finalising.finalise_snooze(db, [end]),
    "next_step": lambda db, end: finalising.next_step(db, [replace(end, columns=NEXT)], AUTHOR),
    "finalise_end": lambda db, end: finalising.finalise_end(db, [end], AUTHOR),
    "finalise_delete": lambda db, end: finalising.finalise_delete(db, [end]),
    "finalise_delete_fast": lambda db, end: finalising.finalise_delete_fast(db, [end]),
    "finalise_success_keyed": lambda db, end: finalising.finalise_success(db, [end], AUTHOR, remember=True),
    "finalise_delete_keyed": lambda db, end: finalising.finalise_delete(db, [replace(end, outcome="")], remember=True),
    "mark_ending": lambda db, end: finalising.mark_ending(db, [end], AUTHOR, allowance_seconds=1.0),
    "hold_jobs": lambda db, end: finalising.hold_jobs(db, [end]),
    "release_jobs": lambda db, end: finalising.release_jobs(db, [end], AUTHOR),
    "write_progress": lambda db, end: finalising.write_progress(
        db, [(end.id, end.claim_id, {"progress": '{"n": 99}', "peaks": '"1:50-99"'})]
    ),
    "suspend_jobs": lambda db, end: memos.suspend_jobs(db, [replace(end, columns=LATER)], AUTHOR),
    "write_memo": lambda db, end: memos.write_memo(db, end.id, end.claim_id, NewMemo("pay", "step", "1", 0, 32)),
    "write_cursor": lambda db, end: memos.write_cursor(
        db, end.id, end.claim_id, name="each", cursor='{"n": 1}', progress='{"n": 1}'
    ),
    "read_cursors": lambda db, end: memos.read_cursors(db, end.id, end.claim_id),
    "finish_wait": lambda db, end: _finish_wait(db, end),
    "begin_gather": lambda db, end: memos.begin_gather(
        db, end.id, end.claim_id, name="gather", event="done", before=None, result="{}", seconds=60
    ),
    "answer_stack": lambda db, end: _answer_stack(db, end),
    "write_lines": lambda db, end: finalising.write_lines(db, [(end.id, end.claim_id, True, LINE)]),
    "end_atomic": lambda db, end: atomic.end_atomic(db, end),
    "read_payload": lambda db, end: finalising.read_payload(db, end.id, end.claim_id),
}
"""Every fenced statement, written by an attempt that failed."""

REQUEUE = ("finalise_retry", "next_step", "finalise_snooze", "suspend_jobs", "hold_jobs", "release_jobs")


def _finish_wait(db: Database, end: End) -> object:
    memos.send_event(db, "approval", '"yes"', "")
    return memos.finish_wait(db, end.id, end.claim_id, name="approval", kind="event", event="approval")


def _answer_stack(db: Database, end: End) -> bool:
    asked = JobStack.objects.create(job_id=end.id, claim_id=end.claim_id, number=1, worker=WORKER)
    return stacks.answer_stack(db, WORKER, StackAnswer(asked.pk, "late", ""))


def stale(job_id: int, claim_id: object) -> End:
    return End(
        job_id, str(claim_id), 1.0, '"stale"', 0.0, "abandoned", "failed", "stale", "stale", FAILURE
    )  # fmt: skip


def reclaimed(db: RawDatabase) -> End:
    """C44, C45: lost, and the same worker has claimed the job again; attempt and worker are equal."""
    register()
    first = claim(db)
    finalising.release_jobs(db, first.ends(), AUTHOR)
    second = claim(db)
    assert second.ids == first.ids
    return stale(first.ids[0], first.claim_id)


def ended(db: RawDatabase) -> End:
    """C46: this very claim has ended the job, and an ended row keeps its claim_id."""
    register()
    claimed = claim(db)
    finalising.finalise_success(db, claimed.ends(result='"kept"'), AUTHOR)
    return stale(claimed.ids[0], claimed.claim_id)


def snoozed(db: RawDatabase) -> End:
    """C46, C55: nobody has claimed the job now."""
    register()
    claimed = claim(db)
    finalising.finalise_snooze(db, claimed.ends(delay=0.0))
    return stale(claimed.ids[0], claimed.claim_id)


def retried_by_an_operator(db: RawDatabase) -> End:
    """C46: ended by this claim, and made ready again since."""
    register()
    claimed = claim(db)
    finalising.finalise_end(db, claimed.ends(outcome="abandoned"), AUTHOR)
    steering.retry_jobs(db, claimed.ids, attempts={}, default_attempts=5)
    return stale(claimed.ids[0], claimed.claim_id)


def never_claimed(db: RawDatabase) -> End:
    """A claim_id that no claim has."""
    [job_id] = register()
    return stale(job_id, uuid4())


def deleted(db: RawDatabase) -> End:
    """C47: the row is gone."""
    register()
    claimed = claim(db)
    db.query("DELETE FROM pgjobs_job")
    return stale(claimed.ids[0], claimed.claim_id)


def to_be_cancelled(db: RawDatabase) -> End:
    """A54: still ours, but an operator's request has come; such a job must not go back into the queue."""
    register()
    claimed = claim(db)
    steering.cancel_jobs(db, claimed.ids, mode="ask", by="", reason="", with_callback=[])
    return stale(claimed.ids[0], claimed.claim_id)


SCENARIOS = (reclaimed, ended, snoozed, retried_by_an_operator, never_claimed, deleted)

RIGHTS = {("write_lines", ended)}
"""An atomic job has ended itself before its worker stores its last lines; ``test_log_lines`` says until when."""

GUARDED_BY = {"claim_id": reclaimed, "outcome": ended}
"""Which scenario each line of a fence is there for, by the column it names."""


def _remembered() -> int:
    return sum(model.objects.count() for model in (Attempt, Step, Memo, LogLine))


def violations(db: RawDatabase, name: str, scenario: Callable[[RawDatabase], End]) -> list[str]:
    """Return what a write without a right has left behind."""
    end = scenario(db)
    before = db.query("SELECT to_jsonb(j) FROM pgjobs_job AS j"), _remembered()
    answer = WRITES[name](db, end)
    after = db.query("SELECT to_jsonb(j) FROM pgjobs_job AS j"), _remembered()
    found = {
        "it was answered as recorded": bool(answer),
        "the row was changed": before[0] != after[0],
        "the history was changed": before[1] != after[1],
    }
    return [what for what, happened in found.items() if happened]


FENCES = fence_lines()

RESCUE = [(name, line) for name, line in FENCES if name == "rescue_jobs"]
"""No attempt's write: it takes a claim away. Its fence matters only while it runs; see the end of this module."""


def test_every_fenced_statement_is_tested_here() -> None:
    assert {name for name, _ in FENCES} == {*WRITES, "rescue_jobs"}


@pytest.mark.parametrize(
    ("name", "scenario"), [(name, each) for name in WRITES for each in SCENARIOS if (name, each) not in RIGHTS]
)
def test_a_claim_without_a_right_leaves_no_trace(
    raw: RawDatabase, name: str, scenario: Callable[[RawDatabase], End]
) -> None:
    """C39, C40, C44 to C47, C55, C57: zero rows is a normal answer, and nothing is visible of the write."""
    assert violations(raw, name, scenario) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [fence for fence in FENCES if fence not in RESCUE],
    ids=line_id,
)
def test_without_a_line_of_its_fence_a_statement_is_unsafe(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    [scenario] = [scenario for column, scenario in GUARDED_BY.items() if f".{column} " in line]
    sabotage(monkeypatch, name, line)
    assert violations(raw, name, scenario) != []


@pytest.mark.parametrize("name", REQUEUE)
def test_a_job_to_be_cancelled_goes_back_into_no_queue(raw: RawDatabase, name: str) -> None:
    """A54: the end of a cancelled job is cancelled."""
    assert violations(raw, name, to_be_cancelled) == []


@pytest.mark.parametrize(("name", "line"), lines_of("cancel_requested_at IS NULL", REQUEUE), ids=REQUEUE)
def test_without_its_guard_a_job_to_be_cancelled_would_run_again(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    sabotage(monkeypatch, name, line)
    assert violations(raw, name, to_be_cancelled) != []


def test_the_guard_of_the_ledger_is_needed(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger row deleted too early strands its job: running, and nothing to find it by."""
    register()
    claimed = claim(raw)
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 0
    [(_, line)] = lines_of("j.id = ANY (k.job_ids)", ("delete_claims",))
    whole = sql.statement
    monkeypatch.setattr(sql, "statement", lambda name: whole(name).replace(line, "WHERE false"))
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 1


def test_the_readings_tell_lost_from_done_from_busy(raw: RawDatabase, other: RawDatabase) -> None:
    """C39, C58: what the worker logs and does next."""
    cases = {}
    for scenario in SCENARIOS:
        if scenario is not deleted:
            raw.query("UPDATE pgjobs_job SET run_at = run_at + interval '1 hour'")  # out of the next one's way
            cases[scenario.__name__] = scenario(raw)
    register(queue="held")
    [held] = claim(raw, 1, from_the_beginning(("held", 0))).ends()
    other.lock(held.id)
    fences = [(end.id, end.claim_id) for end in (*cases.values(), held)]
    readings = finalising.read_fences(raw, [*fences, (0, str(uuid4()))])
    told = {name: (readings[end.id].ours, readings[end.id].ended) for name, end in {**cases, "busy": held}.items()}
    assert told == {
        "reclaimed": (False, False),
        "ended": (True, True),
        "snoozed": (False, False),
        "retried_by_an_operator": (False, False),
        "never_claimed": (False, False),
        "busy": (True, False),
    }
    assert len(readings) == len(fences)


def test_the_flags_name_only_what_is_no_longer_plainly_ours(raw: RawDatabase) -> None:
    """P19: lost, to be cancelled, to be released; a deleted row is lost; a job in order is not in the answer."""
    register(5)
    claimed = claim(raw, 5)
    plain, lost, cancelled, released, gone = claimed.ids
    raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [lost])
    steering.cancel_jobs(raw, [cancelled], mode="kill", by="anna", reason="too slow", with_callback=[])
    steering.request_release(raw, [released])
    raw.query("DELETE FROM pgjobs_job WHERE id = %s", [gone])
    flags = {flag.id: flag[2:] for flag in keeping.read_flags(raw, claimed.fences())}
    assert plain not in flags
    assert flags == {
        lost: (True, False, "", "", "", False),
        cancelled: (False, True, "kill", "anna", "too slow", False),
        released: (False, False, "", "", "", True),
        gone: (True, False, "", "", "", False),
    }


# --- the rescue, against an owner that is late -----------------------------------------------------------------------


def ends_it(db: RawDatabase, claimed: Claimed) -> None:
    """The owner records its late end."""
    finalising.finalise_success(db, claimed.ends(result='"late"'), AUTHOR)


def loses_it(db: RawDatabase, claimed: Claimed) -> None:
    """The owner gives it back, and it is claimed again at once."""
    finalising.release_jobs(db, claimed.ends(), AUTHOR)
    assert claim(db).ids == claimed.ids


def rescue(db: RawDatabase) -> list[Rescued]:
    return keeping.rescue_jobs(
        db,
        limit=10,
        quiet_seconds=0,
        grace_seconds=10,
        stale_seconds=60,
        without_on_cancel=["test.job"],
        without_on_abandon=["test.job"],
    )


def rescued_anyway(
    raw: RawDatabase,
    db_connection: Callable[..., RawDatabase],
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[RawDatabase, Claimed], None],
) -> bool:
    """Hold a rescue between its look and its locks, let the owner act, and tell whether it was rescued all the same."""
    register()
    claimed = claim(raw)
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01'")
    gate, rescuer = db_connection(autocommit=False), db_connection()
    gate.query("SELECT pg_advisory_lock(2)")
    texts = sql.statement
    gated = texts("rescue_jobs").replace(
        "FROM due\n", "FROM (SELECT pg_advisory_xact_lock(2) OFFSET 0) AS gate, due\n", 1
    )
    assert "gate" in gated
    with monkeypatch.context() as patch:
        patch.setattr(sql, "statement", lambda name: gated if name == "rescue_jobs" else texts(name))
        answer = background(rescue, rescuer)
        wait_until(lambda: blocked_by(raw, gate.pid), 5, "the rescue waits at the gate")
        meanwhile(raw, claimed)
        before = raw.row(claimed.ids[0])
        gate.query("SELECT pg_advisory_unlock(2)")
        rescued = answer.result()
    return bool(rescued) or raw.row(claimed.ids[0]) != before


GUARDED_AGAINST = {"claim_id": loses_it, "outcome": ends_it}


@pytest.mark.parametrize("meanwhile", GUARDED_AGAINST.values())
def test_a_rescue_leaves_alone_what_its_owner_has_changed_since_it_looked(
    raw: RawDatabase,
    db_connection: Callable[..., RawDatabase],
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[RawDatabase, Claimed], None],
) -> None:
    """X1, C41: the late end is recorded exactly once, or the rescue is, never both."""
    assert not rescued_anyway(raw, db_connection, background, monkeypatch, meanwhile)


@pytest.mark.parametrize(("name", "line"), RESCUE, ids=line_id)
def test_without_a_line_of_its_fence_a_rescue_is_unsafe(
    raw: RawDatabase,
    db_connection: Callable[..., RawDatabase],
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    line: str,
) -> None:
    """The sabotaged twin of the test above."""
    [meanwhile] = [meanwhile for column, meanwhile in GUARDED_AGAINST.items() if f".{column} " in line]
    sabotage(monkeypatch, name, line)
    assert rescued_anyway(raw, db_connection, background, monkeypatch, meanwhile)
