"""When the claim thread claims, and that nothing it takes is left to nobody."""

from __future__ import annotations

import itertools
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import ClaimedJob, Pair
from django_pgjobs.worker.threads import claimer as claimer_module
from django_pgjobs.worker.threads.claimer import DEAF_POLL_SECONDS, Claimer
from django_pgjobs.worker.threads.inbox_messages import Claimed, Idle
from django_pgjobs.worker.threads.reach import BEGINNING
from django_pgjobs.worker.threads.tour import MOST_PAIRS
from tests.unit.claimer_fakes import DB, taking
from tests.unit.worker_fakes import DUE, Heard, claimed


def test_a_claim_that_is_under_way_while_the_worker_drains_is_waited_for(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its jobs would stay with a worker that is gone: charged, and with one attempt abandoned unrun."""
    seen = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        claimer.halt()
        seen.append(claimer.busy)
        return [claimed(1), claimed(2)]

    taking(monkeypatch, take)
    claimer._claim(DB, {False: 5})
    seen.append(claimer.busy)
    claimer.adopted([claimed(1), claimed(2)])
    assert [*seen, claimer.busy] == [True, True, False]
    assert [type(message) for message in heard.posts] == [Claimed]


def test_a_line_with_nothing_to_claim_from_is_not_hungry(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the last claim was full: other homes would leave places to a queue that is paused."""
    taking(monkeypatch, lambda plan, limit: [claimed(1), claimed(2)])
    claimer._claim(DB, {False: 2})
    assert claimer.is_hungry(False, clock.monotonic())
    claimer.pause(frozenset({"a", "b"}))
    claimer.seen = claimer.notified
    assert claimer._claim(DB, {False: 2}) is False
    assert not claimer.is_hungry(False, clock.monotonic())


def test_one_that_rests_after_trouble_is_not_hungry(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    claimer.wake_for(("a", 0))
    assert claimer.is_hungry(False, clock.monotonic())
    seen: list[bool] = []
    monkeypatch.setattr(claimer.stopping, "wait", lambda seconds: seen.append(claimer.is_hungry(False, 0.0)))
    claimer._pause(1)
    assert (seen, claimer.is_hungry(False, clock.monotonic())) == ([False], True)


def test_no_claim_begins_once_the_worker_drains(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it was wanted a moment ago."""
    taking(monkeypatch, lambda plan, limit: pytest.fail("claimed"))
    claimer.request(5)
    claimer.halt()
    assert claimer._claim(DB, {False: 5}) is False
    assert not claimer.busy


def test_a_claim_whose_server_is_away_is_not_waited_for(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        raise psycopg.OperationalError("server closed the connection")

    taking(monkeypatch, take)
    with pytest.raises(psycopg.OperationalError):
        claimer._claim(DB, {False: 5})
    assert claimer.unconfirmed is not None
    claimer.reachable = False
    assert not claimer.busy


def test_a_look_from_the_beginning_that_takes_too_long_is_not_repeated_at_once(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        begun.append(plan[0].id)
        if not plan[0].id:
            raise psycopg.errors.QueryCanceled("statement timeout")
        return []

    taking(monkeypatch, take)
    monkeypatch.setattr(claiming, "list_pairs", lambda db: [("a", 0)])
    monkeypatch.setattr(clock, "monotonic", itertools.count(1.0).__next__)
    claimer.frontier.learn([("a", 0)])
    claimer.frontier.reaches["a", 0].at = (DUE, 40)
    claimer.frontier.reaches["a", 0].near_due = 99.0
    with pytest.raises(psycopg.errors.QueryCanceled):
        claimer._claim(DB, {False: 5})
    claimer._claim(DB, {False: 5})
    assert begun == [0, 40]


def test_a_locked_table_says_nothing_of_where_to_begin(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim waited for somebody's lock: its sweep was not dear, and goes on as it was."""

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")

    taking(monkeypatch, take)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        claimer._claim(DB, {False: 5})
    assert not claimer.busy
    assert [(reach.at, reach.halvings) for reach in claimer.frontier.reaches.values()] == [(BEGINNING, 0)] * 2


def test_a_list_of_queues_that_takes_too_long_stops_no_claim(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    def canceled(db: Any) -> list[tuple[str, int]]:
        raise psycopg.errors.QueryCanceled("statement timeout")

    taking(monkeypatch, lambda plan, limit: [claimed(1, queue=plan[0].queue)])
    monkeypatch.setattr(claiming, "list_pairs", canceled)
    with pytest.raises(psycopg.errors.QueryCanceled):
        claimer._claim(DB, {False: 1})
    claimer.frontier.learn([("a", 0)])
    assert claimer._claim(DB, {False: 1})


def test_after_a_slow_look_what_becomes_due_does_not_wait_for_the_next(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look is far then; what is due before it is found at the frontier, within a second."""
    monkeypatch.setattr(clock, "monotonic", lambda: 0.0)
    slept: list[float] = []

    def sleep(seconds: float, notified: int) -> bool:
        slept.append(seconds)
        return False

    monkeypatch.setattr(claimer, "_sleep", sleep)
    claimer.frontier.learn([("a", 0)])
    for scan_due, due in [(60.0, None), (60.0, 0.5), (0.25, None), (-1.0, None)]:
        monkeypatch.setattr(claiming, "next_due", lambda db, pairs, due=due: due)
        claimer.frontier.reaches["a", 0].scan_due = scan_due
        claimer._rest(DB, 0)
    assert slept == [DEAF_POLL_SECONDS, 0.5, 0.25, 0.0]


@pytest.mark.parametrize(("known_until", "expected"), [(5.0, 10.7), (99.0, 99.0)])
def test_what_is_heard_while_a_job_is_waited_for_is_claimed_before_the_list_of_pairs_is_read(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch, known_until: float, expected: float
) -> None:
    """And one that is known for longer is not read sooner for it."""
    monkeypatch.setattr(clock, "monotonic", lambda: 10.0)
    monkeypatch.setattr(claiming, "next_due", lambda db, pairs: 0.5)
    claimer.frontier.learn([("a", 0)])
    claimer.frontier.reaches["a", 0].scanned = 9.0
    claimer.hints.list_due = known_until

    def sleep(seconds: float, notified: int) -> bool:
        assert seconds == 0.5
        claimer.settles_at = 10.7
        return True

    monkeypatch.setattr(claimer, "_sleep", sleep)
    claimer._rest(DB, 0)
    assert claimer.hints.list_due == expected


def test_idle_means_that_everything_was_swept_since_something_was_last_found(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that runs until idle must not leave what has come in behind its frontier."""
    now = [10.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(claimer, "_sleep", lambda seconds, notified: False)
    found = [[claimed(1, queue="a")], [], []]
    taking(monkeypatch, lambda plan, limit: found.pop(0))
    reaches = claimer.frontier.reaches
    claimer.frontier.learn([("a", 0), ("b", 0)])
    for reach in reaches.values():
        reach.at, reach.scan_due, reach.scanned = (DUE, 0), 99.0, 9.0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, 0)
    assert [type(message) for message in heard.posts] == [Claimed], "swept before, and something came since"
    now[0] = 11.0
    reaches["a", 0].scan_due = 0.0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, 0)
    assert [type(message) for message in heard.posts] == [Claimed], "one of two is not enough"
    now[0] = 12.0
    reaches["b", 0].scan_due = 0.0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, 0)
    assert heard.posts[-1] == Idle(12.0)


def test_a_registration_right_after_one_that_was_heard_does_not_wait_for_the_poll(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer notifies at most every 5 ms. The claim that finds the first, and the one after it, come too early."""
    now = [10.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    slept: list[float] = []

    def sleep(seconds: float, notified: int) -> bool:
        slept.append(seconds)
        now[0] += seconds
        return False

    monkeypatch.setattr(claimer, "_sleep", sleep)
    found = [[claimed(1, queue="a")], [], []]
    taking(monkeypatch, lambda plan, limit: found.pop(0))
    claimer.listening.set()
    claimer.frontier.learn([("a", 0)])
    claimer.wake_for(("a", 0))
    for _ in range(2):
        claimer._claim(DB, {False: 5})
        now[0] += 0.001
    claimer._rest(DB, claimer.notified)
    assert slept == [pytest.approx(claimer_module.POLL_AGAIN_SECONDS - 0.002)]
    assert claimer.frontier.reaches["a", 0].near_due < 0
    claimer._claim(DB, {False: 5})
    claimer._rest(DB, claimer.notified)
    assert [type(message) for message in heard.posts] == [Claimed, Idle]
    assert slept[1:] == [claimer_module.FIRST_POLL_SECONDS], "and longer and longer: it may have been locked"


def test_while_a_producer_is_busy_the_claimer_looks_again_and_again(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is registered meanwhile comes without a notification. Only behind the last look is the worker idle."""
    now = [10.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    looks: list[float] = []

    def sleep(seconds: float, notified: int) -> bool:
        now[0] += seconds
        return False

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        looks.append(now[0] - 10.0)
        return []

    monkeypatch.setattr(claimer, "_sleep", sleep)
    taking(monkeypatch, take)
    claimer.listening.set()
    claimer.frontier.learn([("a", 0)])
    claimer.wake_for(("a", 0))
    claimer.keep_polling()
    while not heard.of(Idle):
        claimer._claim(DB, {False: 5})
        claimer._rest(DB, claimer.notified)
    pauses = [after - before for before, after in pairwise(looks)]
    assert pauses[:3] == [pytest.approx(each) for each in (0.002, 0.004, 0.008)], "twice as late each time"
    assert looks[-1] == pytest.approx(claimer_module.BUSY_SECONDS)


def test_while_a_producer_is_busy_a_claimer_that_finds_jobs_looks_again_soon(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    pauses: list[float] = []
    monkeypatch.setattr(claimer, "_sleep", lambda seconds, notified: pauses.append(seconds))
    found = [[], [], [], [claimed(1, queue="a")], [], []]
    taking(monkeypatch, lambda plan, limit: found.pop(0))
    claimer.listening.set()
    claimer.frontier.learn([("a", 0)])
    claimer.wake_for(("a", 0))
    claimer.keep_polling()
    for _ in range(6):
        claimer._claim(DB, {False: 5})
        claimer._rest(DB, claimer.notified)
    assert pauses == [pytest.approx(each) for each in (0.002, 0.004, 0.008, 0.001, 0.002, 0.004)]


def test_what_an_idle_worker_hears_of_is_claimed_once_and_first(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second claim would be in the way of the job's start, and the list of pairs tells nothing that it needs."""
    now = [10.0]
    done: list[str] = []
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])

    def sleep(seconds: float, notified: int) -> bool:
        done.append("sleep")
        if idle := seconds == claimer.options.poll_seconds:
            seconds = 0.3
        now[0] += seconds
        if idle:
            claimer.wake_for(("a", 0))
        return idle

    def list_pairs(db: Any) -> list[tuple[str, int]]:
        done.append("list")
        return [("a", 0)]

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        done.append("claim")
        if done.count("claim") == 3:
            claimer.stop()
        return [claimed(1, queue="a")] if done.count("claim") == 2 else []

    monkeypatch.setattr(claimer, "_sleep", sleep)
    monkeypatch.setattr(claiming, "list_pairs", list_pairs)
    taking(monkeypatch, take)
    claimer.listening.set()
    claimer.request(5)
    claimer.serve(DB)
    assert done[:7] == ["list", "claim", "sleep", "claim", "sleep", "list", "claim"]


@pytest.mark.parametrize(
    ("found", "listening", "again"), [(5, True, True), (2, True, False), (2, False, True), (0, False, False)]
)
def test_whoever_hears_of_registrations_does_not_ask_in_vain(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch, found: int, listening: bool, again: bool
) -> None:
    """A claim that came back short has seen everything; a deaf worker asks on while something comes in."""
    if listening:
        claimer.listening.set()
    claimer.room.wanted = {False: 9}
    taking(monkeypatch, lambda plan, limit: [claimed(number, queue="a") for number in range(found)])
    assert claimer._claim(DB, {False: 5}) is again


def test_a_queue_that_goes_on_is_looked_at_at_once_and_one_that_is_paused_wakes_nobody(claimer: Claimer) -> None:
    claimer.hints.list_due = 99.0
    claimer.pause(frozenset({"a", "b"}))
    assert (claimer.notified, claimer.hints.list_due) == (0, 99.0)
    claimer.pause(frozenset({"b"}))
    assert (claimer.notified, claimer.hints.list_due) == (1, 0.0)


def test_with_very_many_queues_a_claimer_goes_on_until_it_has_scanned_all_of_them(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One claim scans some of them. A worker that leaves when it is idle may not leave after that."""
    everything = [(f"q{n}", 0) for n in range(3 * MOST_PAIRS)]
    monkeypatch.setattr(claiming, "list_pairs", lambda db: everything)
    scanned: set[str] = set()

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        scanned.update(pair.queue for pair in plan)
        return []

    taking(monkeypatch, take)
    claimer.request(5)
    for parts in (1, 2, 3):
        again = claimer._claim(DB, {False: 5})
        assert len(scanned) == parts * MOST_PAIRS
        assert (again, claimer.room.dry[False]) == (parts < 3, parts == 3)


def test_a_claim_that_has_waited_for_its_turn_is_as_old_as_its_statement(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other schemas were served before: its jobs may run for all of the lease, and where it began was not slow."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    db: Any = SimpleNamespace(sent_at=0.0)
    took: list[float] = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        db.sent_at, now[0] = 109.0, 109.5
        return [claimed(1)]

    taking(monkeypatch, take)
    monkeypatch.setattr(claiming, "list_pairs", lambda db: [("a", 0)])
    claimer.frontier.learn([("a", 0)])
    monkeypatch.setattr(type(claimer.frontier), "saw", lambda self, *given: took.append(given[4]))
    claimer._claim(db, {False: 5})
    [message] = heard.of(Claimed)
    assert (message.asked_at, took) == (109.0, [0.5])
