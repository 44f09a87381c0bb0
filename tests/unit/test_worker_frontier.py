"""Where each claim begins: no row is waited for in vain, no dead row is passed in vain."""

from __future__ import annotations

from datetime import timedelta

from django_pgjobs.store import ClaimedJob, Pair
from django_pgjobs.worker.frontier import BEGINNING, SWEEP_FACTOR, SWEEP_FLOOR_SECONDS, Frontier
from tests.unit.worker_fakes import DUE, claimed

A, B = ("a", 0), ("b", 0)


def frontier_of(*pairs: tuple[str, int]) -> Frontier:
    frontier = Frontier()
    frontier.learn(pairs)
    return frontier


def beginnings(frontier: Frontier, now: float) -> dict[tuple[str, int], bool]:
    """Pair → whether its next claim begins at the beginning."""
    return {(pair.queue, pair.priority): (pair.run_at, pair.id) == BEGINNING for pair in frontier.plan(now)}


def job(id: int, pair: tuple[str, int] = A, seconds: float = 0.0) -> ClaimedJob:
    return claimed(id, queue=pair[0], priority=pair[1], run_at=DUE + timedelta(seconds=seconds))


def test_only_queues_that_are_served_are_learned() -> None:
    some = Frontier(frozenset({"a", "b"}), frozenset({"b"}))
    assert [some.serves(queue) for queue in "abc"] == [True, False, False]
    some.learn([A, B, ("c", 0)])
    assert list(some.at) == [A]
    every = Frontier(excluded=frozenset({"b"}))
    assert [every.serves(queue) for queue in "abc"] == [True, False, True]


def test_a_new_pair_is_claimed_from_its_beginning() -> None:
    assert beginnings(frontier_of(A, B), 0.0) == {A: True, B: True}


def test_a_pair_that_is_heard_of_again_keeps_how_far_it_was_claimed() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(1.0), [job(9)], 1, 1.0, 0.1)
    frontier.learn([A])
    frontier.replace([A, B])
    assert beginnings(frontier, 1.5) == {A: False, B: True}


def test_a_pair_that_is_no_longer_there_is_forgotten() -> None:
    frontier = frontier_of(A, B)
    frontier.replace([B])
    assert (list(frontier.at), list(frontier.sweep_at)) == ([B], [B])
    frontier.replace([])
    assert frontier.plan(0.0) == []
    assert frontier.next_sweep() == 0.0


def test_the_next_claim_begins_behind_the_last_row_of_the_latest() -> None:
    """Not of the highest: rows that come in behind it would wait for ever behind a maximum."""
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(7, seconds=5), job(9, seconds=6)], 2, 0.0, 0.001)
    assert frontier.plan(0.5) == [Pair(*A, DUE + timedelta(seconds=6), 9)]
    frontier.sweep_all()
    frontier.saw(frontier.plan(0.5), [job(8, seconds=1)], 1, 0.5, 0.001)
    assert frontier.plan(0.6) == [Pair(*A, DUE + timedelta(seconds=1), 8)]


def test_a_sweep_comes_again_after_many_times_its_duration() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(1)], 9, 0.0, 2.0)
    assert frontier.next_sweep() == 2.0 * SWEEP_FACTOR
    assert beginnings(frontier, 2.0 * SWEEP_FACTOR - 0.1) == {A: False}
    assert beginnings(frontier, 2.0 * SWEEP_FACTOR) == {A: True}


def test_after_a_full_claim_a_sweep_waits_for_a_second_at_least() -> None:
    """There is plenty to do at the frontier; after a short one nothing keeps it from looking again."""
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(1)], 1, 0.0, 0.001)
    assert frontier.next_sweep() == SWEEP_FLOOR_SECONDS
    frontier.sweep_all()
    frontier.saw(frontier.plan(0.0), [], 1, 0.0, 0.001)
    assert frontier.next_sweep() == 0.001 * SWEEP_FACTOR


def test_a_pair_counts_as_swept_only_once_a_claim_has_come_to_it() -> None:
    """A full claim stopped before the second pair: rows behind its frontier have not been looked for."""
    frontier = frontier_of(("a", 1), B)
    frontier.saw(frontier.plan(0.0), [job(1, ("a", 1))], 1, 0.0, 0.1)
    assert beginnings(frontier, 0.5) == {("a", 1): False, B: True}


def test_a_full_claim_without_a_known_row_sweeps_nothing() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [], 0, 0.0, 0.1)
    assert frontier.sweep_at == {A: 0.0}


def test_everything_was_looked_at_only_when_a_short_claim_began_everywhere_at_the_beginning() -> None:
    frontier = frontier_of(A, B)
    frontier.saw(frontier.plan(0.0), [job(1)], 1, 0.0, 0.1)
    swept = [frontier.swept]
    frontier.sweep_all()
    frontier.saw(frontier.plan(0.5), [], 5, 0.5, 0.1)
    swept.append(frontier.swept)
    frontier.saw(frontier.plan(0.6), [], 5, 0.6, 0.1)
    assert [*swept, frontier.swept] == [False, True, False]


def test_a_claim_from_the_frontier_does_not_put_off_the_sweep() -> None:
    frontier = frontier_of(A)
    frontier.saw(frontier.plan(0.0), [job(1)], 1, 0.0, 0.1)
    due = frontier.next_sweep()
    frontier.saw(frontier.plan(0.5), [job(2)], 1, 0.5, 0.1)
    assert frontier.next_sweep() == due


def test_after_a_sweep_that_took_too_long_claims_go_on_at_the_frontier() -> None:
    """Else the worker would claim nothing any more while a snapshot keeps millions of dead rows alive."""
    frontier = frontier_of(A, B)
    frontier.saw(frontier.plan(0.0), [job(1)], 1, 0.0, 0.1)
    frontier.sweep_at[A] = 0.0
    frontier.sweep_at[B] = 99.0
    frontier.at[B] = (DUE, 4)
    frontier.gave_up(frontier.plan(1.0), 4.0, 3.0)
    assert frontier.sweep_at == {A: 4.0 + 3.0 * SWEEP_FACTOR, B: 99.0}
    assert beginnings(frontier, 5.0) == {A: False, B: False}


def test_larger_priorities_come_first_and_queues_take_turns() -> None:
    frontier = frontier_of(A, B, ("b", 5), ("c", -3))
    plans = [[(pair.queue, pair.priority) for pair in frontier.plan(0.0)] for _ in range(6)]
    assert all(plan[0] == ("b", 5) and plan[-1] == ("c", -3) for plan in plans)
    assert {plan[1] for plan in plans} == {A, B}
