"""A frontier that would read too much at once: it takes slices, and walks past jobs of the other colour."""

from __future__ import annotations

from bisect import bisect_right, insort
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_pgjobs.store.claiming import Spot
from django_pgjobs.worker.threads import reach as room
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.reach import (
    BEGINNING,
    COMMIT_SECONDS,
    DEAR_SECONDS,
    FRONT,
    LATEST,
    NEAR,
    NEAREST_SECONDS,
    NEVER,
    REST,
    SCAN_FACTOR,
    SLICE,
    Reach,
    halfway,
)
from tests.unit.frontier_ground import A, B, frontier_of, job, kinds, reached, spot
from tests.unit.worker_fakes import DUE, claimed

# Slices


def test_a_dear_sweep_goes_on_in_slices_beside_the_frontier() -> None:
    """And begins anew only when it has come to the frontier."""
    frontier = reached(at=spot(0, 500), scan_due=0.0, halvings=1)
    reach = frontier.reaches[A]
    reach.scanned = 0.5
    frontier.highest_id = 500
    began = frontier.plan(1.0)
    assert [visit.kind for visit in began] == [SLICE, FRONT]
    assert began[0].pair.until is not None
    assert began[1].pair[2:4] == spot(0, 500)
    frontier.saw(began, [], 9, 1.0, DEAR_SECONDS)
    assert (reach.scanned_to, reach.scanned, reach.scan_due) == (began[0].pair.until, 0.5, 1.0 + DEAR_SECONDS * 20)
    reach.halvings = 0
    rest = frontier.plan(5.0)
    assert [(visit.kind, visit.pair[2:4]) for visit in rest] == [(REST, began[0].pair.until)]
    frontier.saw(rest, [], 9, 5.0, 0.01)
    assert (reach.scanned_to, reach.scanned) == (BEGINNING, 1.0), "swept since its first slice began"


def test_a_slice_that_is_full_is_gone_on_with_at_once_and_the_frontier_stays() -> None:
    """A million rows released far behind: taken one claim after the other, and the way to them is walked once."""
    frontier = reached(at=spot(0, 500), scan_due=0.0, halvings=1)
    plan = frontier.plan(1.0)
    frontier.saw(plan, [job(1, seconds=-4e10), job(2, seconds=-3.9e10)], 2, 1.0, DEAR_SECONDS)
    reach = frontier.reaches[A]
    assert (reach.at, reach.scanned_to, reach.scan_due) == (spot(0, 500), spot(-3.9e10, 2), 1.0)
    assert frontier.plan(1.1)[0].pair[2:4] == spot(-3.9e10, 2)


def test_rows_of_a_slice_and_of_the_frontier_in_one_claim_are_told_apart() -> None:
    frontier = reached(at=spot(0, 500), scan_due=0.0, halvings=1)
    plan = frontier.plan(1.0)
    frontier.saw(plan, [job(1, seconds=-4e10), job(900, seconds=1)], 2, 1.0, DEAR_SECONDS)
    reach = frontier.reaches[A]
    assert (reach.at, reach.scanned_to) == (spot(1, 900), plan[0].pair.until)


def test_a_near_sweep_begins_behind_a_slice_that_reaches_into_it() -> None:
    """A row found twice would make a full claim look short."""
    frontier = reached(at=spot(0, 500), scan_due=0.0, near_due=0.0, halvings=1)
    frontier.reaches[A].scanned_to = spot(-20)
    piece, near = frontier.plan(1.0)
    assert (piece.kind, near.kind) == (SLICE, NEAR)
    assert piece.pair.until == near.pair[2:4] == spot(-10)


@pytest.mark.parametrize(("took", "halvings"), [(0.09, 3), (0.2, 4), (3.3, 9), (0.01, 2)])
def test_slices_become_smaller_while_they_are_dear_and_larger_when_cheap(took: float, halvings: int) -> None:
    frontier = reached(at=spot(0, 500), scan_due=0.0, halvings=3)
    frontier.saw(frontier.plan(1.0), [], 9, 1.0, took)
    assert frontier.reaches[A].halvings == halvings


def test_a_sweep_that_took_too_long_goes_on_in_smaller_parts_where_it_was() -> None:
    """Else the worker would claim nothing any more while a snapshot keeps millions of dead rows alive."""
    frontier = reached(at=spot(0, 500), scan_due=0.0, halvings=1)
    reach = frontier.reaches[A]
    reach.scanned_to = spot(-4e9, 1)
    frontier.learn([B])
    frontier.reaches[B] = Reach(spot(0, 7), near_due=99.0, scan_due=99.0)
    frontier.gave_up(frontier.plan(1.0), 4.0, 3.2)
    assert (reach.scanned_to, reach.at, reach.halvings) == (spot(-4e9, 1), spot(0, 500), 6)
    assert reach.scan_due == 4.0 + DEAR_SECONDS * SCAN_FACTOR
    assert frontier.reaches[B] == Reach(spot(0, 7), near_due=99.0, scan_due=99.0)
    assert kinds(frontier, 5.0) == {A: [FRONT], B: [FRONT]}


