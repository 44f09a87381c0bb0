"""What tests of the frontier share: a frontier at a place, and how far it reaches."""

from __future__ import annotations

from datetime import timedelta

from django_pgjobs.store.claiming import ClaimedJob, Spot
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.reach import Reach
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
