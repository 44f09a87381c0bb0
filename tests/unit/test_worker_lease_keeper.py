"""When the keep thread renews, reads and beats, how soon it tries again, and what it does not ask for."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.store import finalising, keeping, pausing, schemas
from django_pgjobs.store.pausing import LimitInForce, Pauses
from django_pgjobs.worker.threads.inbox_messages import FlagsRead, PausesRead, Renewed
from django_pgjobs.worker.threads.lease_keeper import CHECKED_SECONDS, PAUSES_SECONDS, LeaseKeeper
from tests.unit.worker_fakes import Heard

AWAY = psycopg.OperationalError("canceling statement due to lock timeout")


class Time:
    """The worker's clock; a pause of the keeper lets it pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Notes what is asked and when; what is in ``fails`` raises."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.asked: list[tuple[str, float]] = []
        self.fails: dict[str, int] = {}
        self.takes = 0.0
        self.statements = 0
        self.gone = False

    def does(self, name: str, answer: Any) -> Callable[..., Any]:
        def ask(*_: Any, **__: Any) -> Any:
            self.asked.append((name, self.time.now))
            self.statements += 1
            if self.fails.get(name, 0):
                self.fails[name] -= 1
                raise AWAY
            self.time.now += self.takes
            return answer

        return ask

    def when(self, name: str) -> list[float]:
        return [at for what, at in self.asked if what == name]

    def close(self) -> None: ...


