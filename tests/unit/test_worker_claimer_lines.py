"""The claimer asks by names for what there is room for: threads and loops each by their own line."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID

import pytest

from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import ClaimedJob, ClaimReply, Line
from django_pgjobs.worker.threads.claim_options import ClaimOptions
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.inbox_messages import Idle
from tests.unit.claimer_fakes import DB, TOO_LARGE, refusing, taking_one
from tests.unit.worker_fakes import DUE, Heard, claimed

# Lines of two colours


class Lines:
    """A store of jobs of two colours; ``asked`` keeps the limits of each claim."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ready: int) -> None:
        self.ready = {False: ready.get("plain", 0), True: ready.get("on_loop", 0)}
        self.asked: list[dict[bool, int]] = []
        self.ids = itertools.count(1)
        monkeypatch.setattr(claiming, "claim_lines", self.claim)

    def claim(self, db: Any, lines: dict[bool, Line], names: Any, *, most: int | None, **_: Any) -> ClaimReply:
        self.asked.append({is_async: line.limit for is_async, line in lines.items()})
        jobs: list[ClaimedJob] = []
        for is_async, line in lines.items():
            count = min(self.ready[is_async], line.limit)
            count = count if most is None else min(count, most - len(jobs))
            self.ready[is_async] -= count
            name = "on.loop" if is_async else "plain"
            jobs += [claimed(next(self.ids), name=name, queue="a") for _ in range(count)]
        return ClaimReply(jobs, DUE)


