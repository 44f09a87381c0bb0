"""Signals of durable writes reach a receiver, or it is said that they did not."""

from __future__ import annotations

import logging

import pytest

from django_pgjobs.execution.events import OUTCOMES
from django_pgjobs.worker.shared.channel_messages import SignalEvent
from django_pgjobs.worker.supervisor.executor_process import DRAINING, ExecutorProcess
from django_pgjobs.worker.supervisor.signal_relay import (
    MOST_DEATHS,
    MOST_KEPT_BYTES,
    MOST_PENDING,
    MOST_UNCONFIRMED,
    SignalRelay,
)
from tests.unit.worker_fakes import child_of, end_of


def events(*numbers: int) -> list[SignalEvent]:
    return [("finished", {"job_id": number, "outcome": "succeeded"}) for number in numbers]


def told_to(child: ExecutorProcess) -> list[list[int]]:
    return [[fields["job_id"] for _, fields in message.events] for message in end_of(child).sent]


def test_they_wait_while_the_only_listener_does_not_read() -> None:
    """A job holds its interpreter, perhaps for long: what waits for its socket has no bound, what waits here has."""
    deaf, hears = child_of(listens=True), child_of(listens=True)
    relay = SignalRelay([deaf, hears])
    end_of(deaf).kept = MOST_KEPT_BYTES
    relay.add(events(1))
    assert (told_to(deaf), told_to(hears)) == ([], [[1]])
    end_of(hears).kept = MOST_KEPT_BYTES
    relay.add(events(2))
    relay.add(events(3))
    assert list(relay.fresh) == events(2, 3)
    end_of(deaf).kept = 0
    relay.send_pending()
    assert told_to(deaf) == [[2, 3]]
    assert not relay.fresh


def test_only_so_many_are_at_one_executor_and_the_next_gets_the_others() -> None:
    one, two = child_of(listens=True), child_of(listens=True)
    relay = SignalRelay([one, child_of(), child_of(listens=True, state=DRAINING), two])
    relay.add(events(*range(2 * MOST_UNCONFIRMED + 5)))
    assert [len(batch) for batch in told_to(one) + told_to(two)] == [MOST_UNCONFIRMED, MOST_UNCONFIRMED]
    assert list(relay.fresh) == events(*range(2 * MOST_UNCONFIRMED, 2 * MOST_UNCONFIRMED + 5))
    relay.confirmed(one, 1)
    assert told_to(one)[1] == [*range(2 * MOST_UNCONFIRMED, 2 * MOST_UNCONFIRMED + 5)]


def test_what_is_too_much_is_dropped_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    children: list[ExecutorProcess] = []
    relay = SignalRelay(children)
    with caplog.at_level(logging.WARNING):
        relay.add(events(*range(MOST_PENDING)))
        assert not caplog.records
        relay.add(events(MOST_PENDING))
        relay.add(events(MOST_PENDING + 1, MOST_PENDING + 2))
        assert list(relay.fresh)[:1] == events(3)
        children.append(child_of(listens=True))
        relay.send_pending()
    assert [record.getMessage() for record in caplog.records] == [
        "receivers of signals are too slow, signals are dropped",
        "receivers of signals keep up again dropped=3",
    ]


def test_what_was_not_notified_at_a_death_comes_before_what_is_new() -> None:
    one = child_of(listens=True)
    children = [one]
    relay = SignalRelay(children)
    for number in (1, 2, 3):
        relay.add(events(number))
    relay.confirmed(one, 1)
    children.clear()
    relay.add(events(4))
    relay.died(one, by_itself=False)
    two = child_of(listens=True)
    children.append(two)
    relay.send_pending()
    assert told_to(two) == [[2], [3], [4]]


def test_a_receiver_that_ends_its_process_does_not_end_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """What was being told is told one by one; the first of them is dropped at last, and the others are not."""
    children = [child_of(listens=True)]
    relay = SignalRelay(children)
    relay.add(events(1, 2))
    relay.add(events(3))
    for _ in range(MOST_DEATHS):
        assert relay.dropped == 0
        old = children[0]
        assert told_to(old)[0][0] == 1
        children[0] = child_of(listens=True)
        relay.died(old, by_itself=True)
    assert told_to(children[0]) == [[2], [3]]
    assert "a signal, it is dropped deaths=10 signal=finished job=1" in caplog.text
    # A kill of ours says nothing about what was being told.
    for _ in range(MOST_DEATHS):
        old = children[0]
        children[0] = child_of(listens=True)
        relay.died(old, by_itself=False)
    assert told_to(children[0]) == [[2], [3]]


