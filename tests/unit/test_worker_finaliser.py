"""When ends are written: in batches, as soon as they may, and before all else when the worker stops."""

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
from django_pgjobs.ends.kinds import RELEASE, RETRY, SUCCESS, EndKind, EndTerms
from django_pgjobs.store import finalising, keeping, notifying
from django_pgjobs.store.finalising import Author, End, ReleasedJob
from django_pgjobs.worker.threads import finaliser as finaliser_module
from django_pgjobs.worker.threads.busy_ends import PAUSE_SECONDS
from django_pgjobs.worker.threads.finaliser import (
    BATCH,
    BUSY_LIMIT,
    FLUSH_SECONDS,
    UNFLUSHED_BYTES,
    Finaliser,
)
from django_pgjobs.worker.threads.inbox_messages import BackendsEnded
from tests.plugins.fix_db import patience, wait_until
from tests.unit.finaliser_ground import Server, flush, put
from tests.unit.worker_fakes import Heard, run_of


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


def test_progress_that_cannot_be_stored_costs_its_own_job_only(
    finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is not tried again; an outcome that waits behind it is written."""
    stored: list[int] = []

    def write(db: Any, reports: list[finalising.RunReport]) -> list[int]:
        if any(given == {"progress": "bad"} for _, _, given in reports):
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


def test_a_report_is_written_before_the_end_behind_it(
    server: Server, finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fence would not hold any more: the peak that says why a job was stopped would be lost."""
    ended_before: list[int] = []

    def write(db: Any, reports: list[finalising.RunReport]) -> list[int]:
        ended_before.append(len(server.writes))
        return [id for id, _, _ in reports]

    monkeypatch.setattr(finalising, "write_progress", write)
    finaliser.report(1, "claim-1", peaks="1:50-151")
    put(finaliser, SUCCESS, 1)
    flush(finaliser)
    assert (ended_before, len(server.writes)) == ([0], 1)


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
