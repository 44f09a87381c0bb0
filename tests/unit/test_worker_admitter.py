"""When an admitter looks again, and behind which key; without a database."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.execution.admission import AdmissionScan, Ring, Scanned, Turn
from django_pgjobs.store import admitting
from django_pgjobs.store.admitting import Admitted, StartRate
from django_pgjobs.store.pausing import LimitInForce
from django_pgjobs.worker.threads import admitter as admitter_module
from django_pgjobs.worker.threads.admitter import Admitter
from django_pgjobs.worker.threads.inbox_messages import InboxMessage, NothingHeld
from tests import jobs

DB: Any = object()


class Heard:
    def __init__(self) -> None:
        self.posted: list[InboxMessage] = []

    def post(self, message: InboxMessage) -> None:
        self.posted.append(message)


class Turns:
    """An admission whose turns a test says."""

    def __init__(self, *turns: Turn, declared: bool = True) -> None:
        self.turns = list(turns)
        self.declared = declared
        self.held: list[tuple[str, str]] = []
        self.rates: list[StartRate] = []
        self.overrides: frozenset[LimitInForce] = frozenset()
        self.begun = 0

    def declares(self) -> bool:
        return self.declared or bool(self.overrides)

    def learn(self, overrides: frozenset[LimitInForce]) -> bool:
        changed, self.overrides = overrides != self.overrides, overrides
        return changed

    def list_groups(self, db: object) -> list[tuple[str, str]]:
        return self.held

    def begin_anew(self) -> None:
        self.begun += 1

    def turn(self, db: object) -> Turn:
        return self.turns.pop(0)


def admitter(*turns: Turn, declared: bool = True) -> Admitter:
    heard: list[tuple[str, int]] = []
    made = Admitter(lambda: DB, Heard(), Turns(*turns, declared=declared), heard.append)  # type: ignore[arg-type]
    return made


HELD = Turn(due=True, blocked=True)


def test_while_due_jobs_are_held_back_it_looks_less_and_less_often() -> None:
    made = admitter()
    assert [made._pause_after(HELD) for _ in range(6)] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert made._pause_after(Turn(jobs=1, again=True)) == 0.0
    assert made._pause_after(HELD) == 0.05


@pytest.mark.parametrize(
    ("turn", "seconds"),
    [
        (Turn(), 1.0),
        (Turn(blocked=True, seconds=0.3), 0.3),
        (Turn(blocked=True, seconds=3600.0), 1.0),
        (Turn(blocked=True, seconds=-0.1), 0.0),
        (Turn(busy=True, due=True), admitter_module.BUSY_SECONDS),
        (Turn(again=True, due=True), 0.05),
    ],
)
def test_else_it_sleeps_until_the_next_is_due_or_for_a_second(turn: Turn, seconds: float) -> None:
    assert admitter()._pause_after(turn) == seconds


def test_where_the_code_has_rates_it_never_sleeps_for_long() -> None:
    """What is let in and not claimed is dated anew at each turn, though nothing is held back."""
    made = admitter()
    made.admission.rates = [StartRate("queue", 60.0, queue="q")]
    rated = Admitter(lambda: DB, Heard(), made.admission, made.wake_for)
    assert [rated._pause_after(turn) for turn in (Turn(), Turn(seconds=0.3), Turn(seconds=3600.0))] == [0.5, 0.3, 0.5]


def test_after_a_stir_it_looks_once_more_soon() -> None:
    """Who registers within a few milliseconds of another does not notify."""
    made = admitter()
    known = made.wake_ups
    made.wake_up()
    made._sleep(0, known)
    assert made._pause_after(HELD) == admitter_module.SETTLE_SECONDS
    assert made.admission.begun == 1  # type: ignore[attr-defined]
    made._sleep(0, made.wake_ups)
    assert made._pause_after(HELD) == 0.05
    assert made.admission.begun == 1  # type: ignore[attr-defined]


def test_who_finds_another_at_it_asks_less_and_less_often() -> None:
    made = admitter()
    busy = Turn(busy=True, due=True)
    assert [made._pause_after(busy) for _ in range(8)] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    made._pause_after(HELD)
    assert made._pause_after(busy) == 0.01
    made.wake_up()
    made._sleep(0, made.wake_ups - 1)
    assert made._pause_after(busy) == 0.01


def test_only_a_turn_that_finds_nothing_due_says_that_nothing_is_held_back() -> None:
    made = admitter(HELD, Turn(jobs=1, due=True), Turn(since=1.0))
    for expected in (False, False, True):
        made._turn(DB)
        assert made.idle_since(0.5) is expected
    assert not made.idle_since(made.clear_at)
    assert made.inbox.posted == [NothingHeld()]  # type: ignore[attr-defined]


def test_what_was_let_in_is_told_to_the_claim_thread() -> None:
    heard: list[tuple[str, int]] = []
    made = Admitter(lambda: DB, Heard(), Turns(Turn(jobs=2, pairs=frozenset({("a", 0)}))), heard.append)  # type: ignore[arg-type]
    made._turn(DB)
    assert heard == [("a", 0)]
    assert made.admitted_at > 0


def test_without_limits_it_is_called_only_by_what_is_held_back() -> None:
    made = admitter(declared=False)
    assert not made.goes_on()
    assert made.idle_since(1e9)
    made.inspect(DB)
    assert not made.goes_on()
    made.admission.held = [("default", "gone")]  # type: ignore[attr-defined]
    made.inspect(DB)
    assert made.goes_on()


def test_it_takes_turns_until_nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose code has no limits lets in what others' code has left, and rests again."""
    made = admitter(HELD, Turn(jobs=1, blocked=True), Turn(), declared=False)
    made.called.set()
    slept: list[float] = []

    def sleep(seconds: float, wake_ups: int) -> int:
        slept.append(seconds)
        return wake_ups

    monkeypatch.setattr(made, "_sleep", sleep)
    made.serve(DB)
    assert slept == [admitter_module.SHORTEST_SECONDS, 0.0, admitter_module.LONGEST_SECONDS]
    assert not made.called.is_set()
    assert made.admission.begun == 1  # type: ignore[attr-defined]


