"""What becomes of ends whose writing fails half-way, is in vain for the moment, or was done by somebody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.decisions import Failure
from django_pgjobs.ends import kinds
from django_pgjobs.ends.kinds import DELETE, END, MARK, RELEASE, RETRY, SUCCESS, EndKind, EndTerms, RowsLocked
from django_pgjobs.store import finalising, keeping, notifying
from django_pgjobs.store.finalising import Author, End, FenceReading, ReleasedJob
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.threads import finaliser as finaliser_module
from django_pgjobs.worker.threads.busy_ends import PAUSE_SECONDS
from django_pgjobs.worker.threads.finaliser import (
    BATCH,
    BUSY_LIMIT,
    FLUSH_SECONDS,
    UNFLUSHED_BYTES,
    Finaliser,
)
from django_pgjobs.worker.threads.inbox_messages import BackendsEnded, RefusedEnds, Stored
from tests.plugins.fix_db import patience, wait_until
from tests.unit.worker_fakes import Heard, run_of

FAILURE = Failure("ValueError", "no", (), "traceback")


class Server:
    """Answers for the statements of a flush: ``locked`` rows are busy, others are recorded unless a test says more."""

    def __init__(self) -> None:
        self.locked: set[int] = set()
        self.readings: dict[int, FenceReading] = {}
        self.writes: list[tuple[EndKind, list[int]]] = []
        self.fails: Callable[[EndKind, Sequence[End]], None] = lambda kind, ends: None
        self.away = False
        self.gone: set[int] = set()
        self.remembered: list[bool] = []

    def write(
        self,
        db: Any,
        kind: EndKind,
        ends: Sequence[End],
        terms: EndTerms,
    ) -> dict[int, Any]:
        if kind.fast and terms.fast and any(end.id in self.locked for end in ends):
            raise RowsLocked(psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"))
        self.writes.append((kind, [end.id for end in ends]))
        self.remembered.append(terms.remember)
        self.fails(kind, ends)
        not_now = self.locked | set(self.readings) | self.gone
        row = ReleasedJob(0, "a", 0) if kind == RELEASE else None
        return {end.id: row for end in ends if end.id not in not_now}

    def read_fences(self, db: Any, fences: Sequence[tuple[int, str]]) -> dict[int, FenceReading]:
        if self.away:
            raise psycopg.OperationalError("server closed the connection")
        busy = {
            id: FenceReading(id, True, False, None, False, False, True, False) for id, _ in fences if id in self.locked
        }
        return busy | {id: self.readings[id] for id, _ in fences if id in self.readings}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(kinds, "write", server.write)
    monkeypatch.setattr(finalising, "read_fences", server.read_fences)
    monkeypatch.setattr(finalising, "delete_claims", lambda db, claims: 0)
    monkeypatch.setattr(notifying, "notify_queues", lambda db, pairs, **behind: None)
    return server


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def finaliser(server: Server, heard: Heard) -> Finaliser:
    def refuses() -> Any:
        raise AssertionError("no connection is made here")

    return Finaliser(refuses, heard, Author(UUID(int=1)))


def put(finaliser: Finaliser, kind: EndKind, *ids: int, ending: str | None = None, **facts: Any) -> list[HeldRun]:
    runs = [run_of(id, ending=ending) for id in ids]
    finaliser.put_many(kind, [(run, End(run.job.id, run.claim.claim_id, 0.1, **facts)) for run in runs])
    return runs


def flush(finaliser: Finaliser, link: object = None) -> None:
    finaliser._flush(link)  # type: ignore[arg-type]


class Link:
    """A connection that may break."""

    def __init__(self) -> None:
        self.gone = False


def break_at(link: Link, kind_broken: EndKind) -> Callable[[EndKind, Sequence[End]], None]:
    def fails(kind: EndKind, ends: Sequence[End]) -> None:
        if kind == kind_broken and not link.gone:
            link.gone = True
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    return fails


def test_while_it_collects_a_batch_only_a_whole_one_wakes_it(
    finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    monkeypatch.setattr(finaliser.wake, "notify_all", lambda: woken.append(finaliser.count))

    def arrive(predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        put(finaliser, SUCCESS, 2, 3)
        assert not predicate()
        put(finaliser, SUCCESS, *range(4, BATCH + 1))
        return predicate()

    put(finaliser, SUCCESS, 1)
    monkeypatch.setattr(finaliser.wake, "wait_for", arrive)
    finaliser.last_flush = clock.monotonic()
    assert finaliser._until_due()
    assert woken == [1, BATCH], "while it sleeps any end wakes it"


def test_a_stop_that_came_while_it_wrote_is_not_slept_over(
    finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bell has rung before it waits: it would rest for a minute, and its connection stay."""
    finaliser.rests = False
    finaliser.stopping.set()
    monkeypatch.setattr(finaliser.wake, "wait", lambda seconds: pytest.fail("it sleeps"))
    assert not finaliser._until_due()


