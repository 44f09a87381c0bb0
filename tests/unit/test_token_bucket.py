"""Token buckets: time is moved by hand, nobody sleeps."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from itertools import count

import pytest

from django_pgjobs.exceptions import RateLimited
from django_pgjobs.registering.token_bucket import MANY, PATIENCE_SECONDS, WAITS, Buckets, of_this_process
from django_pgjobs.values.by_queue import Rate

RATE = Rate()
"""Antikythera's: 30 tokens, one more every 500 ms; register and cancel cost 3, status and list 1."""


class Time:
    """A clock that goes on when somebody sleeps."""

    def __init__(self, at: float = 123_456.789) -> None:
        self.at = at
        self.slept: list[float] = []

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def buckets(time: Time) -> Buckets:
    return Buckets(time.now, time.sleep, time.asleep)


def look(buckets: Buckets, price: int = 1, *, way: str = "sync", rate: Rate = RATE) -> None:
    if way == "sync":
        buckets.take_patiently("mail", rate, price)
    else:
        asyncio.run(buckets.atake_patiently("mail", rate, price))


both_ways = pytest.mark.parametrize("way", ["sync", "async"])


def limited(buckets: Buckets, price: int = 3, queue: str = "mail", rate: Rate = RATE) -> float:
    """Return how long ``take`` says to wait, 0.0 where it took."""
    try:
        buckets.take({queue: (rate, price)})
    except RateLimited as error:
        wait, named = error.retry_after, error.queue
    else:
        return 0.0
    assert named == queue
    assert wait > 0
    return wait


def test_ten_registrations_pass_and_the_eleventh_does_not(buckets: Buckets) -> None:
    """A47: a bucket of 30 tokens, of which a registration takes 3."""
    assert [limited(buckets) for _ in range(10)] == [0.0] * 10
    assert limited(buckets) == pytest.approx(1.5)


def test_each_action_has_its_price(buckets: Buckets) -> None:
    """A48: register 3, cancel 3, status 1, list 1, until the bucket is empty."""
    for price in [RATE.register, RATE.cancel, RATE.status, RATE.list] * 3 + [RATE.register, RATE.status, RATE.list, 1]:
        assert limited(buckets, price) == 0.0
    assert limited(buckets, 1) == pytest.approx(0.5)


def test_waiting_as_long_as_was_said_is_enough_and_less_is_not(buckets: Buckets, time: Time) -> None:
    """A49: the answer of an empty bucket is how long to wait."""
    for _ in range(1000):
        if wait := limited(buckets):
            time.at += wait - 1e-4
            assert limited(buckets) > 0
            time.at += 1e-4
            assert limited(buckets) == 0.0
        time.at += 0.01


@pytest.mark.parametrize("at", [0.0, 1.0, 5e6, 4e8])
def test_waiting_is_enough_however_long_the_machine_has_been_up(at: float) -> None:
    time = Time(at)
    buckets, rate = Buckets(time.now, time.sleep), Rate(tokens=7, seconds_per_token=0.3)
    for _ in range(500):
        time.at += limited(buckets, rate=rate)
        assert limited(buckets, 0, rate=rate) == 0.0
    # Over time no more passes than the rate: 7 tokens at first, then one each 0.3 s.
    took = sum(limited(buckets, 1, rate=rate) == 0.0 for _ in range(100))
    assert took <= 7


def test_a_bucket_fills_up_and_not_above_its_rim(buckets: Buckets, time: Time) -> None:
    """A47: one token each 500 ms, 30 at most."""
    assert limited(buckets, 30) == 0.0
    time.at += 0.5
    assert [limited(buckets, 1), limited(buckets, 1)] == [0.0, pytest.approx(0.5)]
    time.at += 3600
    assert [limited(buckets, 30), limited(buckets, 1)] == [0.0, pytest.approx(0.5)]


def test_what_costs_more_than_a_bucket_holds_waits_for_a_full_one_and_pays_later(buckets: Buckets, time: Time) -> None:
    assert limited(buckets, 1) == 0.0
    assert limited(buckets, 90) == pytest.approx(0.5)
    time.at += 0.5
    assert limited(buckets, 90) == 0.0
    assert limited(buckets, 3) == pytest.approx(31.5)


def test_several_queues_pay_all_or_nothing(buckets: Buckets) -> None:
    assert limited(buckets, 30, "mail") == 0.0
    with pytest.raises(RateLimited) as caught:
        buckets.take({"bulk": (RATE, 30), "mail": (RATE, 3)})
    assert caught.value.queue == "mail"
    assert limited(buckets, 30, "bulk") == 0.0