@pytest.fixture
def coloured(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Claimer:
    """A claimer whose code has an ``async def`` job."""
    options = ClaimOptions(
        UUID(int=1), lease_seconds=30, allowance_seconds=5, grace_seconds=30, poll_seconds=5.0, notify=True
    )
    claimer = Claimer(lambda: DB, heard, Frontier(frozenset("ab")), options, frozenset({"on.loop"}))
    monkeypatch.setattr(claiming, "list_pairs", lambda db: [("a", 0), ("c", 0)])
    monkeypatch.setattr(claiming, "next_due", lambda db, pairs: None)
    claimer.listening.set()
    return claimer


def claim_as_wanted(claimer: Claimer) -> bool:
    wanted, _ = claimer._until_wanted()
    return claimer._claim(DB, wanted)


def test_a_line_that_was_not_read_since_an_announcement_stays_hungry(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a home whose loop always has room would ask for no thread while another has all."""
    Lines(monkeypatch)
    coloured.request(0, 5)
    coloured.wake_for(("a", 0))
    claim_as_wanted(coloured)
    assert [coloured.is_hungry(line, 0.0) for line in (False, True)] == [True, False]
    coloured.request(1, 5)
    claim_as_wanted(coloured)
    assert not coloured.is_hungry(False, 0.0)


def test_each_colour_is_asked_for_by_its_own_room(coloured: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is full keeps nobody from threads, whatever stands in front."""
    lines = Lines(monkeypatch, plain=3, on_loop=9)
    coloured.request(2, 4)
    assert claim_as_wanted(coloured), "it waits until there is room again"
    coloured.request(2, 4)
    assert coloured.room.wanted == {False: 0, True: 0}, "main speaks of room that jobs on their way to it take"
    coloured.adopted([claimed(1), claimed(2), *(claimed(id, name="on.loop") for id in range(3, 7))])
    coloured.request(2, 0)
    claim_as_wanted(coloured)
    assert lines.asked == [{False: 2, True: 4}, {False: 2}]
    assert lines.ready == {False: 0, True: 5}
    assert [set(frontier.reaches) for frontier in coloured.lines.values()] == [{("a", 0)}] * 2, "of queues it serves"


def test_a_callback_takes_up_room_in_threads_whatever_its_job_is(coloured: Claimer) -> None:
    coloured.adopted([claimed(1, name="on.loop", ending="abandoned"), claimed(2, name="on.loop"), claimed(3)])
    assert coloured.room.unadopted == {False: -2, True: -1}


def test_room_for_what_was_left_ends_the_rest_and_room_for_what_is_not_there_does_not(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand idle; each place on the loop that comes free is filled at once, and nobody asks in vain."""
    Lines(monkeypatch, on_loop=9)
    coloured.request(2, 4)
    assert not claim_as_wanted(coloured), "for threads there is nothing"
    assert not coloured.room.may_find_more()
    coloured.adopted([claimed(id, name="on.loop") for id in range(4)])
    coloured.request(2, 1)
    assert coloured.room.may_find_more()
    coloured.request(2, 0)
    assert not coloured.room.may_find_more()


@pytest.mark.parametrize(
    ("dry", "before", "now", "woken"),
    [
        ((False, False), (0, 0), (1, 0), True),
        ((True, True), (0, 0), (1, 0), True),  # it sleeps without an end while there is no room
        ((True, False), (2, 0), (2, 1), True),
        ((True, True), (2, 0), (3, 0), False),
        ((False, False), (0, 0), (0, 0), False),
    ],
)
def test_room_wakes_the_thread_that_had_none_or_may_find_something_for_it(
    coloured: Claimer,
    monkeypatch: pytest.MonkeyPatch,
    dry: tuple[bool, bool],
    before: tuple[int, int],
    now: tuple[int, int],
    woken: bool,
) -> None:
    coloured.request(*before)
    coloured.room.dry = dict(zip((False, True), dry, strict=True))
    wakes: list[None] = []
    monkeypatch.setattr(coloured.wake, "notify_all", lambda: wakes.append(None))
    coloured.request(*now)
    assert bool(wakes) is woken


def test_what_was_not_asked_about_may_be_there_as_soon_as_there_is_room(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes in meanwhile is heard of while nobody can take it."""
    Lines(monkeypatch)
    coloured.request(2, 4)
    assert not claim_as_wanted(coloured)
    coloured.request(0, 4)
    assert not claim_as_wanted(coloured)
    coloured.request(1, 4)
    assert coloured.room.may_find_more()


def test_idle_is_said_only_when_both_colours_were_looked_at(
    coloured: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coloured, "_sleep", lambda seconds, notified: False)
    Lines(monkeypatch)
    coloured.request(2, 0)
    claim_as_wanted(coloured)
    coloured._rest(DB, 0)
    assert heard.posts == []
    coloured.request(2, 4)
    claim_as_wanted(coloured)
    coloured._rest(DB, 0)
    assert [type(message) for message in heard.posts] == [Idle]


def test_no_more_are_claimed_of_both_colours_than_are_to_be_run(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines(monkeypatch, plain=2, on_loop=9)
    coloured.request(4, 4, most=3)
    claim_as_wanted(coloured)
    assert lines.ready == {False: 0, True: 8}
    assert (coloured.room.most, coloured.room.is_free()) == (0, False)
    coloured.request(4, 4, most=3)
    assert not coloured.room.is_free(), "three are on their way to main"


def test_the_row_that_makes_a_claim_of_two_lines_fail_is_looked_for_in_both(
    coloured: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[dict[bool, int]] = []

    def claim_lines(db: Any, lines: dict[bool, Line], names: Any, **_: Any) -> ClaimReply:
        tried.append({is_async: line.limit for is_async, line in lines.items()})
        raise TOO_LARGE

    monkeypatch.setattr(claiming, "claim_lines", claim_lines)
    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, *, is_async, async_names: 8 if is_async else 7)
    taking_one(monkeypatch, lambda job_id: refusing([], 1) if job_id == 8 else [claimed(job_id)])
    parked: list[int] = []

    def park(db: Any, job_id: int, *_: Any) -> list[int]:
        parked.append(job_id)
        return [job_id]

    monkeypatch.setattr(claiming, "park_unclaimable", park)
    coloured._claim(DB, {False: 1, True: 3})
    assert tried == [{False: 1, True: 3}, {False: 1, True: 1}]
    assert (parked, coloured.room.unadopted) == ([8], {False: 1, True: 0})


# Queues that have places


def test_a_queue_that_is_full_is_not_asked_for_and_wakes_nobody(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ClaimOptions(
        UUID(int=1), lease_seconds=30, allowance_seconds=5, grace_seconds=30, poll_seconds=5.0, notify=True
    )
    claimer = Claimer(lambda: DB, heard, Frontier(), options, queues=frozenset({"a", "pgjobs"}))
    claimer.listening.set()
    monkeypatch.setattr(claiming, "list_pairs", lambda db: [("a", 0), ("b", 0), ("pgjobs", 0)])
    asked: list[dict[Any, tuple[list[str], int]]] = []

    def claim_lines(db: Any, lines: dict[Any, Line], names: Any, **_: Any) -> ClaimReply:
        asked.append({key: ([pair.queue for pair in line.pairs], line.limit) for key, line in lines.items()})
        ready = 2 if (False, "a") in lines else 0
        return ClaimReply([claimed(id, queue="a") for id in range(ready)], DUE)

    monkeypatch.setattr(claiming, "claim_lines", claim_lines)
    claimer.request(4, slots={"a": 2})
    claim_as_wanted(claimer)
    assert asked == [{False: (["b"], 1), (False, "a"): (["a"], 2), (False, "pgjobs"): (["pgjobs"], 1)}]
    claimer.adopted([claimed(id, queue="a") for id in range(2)])
    claimer.request(2, slots={"a": 0})
    claim_as_wanted(claimer)
    assert set(asked[1]) == {False, (False, "pgjobs")}
    wakes: list[None] = []
    monkeypatch.setattr(claimer.wake, "notify_all", lambda: wakes.append(None))
    claimer.wake_for(("a", 0))
    claimer.wake_for_released("a")
    claimer.request(2, slots={"a": 0})
    assert not wakes
    assert not claimer.is_hungry(False, 0.0), "it could take none of what was announced"
    assert claimer.serves("a")
    assert claimer.serves("pgjobs")
    claimer.request(2, slots={"a": 1})
    assert wakes, "now there is room for what was announced"
    assert claimer.is_hungry(False, 0.0)
    claim_as_wanted(claimer)
    assert (False, "a") in asked[2]


@pytest.mark.parametrize("slots", [None, {"a": 2}, {"a": 2, "*": 9}])
def test_a_backlog_stays_hungry_while_all_threads_are_taken(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, slots: dict[str, int] | None
) -> None:
    """Else, of several homes, one with places would get no thread beside others."""
    options = ClaimOptions(
        UUID(int=1), lease_seconds=30, allowance_seconds=5, grace_seconds=30, poll_seconds=5.0, notify=True
    )
    queues = frozenset({"a", "pgjobs"}) if slots else frozenset[str]()
    claimer = Claimer(lambda: DB, heard, Frontier(), options, queues=queues)
    claimer.listening.set()
    monkeypatch.setattr(claiming, "list_pairs", lambda db: [("b", 0)])
    ids = itertools.count(1)

    def claim_lines(db: Any, lines: dict[Any, Line], names: Any, **_: Any) -> ClaimReply:
        return ClaimReply([claimed(next(ids), queue="b") for _ in range(lines[False].limit)], DUE)

    monkeypatch.setattr(claiming, "claim_lines", claim_lines)
    claimer.request(4, slots=slots)
    claim_as_wanted(claimer)
    claimer.adopted([claimed(id, queue="b") for id in range(1, next(ids))])
    claimer.request(0, slots=slots)
    assert claimer.is_hungry(False, 0.0)
    if slots and "*" in slots:
        claimer.request(0, slots={"a": 2, "*": 0})
        assert not claimer.is_hungry(False, 0.0), "its queues are full"
