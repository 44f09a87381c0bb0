"""Where each claim begins: no row is waited for in vain, no dead row is passed in vain."""

from __future__ import annotations

from bisect import bisect_right, insort
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_pgjobs.store.statements import ClaimedJob, Pair, Spot
from django_pgjobs.worker.threads import frontier as room
from django_pgjobs.worker.threads.frontier import (
    ADMITTED,
    ADMITTED_SECONDS,
    BEGINNING,
    COMMIT_SECONDS,
    DEAR_SECONDS,
    FRONT,
    HURRY_FACTOR,
    LATEST,
    NEAR,
    NEAR_SECONDS,
    NEAREST_SECONDS,
    NEVER,
    REST,
    SCAN_FACTOR,
    SCAN_FLOOR_SECONDS,
    SLICE,
    Frontier,
    Reach,
    Visit,
    halfway,
)  # fmt: skip
from tests.unit.worker_fakes import DUE, claimed

A, B = ("a", 0), ("b", 0)


def frontier_of(*pairs: tuple[str, int]) -> Frontier:
    frontier = Frontier(quickest=0.0)
    frontier.learn(pairs)
    return frontier


def kinds(frontier: Frontier, now: float) -> dict[tuple[str, int], list[str]]:
    """Pair → what it is visited for by the next claim."""
    found: dict[tuple[str, int], list[str]] = {}
    for visit in frontier.plan(now):
        found.setdefault((visit.pair.queue, visit.pair.priority), []).append(visit.kind)
    return found


def job(id: int, pair: tuple[str, int] = A, seconds: float = 0.0) -> ClaimedJob:
    return claimed(id, queue=pair[0], priority=pair[1], run_at=DUE + timedelta(seconds=seconds))


def spot(seconds: float, id: int = 0) -> Spot:
    return DUE + timedelta(seconds=seconds), id


def reached(*, at: Spot, near_due: float = 99.0, scan_due: float = 99.0, halvings: int = 0) -> Frontier:
    """A frontier of one pair that has been claimed so far."""
    frontier = frontier_of(A)
    frontier.reaches[A] = Reach(at, near_due=near_due, scan_due=scan_due, halvings=halvings)
    return frontier


def test_only_queues_that_are_served_are_learned() -> None:
    some = Frontier(frozenset({"a", "b"}), frozenset({"b"}))
    assert [some.serves(queue) for queue in "abc"] == [True, False, False]
    some.learn([A, B, ("c", 0)])
    assert list(some.reaches) == [A]
    every = Frontier(excluded=frozenset({"b"}))
    assert [every.serves(queue) for queue in "abc"] == [True, False, True]


def test_a_new_pair_is_claimed_from_its_beginning() -> None:
    assert frontier_of(A).plan(0.0) == [Visit(Pair(*A, *BEGINNING), REST)]


def test_a_pair_that_is_heard_of_again_keeps_how_far_it_was_claimed() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(1.0), [job(9)], 1, 1.0, 0.01)
    frontier.learn([A])
    frontier.replace([A, B])
    assert kinds(frontier, 1.5) == {A: [FRONT], B: [REST]}


def test_a_pair_that_is_no_longer_there_is_forgotten() -> None:
    frontier = frontier_of(A, B)
    frontier.plan(0.0)
    frontier.replace([B])
    assert list(kinds(frontier, 0.0)) == [B]
    frontier.replace([])
    assert frontier.plan(0.0) == []
    assert frontier.next_scan(1.0) == frontier.scanned() == float("inf")


def test_the_next_claim_begins_behind_the_last_row_of_the_latest() -> None:
    """Not of the highest: rows that come in behind it would wait for ever behind a maximum."""
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(7, seconds=5), job(9, seconds=6)], 2, 0.0, 0.001)
    assert frontier.plan(0.5) == [Visit(Pair(*A, *spot(6, 9)), FRONT)]
    frontier.scan_all()
    frontier.saw(frontier.plan(0.5), [job(8, seconds=1)], 1, 0.5, 0.001)
    assert frontier.plan(0.6) == [Visit(Pair(*A, *spot(1, 8)), FRONT)]


def test_a_sweep_comes_again_after_many_times_its_duration() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(1)], 9, 0.0, 0.05)
    assert frontier.next_scan(1.0) == 0.05 * SCAN_FACTOR
    assert kinds(frontier, 0.05 * SCAN_FACTOR - 0.1) == {A: [FRONT]}
    assert kinds(frontier, 0.05 * SCAN_FACTOR) == {A: [REST]}


