"""What the listener believes of what it hears, and what of it the claim thread keeps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from django_pgjobs import clock
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.listener import Listener
from django_pgjobs.worker.threads.ready_hints import MOST_HINTS
from tests.unit.claimer_fakes import DB
from tests.unit.worker_fakes import Heard


def wake_up() -> None:
    raise AssertionError("nothing here is held by a limit")


class Notice:
    def __init__(self, payload: str) -> None:
        self.payload = payload


@pytest.mark.parametrize(
    "payload",
    [
        "", ":", "5", "5:", ":a", "--5:a", "²:a", "٣:a", "1e3:a", "-99999:a", "99999999999999999999:a",
        "5:a b", "5:a\nb", "5:" + "a" * 101, "5:excluded",
    ],
)  # fmt: skip
def test_what_no_registration_sends_is_not_believed(claimer: Claimer, payload: str) -> None:
    """Every role of the database may notify; a priority that no column holds would make every claim fail."""
    claimer.frontier.excluded = frozenset({"excluded"})
    Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)._hand_on(payload)
    assert (claimer.hints.pairs, claimer.notified) == (set(), 0)


def test_an_admitter_hears_of_what_a_limit_holds_and_the_claim_thread_does_not(claimer: Claimer) -> None:
    stirred: list[int] = []
    claimer.frontier.excluded = frozenset({"excluded"})
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, lambda: stirred.append(1))
    for payload in ("limited:a", "limited:", "limited:excluded", "limited:a b", "Limited:a"):
        listener._hand_on(payload)
    assert (stirred, claimer.hints.pairs) == ([1], set())


def test_of_what_was_given_back_the_next_claim_hears(claimer: Claimer) -> None:
    claimer.frontier.excluded = frozenset({"excluded"})
    claimer.frontier.learn([("a", 0), ("b", 0)])
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    for payload in ("behind:a", "behind:", "behind:excluded", "behind:a b", "Behind:b"):
        listener._hand_on(payload)
    assert (claimer.hints.released, claimer.notified, claimer.hints.pairs) == ({"a"}, 1, set())
    claimer.hints.hand_over(claimer.lines.values())
    assert [reach.behind for reach in claimer.frontier.reaches.values()] == [True, False]
    assert not claimer.hints.released


def test_that_a_producer_is_busy_is_heard_for_queues_that_are_served(claimer: Claimer) -> None:
    claimer.frontier.excluded = frozenset({"excluded"})
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    for payload in ("busy:excluded", "busy:", "busy:a b", "Busy:a"):
        listener._hand_on(payload)
    assert claimer.settles_at == 0.0
    listener._hand_on("busy:a")
    assert claimer.settles_at > clock.monotonic()
    assert claimer.hints.pairs == set()


@pytest.mark.parametrize(
    ("payload", "pair"), [("0:a", ("a", 0)), ("-100:a.b:c", ("a.b:c", -100)), ("100:x", ("x", 100))]
)
def test_a_registration_is_heard(claimer: Claimer, payload: str, pair: tuple[str, int]) -> None:
    Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)._hand_on(payload)
    assert (claimer.hints.pairs, claimer.notified) == ({pair}, 1)


def test_names_without_end_are_not_kept_without_end(claimer: Claimer) -> None:
    """While every thread is busy nothing asks for what was heard; the list of queues has it all."""
    claimer.hints.list_due = 99.0
    for number in range(MOST_HINTS + 5):
        claimer.wake_for((f"q{number}", 0))
        claimer.wake_for_released(f"q{number}")
    hints = claimer.hints
    assert (len(hints.pairs), hints.list_due, len(hints.released)) == (MOST_HINTS, 0.0, MOST_HINTS)
    claimer.frontier.learn([("last", 0)])
    claimer.hints.hand_over(claimer.lines.values())
    assert all(reach.behind for reach in claimer.frontier.reaches.values()), "one of those too many may be any"
    assert (claimer.hints.released_anywhere, claimer.hints.released) == (False, set())


def test_what_was_let_in_is_heard_of_and_looked_for_behind_the_frontier(claimer: Claimer) -> None:
    claimer.wake_for_admitted(("a", 0))
    assert (claimer.hints.pairs, claimer.hints.admitted, claimer.notified) == ({("a", 0)}, {("a", 0)}, 1)
    claimer.hints.hand_over(claimer.lines.values())
    assert (claimer.hints.pairs, claimer.hints.admitted) == (set(), set())
    assert claimer.frontier.reaches["a", 0].admitted_due < 0.0
    for number in range(MOST_HINTS + 5):
        claimer.wake_for_admitted((f"q{number}", 0))
    assert len(claimer.hints.admitted) == MOST_HINTS


class Way:
    """A listening connection: notices arrive as a test says, one look after the other."""

    def __init__(self, looks: list[list[Notice]], stop: Any) -> None:
        self.pooled = False
        self.connection = self
        self.asked = self.statements = 0
        self.looks = looks
        self.stop = stop

    def fetch(self, name: str, params: Any) -> list[Any]:
        self.asked += 1
        return []

    def wait_for_news(self, seconds: float, bell: Any) -> None: ...

    def notifies(self, *, timeout: float, stop_after: int) -> list[Notice]:
        if len(self.looks) == 1:
            self.stop()
        return self.looks.pop(0)


def test_a_listener_asks_now_and_then_whether_it_would_still_hear(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that has vanished is as silent as a quiet queue: without an answer it would be believed in for hours."""
    monkeypatch.setattr(clock, "monotonic", itertools.count(0.0, 20.0).__next__)
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    way: Any = Way([[], [Notice("0:a")], [], []], listener.stopping.set)
    listener.serve(way)
    assert 2 <= way.asked <= 4
    assert claimer.hints.pairs == {("a", 0)}
    assert not claimer.listening.is_set()


def test_a_listener_never_asks_while_notifications_arrive(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the answer come all that the server has for it, however many: none of them could be left."""
    monkeypatch.setattr(clock, "monotonic", itertools.count(0.0, 20.0).__next__)
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    way: Any = Way([[Notice("0:a")] * 3 for _ in range(9)], listener.stopping.set)
    listener.serve(way)
    assert way.asked == 1, "to listen at all"


def test_behind_a_transaction_pooler_nothing_can_be_heard(claimer: Claimer) -> None:
    listener = Listener(lambda: DB, Heard(), claimer, lambda: None, wake_up)
    way: Any = Way([], listener.stopping.set)
    way.pooled = True
    listener.serve(way)
    assert (listener.stopping.is_set(), way.asked) == (True, 0)


def test_a_pause_is_heard_of(claimer: Claimer) -> None:
    looked: list[bool] = []
    listener = Listener(lambda: DB, Heard(), claimer, lambda: looked.append(True), wake_up)
    listener._hand_on("pauses")
    assert looked == [True]
    assert (claimer.hints.pairs, claimer.notified) == (set(), 0)
