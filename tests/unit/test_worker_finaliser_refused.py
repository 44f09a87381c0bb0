"""What becomes of ends whose writing fails half-way, is in vain, or was done by somebody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from django_pgjobs.ends.kinds import END, MARK, RELEASE, RETRY, SUCCESS, EndKind
from django_pgjobs.store import finalising
from django_pgjobs.store.finalising import End, FenceReading
from django_pgjobs.worker.threads.finaliser import (
    Finaliser,
)
from django_pgjobs.worker.threads.inbox_messages import RefusedEnds
from tests.unit.finaliser_ground import FAILURE, Link, Server, break_at, flush, put
from tests.unit.worker_fakes import Heard


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
