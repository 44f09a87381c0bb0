"""Where each claim begins: no row is waited for in vain, no dead row is passed in vain."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgjobs.store.claiming import Pair
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.reach import (
    ADMITTED,
    ADMITTED_SECONDS,
    BEGINNING,
    DEAR_SECONDS,
    FRONT,
    HURRY_FACTOR,
    NEAR,
    NEAR_SECONDS,
    NEAREST_SECONDS,
    NEVER,
    REST,
    SCAN_FACTOR,
    SCAN_FLOOR_SECONDS,
    SLICE,
    Reach,
    Visit,
)
from tests.unit.frontier_ground import A, B, frontier_of, job, kinds, reached, spot


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