class Stage:
    """A keeper on a stopped clock, run for so many seconds of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.time = Time()
        self.server = Server(self.time)
        self.heard = Heard()
        self.claims: dict[str, float] = {"a": 60.0}
        self.asked_for: list[float] = []
        self.listens = False
        self.told: Callable[[LeaseKeeper], object] = lambda keeper: None
        """Called whenever the keeper goes to sleep."""
        monkeypatch.setattr(clock, "monotonic", self.time)
        monkeypatch.setattr(keeping, "renew_claims", self.server.does("renew", {"a"}))
        monkeypatch.setattr(keeping, "read_flags", self.server.does("flags", []))
        monkeypatch.setattr(pausing, "read_pauses", self.server.does("pauses", Pauses()))
        monkeypatch.setattr(keeping, "beat", self.server.does("beat", None))
        monkeypatch.setattr(finalising, "list_claims", self.server.does("list", ["b", "c"]))
        monkeypatch.setattr(finalising, "delete_claims", self.server.does("delete", 1))

    def run(self, seconds: float, *, lease: float = 30.0, renew: float = 10.0, beat: float = 10.0) -> LeaseKeeper:
        keeper = LeaseKeeper(
            lambda: self.server,  # type: ignore[arg-type, return-value]
            self.heard,
            held=self.held,
            check_ins=lambda: self.claims,
            facts=dict,
            lease_seconds=lease,
            renew_seconds=renew,
            beat_seconds=beat,
            listens=lambda: self.listens,
        )
        until = self.time.now + seconds

        def wait(timeout: float) -> bool:
            self.time.now += timeout
            self.told(keeper)
            if self.time.now >= until:
                keeper.stopping.set()
            return False

        self.monkeypatch.setattr(keeper.wake, "wait_for", lambda predicate, timeout: wait(timeout))
        self.monkeypatch.setattr(keeper.stopping, "wait", wait)
        keeper.run()
        return keeper

    def held(self, until: float) -> list[tuple[int, str]]:
        self.asked_for.append(self.time.now - until)
        return [(1, claim) for claim in self.claims]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def gaps(instants: list[float]) -> list[float]:
    return [round(after - before, 3) for before, after in pairwise(instants)]


def test_leases_are_renewed_each_period_and_flags_read_each_second(stage: Stage) -> None:
    """C5 D1 D7 P16: every 10 s by default, the first at once; one statement for all."""
    stage.run(35)
    assert gaps(stage.server.when("renew")) == [10.0, 10.0, 10.0]
    assert gaps(stage.server.when("beat")) == [10.0, 10.0, 10.0]
    assert max(gaps(stage.server.when("flags"))) < 1.0
    assert stage.server.asked[0] == ("renew", 1000.0)


def test_a_job_too_young_for_one_look_is_looked_at_within_a_second(stage: Stage) -> None:
    """However soon after its claim it is cancelled."""
    stage.run(10)
    assert 0 < max(stage.asked_for) + max(gaps(stage.server.when("flags"))) < 0.9


@pytest.mark.parametrize(("renew", "pause"), [(10.0, 2.5), (0.4, 0.25), (0.1, 0.1)])
def test_after_trouble_a_renewal_is_tried_again_sooner(
    stage: Stage, renew: float, pause: float, caplog: pytest.LogCaptureFixture
) -> None:
    """C6 C10 C11: after a quarter of the period, at least 250 ms (or the period itself); only a warning is logged."""
    stage.server.fails["renew"] = 3
    with caplog.at_level(logging.WARNING):
        stage.run(10 * renew, lease=3 * renew, renew=renew, beat=1000.0)
    found = gaps(stage.server.when("renew"))
    assert found[:3] == [pytest.approx(pause)] * 3
    assert found[4:] == [pytest.approx(renew)] * len(found[4:])
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert "will try again loop=keep" in caplog.text


def test_a_claim_that_was_not_renewed_is_tried_again_sooner(stage: Stage) -> None:
    """P19: somebody may hold its row for the moment; whether it is lost is for the flags to say."""
    stage.claims = {"a": 60.0, "b": 60.0}
    stage.run(10)
    assert gaps(stage.server.when("renew"))[:3] == [2.5, 2.5, 2.5]


def test_a_beat_that_fails_is_a_warning_and_the_next_one_comes(stage: Stage) -> None:
    """D8: at its time, not at once: whoever holds the row of a heartbeat must not hold up the renewals."""
    stage.claims = {"a": 60.0}
    stage.server.fails["beat"] = 2
    stage.run(40)
    assert len(stage.server.when("beat")) >= 4
    assert min(gaps(stage.server.when("beat"))) >= 9.0


def test_what_is_not_held_is_not_asked_for(stage: Stage) -> None:
    """C13 P18: no renewal, no flags; a worker that has ended all its jobs only beats, and reads what is paused."""
    stage.claims = {}
    stage.run(30)
    assert {name for name, _ in stage.server.asked} == {"beat", "pauses"}


def test_at_rest_no_pauses_are_read_while_the_check_finds_none(stage: Stage) -> None:
    """A worker that holds nothing and listens of pauses only beats."""
    stage.claims, stage.listens = {}, True
    stage.told = lambda keeper: keeper.saw_pauses(are_any=False)
    stage.run(30)
    assert len(stage.server.when("pauses")) == 1


@pytest.mark.parametrize("error", [psycopg.errors.QueryCanceled("a migration"), psycopg.OperationalError("cut")])
def test_pauses_that_could_not_be_read_yet_are_read_also_at_rest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: psycopg.Error
) -> None:
    """A worker claims nothing before it knows them: if it then rested, it would never claim."""
    ask = stage.server.does("pauses", None)
    answers = iter([error])

    def read(db: object) -> Pauses:
        ask()
        for each in answers:
            raise each
        return Pauses()

    monkeypatch.setattr(pausing, "read_pauses", read)
    stage.claims, stage.listens = {}, True
    stage.told = lambda keeper: keeper.saw_pauses(are_any=False)
    stage.run(30)
    assert [told.pauses for told in stage.heard.of(PausesRead)] == [Pauses()]
    assert len(stage.server.when("pauses")) == 2


def test_a_pause_heard_of_whose_reading_failed_is_read_on_the_next_connection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rest its own connection may be gone unnoticed: then the word of a pause is the first to meet that."""
    mail = Pauses(frozenset({"mail"}))
    answers: Iterator[Pauses | Exception] = iter([Pauses(), AWAY, mail])
    ask = stage.server.does("pauses", None)

    def read(db: object) -> Pauses:
        ask()
        answer = next(answers, mail)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def told(keeper: LeaseKeeper) -> None:
        keeper.saw_pauses(are_any=False)
        if len(stage.server.when("pauses")) == 1 and stage.time.now >= hears_at:
            keeper.read_pauses_now()

    monkeypatch.setattr(pausing, "read_pauses", read)
    stage.claims, stage.listens, stage.told, hears_at = {}, True, told, stage.time.now + 20
    stage.run(40)
    assert [each.pauses for each in stage.heard.of(PausesRead)] == [Pauses(), mail]
    failed_at, read_at = stage.server.when("pauses")[1:3]
    assert read_at - failed_at <= 2.5, "after a quarter of the period of renewals"