def admitted(**facts: Any) -> Admitted:
    return Admitted(
        **{
            "queue": "q", "name": jobs.succeeds.name, "jobs": 0, "priorities": None, "last_key": None,
            "last_priority": None, "closed": False, "cut": False, "turned": False, "due": False, "scanned_key": "z",
            "scanned_priority": 0, "seconds": None, **facts,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "after"),
    [
        ({}, None),
        ({"cut": True}, ("z", 0)),
        ({"cut": True, "jobs": 1, "last_key": "b", "last_priority": 3}, ("b", 3)),
        ({"jobs": 1, "last_key": "", "last_priority": 0}, ("", 0)),
        ({"closed": True, "cut": None, "scanned_key": None, "scanned_priority": None}, None),
    ],
)
def test_the_next_turn_begins_behind_whom_was_given_something(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], after: Any
) -> None:
    """Behind the last one looked at, the keys between would never have their turn."""
    asked: list[Any] = []

    def admit(db: object, terms: Any, **options: Any) -> list[Admitted]:
        asked.extend(terms)
        return [admitted(**facts)]

    groups = [("q", jobs.succeeds.name), ("q", "unknown"), ("excluded", jobs.succeeds.name)]
    monkeypatch.setattr(admitting, "list_limited", lambda db, *, after, limit: list(groups))
    monkeypatch.setattr(admitting, "admit_jobs", admit)
    admission = AdmissionScan(lambda queue: queue == "q", get_conf())
    admission.turn(DB)
    admission.turn(DB)
    assert [(each.queue, each.name) for each in asked] == [("q", jobs.succeeds.name)] * 2
    assert [each.after for each in asked] == [None, after]


def cut(**facts: Any) -> Admitted:
    return admitted(cut=True, **facts)


def walked(*parts: Admitted) -> tuple[Ring, list[tuple[bool, bool]]]:
    """Walk a ring part by part, each a second after the one before; return it, and what was known after each."""
    ring = Ring()
    known = [ring.record(part, float(began)) for began, part in enumerate(parts)]
    return ring, [(seen.due, bool(seen.since >= 0)) for seen in known]


def test_of_keys_that_are_cut_it_is_known_what_is_due_when_the_round_is_whole() -> None:
    """A round ends where the walk begins at the first key again; until then something may be due."""
    ring, known = walked(cut(), cut(seconds=90.0), cut(turned=True), cut(), cut(due=True), cut(turned=True))
    assert known == [(True, False), (True, False), (False, True), (False, True), (True, True), (True, True)]
    assert ring.whole == Scanned(2.0, True)
    assert ring.record(cut(turned=True), 6.0) == Scanned(5.0)


def test_a_round_that_found_nothing_due_is_not_hurried_until_its_next_is_due() -> None:
    ring = Ring()
    seen = []
    parts = [cut(), cut(seconds=2.5, turned=True), cut(), cut(), cut(), cut(turned=True), cut(turned=True), cut()]
    for began, part in enumerate(parts):
        ring.record(part, float(began))
        seen.append(ring.again)
    assert seen == [True, False, False, False, True, False, False, False]


def test_a_round_that_found_something_due_is_followed_by_the_next_after_a_pause() -> None:
    ring = Ring()
    seen = []
    for part in (cut(due=True), cut(), cut(turned=True), cut(), cut(turned=True)):
        ring.record(part, 0.0)
        seen.append(ring.again)
    assert seen == [True, True, False, True, False]


def test_after_a_stir_a_round_is_whole_that_began_behind_it() -> None:
    ring, _ = walked(cut(), cut(turned=True))
    ring.begin_anew()
    known = [ring.record(part, 9.0) for part in (cut(), cut(turned=True), cut(turned=True))]
    assert [(seen.due, seen.since) for seen in known] == [(True, -math.inf), (True, -math.inf), (False, 9.0)]


def test_jobs_of_unknown_names_are_left_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admitting, "list_limited", lambda db, *, after, limit: [("q", "unknown")])
    admission = AdmissionScan(lambda queue: True, get_conf())
    admission.rates = []
    assert admission.turn(DB) == Turn()


def test_an_alias_counts_under_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = SimpleNamespace(name="new", aliases=("old",), limits=jobs.succeeds.limits)
    monkeypatch.setattr(registry, "get", lambda name: definition)
    terms = AdmissionScan(lambda queue: True, get_conf())._terms("q", "old")
    assert (terms.name, terms.job, terms.names) == ("old", "new", ("new", "old"))


def test_a_limit_that_an_operator_sets_makes_it_take_turns_until_it_is_restored() -> None:
    """In a worker whose code has none; each change is followed by a turn at once."""
    made = admitter(declared=False)
    limit = LimitInForce("queue", "mail", 2, None, None)
    assert not made.goes_on()
    made.learn(frozenset({limit}))
    assert made.goes_on()
    assert (made.declares, made.wake_ups) == (True, 1)
    assert made._pause_after(Turn()) == admitter_module.HELD_SECONDS
    made.learn(frozenset({limit}))
    assert made.wake_ups == 1
    made.learn(frozenset({limit._replace(concurrency=3)}))
    assert made.wake_ups == 2
    made.learn(frozenset())
    assert (made.declares, made.wake_ups, made.goes_on()) == (False, 3, True)
    assert made._pause_after(Turn()) == admitter_module.LONGEST_SECONDS