@both_ways
def test_a_look_waits_and_tries_again(buckets: Buckets, time: Time, way: str) -> None:
    """A50: with an empty bucket status and list come late instead of failing."""
    assert limited(buckets, 30) == 0.0
    look(buckets, way=way)
    assert time.slept == [pytest.approx(0.5)]


@both_ways
def test_a_look_gives_up_when_others_are_always_first(
    buckets: Buckets, time: Time, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A50: five times it waits, then the error."""
    sleep = time.sleep

    def sleep_and_come_late(seconds: float) -> None:
        sleep(seconds)
        limited(buckets, 1)

    monkeypatch.setattr(time, "sleep", sleep_and_come_late)
    buckets.sleep = sleep_and_come_late
    assert limited(buckets, 30) == 0.0
    with pytest.raises(RateLimited):
        look(buckets, way=way)
    assert len(time.slept) == WAITS == 5


@both_ways
def test_a_look_at_a_bucket_in_debt_does_not_wait_for_hours(buckets: Buckets, time: Time, way: str) -> None:
    """A50: the debt of a batch of 100,000 jobs is paid in 41 hours; who looks is told so at once."""
    assert limited(buckets, 300_000) == 0.0
    with pytest.raises(RateLimited) as caught:
        look(buckets, way=way)
    assert caught.value.retry_after == pytest.approx(149_985.5)
    assert time.slept == []


def test_a_look_waits_for_so_long_in_all(buckets: Buckets, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """A50: each wait is short enough, but others are first, and all together would be too long."""
    slow = Rate(tokens=1, seconds_per_token=2)

    def sleep_and_come_late(seconds: float) -> None:
        time.sleep(seconds)
        limited(buckets, 1, rate=slow)

    buckets.sleep = sleep_and_come_late
    assert limited(buckets, 1, rate=slow) == 0.0
    with pytest.raises(RateLimited):
        look(buckets, rate=slow)
    assert time.slept == [pytest.approx(2), pytest.approx(2)]
    assert sum(time.slept) <= PATIENCE_SECONDS == 5.0


@both_ways
def test_what_costs_nothing_passes_whatever_the_debt(buckets: Buckets, time: Time, way: str) -> None:
    """A48: a price of 0 is none."""
    assert limited(buckets, 90) == 0.0
    assert limited(buckets, 0) == 0.0
    look(buckets, 0, way=way)
    assert time.slept == []
    assert limited(buckets, 1) == pytest.approx(30.5)


def test_a_changed_rate_begins_with_a_full_bucket(buckets: Buckets) -> None:
    assert limited(buckets, 30) == 0.0
    assert limited(buckets, 3, rate=Rate(tokens=3)) == 0.0


def test_resetting_fills_every_bucket(buckets: Buckets) -> None:
    """A52."""
    assert limited(buckets, 30) == 0.0
    buckets.reset()
    assert limited(buckets, 30) == 0.0


def test_buckets_that_say_nothing_are_forgotten(buckets: Buckets, time: Time) -> None:
    for number in range(MANY + 10):
        assert limited(buckets, 1, f"queue-{number}") == 0.0
        time.at += 1
    assert len(buckets._full_at) <= MANY + 1


def test_threads_never_take_more_than_there_is(buckets: Buckets) -> None:
    """A47: a bucket is one for all threads of the process."""
    took, ready = count(), threading.Barrier(4)

    def many() -> None:
        ready.wait()
        for _ in range(100):
            if limited(buckets, 1) == 0.0:
                next(took)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert next(took) == 30


SECOND_PROCESS = """
import os
from django_pgjobs.registering.token_bucket import of_this_process
from django_pgjobs.values.by_queue import Rate
of_this_process.take({"mail": (Rate(), 30)})
of_this_process._lock.acquire()  # as another thread may hold it at the fork
child = os.fork()
if not child:
    of_this_process.take({"mail": (Rate(), 30)})
    os._exit(7)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_another_process_has_buckets_of_its_own_a_forked_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A51: another node is not slowed down."""
    of_this_process.reset()
    monkeypatch.setattr(of_this_process, "_full_at", {"mail": (RATE, float("inf"))})
    assert limited(of_this_process) > 0
    done = subprocess.run([sys.executable, "-c", SECOND_PROCESS], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")