def test_what_was_told_is_not_told_again_when_the_rest_of_a_batch_fails(
    server: Server, heard: Heard, finaliser: Finaliser
) -> None:
    """A claim counts its jobs down: told twice, it would count as finished, and the leases of the others lapse."""
    put(finaliser, SUCCESS, 1, 2, 3)
    server.locked, server.away = {2}, True
    with pytest.raises(psycopg.OperationalError):
        flush(finaliser)
    assert heard.told("stored") == [1, 3]
    assert finaliser.count == 1
    server.locked, server.away = set(), False
    flush(finaliser)
    assert heard.told("stored") == [1, 3, 2]
    assert (finaliser.count, finaliser.bytes) == (0, 0)


def test_a_callback_starts_once_when_the_other_half_of_a_batch_fails(
    server: Server, heard: Heard, finaliser: Finaliser
) -> None:
    put(finaliser, MARK, 1, 2, outcome="abandoned")

    def fails(kind: EndKind, ends: Sequence[End]) -> None:
        if len(ends) > 1:
            raise psycopg.errors.NumericValueOutOfRange("22003")
        if ends[0].id == 2:
            raise psycopg.OperationalError("server closed the connection")

    server.fails = fails
    with pytest.raises(psycopg.OperationalError):
        flush(finaliser)
    server.fails = lambda kind, ends: None
    flush(finaliser)
    assert heard.told("stored") == [1, 2]