def test_after_a_full_claim_a_sweep_waits_for_a_second_at_least() -> None:
    """There is plenty to do at the frontier; after a short one nothing keeps it from looking again."""
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(1)], 1, 0.0, 0.001)
    assert frontier.reaches[A].scan_due == SCAN_FLOOR_SECONDS
    frontier.scan_all()
    frontier.saw(frontier.plan(0.0), [], 1, 0.0, 0.001)
    assert frontier.reaches[A].scan_due == pytest.approx(0.001 * SCAN_FACTOR, rel=0.1)


def test_a_pair_counts_as_swept_only_once_a_claim_has_come_to_it() -> None:
    """A full claim stopped before the second pair: rows behind its frontier have not been looked for."""
    frontier = frontier_of(("a", 1), B)
    frontier.saw(frontier.plan(0.0), [job(1, ("a", 1))], 1, 0.0, 0.1)
    assert kinds(frontier, 0.5) == {("a", 1): [FRONT], B: [REST]}


def test_a_full_claim_without_a_known_row_sweeps_nothing() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [], 0, 0.0, 0.1)
    assert frontier.reaches[A] == Reach(began=0.0)


def test_swept_is_what_a_short_claim_began_with_everywhere() -> None:
    frontier = frontier_of(A, B)
    frontier.saw(frontier.plan(1.0), [job(1)], 1, 1.0, 0.01)
    seen = [frontier.scanned()]
    frontier.scan_all()
    frontier.saw(frontier.plan(2.0), [], 5, 2.0, 0.01)
    seen.append(frontier.scanned())
    frontier.saw(frontier.plan(2.1), [], 5, 2.1, 0.01)
    assert [*seen, frontier.scanned()] == [NEVER, 2.0, 2.0]


def test_a_claim_from_the_frontier_does_not_put_off_the_sweep() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(1)], 1, 0.0, 0.05)
    due = frontier.reaches[A].scan_due
    frontier.saw(frontier.plan(0.5), [job(2)], 1, 0.5, 0.05)
    assert frontier.reaches[A].scan_due == due


# Near


def test_every_second_a_claim_begins_a_minute_before_the_frontier() -> None:
    """Late commits: their instant is that of their statement, their rows come when they commit."""
    frontier = reached(at=spot(0, 5), near_due=1.0)
    assert kinds(frontier, 0.9) == {A: [FRONT]}
    (visit,) = frontier.plan(1.0)
    assert visit == Visit(Pair(*A, *spot(-NEAR_SECONDS)), NEAR)
    frontier.saw([visit], [job(3, seconds=-30)], 1, 1.0, 0.001)
    assert frontier.plan(1.1) == [Visit(Pair(*A, *spot(-30, 3)), FRONT)]
    assert kinds(frontier, 1.0 + SCAN_FLOOR_SECONDS) == {A: [NEAR]}


def test_a_near_sweep_that_is_dear_begins_less_far_and_comes_less_often() -> None:
    frontier = reached(at=spot(0, 5), near_due=0.0)
    frontier.saw(frontier.plan(1.0), [], 9, 1.0, 2 * DEAR_SECONDS)
    reach = frontier.reaches[A]
    assert (reach.near_seconds, reach.near_due) == (NEAR_SECONDS / 2, 1.0 + 2 * DEAR_SECONDS * SCAN_FACTOR)
    for now in range(10, 1000, 10):
        frontier.quickest = 0.0
        frontier.saw(frontier.plan(now), [], 9, now, DEAR_SECONDS * 1.1)
    assert reach.near_seconds == NEAREST_SECONDS
    frontier.quickest = 0.0
    for now in range(1000, 2000, 10):
        frontier.saw(frontier.plan(now), [], 9, now, 0.001)
    assert reach.near_seconds == NEAR_SECONDS


def test_at_the_beginning_of_time_nothing_lies_before() -> None:
    frontier = reached(at=(BEGINNING[0] + timedelta(seconds=1), 0), near_due=0.0)
    assert frontier.plan(1.0)[0].pair[2:4] == BEGINNING


def test_after_a_notification_the_claim_looks_near_and_not_far() -> None:
    """A full sweep for each registration would cost what a pinned snapshot keeps."""
    frontier = reached(at=spot(0, 5))
    frontier.scan_near()
    assert kinds(frontier, 1.0) == {A: [NEAR]}


