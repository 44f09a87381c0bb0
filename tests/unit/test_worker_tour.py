"""The tour of a claim thread that has very many pairs: who is scanned when, and what that costs."""

from __future__ import annotations

from collections import Counter

import pytest

from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.worker.threads import tour as rules
from django_pgjobs.worker.threads.frontier import Frontier
from tests.unit.frontier_ground import job

LIMIT = 50
TOOK = 0.01

Pair = tuple[str, int]


class Claims:
    """A frontier, and how many jobs each of its pairs has ready: a claim takes them in the order of its plan."""

    def __init__(self, ready: dict[Pair, int]) -> None:
        self.ready = Counter(ready)
        self.frontier = Frontier(quickest=0.0)
        self.frontier.replace(ready)
        self.now = 0.0
        self.ids = 0
        self.scanned: list[Pair] = []

    def claim(self, limit: int = LIMIT) -> Counter[Pair]:
        """Claim once; return how many jobs of each pair, and keep in ``scanned`` what the claim was asked to scan."""
        plan = self.frontier.plan(self.now)
        self.scanned = list(dict.fromkeys((visit.pair.queue, visit.pair.priority) for visit in plan))
        jobs: list[ClaimedJob] = []
        taken: Counter[Pair] = Counter()
        for pair in self.scanned:
            taken[pair] = min(self.ready[pair], limit - len(jobs))
            jobs += [job(self.ids + n, pair, self.ids + n) for n in range(taken[pair])]
            self.ids += taken[pair]
        self.ready -= taken
        self.now += TOOK
        if plan:
            self.frontier.saw(plan, jobs, limit, self.now, TOOK)
        return +taken

    def drain(self, most: int = 1000) -> int:
        """Claim until the tour is complete; return how many claims that took."""
        for count in range(1, most):
            found = self.claim()
            if found.total() < LIMIT and self.frontier.is_passed:
                return count
        raise AssertionError(f"{self.ready.total()} jobs are left")


def queues(count: int, priority: int = 0) -> list[Pair]:
    return [(f"q{n:05}", priority) for n in range(count)]


def test_few_pairs_are_all_scanned_by_each_claim() -> None:
    claims = Claims(dict.fromkeys(queues(rules.MANY_PAIRS), 0))
    for _ in range(3):
        claims.claim()
        assert sorted(claims.scanned) == queues(rules.MANY_PAIRS)
        assert claims.frontier.is_passed


@pytest.mark.parametrize("each", [1, 7, 3 * LIMIT])
def test_claims_of_a_tour_take_all_jobs_and_scan_few_pairs_in_vain(each: int) -> None:
    count = 3000
    claims = Claims(dict.fromkeys(queues(count), each))
    taken = claims.drain(10 * count)
    full = count * each // LIMIT
    assert not claims.ready.total()
    assert full <= taken <= full + 2 * count / rules.MOST_PAIRS + 20


def test_a_claim_scans_no_more_pairs_than_it_may() -> None:
    claims = Claims(dict.fromkeys(queues(5000), 0))
    claims.claim()
    assert len(claims.scanned) == rules.MOST_PAIRS