def test_busy_rows_are_tried_once_and_then_waited_for(
    server: Server, heard: Heard, finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many: an open transaction on the whole table must not have us ask for it in a loop."""
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    put(finaliser, SUCCESS, *range(1, BATCH + 11))
    server.locked = set(range(1, BATCH + 6))
    flush(finaliser)
    assert [len(ids) for _, ids in server.writes] == [BATCH, 10]
    assert heard.told("stored") == list(range(BATCH + 6, BATCH + 11))
    assert (finaliser.count, finaliser.busy.count) == (BATCH + 5, BATCH + 5)
    assert finaliser.busy.until == now + PAUSE_SECONDS
    waits: list[tuple[bool, float | None]] = []

    def wait_for(predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        waits.append((predicate(), timeout))
        return waits[-1][0]

    monkeypatch.setattr(finaliser.wake, "wait_for", wait_for)
    assert finaliser._until_due()
    finaliser.stopping.set()
    assert finaliser._until_due()
    assert not any(awake for awake, _ in waits)
    assert [timeout for _, timeout in waits] == pytest.approx([PAUSE_SECONDS, FLUSH_SECONDS, PAUSE_SECONDS])
    server.writes.clear()
    now += PAUSE_SECONDS
    flush(finaliser)
    assert [len(ids) for _, ids in server.writes] == [BATCH, 5]


def test_new_ends_pass_those_that_wait_for_a_lock(
    server: Server, heard: Heard, finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W20: they are written as soon as without, and the others no later for it."""
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    put(finaliser, SUCCESS, 1)
    server.locked = {1}
    flush(finaliser)
    until, now = finaliser.busy.until, now + PAUSE_SECONDS / 2
    server.locked |= {2}
    put(finaliser, SUCCESS, 2, 3)
    monkeypatch.setattr(finaliser.wake, "wait_for", lambda awake, **_: awake() or pytest.fail("waited"))
    assert finaliser._until_due()
    server.writes.clear()
    flush(finaliser)
    assert server.writes == [(SUCCESS, [2, 3])]
    assert heard.told("stored") == [3]
    assert (finaliser.busy.count, finaliser.busy.until) == (2, until)
    server.locked.clear()
    now = until
    assert finaliser._until_due()
    flush(finaliser)
    assert heard.told("stored") == [3, 1, 2]
    assert (finaliser.count, finaliser.bytes) == (0, 0)


def test_ends_that_wait_for_locks_leave_room_for_others(server: Server, finaliser: Finaliser) -> None:
    """Up to a number: what runs meanwhile is kept in memory."""
    server.locked = set(range(1, BUSY_LIMIT + 1))
    put(finaliser, SUCCESS, *range(1, BUSY_LIMIT))
    flush(finaliser)
    assert not finaliser.full
    put(finaliser, SUCCESS, BUSY_LIMIT)
    flush(finaliser)
    assert finaliser.full


@pytest.mark.parametrize(
    ("kind", "facts", "reading", "told"),
    [
        (SUCCESS, {}, (True, True, None), "stored"),
        (SUCCESS, {}, (True, True, "lost"), "lost"),
        (SUCCESS, {}, (False, False, "lost"), "lost"),
        (SUCCESS, {}, (False, True, None), "lost"),
        (END, {"outcome": "abandoned", "cause": "failed"}, (True, True, "failed"), "stored"),
        (END, {"outcome": "abandoned", "cause": "timeout"}, (True, True, "timeout"), "stored"),
        (END, {"outcome": "abandoned", "cause": "timeout"}, (True, True, "lost"), "lost"),
        (END, {"outcome": "cancelled"}, (True, True, "lost"), "lost"),
        (END, {"outcome": "cancelled"}, (True, True, "failed"), "stored"),
        (END, {"outcome": "abandoned", "ending": "abandoned"}, (True, True, "timeout"), "stored"),
        (RETRY, {"cause": "failed", "failure": FAILURE}, (False, False, "failed"), "stored"),
        (RETRY, {"cause": "timeout", "failure": FAILURE}, (False, False, "timeout"), "stored"),
        (RETRY, {"cause": "timeout", "failure": FAILURE}, (False, False, "lost"), "lost"),
        (RETRY, {"cause": "failed", "failure": FAILURE}, (False, False, "lost"), "lost"),
    ],
)
@pytest.mark.parametrize("answer", ["the answer to the first try was lost", "no try before"])
def test_an_end_that_was_written_by_an_earlier_try_is_told_from_one_that_rescue_wrote(
    server: Server, heard: Heard, finaliser: Finaliser, kind: EndKind, facts: dict[str, Any], reading: Any, told: str,
    answer: str,
) -> None:  # fmt: skip
    """``reading``: the claim is still ours, the job has ended, the cause in the history under our claim.

    What was never sent before was refused, whatever the row says: somebody else has written the same.
    """
    ours, ended, cause = reading
    put(finaliser, kind, 1, **facts)
    if answer == "no try before":
        told = "lost"
    else:
        server.fails = break_at(Link(), kind)
        with pytest.raises(psycopg.OperationalError):
            flush(finaliser)
    server.readings[1] = FenceReading(1, ours, ended, cause, False, False, ours, False)
    flush(finaliser)
    assert (heard.told("stored"), heard.told("lost")) == (([1], []) if told == "stored" else ([], [1]))
    assert (finaliser.count, finaliser.writer.unanswered) == (0, set())


@pytest.mark.parametrize(
    ("kind", "cause"), [(RETRY, "crashed"), (RETRY, "timeout"), (RELEASE, "released"), (RELEASE, None)]
)
def test_what_was_cancelled_before_its_end_was_written_keeps_why_it_failed(
    server: Server, heard: Heard, finaliser: Finaliser, kind: EndKind, cause: str | None
) -> None:
    """A54: the statement refuses to let it start again, and the cancel that is written instead tells the cause."""
    written: list[End] = []

    def cancelled(kind: EndKind, ends: Sequence[End]) -> None:
        if kind == END:
            server.readings.clear()
            written.extend(ends)

    put(finaliser, kind, 1, cause=cause, failure=FAILURE if cause else None)
    server.readings[1] = FenceReading(1, True, False, None, False, True, True, False)
    server.fails = cancelled
    flush(finaliser)
    assert [(end.outcome, end.cause, end.failure) for end in written] == [
        ("cancelled", cause, FAILURE if cause else None)
    ]
    assert heard.told("stored") == [1]


@pytest.mark.parametrize("error", [psycopg.DataError("NUL"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate")])
def test_an_end_that_cannot_even_be_sent_stops_no_other(
    server: Server, heard: Heard, finaliser: Finaliser, error: Exception
) -> None:
    put(finaliser, SUCCESS, 1, 2)

    def fails(kind: EndKind, ends: Sequence[End]) -> None:
        if kind == SUCCESS and any(end.id == 1 for end in ends):
            raise error

    server.fails = fails
    flush(finaliser)
    assert sorted(heard.told("stored")) == [1, 2]
    assert server.writes[-1] == (SUCCESS, [2])
    assert (END, [1]) in server.writes


def test_a_right_that_is_missing_holds_no_end_up(
    server: Server, heard: Heard, finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(db: Any, name: str) -> int:
        raise psycopg.errors.InsufficientPrivilege("must be a superuser")

    monkeypatch.setattr(keeping, "terminate_backends", refused)
    finaliser.terminate("pgjobs x")
    put(finaliser, SUCCESS, 1)
    flush(finaliser)
    assert (finaliser.backends, heard.told("stored")) == ([], [1])


def test_ends_and_suspects_wait_until_the_backends_of_a_dead_executor_have_ended(
    server: Server, heard: Heard, finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told to end, and do so a moment later."""
    left = [3, 1, 0]

    def terminate(db: Any, name: str) -> int:
        assert not server.writes
        return left.pop(0)

    monkeypatch.setattr(keeping, "terminate_backends", terminate)
    finaliser.terminate("pgjobs x")
    put(finaliser, SUCCESS, 1)
    flush(finaliser)
    assert (left, heard.posts[0]) == ([], BackendsEnded("pgjobs x"))
    assert heard.told("stored") == [1]


def test_backends_that_do_not_end_hold_nothing_up_for_ever(
    server: Server,
    heard: Heard,
    finaliser: Finaliser,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(finaliser_module, "BACKENDS_SECONDS", 0.05)
    monkeypatch.setattr(keeping, "terminate_backends", lambda db, name: 1)
    finaliser.terminate("pgjobs x")
    flush(finaliser)
    assert heard.posts == [BackendsEnded("pgjobs x")]
    assert "do not end processes=1" in caplog.text


def test_unflushed_failures_are_bounded_as_results_are(finaliser: Finaliser) -> None:
    assert not finaliser.full
    put(finaliser, RETRY, 1, failure=Failure("E", "", (), "x" * (UNFLUSHED_BYTES // 2)))
    put(finaliser, SUCCESS, 2, result="x" * (UNFLUSHED_BYTES // 2))
    assert finaliser.full


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (None, "its row is gone"),
        ((False, False, None, True), "another claim has it"),
        ((False, False, None, False), "it was rescued or released"),
        ((False, True, None, True), "it has ended under another claim"),
        ((True, True, "lost", True), "rescue has ended it"),
    ],
)
def test_a_refused_write_is_told_with_what_it_was_and_why(
    server: Server, heard: Heard, finaliser: Finaliser, reading: Any, reason: str
) -> None:
    """C58 P36: and it is counted."""
    runs = put(finaliser, SUCCESS, 1)
    if reading is None:
        server.gone = {1}
    else:
        ours, ended, cause, claimed = reading
        server.readings[1] = FenceReading(1, ours, ended, cause, False, False, claimed, False)
    flush(finaliser)
    assert heard.posts == [RefusedEnds([(runs[0], "complete the job", reason)])]
    assert finaliser.writer.refused == {"complete the job": 1}


def test_two_runs_of_one_job_are_never_written_by_one_statement(
    server: Server, heard: Heard, finaliser: Finaliser
) -> None:
    """C45 P37: the first run lost it and this worker has claimed it again: the id alone names both."""
    first, other, second = put(finaliser, SUCCESS, 1)[0], put(finaliser, SUCCESS, 2)[0], put(finaliser, SUCCESS, 1)[0]
    flush(finaliser)
    assert [ids for _, ids in server.writes] == [[1, 2], [1]]
    assert len({first.fence, other.fence, second.fence}) == 2


def test_progress_that_cannot_be_stored_costs_its_own_job_only(
    finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is not tried again; an outcome that waits behind it is written."""
    stored: list[int] = []

    def write(db: Any, reports: list[tuple[int, str, str]]) -> list[int]:
        if any(text == "bad" for _, _, text in reports):
            raise psycopg.DataError("unsupported Unicode escape sequence")
        stored.extend(id for id, _, _ in reports)
        return [id for id, _, _ in reports]

    monkeypatch.setattr(finalising, "write_progress", write)
    for id, text in ((1, "{}"), (2, "bad"), (3, "{}")):
        finaliser.report(id, f"claim-{id}", text)
    flush(finaliser)
    flush(finaliser)
    assert stored == [1, 3]
    assert [record.message for record in caplog.records] == [
        "progress cannot be stored job=2: unsupported Unicode escape sequence"
    ]


def test_progress_of_a_job_that_another_has_claimed_is_refused_and_told(
    finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P36: but not of one whose end this worker has just written."""
    monkeypatch.setattr(finalising, "write_progress", lambda db, reports: [4])
    readings = {
        1: FenceReading(1, False, False, None, False, False, True, False),
        2: FenceReading(2, False, False, "failed", False, False, False, False),
        3: FenceReading(3, True, True, None, False, False, True, False),
    }
    monkeypatch.setattr(finalising, "read_fences", lambda db, fences: {id: readings[id] for id, _ in fences})
    for id in (1, 2, 3, 4):
        finaliser.report(id, f"claim-{id}", "{}")
    flush(finaliser)
    assert finaliser.writer.refused == {"store progress": 1}
    assert [record.message for record in caplog.records] == [
        "lease lost, could not store progress job=1 claim=claim-1: another claim has it"
    ]


def test_a_reading_that_fails_unforeseen_goes_to_the_loop_and_keeps_the_end(
    server: Server, finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C51: what cannot be classified is an error with its traceback, tried again; rescue is the last resort."""
    put(finaliser, SUCCESS, 1)
    server.locked = {1}

    def odd(db: Any, fences: Any) -> Any:
        raise KeyError("a reason nobody has thought of")

    monkeypatch.setattr(finalising, "read_fences", odd)
    with pytest.raises(KeyError):
        flush(finaliser)
    assert finaliser.count == 1


@pytest.mark.parametrize("kind", [SUCCESS, RETRY, RELEASE], ids=str)
def test_an_end_whose_writing_fails_is_kept_and_never_taken_for_refused(
    server: Server, heard: Heard, finaliser: Finaliser, kind: EndKind
) -> None:
    """C52 C56: trouble with the server is no answer; it is for the loop to tell, and the end is written afterwards."""
    put(finaliser, kind, 1, cause="failed", failure=FAILURE)

    def away(kind: EndKind, ends: Sequence[End]) -> None:
        raise psycopg.OperationalError("server closed the connection")

    server.fails = away
    with pytest.raises(psycopg.OperationalError):
        flush(finaliser)
    assert (heard.posts, finaliser.count, finaliser.writer.refused) == ([], 1, {})
    server.fails = lambda kind, ends: None
    flush(finaliser)
    assert (heard.told("stored"), finaliser.count) == ([1], 0)


# Ends of which nothing is kept


@pytest.fixture
def unkept(settings: Any, server: Server, heard: Heard) -> Finaliser:
    """A finaliser that deletes successes, and of the queue bulk whatever ends."""
    nothing = {"succeeded": 0, "cancelled": 0, "abandoned": 0}
    settings.PGJOBS = {"RETENTION": {"succeeded": 0, "queues": {"bulk": nothing, "bill": {"succeeded": 9}}}}
    return Finaliser(lambda: pytest.fail("connected"), heard, Author(UUID(int=1)))


def put_both(finaliser: Finaliser, queue: str) -> None:
    finaliser.put(SUCCESS, run_of(1, queue=queue), End(1, "claim-1", 1.0, result="1"))
    finaliser.put(END, run_of(2, queue=queue), End(2, "claim-2", 1.0, outcome="abandoned", failure=FAILURE))


@pytest.mark.parametrize(
    ("queue", "written"),
    [
        ("default", [(END, [2]), (DELETE, [1])]),
        ("bulk", [(DELETE, [1, 2])]),
        ("bill", [(SUCCESS, [1]), (END, [2])]),
    ],
)
def test_what_is_not_kept_is_deleted(
    unkept: Finaliser, server: Server, heard: Heard, queue: str, written: list[tuple[EndKind, list[int]]]
) -> None:
    """P28 X7: by outcome and queue; told as what it was."""
    put_both(unkept, queue)
    flush(unkept)
    assert server.writes == written
    assert {(stored.kind, entry[0].job.id) for stored in heard.of(Stored) for entry in stored.entries} == {
        (SUCCESS, 1), (END, 2),
    }  # fmt: skip
    assert unkept.count == 0


def test_what_cannot_be_deleted_at_once_is_ended_and_kept(unkept: Finaliser, server: Server, heard: Heard) -> None:
    """Somebody waits for it, or has it locked: no second try at deleting."""
    server.locked = {1}

    def unlock(kind: EndKind, ends: Sequence[End]) -> None:
        if kind == SUCCESS:
            server.locked = set()

    server.fails = unlock
    put_both(unkept, "bulk")
    flush(unkept)
    assert server.writes == [(DELETE, [1, 2]), (SUCCESS, [1])]
    assert sorted(heard.told("stored")) == [1, 2]


@pytest.mark.parametrize(
    "objection", [psycopg.errors.ForeignKeyViolation("still"), psycopg.errors.RaiseException("no")]
)
def test_what_another_table_or_a_trigger_holds_is_ended_and_kept(
    unkept: Finaliser, server: Server, heard: Heard, objection: Exception
) -> None:
    """A success is no failure because its row cannot go."""

    def refuse(kind: EndKind, ends: Sequence[End]) -> None:
        if kind == DELETE:
            raise objection

    server.fails = refuse
    put_both(unkept, "bulk")
    flush(unkept)
    assert server.writes == [(DELETE, [1, 2]), (SUCCESS, [1]), (END, [2])]
    assert sorted(heard.told("stored")) == [1, 2]


def test_a_row_that_is_gone_after_an_answer_was_lost_was_deleted_by_that_try(
    unkept: Finaliser, server: Server, heard: Heard
) -> None:
    """C39 C58: done before, never lost."""
    link = Link()
    server.fails = break_at(link, DELETE)
    put_both(unkept, "bulk")
    with pytest.raises(psycopg.OperationalError):
        flush(unkept, link)
    server.gone = {1, 2}
    flush(unkept, Link())
    assert (sorted(heard.told("stored")), heard.told("lost"), unkept.writer.unanswered) == ([1, 2], [], set())


def test_so_it_is_when_its_end_has_gone_over_to_the_other_statement_meanwhile(
    unkept: Finaliser, server: Server, heard: Heard
) -> None:
    """The first try may still be at it, and commits after the second has found its row locked."""
    link = Link()
    server.fails = break_at(link, DELETE)
    put_both(unkept, "bulk")
    with pytest.raises(psycopg.OperationalError):
        flush(unkept, link)
    server.locked = {1, 2}
    flush(unkept, Link())
    assert heard.posts == []
    server.locked, server.gone = set(), {1, 2}
    unkept.busy.until = 0.0
    flush(unkept, Link())
    assert server.writes[-2:] == [(SUCCESS, [1]), (END, [2])]
    assert (sorted(heard.told("stored")), heard.told("lost")) == ([1, 2], [])


def test_a_row_that_is_gone_though_no_answer_was_lost_is_another_ones_doing(
    unkept: Finaliser, server: Server, heard: Heard
) -> None:
    """C2 C39: rescued, run and deleted by another worker; a statement that the server gave up deletes nothing."""
    link = Link()

    def give_up(kind: EndKind, ends: Sequence[End]) -> None:
        server.fails = lambda kind, ends: None
        raise psycopg.errors.QueryCanceled("statement timeout")

    server.fails = give_up
    put_both(unkept, "bulk")
    with pytest.raises(psycopg.errors.QueryCanceled):
        flush(unkept, link)
    server.gone = {1, 2}
    flush(unkept, link)
    assert (heard.told("stored"), sorted(heard.told("lost"))) == ([], [1, 2])


def test_what_is_handed_back_is_told_to_other_workers_once(
    server: Server, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They sleep until they hear of something, or their poll; that the word cannot be sent writes nothing again."""
    told: list[set[tuple[str, int]]] = []

    def notify(db: Any, pairs: set[tuple[str, int]], *, behind: bool) -> None:
        assert behind
        told.append(pairs)
        if len(told) == 1:
            raise psycopg.OperationalError("server closed the connection")

    monkeypatch.setattr(notifying, "notify_queues", notify)

    def write(db: Any, kind: EndKind, ends: Sequence[End], terms: EndTerms) -> dict[int, Any]:
        return {end.id: ReleasedJob(end.id, "a", 0) for end in ends}

    monkeypatch.setattr(kinds, "write", write)
    finaliser = Finaliser(lambda: pytest.fail("connected"), heard, Author(UUID(int=1)))
    finaliser.put_many(RELEASE, [(run_of(1), End(1, "c")), (run_of(2), End(2, "c"))])
    link: Any = object()
    with pytest.raises(psycopg.OperationalError):
        finaliser._flush(link)
    finaliser._flush(link)
    assert told == [{("a", 0)}]
    assert heard.told("stored") == [1, 2]
    assert finaliser.count == 0


def test_results_are_remembered_by_the_batches_that_have_some(
    server: Server, heard: Heard, finaliser: Finaliser
) -> None:
    """The others go by the statement that knows nothing of keys, and nobody looks, until the first key is met."""
    put(finaliser, SUCCESS, 1, 2)
    flush(finaliser)
    finaliser.writer.remembers = True
    put(finaliser, SUCCESS, 3, 4)
    flush(finaliser)
    runs = put(finaliser, SUCCESS, 5, 6, 7)
    runs[1].remembers = True
    flush(finaliser)
    assert server.remembered == [False, False, False, True]
    assert [ids for _, ids in server.writes] == [[1, 2], [3, 4], [5, 7], [6]]
    assert sorted(heard.told("stored")) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", [SUCCESS, DELETE], ids=str)
def test_only_the_ends_beside_those_with_a_key_are_fast(server: Server, finaliser: Finaliser, kind: EndKind) -> None:
    """A locked row among those with a key is skipped, and makes no batch wait."""
    finaliser.writer.remembers = True
    for run in put(finaliser, kind, 1, 2, 3)[1:]:
        run.remembers = True
    server.locked = {2}
    flush(finaliser)
    assert server.writes[:2] == [(kind, [1]), (kind, [2, 3])]
    assert not finaliser.writer.skips_locked


def test_where_the_ends_with_a_key_fail_the_others_are_written_once(
    server: Server, heard: Heard, finaliser: Finaliser
) -> None:
    def fails(kind: EndKind, ends: Sequence[End]) -> None:
        if ends[0].id == 2:
            server.fails = lambda kind, ends: None
            raise psycopg.errors.QueryCanceled("statement timeout")

    server.fails, finaliser.writer.remembers = fails, True
    put(finaliser, SUCCESS, 1, 2)[1].remembers = True
    with pytest.raises(psycopg.errors.QueryCanceled):
        flush(finaliser)
    flush(finaliser)
    assert [ids for _, ids in server.writes] == [[1], [2], [2]]
    assert heard.told("stored") == [1, 2]


def test_what_is_queued_when_it_is_to_stop_is_written_first(server: Server, heard: Heard, finaliser: Finaliser) -> None:
    put(finaliser, SUCCESS, 1, 2)
    finaliser.stopping.set()
    finaliser.serve(cast(Any, SimpleNamespace(identity=SimpleNamespace(deadlock_seconds=1.0))))
    assert heard.told("stored") == [1, 2]
    assert finaliser.count == 0


def test_it_has_a_connection_from_the_first_claim_until_nothing_came_for_long(
    server: Server, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5: at rest a worker has none for ends; what comes then is written as ever."""
    monkeypatch.setattr(finaliser_module, "REST_SECONDS", 0.05)
    made: list[Any] = []

    def connect() -> Any:
        way = SimpleNamespace(gone=False, statements=0, identity=SimpleNamespace(deadlock_seconds=1.0))
        way.inherit, way.close = lambda old: None, lambda: setattr(way, "gone", True)
        made.append(way)
        return way

    finaliser = Finaliser(connect, heard, Author(UUID(int=1)))
    finaliser.start()
    finaliser.expect()
    wait_until(lambda: made and made[0].gone, 5, "nothing came, it is closed")
    put(finaliser, SUCCESS, 1)
    wait_until(lambda: heard.told("stored") == [1], 5, "an end is written on the next one")
    wait_until(lambda: len(made) == 2 and made[1].gone, 5, "which is closed, too")
    put(finaliser, SUCCESS, 2)
    finaliser.stop()
    finaliser.join(patience(5))
    assert not finaliser.is_alive()
    assert heard.told("stored") == [1, 2]