def test_one_that_dies_by_itself_with_all_confirmed_leaves_nothing_to_send_again() -> None:
    one, two = child_of(listens=True), child_of(listens=True)
    relay = SignalRelay([two])
    relay.died(one, by_itself=True)
    assert told_to(two) == []
    relay.add(events(1))
    assert told_to(two) == [[1]]


def ends(*outcomes: str) -> list[SignalEvent]:
    return [("finished", {"job_id": number, "outcome": outcome}) for number, outcome in enumerate(outcomes, 1)]


def test_only_what_somebody_wants_to_hear_of_is_sent() -> None:
    """§1.6: an end that nobody wants to hear of costs no message, and one that cannot be wanted is not even made."""
    child = child_of()
    relay = SignalRelay([child])
    relay.notify(lambda: pytest.fail("nobody listens"))
    relay.interested(child, ["abandoned"])
    relay.notify(lambda: pytest.fail("not wanted"), ("succeeded",))
    relay.notify(lambda: ends("cancelled"))
    assert not end_of(child).sent
    assert not relay.fresh
    relay.notify(lambda: ends("cancelled", "abandoned", "succeeded"), OUTCOMES)
    assert told_to(child) == [[2]]
    relay.interested(child, [])
    relay.notify(lambda: pytest.fail("not wanted any more"))


def test_what_any_executor_wants_counts_until_another_has_said_what_it_wants() -> None:
    """A recycled executor leaves before its successor is ready; what ends meanwhile waits for the successor."""
    one, two = child_of(), child_of()
    children = [one, two]
    relay = SignalRelay(children)
    relay.interested(one, ["abandoned"])
    relay.interested(two, ["retried"])
    assert relay.wanted == {"abandoned", "retried"}
    children.clear()
    relay.notify(lambda: ends("abandoned"))
    assert list(relay.fresh) == ends("abandoned")
    three = child_of()
    children.append(three)
    relay.interested(three, ["abandoned"])
    assert relay.wanted == {"abandoned"}
    assert told_to(three) == [[1]]


def test_what_only_one_executor_wants_goes_to_that_one() -> None:
    """Code that a job has imported there connects its receivers there only; any other executor would call nobody."""
    narrow, wide, other = child_of(), child_of(), child_of()
    children = [narrow, wide, other]
    relay = SignalRelay(children)
    relay.interested(narrow, ["abandoned"])
    relay.interested(wide, ["abandoned", "succeeded"])
    relay.interested(other, ["cancelled"])
    relay.notify(lambda: ends("abandoned", "succeeded", "abandoned", "cancelled", "succeeded"))
    assert (told_to(narrow), told_to(wide), told_to(other)) == ([[1]], [[2, 3], [5]], [[4]])
    end_of(wide).kept = MOST_KEPT_BYTES
    relay.notify(lambda: ends("succeeded"))
    assert list(relay.fresh) == ends("succeeded"), "it waits until that one reads"
    end_of(wide).kept = 0
    relay.send_pending()
    assert told_to(wide)[-1] == [1]


def test_what_an_executor_has_not_confirmed_goes_to_one_that_wants_all_of_it() -> None:
    old, narrow, wide = child_of(), child_of(), child_of()
    children = [old]
    relay = SignalRelay(children)
    relay.interested(old, ["abandoned", "succeeded"])
    relay.notify(lambda: ends("abandoned", "succeeded"))
    children[:] = [narrow, wide]
    relay.interested(narrow, ["abandoned"])
    relay.interested(wide, ["abandoned", "succeeded"])
    relay.died(old, by_itself=False)
    assert (told_to(narrow), told_to(wide)) == ([], [[1, 2]])


def test_what_only_a_dead_executor_wanted_is_not_kept_for_ever() -> None:
    one, two = child_of(), child_of()
    children = [one]
    relay = SignalRelay(children)
    relay.interested(one, ["abandoned", "succeeded"])
    children[:] = [two]
    relay.notify(lambda: ends("succeeded"))
    relay.interested(two, ["abandoned"])
    assert not relay.fresh


def test_an_executor_is_needed_while_no_other_wants_as_much() -> None:
    narrow, wide = child_of(), child_of()
    relay = SignalRelay([narrow, wide])
    relay.interested(narrow, ["abandoned"])
    relay.interested(wide, ["abandoned", "succeeded"])
    assert relay.needs(wide)
    assert not relay.needs(narrow)