def test_a_near_sweep_that_took_too_long_begins_as_near_as_can_be() -> None:
    frontier = reached(at=spot(0, 500), near_due=0.0)
    frontier.gave_up(frontier.plan(1.0), 4.0, 3.2)
    assert frontier.reaches[A].near_seconds == NEAREST_SECONDS
    assert kinds(frontier, 5.0) == {A: [FRONT]}


def test_a_worker_that_starts_behind_millions_of_dead_rows_claims_what_is_new() -> None:
    """Its first claim begins at the beginning and is given up, as all after it would be."""
    frontier = frontier_of(A)
    frontier.gave_up(frontier.plan(1.0), 4.0, 3.2)
    assert frontier.reaches[A].at == LATEST
    first, second = frontier.plan(4.0)
    assert (first.kind, second.pair.run_at.year) == (SLICE, LATEST[0].year)
    frontier.saw([first, second], [], 9, 4.1, 0.1)
    assert frontier.reaches[A].scan_due == pytest.approx(4.2), "half the time, until all was seen once"


def test_a_frontier_that_others_have_left_far_behind_is_given_up() -> None:
    """All that they have claimed since lies before it, kept by a snapshot: each claim would be given up."""
    frontier = reached(at=spot(-1e6, 500))
    frontier.gave_up(frontier.plan(1.0), 4.0, 3.2)
    assert frontier.reaches[A].at == LATEST


def test_on_a_long_way_to_the_server_sweeps_are_not_dear_for_that() -> None:
    """200 ms each way: what a claim takes at the frontier too does not count."""
    frontier = frontier_of(A)
    frontier.quickest = float("inf")
    for turn in range(60):
        frontier.scan_all()
        frontier.saw(frontier.plan(turn), [], 9, turn, 0.4 if turn % 5 else 0.42)
        assert frontier.reaches[A].halvings == 0
        assert frontier.reaches[A].scan_due < turn + 1
    frontier.scan_all()
    frontier.saw(frontier.plan(61.0), [], 9, 61.0, 0.7)
    assert frontier.reaches[A].halvings == 2


def test_larger_priorities_come_first_and_queues_take_turns() -> None:
    frontier = frontier_of(A, B, ("b", 5), ("c", -3))
    plans = [[(visit.pair.queue, visit.pair.priority) for visit in frontier.plan(0.0)] for _ in range(6)]
    assert all(plan[0] == ("b", 5) and plan[-1] == ("c", -3) for plan in plans)
    assert {plan[1] for plan in plans} == {A, B}


def _spots() -> st.SearchStrategy[Spot]:
    instants = st.datetimes(datetime(2020, 1, 1), datetime(2020, 1, 2))
    return st.tuples(instants.map(lambda instant: instant.replace(tzinfo=UTC)), st.integers(0, 2**40))


@given(_spots(), _spots(), st.integers(0, 2**40))
def test_halving_ends_at_the_lower_place_and_never_leaves_the_two(one: Spot, other: Spot, highest_id: int) -> None:
    """Also within one instant, where a bulk registration has put all its rows."""
    low, high = sorted([one, other])
    for _ in range(200):
        middle = halfway(low, high, highest_id)
        assert low <= middle <= max(high, (low[0], highest_id))
        high = middle
    assert high == low


class World:
    """One pair in memory under a pinned snapshot: nothing that was ever claimed leaves the index."""

    def __init__(self, entry_seconds: float) -> None:
        self.ready: list[Spot] = []
        self.dead: list[Spot] = []
        self.entry_seconds = entry_seconds
        self.now = 0.0
        self.frontier = Frontier()
        self.frontier.learn([A])
        self.came: dict[Spot, float] = {}
        self.waits: list[float] = []

    def add(self, spot: Spot) -> None:
        if spot not in self.came:
            self.came[spot] = self.now
            insort(self.ready, spot)

    def claim(self, limit: int) -> None:
        plan = self.frontier.plan(self.now)
        taken: list[Spot] = []
        walked = 0
        for visit in plan:
            begin = (visit.pair.run_at, visit.pair.id)
            if begin >= LATEST:
                begin = (DUE + timedelta(seconds=self.now - 5), 0)
            end = visit.pair.until or LATEST
            some = self.ready[bisect_right(self.ready, begin) : bisect_right(self.ready, end)][: limit - len(taken)]
            full = len(taken) + len(some) == limit
            stop = some[-1] if full and some else end
            walked += bisect_right(self.dead, stop) - bisect_right(self.dead, begin)
            taken += some
            if full:
                break
        took = 0.001 + walked * self.entry_seconds
        if took > 3.3:
            self.now += 3.3
            self.frontier.gave_up(plan, self.now, 3.3)
            return
        self.now += took
        for one in taken:
            self.ready.remove(one)
            insort(self.dead, one)
            self.waits.append(self.now - self.came[one])
        jobs = [claimed(id, queue="a", priority=0, run_at=run_at) for run_at, id in sorted(taken)]
        self.frontier.saw(plan, jobs, limit, self.now, took)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0, 1e6), st.booleans()),
        min_size=1, max_size=40,
    ),
    st.sampled_from([0.0, 1e-4, 3e-3]),
    st.integers(1, 30),
)  # fmt: skip
def test_nothing_is_left_behind_whatever_comes_in_where(
    waves: list[tuple[int, float, bool]], entry_seconds: float, limit: int
) -> None:
    """§3 frontier: rows come in at the front and far behind it, dead rows cost so much that claims are given up."""
    world = World(entry_seconds)
    number = 0
    for count, behind, same in waves:
        for offset in range(count):
            number += 1
            world.add(spot(world.now - behind - (0 if same else offset), number))
        world.claim(limit)
    for _ in range(4000):
        if not world.ready:
            break
        world.now += 0.05
        world.claim(limit)
    assert world.ready == []