# What was let in


def test_what_was_let_in_is_looked_for_at_once_though_claims_come_back_full() -> None:
    """The frontier stays: behind it are the dead, and to pass them again for each job let in would cost a sweep."""
    frontier = reached(at=spot(0, 5))
    frontier.admitted([A, B])
    back, front = frontier.plan(1.0)
    assert back == Visit(Pair(*A, *BEGINNING, until=spot(0, 5)), ADMITTED)
    assert front == Visit(Pair(*A, *spot(0, 5)), FRONT)
    frontier.saw([back, front], [job(3, seconds=-900), job(6)], 2, 1.0, 0.001)
    assert frontier.plan(2.0) == [Visit(Pair(*A, *spot(0, 6)), FRONT)]


def test_a_full_look_at_what_was_let_in_is_gone_on_with() -> None:
    frontier = reached(at=spot(0, 5))
    frontier.admitted([A])
    frontier.saw(frontier.plan(1.0), [job(3, seconds=-900)], 1, 1.0, 0.0)
    assert frontier.reaches[A].at == spot(0, 5)
    assert kinds(frontier, 1.0 + ADMITTED_SECONDS / 2) == {A: [FRONT]}
    assert kinds(frontier, 1.0 + ADMITTED_SECONDS) == {A: [ADMITTED, FRONT]}


def test_after_a_full_claim_what_is_let_in_does_not_wait_for_the_next_sweep() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(1)], 1, 0.0, 0.0)
    assert kinds(frontier, 0.1) == {A: [FRONT]}
    frontier.admitted([A])
    assert kinds(frontier, 0.1) == {A: [ADMITTED, FRONT]}
    assert kinds(frontier, SCAN_FLOOR_SECONDS) == {A: [REST]}, "a sweep that is due finds it too"


def test_nothing_is_looked_at_twice_where_a_near_sweep_is_due_too() -> None:
    frontier = reached(at=spot(0, 5), near_due=0.0)
    frontier.admitted([A])
    assert [(visit.kind, visit.pair[2:4]) for visit in frontier.plan(1.0)] == [
        (ADMITTED, BEGINNING),
        (NEAR, spot(0, 5)),
    ]


@pytest.mark.parametrize("given_up", [False, True])
def test_looks_at_what_was_let_in_cost_a_part_of_the_time_however_often_something_is(given_up: bool) -> None:
    """A pinned snapshot keeps what has died: where that is dear the sweeps that come anyway have to do."""
    frontier = reached(at=spot(0, 5))
    took, spent, now = 2 * DEAR_SECONDS, 0.0, 0.0
    found: set[str] = set()
    while now < 60.0:
        frontier.quickest = 0.0
        frontier.admitted([A])
        plan = frontier.plan(now)
        dear = any(visit.kind != FRONT for visit in plan)
        found |= {visit.kind for visit in plan}
        spent += took if dear else 0.0
        now += took if dear else 0.01
        if dear and given_up:
            frontier.gave_up(plan, now, took)
        else:
            frontier.saw(plan, [], 9, now, took if dear else 0.0)
    assert found == {ADMITTED, FRONT}
    assert spent <= 60.0 / SCAN_FACTOR


def test_looks_that_are_neither_cheap_nor_dear_take_turns_with_what_they_cost() -> None:
    frontier = reached(at=spot(0, 5))
    frontier.admitted([A])
    frontier.saw(frontier.plan(1.0), [], 9, 1.0, 0.8 * DEAR_SECONDS)
    frontier.admitted([A])
    assert kinds(frontier, 1.0 + 0.7 * DEAR_SECONDS * SCAN_FACTOR) == {A: [FRONT]}
    assert kinds(frontier, 1.0 + 0.9 * DEAR_SECONDS * SCAN_FACTOR) == {A: [ADMITTED, FRONT]}


# What was given back


def hours(visit: Visit) -> float:
    """How much of the last hour before the frontier a visit passes; all rows are there."""
    first, last = spot(-3600), spot(0, 500)
    begins, ends = max(visit.pair[2:4], first), min(visit.pair.until or last, last)
    return max(0.0, (ends[0] - begins[0]) / timedelta(hours=1))


def given_back(*, halvings: int = 0) -> tuple[Frontier, Reach]:
    frontier = reached(at=spot(0, 500), halvings=halvings)
    reach = frontier.reaches[A]
    reach.scanned = 0.5
    frontier.released({"a", "nobody's"})
    return frontier, reach