def test_a_limit_that_an_operator_has_changed_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another number, too: the admitter has a turn at once."""
    numbers = [Pauses(limits=frozenset({LimitInForce("queue", "mail", n, None, None)})) for n in (2, 3)]
    answers = iter([Pauses(), numbers[0], numbers[0], numbers[1], Pauses()])
    monkeypatch.setattr(pausing, "read_pauses", lambda db: next(answers, Pauses()))
    stage.run(10)
    assert [read.pauses for read in stage.heard.of(PausesRead)] == [Pauses(), *numbers, Pauses()]


def test_a_pause_heard_of_at_the_moment_of_rest_is_read(stage: Stage) -> None:
    """The listen thread says so once, while the keep thread finds that it need not read them."""
    stage.claims, stage.listens = {}, True
    keeper = stage.run(1)
    keeper.next_pauses, keeper.unpaused_until = 1.0, math.inf

    def listens() -> bool:
        keeper.read_pauses_now()
        return True

    keeper.listens = listens
    assert not keeper._puts_off(stage.time.now)
    assert keeper.next_pauses == 0.0
    keeper.listens, keeper.next_pauses = lambda: True, 1.0
    assert keeper._puts_off(stage.time.now)


@pytest.mark.parametrize("why", ["deaf", "holds", "unchecked", "seen"])
def test_pauses_are_read_twice_a_second_again_as_soon_as_that_may_matter(stage: Stage, why: str) -> None:
    """It holds a job, listens of no pause, the check has none or finds one: within a second, as before."""
    stage.claims, stage.listens = {}, True
    changes_at = stage.time.now + 20

    def told(keeper: LeaseKeeper) -> None:
        changed = stage.time.now >= changes_at
        stage.listens = not (changed and why == "deaf")
        stage.claims = {"a": 60.0} if changed and why == "holds" else {}
        if not changed or why != "unchecked":
            keeper.saw_pauses(are_any=changed and why == "seen")

    stage.told = told
    stage.run(40)
    _, *later = stage.server.when("pauses")
    allowed = CHECKED_SECONDS if why == "unchecked" else 0.0
    assert changes_at <= later[0] <= changes_at + allowed + 1.0
    assert max(gaps(later)) <= 0.75


def test_what_was_read_counts_from_before_it_was_asked(stage: Stage) -> None:
    """P11: an answer that took two seconds vouches for nothing that was after the question."""
    stage.server.takes = 2.0
    stage.run(1)
    [asked] = stage.server.when("flags")[:1]
    assert stage.heard.of(FlagsRead)[0].asked_at == asked
    [renewed_at] = stage.server.when("renew")[:1]
    assert stage.heard.of(Renewed)[0].asked_at == renewed_at


def test_the_farewell_takes_what_is_left_of_the_ledger_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal may have held the rows of ended claims just when they were to be deleted."""
    stage = Stage(monkeypatch)
    keeper = stage.run(0.0)
    stage.server.asked.clear()
    keeper.farewell({}, UUID(int=1))
    assert [what for what, _ in stage.server.asked] == ["beat", "list", "delete"]


@pytest.mark.parametrize("removed", [True, False])
def test_the_farewell_to_a_schema_comes_after_its_claims(monkeypatch: pytest.MonkeyPatch, removed: bool) -> None:
    """One that still has claims there says that it has stopped."""
    stage = Stage(monkeypatch)
    keeper = stage.run(0.0)
    stage.server.asked.clear()
    monkeypatch.setattr(schemas, "remove_worker", lambda db, worker: removed)
    keeper.farewell({}, UUID(int=1), remove=True)
    assert [what for what, _ in stage.server.asked] == ["list", "delete", *([] if removed else ["beat"])]


def test_pauses_are_read_twice_a_second_and_told_when_they_have_changed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pausing is obeyed within a second with NOTIFY off; what has not changed is told to nobody."""
    mail = Pauses(frozenset({"mail"}))
    answers = iter([Pauses(), Pauses(), mail, mail, Pauses()])
    ask = stage.server.does("pauses", None)
    monkeypatch.setattr(pausing, "read_pauses", lambda db: (ask(), next(answers, Pauses()))[1])
    with caplog.at_level(logging.INFO):
        stage.run(5)
    assert set(gaps(stage.server.when("pauses"))) == {PAUSES_SECONDS}
    assert [read.pauses for read in stage.heard.of(PausesRead)] == [Pauses(), mail, Pauses()]
    assert caplog.text.count("pauses have changed") == 2


def test_a_locked_table_of_pauses_keeps_no_lease_waiting_for_long(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W10: it is not asked for again before the next renewal; what is known holds on."""
    ask = stage.server.does("pauses", None)

    def locked(db: object) -> Pauses:
        ask()
        stage.time.now += 3.0
        raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")

    monkeypatch.setattr(pausing, "read_pauses", locked)
    stage.run(60)
    assert len(stage.server.when("pauses")) <= 6
    assert max(gaps(stage.server.when("renew"))) <= 13.0
    assert not stage.heard.of(PausesRead)
    assert "pauses cannot be read" in caplog.text


def test_whoever_hears_of_a_pause_has_it_read_at_once(stage: Stage) -> None:
    keeper = stage.run(1)
    keeper.next_pauses = 99.0
    keeper.read_pauses_now()
    assert keeper.next_pauses == 0.0