def test_full_claims_ask_for_about_as_many_pairs_as_they_need() -> None:
    claims = Claims(dict.fromkeys(queues(5000), 5))
    claims.claim()
    for _ in range(5):
        claims.claim()
        assert len(claims.scanned) <= max(rules.LEAST_PAIRS, 2 * LIMIT // 5)


def test_queues_that_never_run_dry_take_turns() -> None:
    claims = Claims(dict.fromkeys(queues(300), 10**6))
    served = [next(iter(claims.claim())) for _ in range(600)]
    assert Counter(served) == dict.fromkeys(queues(300), 2)
    assert sorted(served[:300]) == queues(300)


def test_queues_take_turns_though_others_come_and_go() -> None:
    """Each list of the pairs drops some and adds some; whoever stays is served as often as others."""
    stay = queues(300)
    claims = Claims(dict.fromkeys(stay, 10**6))
    served: Counter[Pair] = Counter()
    for n in range(3000):
        served += claims.claim()
        if n % 7 == 0:
            claims.frontier.replace([*stay, *((f"q{n + k:05}x", 0) for k in range(50))])
    counts = [served[pair] // LIMIT for pair in stay]
    assert max(counts) - min(counts) <= 1


def test_a_smaller_priority_waits_until_larger_ones_have_nothing_left() -> None:
    claims = Claims(dict.fromkeys(queues(400, 9), 5) | dict.fromkeys(queues(400, 0), 5))
    order: list[int] = []
    while claims.ready.total():
        order += [priority for _, priority in claims.claim()]
    assert order == sorted(order, reverse=True)


def test_the_tour_returns_to_larger_priorities_though_smaller_ones_never_run_dry() -> None:
    """What came in there without a notification, as through a pooler, waits for about a second."""
    claims = Claims(dict.fromkeys(queues(300, 9), 0) | dict.fromkeys(queues(300, 0), 10**6))
    claims.claim()
    assert set(claims.claim()) <= set(queues(300, 0))
    claims.ready["q00007", 9] = 3
    came_in = claims.now
    while claims.ready["q00007", 9]:
        claims.claim()
        assert claims.now < came_in + 2 * rules.RETURN_SECONDS


def test_smaller_priorities_have_most_of_the_time_however_long_larger_ones_take() -> None:
    claims = Claims(dict.fromkeys(queues(20_000, 9), 0) | dict.fromkeys(queues(300, 0), 10**6))
    found = [bool(claims.claim()) for _ in range(2000)]
    assert sum(found) > 0.9 * len(found)


def announced_at_rest(count: int = 5000) -> Claims:
    claims = Claims(dict.fromkeys(queues(count), 0))
    claims.drain()
    return claims


def test_what_is_announced_does_not_wait_for_the_tour() -> None:
    claims = announced_at_rest()
    pair = "q04321", 0
    claims.ready[pair] = 2
    claims.frontier.learn([pair])
    assert claims.claim() == {pair: 2}


def test_a_new_queue_that_is_announced_is_claimed_from_at_once() -> None:
    claims = announced_at_rest()
    pair = "a new one", 3
    claims.ready[pair] = 2
    claims.frontier.learn([pair])
    assert claims.claim() == {pair: 2}
    claims.frontier.learn([other := ("another", 0)])
    claims.ready[other] = 1
    assert claims.claim() == {other: 1}


def test_for_a_moment_what_is_registered_in_silence_is_found_too() -> None:
    claims = announced_at_rest()
    pair = "q04321", 0
    claims.frontier.learn([pair])
    claims.claim()
    claims.now += rules.ANNOUNCED_SECONDS / 2
    claims.ready[pair] = 1
    assert claims.claim() == {pair: 1}
    claims.now += rules.ANNOUNCED_SECONDS
    claims.claim()
    assert pair not in claims.scanned


def test_announced_queues_that_never_run_dry_leave_others_half_of_the_claims() -> None:
    claims = Claims(dict.fromkeys(queues(300), 10**6))
    loud = queues(300)[:3]
    served: Counter[Pair] = Counter()
    for _ in range(1200):
        claims.frontier.learn(loud)
        served += claims.claim()
    others = [served[pair] // LIMIT for pair in queues(300)[3:]]
    assert min(others) >= 1
    assert 500 <= sum(others) <= 700


def test_announced_queues_that_fill_each_claim_do_not_hold_the_tour_up() -> None:
    """All queues of the next part are announced, and none of them ever runs dry: the tour goes on behind them."""
    claims = Claims(dict.fromkeys(queues(2000), 10**6))
    served: Counter[Pair] = Counter()
    for _ in range(100):
        claims.frontier.learn(queues(2000)[: rules.MOST_PAIRS])
        served += claims.claim()
    assert served.keys() - set(queues(2000)[: rules.MOST_PAIRS])


def test_more_announcements_than_a_claim_scans_wait_for_the_tour() -> None:
    claims = announced_at_rest()
    claims.frontier.learn(queues(5000))
    claims.claim()
    assert len(claims.scanned) == rules.MOST_PAIRS


def test_after_a_tour_that_found_nothing_the_next_waits_as_often_as_it_took() -> None:
    claims = announced_at_rest()
    claims.claim()
    assert not claims.scanned
    frontier, ended = claims.frontier, claims.now - TOOK
    cost = 5000 / rules.MOST_PAIRS * TOOK
    assert frontier.tour.due == pytest.approx(ended + rules.REST_FACTOR * cost)
    assert frontier.next_scan(claims.now + 99) >= frontier.tour.due, "the claim thread sleeps until then"
    claims.now = frontier.tour.due
    claims.claim()
    assert claims.scanned


def test_the_time_that_jobs_take_is_no_cost_of_a_tour() -> None:
    claims = Claims(dict.fromkeys(queues(300), 1))
    while not claims.frontier.is_passed or claims.ready.total():
        claims.claim()
        claims.now += 3600.0  # all threads were busy
    assert claims.frontier.tour.due < claims.now


def test_a_claim_that_took_too_long_is_tried_with_fewer_pairs() -> None:
    claims = Claims(dict.fromkeys(queues(5000), 0))
    sizes = []
    for _ in range(10):
        plan = claims.frontier.plan(claims.now)
        sizes.append(len({visit.pair.queue for visit in plan}))
        claims.frontier.gave_up(plan, claims.now, 5.0)
    assert sizes[:3] == [1000, 500, 250]
    assert sizes[-1] == rules.LEAST_PAIRS


def test_a_poll_of_very_many_queues_scans_near_only_what_was_announced() -> None:
    claims = announced_at_rest()
    reaches = claims.frontier.reaches
    for reach in reaches.values():
        reach.near_due = 99.0
    claims.frontier.learn([("q00005", 0)])
    claims.frontier.scan_near()
    assert [pair for pair, reach in reaches.items() if reach.near_due < 99.0] == [("q00005", 0)]