def test_what_was_given_back_is_looked_for_at_once_however_dear_the_last_sweep_was() -> None:
    """A million rows of another worker were passed in vain a moment ago; now they are there to be claimed."""
    frontier, _ = given_back()
    assert frontier.next_scan(1.0) < 1.0
    plan = frontier.plan(1.0)
    assert [(visit.kind, visit.pair[2:4]) for visit in plan] == [(REST, BEGINNING)]
    frontier.saw(plan, [job(1, seconds=-9e5)], 1, 1.3, 0.3)
    assert frontier.plan(1.3)[-1].pair[2:4] == spot(-9e5, 1), "and the claims go on from there"


def test_only_the_queue_that_was_told_of_is_looked_through() -> None:
    frontier, _ = given_back()
    frontier.reaches[B] = Reach(spot(0, 7), near_due=99.0, scan_due=99.0)
    assert kinds(frontier, 1.0) == {A: [REST], B: [FRONT]}


def test_a_dear_hurried_sweep_takes_half_of_the_time() -> None:
    frontier, reach = given_back(halvings=3)
    plan = frontier.plan(1.0)
    assert [visit.kind for visit in plan] == [SLICE, FRONT]
    frontier.saw(plan, [], 9, 1.1, 0.08)
    assert reach.due == pytest.approx(1.1 + 0.08, abs=0.001)
    assert kinds(frontier, 1.15) == {A: [FRONT]}
    assert kinds(frontier, 1.2) == {A: [SLICE, FRONT]}


def test_a_sweep_under_way_has_passed_some_of_it_and_begins_anew() -> None:
    frontier, reach = given_back(halvings=1)
    reach.scanned_to = spot(-1)
    assert frontier.plan(1.0)[0].pair[2:4] == BEGINNING


def test_a_hurried_sweep_that_took_too_long_counts_as_all_others() -> None:
    """Else whoever notifies could have claims of seconds follow each other at once."""
    frontier, reach = given_back()
    frontier.gave_up(frontier.plan(1.0), 4.0, 3.0)
    reach.halvings = 0
    frontier.saw(frontier.plan(7.0), [], 9, 7.1, 0.1)
    assert reach.hurry_due == pytest.approx(7.1 + HURRY_FACTOR * 3.1, abs=0.1)


def test_what_is_given_back_during_a_hurried_sweep_is_looked_for_after_it() -> None:
    frontier, reach = given_back(halvings=1)
    frontier.saw(frontier.plan(1.0), [], 9, 1.1, 0.08)
    frontier.released({"a"})
    assert frontier.plan(1.2)[0].pair[2:4] == reach.scanned_to > BEGINNING, "no sweep begins anew for ever"
    reach.halvings = 0
    frontier.saw(frontier.plan(1.2), [], 9, 1.3, 0.08)
    again = 1.3 + HURRY_FACTOR * 2 * 0.08
    assert reach.due == pytest.approx(again, abs=0.01)
    assert frontier.plan(again - 0.1)[0].kind != REST
    assert frontier.plan(again + 0.01)[0].pair[2:4] == BEGINNING


def test_a_claim_that_failed_or_was_full_before_it_came_there_hurries_on() -> None:
    """What it was to look for is looked for by the next."""
    frontier, _ = given_back()
    assert [kinds(frontier, now) for now in (1.0, 1.01)] == [{A: [REST]}] * 2


@pytest.mark.parametrize("took", [0.001, 0.03, 0.08, 0.3])
def test_who_gives_back_all_the_time_keeps_the_others_waiting_for_a_part_of_it(took: float) -> None:
    """By word of mouth of anyone: every role of the database may notify."""
    frontier, now, spent, waits, ended = given_back()[0], 1.0, 0.0, [], 1.0
    while now < 120.0:
        frontier.released({"a"})
        plan = frontier.plan(now)
        costs = took * sum(hours(visit) for visit in plan)
        now += 0.001 + costs
        frontier.saw(plan, [], 9, now, costs)
        spent += costs
        if plan[0].kind == REST:
            waits.append(now - ended)
            ended = now
    assert spent <= 120 * (1 / (1 + HURRY_FACTOR) + 2 / SCAN_FACTOR)
    assert 0 < max(waits) <= 0.1 + took * (HURRY_FACTOR + 3)


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
    """B10: up to when the claim looked there is nothing more for this one, however much there is for the other."""
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
