"""What becomes of ends whose writing fails half-way, is in vain for the moment, or was done by somebody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from django_pgjobs import clock, finalising, store
from django_pgjobs.attempt import BODY, ON_ABANDON
from django_pgjobs.decisions import Failure
from django_pgjobs.finalising import END, MARK, RETRY, SUCCESS
from django_pgjobs.store import Author, End, FenceReading
from django_pgjobs.worker.acking import BATCH, BUSY_SECONDS, UNFLUSHED_BYTES, Acker
from django_pgjobs.worker.runs import Run
from tests.unit.worker_fakes import run_of

FAILURE = Failure("ValueError", "no", (), "traceback")
Posts = list[tuple[Any, ...]]


class Heard:
    """An inbox whose messages can be read."""

    def __init__(self) -> None:
        self.posts: Posts = []

    def post(self, *message: Any) -> None:
        self.posts.append(message)

    def told(self, kind: str) -> list[int]:
        """The ids that were told of, in order, once for each time."""
        if kind == "lost":
            return [run.job.id for what, *facts in self.posts if what == "lost" for run in facts[0]]
        return [run.job.id for what, *facts in self.posts if what == "stored" for run, _, _ in facts[1]]


class Server:
    """Answers for the statements of a flush: ``locked`` rows are busy, others are recorded unless a test says more."""

    def __init__(self) -> None:
        self.locked: set[int] = set()
        self.readings: dict[int, FenceReading] = {}
        self.writes: list[tuple[str, list[int]]] = []
        self.fails: Callable[[str, Sequence[End]], None] = lambda kind, ends: None
        self.away = False

    def write(self, db: Any, kind: str, ends: Sequence[End], author: Author) -> dict[int, Any]:
        self.writes.append((kind, [end.id for end in ends]))
        self.fails(kind, ends)
        return {end.id: None for end in ends if end.id not in self.locked and end.id not in self.readings}

    def read_fences(self, db: Any, fences: Sequence[tuple[int, str]]) -> dict[int, FenceReading]:
        if self.away:
            raise psycopg.OperationalError("server closed the connection")
        busy = {id: FenceReading(id, True, False, None, False, False) for id, _ in fences if id in self.locked}
        return busy | {id: self.readings[id] for id, _ in fences if id in self.readings}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(finalising, "write", server.write)
    monkeypatch.setattr(store, "read_fences", server.read_fences)
    monkeypatch.setattr(store, "delete_claims", lambda db, claims: 0)
    return server


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def acker(server: Server, heard: Heard) -> Acker:
    def refuses() -> Any:
        raise AssertionError("no connection is made here")

    return Acker(refuses, heard, Author(UUID(int=1)))


def put(acker: Acker, kind: str, *ids: int, what: str = BODY, **facts: Any) -> list[Run]:
    runs = [run_of(id, kind=what) for id in ids]
    acker.put_many(kind, [(run, End(run.job.id, run.claim.claim_id, 0.1, **facts)) for run in runs])
    return runs


def flush(acker: Acker) -> None:
    acker._flush(None)  # type: ignore[arg-type]


def test_what_was_told_is_not_told_again_when_the_rest_of_a_batch_fails(
    server: Server, heard: Heard, acker: Acker
) -> None:
    """A claim counts its jobs down: told twice, it would count as finished, and the leases of the others lapse."""
    put(acker, SUCCESS, 1, 2, 3)
    server.locked, server.away = {2}, True
    with pytest.raises(psycopg.OperationalError):
        flush(acker)
    assert heard.told("stored") == [1, 3]
    assert acker.count == 1
    server.locked, server.away = set(), False
    flush(acker)
    assert heard.told("stored") == [1, 3, 2]
    assert (acker.count, acker.bytes) == (0, 0)


def test_a_callback_starts_once_when_the_other_half_of_a_batch_fails(
    server: Server, heard: Heard, acker: Acker
) -> None:
    put(acker, MARK, 1, 2, outcome="abandoned")

    def fails(kind: str, ends: Sequence[End]) -> None:
        if len(ends) > 1:
            raise psycopg.errors.NumericValueOutOfRange("22003")
        if ends[0].id == 2:
            raise psycopg.OperationalError("server closed the connection")

    server.fails = fails
    with pytest.raises(psycopg.OperationalError):
        flush(acker)
    server.fails = lambda kind, ends: None
    flush(acker)
    assert heard.told("stored") == [1, 2]


def test_busy_rows_are_tried_once_a_flush_and_then_waited_for(
    server: Server, heard: Heard, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many: an open transaction on the whole table must not have us ask for it in a loop."""
    monkeypatch.setattr(clock, "monotonic", lambda: 100.0)
    put(acker, SUCCESS, *range(1, BATCH + 11))
    server.locked = set(range(1, BATCH + 6))
    flush(acker)
    assert [len(ids) for _, ids in server.writes] == [BATCH, 10]
    assert heard.told("stored") == list(range(BATCH + 6, BATCH + 11))
    assert (acker.count, acker.busy, acker.busy_until) == (BATCH + 5, BATCH + 5, 100.0 + BUSY_SECONDS)
    waits: list[tuple[bool, float | None]] = []

    def wait_for(predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        waits.append((predicate(), timeout))
        return False

    monkeypatch.setattr(acker.wake, "wait_for", wait_for)
    assert acker._until_due()
    put(acker, SUCCESS, *range(10_000, 10_000 + BATCH))
    assert acker._until_due()
    acker.stopping.set()
    assert acker._until_due()
    assert [fact for fact, _ in waits[:2]] == [False, True]
    assert [timeout for _, timeout in waits] == [pytest.approx(BUSY_SECONDS)] * 3


@pytest.mark.parametrize(
    ("kind", "facts", "reading", "told"),
    [
        (SUCCESS, {}, (True, True, None), "stored"),
        (SUCCESS, {}, (True, True, "lost"), "lost"),
        (SUCCESS, {}, (True, True, "timeout"), "lost"),
        (SUCCESS, {}, (False, False, "lost"), "lost"),
        (SUCCESS, {}, (False, True, None), "lost"),
        (END, {"outcome": "abandoned", "cause": "failed"}, (True, True, "failed"), "stored"),
        (END, {"outcome": "abandoned", "cause": "timeout"}, (True, True, "timeout"), "stored"),
        (END, {"outcome": "cancelled"}, (True, True, "lost"), "lost"),
        (END, {"outcome": "abandoned", "what": ON_ABANDON}, (True, True, "timeout"), "stored"),
        (RETRY, {"cause": "failed", "failure": FAILURE}, (False, False, "failed"), "stored"),
        (RETRY, {"cause": "failed", "failure": FAILURE}, (False, False, "lost"), "lost"),
    ],
)
def test_an_end_that_was_written_by_an_earlier_try_is_told_from_one_that_rescue_wrote(
    server: Server, heard: Heard, acker: Acker, kind: str, facts: dict[str, Any], reading: Any, told: str
) -> None:
    """``reading``: the claim is still ours, the job has ended, the cause in the history under our claim."""
    ours, ended, cause = reading
    put(acker, kind, 1, **facts)
    server.readings[1] = FenceReading(1, ours, ended, cause, False, False)
    flush(acker)
    assert (heard.told("stored"), heard.told("lost")) == (([1], []) if told == "stored" else ([], [1]))
    assert acker.count == 0


@pytest.mark.parametrize("error", [psycopg.DataError("NUL"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate")])
def test_an_end_that_cannot_even_be_sent_stops_no_other(
    server: Server, heard: Heard, acker: Acker, error: Exception
) -> None:
    put(acker, SUCCESS, 1, 2)

    def fails(kind: str, ends: Sequence[End]) -> None:
        if kind == SUCCESS and any(end.id == 1 for end in ends):
            raise error

    server.fails = fails
    flush(acker)
    assert sorted(heard.told("stored")) == [1, 2]
    assert server.writes[-1] == (SUCCESS, [2])
    assert (END, [1]) in server.writes


def test_a_right_that_is_missing_holds_no_end_up(
    server: Server, heard: Heard, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(db: Any, name: str) -> None:
        raise psycopg.errors.InsufficientPrivilege("must be a superuser")

    monkeypatch.setattr(store, "terminate_backends", refused)
    acker.terminate("pgjobs x")
    put(acker, SUCCESS, 1)
    flush(acker)
    assert (acker.backends, heard.told("stored")) == ([], [1])


def test_unflushed_failures_are_bounded_as_results_are(acker: Acker) -> None:
    assert not acker.full
    put(acker, RETRY, 1, failure=Failure("E", "", (), "x" * (UNFLUSHED_BYTES // 2)))
    put(acker, SUCCESS, 2, result="x" * (UNFLUSHED_BYTES // 2))
    assert acker.full