def test_under_a_pinned_snapshot_what_comes_in_behind_is_found_within_seconds() -> None:
    """A quarter of a million dead rows at a third of a microsecond: late commits wait a second, old rows a few."""
    world = World(entry_seconds=250_000 * 3.3e-7 / 2000)
    for number in range(2000):
        world.add(spot(number / 100, number))
        world.now = number / 100
        world.claim(10)
    world.waits.clear()
    waits: dict[float, float] = {}
    for behind in (0.5, 5.0, 30.0, 3000.0):
        world.add(spot(world.now - behind, 5000))
        until = world.now + 60
        while world.ready and world.now < until:
            world.now += 0.05
            world.claim(10)
        waits[behind] = world.waits.pop()
    assert max(waits[0.5], waits[5.0]) < 1.0 + room.SCAN_FACTOR * 0.1
    assert max(waits.values()) < 10.0


def test_a_paused_queue_is_not_claimed_from_and_learnt_anew_when_it_goes_on() -> None:
    frontier = frontier_of(A, B)
    frontier.saw(frontier.plan(0.0), [], 1, 0.0, 0.001)
    frontier.pause(frozenset({"a"}))
    assert [visit.pair.queue for visit in frontier.plan(1.0)] == ["b"]
    frontier.learn([A])
    assert list(frontier.reaches) == [B]
    assert not frontier.serves("a")
    frontier.pause(frozenset())
    frontier.learn([A])
    assert kinds(frontier, 1.0)[A] == [REST]
    assert frontier.scanned() == float("-inf"), "nobody knows what has come meanwhile"


# Jobs of the other colour


def walking() -> Frontier:
    frontier = frontier_of(A)
    frontier.walks_past = True
    frontier.reaches[A] = Reach(spot(0, 5), near_due=99.0, scan_due=99.0)
    return frontier


def test_what_is_of_the_other_colour_is_walked_past_once() -> None:
    """Up to when the claim looked there is nothing more for this one, however much there is for the other."""
    frontier = walking()
    asked_at = DUE + timedelta(seconds=100)
    frontier.saw(frontier.plan(1.0), [], 5, 1.0, 0.2, asked_at)
    assert frontier.reaches[A].at == (asked_at - timedelta(seconds=COMMIT_SECONDS), 0)


def test_a_walk_that_found_enough_goes_on_where_it_ended() -> None:
    frontier = walking()
    frontier.saw(frontier.plan(1.0), [job(6, seconds=2), job(9, seconds=3)], 2, 1.0, 0.2, DUE + timedelta(seconds=100))
    assert frontier.reaches[A].at == spot(3, 9)


def test_whoever_walks_past_nothing_stays_where_the_last_claim_ended() -> None:
    frontier = reached(at=spot(0, 5))
    frontier.saw(frontier.plan(1.0), [], 5, 1.0, 0.2, DUE + timedelta(seconds=100))
    assert frontier.reaches[A].at == spot(0, 5)


@pytest.mark.parametrize(("walks_past", "after"), [(True, 1.0 + SCAN_FACTOR * 0.05), (False, NEVER)])
def test_a_look_that_walked_far_is_not_repeated_for_each_that_is_heard(walks_past: bool, after: float) -> None:
    """A job heard of is at the frontier but for one whose commit took long."""
    frontier = walking()
    frontier.walks_past = walks_past
    frontier.scan_near()
    frontier.saw(frontier.plan(1.0), [], 5, 1.0, 0.05, DUE + timedelta(seconds=100))
    frontier.scan_near()
    assert frontier.reaches[A].near_due == pytest.approx(after)
