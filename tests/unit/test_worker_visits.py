"""Which schemas are awake: the main thread's part, with homes that do as they are told."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_pgjobs import clock
from django_pgjobs.maintenance.duties import DutyProgress
from django_pgjobs.running.runtime import visits_of
from django_pgjobs.running.worker import Worker, WorkerOptions
from django_pgjobs.worker.shared.controls import Controls
from django_pgjobs.worker.shared.runs import ENDING
from django_pgjobs.worker.supervisor.home import Home
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.supervisor.visits import (
    AWAKE_SECONDS,
    LED_SECONDS,
    MOST_CLAIMING,
    MOST_UNLED,
    REST_SECONDS,
    Visits,
)
from django_pgjobs.worker.threads.inbox_messages import SchemasFound
from django_pgjobs.worker.threads.maintainer import FirstTurns


class Claiming:
    """A claimer that claims nothing by itself."""

    def __init__(self) -> None:
        self.halted = self.busy = self.hungry = False
        self.unconfirmed: object = None
        self.in_doubt = SimpleNamespace(doubts=[])
        self.reachable = True
        self.lines = {False: None}

    def halt(self) -> None:
        self.halted = True

    def is_hungry(self, line: bool, now: float) -> bool:
        return self.hungry


class Awake:
    """A schema that is awake; its threads end when ``leave`` is called."""

    def __init__(self, schema: str) -> None:
        self.claimer = Claiming()
        self.loops: list[Any] = [SimpleNamespace(lost=False, start=lambda: None, stop=lambda: None)]
        self.table = SimpleNamespace(held={}, ended=0)
        self.home: Any = SimpleNamespace(
            alias=schema,
            idle_at=math.inf,
            claimer=self.claimer,
            loops=self.loops,
            table=self.table,
            finaliser=SimpleNamespace(has_any=False),
            start=lambda: Home.start(self.home),
            controls=Controls(),
        )
        self.hearer: Any = None
        self.has_duties = False
        self.is_kept_up = True
        self.wait: Callable[[], object] = lambda: None
        self.first = FirstTurns()

    def leave(self) -> None:
        self.wait()
        assert not self.table.held or self.loops[0].lost


class Rotating:
    """What the rota is told."""

    def __init__(self) -> None:
        self.awake: set[str] = set()
        self.looked: list[str] = []
        self.doubted: list[str] = []

    def wakes(self, schema: str, hearer: object) -> None:
        self.awake.add(schema)

    def sleeps(self, schema: str) -> None:
        self.awake.discard(schema)
        self.looked.append(schema)

    def doubts(self, schema: str) -> None:
        self.doubted.append(schema)

    def watch(self, now: float) -> None:
        """Nothing to cut."""

    def stop(self) -> None:
        """Nothing to end."""


class Posted:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def post(self, message: Any) -> None:
        self.messages.append(message)


class Ground:
    """Visits of made-up homes."""

    def __init__(self) -> None:
        self.homes: dict[str, Awake] = {}
        self.jobs: dict[int, None] = {}
        self.loops: list[Any] = []
        self.leave: Callable[[], object] = lambda: None
        self.rota: Any = Rotating()
        self.inbox: Any = Posted()
        self.visits: Visits[Any] = Visits(self.rota, SimpleNamespace(stop=lambda: None), [], self.visit, self.inbox, [])  # type: ignore[arg-type]
        self.visits.are(frozenset(f"t{n}" for n in range(100)))

    def visit(self, schema: str, first: FirstTurns) -> Any:
        self.homes[schema] = Awake(schema)
        self.homes[schema].wait = self.leave
        self.homes[schema].first = first
        self.homes[schema].table.held.update(self.jobs)
        self.homes[schema].home.loops.extend(self.loops)
        return self.homes[schema]

    def pass_(self, seconds: float = AWAKE_SECONDS) -> None:
        """Let so much time pass, and homes that leave be gone."""
        now = clock.monotonic() + seconds
        self.visits.tick(now)
        self.visits.tick(now)
        for visit in list(self.visits.awake.values()):
            if visit.leaving is not None:
                visit.leaving.join()
        for message in self.inbox.messages:
            self.visits.left(message.schema)
        self.inbox.messages.clear()


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_a_schema_with_a_job_is_awake_until_it_has_none(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    assert ground.rota.awake == {"t1"}
    ground.homes["t1"].table.held[1] = None
    ground.pass_(60)
    assert ground.rota.awake == {"t1"}
    del ground.homes["t1"].table.held[1]
    ground.visits.awake["t1"].busy_at = clock.monotonic()
    ground.pass_(AWAKE_SECONDS / 2)
    assert ground.rota.awake == {"t1"}
    ground.pass_(LED_SECONDS * 2)
    assert ground.visits.awake == {}
    assert ground.rota.looked == ["t1"], "once its threads have ended"


def test_a_claim_that_is_under_way_as_a_home_stops_is_waited_for(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    home = ground.homes["t1"]
    home.claimer.halt = lambda: vars(home.claimer).update(halted=True, busy=True)  # type: ignore[method-assign]
    ground.pass_(2 * LED_SECONDS)
    assert (ground.rota.looked, set(ground.visits.awake)) == (["t1"], {"t1"})
    home.claimer.busy = False
    ground.pass_(0)
    assert ground.visits.awake == {}


@pytest.mark.parametrize("what", ["busy", "hungry"])
def test_a_claim_under_way_keeps_a_schema_awake(ground: Ground, what: str) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    setattr(ground.homes["t1"].claimer, what, True)
    ground.pass_(60)
    assert ground.rota.awake == {"t1"}


def test_a_job_that_comes_as_a_home_stops_lets_it_go_on(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    home = ground.homes["t1"]
    home.claimer.halt = lambda: vars(home.claimer).update(halted=True, busy=True)  # type: ignore[method-assign]
    halted = []
    for step in (
        lambda: ground.visits.tick(clock.monotonic() + 2 * LED_SECONDS),
        lambda: ground.visits.found(SchemasFound(["t1"], [])),
    ):
        step()
        halted.append(home.claimer.halted)
    assert halted == [True, False]
    assert ground.homes["t1"] is home


def test_a_job_that_comes_as_a_home_leaves_wakes_the_schema_after_that(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    home = ground.homes["t1"]
    now = clock.monotonic() + 2 * LED_SECONDS
    ground.visits.tick(now)
    ground.visits.tick(now)
    ground.visits.found(SchemasFound(["t1"], []))
    assert ground.homes["t1"] is home
    ground.pass_(0)
    ground.visits.tick(clock.monotonic())
    assert ground.homes["t1"] is not home
    assert ground.rota.awake == {"t1"}


def test_schemas_with_much_to_do_take_turns(ground: Ground) -> None:
    names = [f"t{n}" for n in range(2 * MOST_CLAIMING)]
    ground.jobs = {1: None}
    ground.visits.found(SchemasFound(names, []))
    assert len(ground.rota.awake) == MOST_CLAIMING
    for at in range(MOST_CLAIMING):
        ground.visits.tick(clock.monotonic() + 10 + at)
        assert sum(not home.claimer.halted for home in ground.homes.values()) <= MOST_CLAIMING
    assert set(ground.homes) == set(names)
    assert set(ground.visits.awake) == set(names), "those that claim no more hold their jobs"


def test_few_are_awake_only_to_be_led(ground: Ground) -> None:
    ground.visits.found(SchemasFound([], [f"t{n}" for n in range(10)]))
    assert len(ground.visits.awake) == MOST_UNLED
    ground.visits.found(SchemasFound(["t50"], []))
    assert len(ground.visits.awake) == MOST_UNLED + 1
    ground.pass_(LED_SECONDS + 1)
    ground.visits.tick(clock.monotonic())
    assert len(ground.homes) > MOST_UNLED + 1


def test_a_schema_that_is_named_no_more_ends_what_it_runs(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    ground.homes["t1"].table.held[1] = SimpleNamespace(state="running")
    ground.visits.are(frozenset({"t2"}))
    assert ground.homes["t1"].claimer.halted
    ground.visits.found(SchemasFound(["t1", "t2"], ["t1"]))
    assert ground.homes["t1"].claimer.halted
    ground.homes["t1"].table.held.clear()
    ground.pass_(0)
    assert "t1" not in ground.visits.awake


def test_a_home_whose_tables_are_gone_leaves_once_its_jobs_have_ended(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    home = ground.homes["t1"]
    home.table.held[1] = SimpleNamespace(state="running")
    home.home.finaliser.has_any = home.has_duties = True
    home.loops[0].lost = True
    ground.pass_(60)
    assert "t1" in ground.visits.awake
    home.table.held[1].state = ENDING
    ground.pass_(0)
    assert "t1" not in ground.visits.awake
    assert ground.rota.doubted == ["t1"]


def test_at_the_end_nothing_is_woken_and_nothing_leaves(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    ground.visits.stop()
    ground.visits.found(SchemasFound(["t2"], ["t3"]))
    ground.pass_(60)
    assert list(ground.visits.awake) == ["t1"]


def test_jobs_that_have_ended_are_counted_after_their_home_has_left(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    ground.homes["t1"].table.ended = 3
    ground.pass_(2 * LED_SECONDS)
    assert ground.visits.ended == 3


def test_a_home_whose_last_steps_fail_is_gone_all_the_same(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Its connection is made by the project's engine, which may raise anything."""

    def fail() -> None:
        raise LookupError("no password")

    ground.leave = fail
    ground.visits.found(SchemasFound(["t1"], []))
    ground.pass_(2 * LED_SECONDS)
    assert ground.visits.awake == {}
    assert "last steps of a schema have failed schema=t1" in caplog.text


class Started(threading.Thread):
    """A loop that runs until it is stopped."""

    lost = False

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.stop = self.stopped.set

    def run(self) -> None:
        self.stopped.wait()


class Last(Started):
    """From now on the system starts no thread: it would have a stack larger than all memory."""

    def start(self) -> None:
        threading.stack_size(1 << 46)
        super().start()


def test_without_threads_for_it_a_schema_waits(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """The worker ended. Now those that were started end, and all that wait are woken later."""
    first = Started()
    ground.loops = [first, Last()]
    try:
        ground.visits.found(SchemasFound(["t1", "t2"], ["t3"]))
    finally:
        threading.stack_size(0)
    assert "no threads for a schema with something to do, tried again schema=t1: can't start new thread" in caplog.text
    assert (list(ground.visits.awake), ground.homes["t1"].home.loops[1:]) == (["t1"], [first])
    assert ground.visits.awake["t1"].leaving is None, "there was none for that, either"
    first.join(10)
    assert not first.is_alive()
    ground.loops = []
    ground.pass_(0)
    assert (ground.visits.awake, ground.rota.looked) == ({}, ["t1"])
    ground.visits.tick(clock.monotonic() + REST_SECONDS)
    assert ground.visits.awake.keys() == {"t2", "t3"}


def test_a_home_without_a_job_makes_room_at_once(ground: Ground) -> None:
    ground.visits.found(SchemasFound([f"t{n}" for n in range(MOST_CLAIMING)], []))
    for schema, home in ground.homes.items():
        home.claimer.hungry = schema != "t5"
    ground.visits.found(SchemasFound(["t50"], []))
    assert ground.homes["t5"].claimer.halted
    assert "t50" in ground.visits.awake
    ground.visits.found(SchemasFound(["t51"], []))
    assert "t51" in ground.visits.awake, "in place of that one, which has not claimed a job"
    assert ground.homes["t50"].claimer.halted


def test_homes_that_leave_slowly_keep_others_waiting(ground: Ground) -> None:
    """Each has threads until it has left: while the server says nothing there would be more and more."""
    gone = threading.Event()
    names = [f"t{n}" for n in range(4 * MOST_CLAIMING)]
    ground.leave = gone.wait
    ground.visits.found(SchemasFound(names))
    assert len(ground.visits.awake) == 2 * MOST_CLAIMING
    gone.set()
    for _ in range(4):
        ground.pass_(0)
    assert set(ground.homes) == set(names)


def test_a_home_that_has_not_looked_at_all_makes_no_room(ground: Ground) -> None:
    ground.visits.found(SchemasFound([f"t{n}" for n in range(MOST_CLAIMING)], []))
    for home in ground.homes.values():
        home.home.idle_at = 0.0
    ground.visits.found(SchemasFound(["t50"], []))
    assert "t50" not in ground.visits.awake
    ground.homes["t5"].home.idle_at = math.inf
    ground.visits.tick(clock.monotonic())
    assert "t50" in ground.visits.awake
    assert [schema for schema, home in ground.homes.items() if home.claimer.halted] == ["t5"]


def test_slow_duties_have_a_turn_at_the_first_visit_and_then_seldom(ground: Ground) -> None:
    kept_up: list[bool] = []
    for _ in range(2):
        ground.visits.found(SchemasFound(["t1"], []))
        kept_up.append(ground.visits.awake["t1"].keeps_up)
        ground.pass_(2 * LED_SECONDS)
    assert kept_up == [True, False]


def test_what_duties_remember_of_a_schema_is_kept_while_that_is_named() -> None:
    """Each visit has a home of its own, with time for a turn or two of each duty."""
    seen: list[tuple[str, object]] = []

    def open_home(worker: Worker, inbox: Inbox, progress: DutyProgress, *more: object) -> Any:
        inbox.close()
        seen.append((worker.alias, progress))

    identity: Any = SimpleNamespace(table_identity=[])
    visits = visits_of(Worker.of(WorkerOptions()), identity, "public", {}, open_home)
    visits.are(frozenset({"t1", "t2"}))
    for schema in ("t1", "t2", "t1"):
        visits.visit(schema, FirstTurns())
    visits.are(frozenset({"t2"}))
    visits.are(frozenset({"t1", "t2"}))
    for schema in ("t1", "t2"):
        visits.visit(schema, FirstTurns())
    visits.inbox.close()
    names, kept = zip(*seen, strict=True)
    assert names == ("t1", "t2", "t1", "t1", "t2")
    assert [kept.index(each) for each in kept] == [0, 1, 0, 3, 1], "one that is named again is a new one"


def test_who_was_woken_for_a_job_looks_at_duties_later(ground: Ground) -> None:
    """Most leave before; one with a duty, or one that is to be kept up, does so at once."""
    firsts: list[bool] = []
    for found in (SchemasFound(["t1"]), SchemasFound(["t1"]), SchemasFound(["t1"], duties=["t1"])):
        ground.visits.found(found)
        firsts.append(bool(ground.homes["t1"].first.duties))
        ground.pass_(2 * LED_SECONDS)
    assert firsts == [False, True, False]


def test_one_awake_to_be_led_leaves_as_soon_as_that_is_done(ground: Ground) -> None:
    """It stays no moment for a next job, and the next of those that wait is awake at once."""
    names = [f"t{n}" for n in range(MOST_UNLED + 1)]
    ground.visits.found(SchemasFound([], names))
    for home in ground.homes.values():
        home.is_kept_up = False
    ground.pass_(LED_SECONDS / 2)
    assert set(ground.visits.awake) == set(names[:-1])
    ground.homes["t3"].is_kept_up = True
    ground.pass_(LED_SECONDS / 2)
    assert set(ground.visits.awake) == set(names) - {"t3"}


def test_a_quiet_worker_stays_awake_where_an_operator_asked_for_that(ground: Ground) -> None:
    """There it is asked to resume; elsewhere it waits for no look at the jobs, as it makes none."""
    ground.visits.found(SchemasFound(["t1", "t2"], []))
    for home in ground.homes.values():
        home.home.controls.quiet, home.home.idle_at, home.claimer.hungry = True, 0.0, True
    ground.homes["t1"].home.controls.taken = 1
    ground.pass_(60)
    assert set(ground.visits.awake) == {"t1"}
    ground.homes["t1"].home.controls.quiet = ground.homes["t1"].claimer.hungry = False
    ground.homes["t1"].home.idle_at = math.inf
    ground.pass_(120)
    assert ground.visits.awake == {}


def test_where_another_worker_leads_a_home_does_not_wait_for_its_turn(ground: Ground) -> None:
    ground.visits.found(SchemasFound([], ["t1"]))
    ground.homes["t1"].is_kept_up = False
    ground.pass_(LED_SECONDS + 1)
    assert ground.visits.awake == {}


def test_one_with_a_claim_in_doubt_stays_until_that_is_settled(ground: Ground) -> None:
    """Nobody else would release its jobs before the lease has ended."""
    ground.visits.found(SchemasFound(["t1"], []))
    claimer = ground.homes["t1"].claimer
    claimer.unconfirmed = "claim"
    ground.pass_(60)
    assert ground.visits.awake.keys() == {"t1"}
    claimer.unconfirmed, claimer.in_doubt.doubts = None, ["claim"]
    ground.pass_(120)
    assert ground.visits.awake.keys() == {"t1"}
    claimer.in_doubt.doubts.clear()
    ground.pass_(180)
    assert ground.visits.awake.keys() == set()


def test_one_that_has_lost_its_tables_has_no_doubts(ground: Ground) -> None:
    ground.visits.found(SchemasFound(["t1"], []))
    ground.homes["t1"].claimer.unconfirmed = "claim"
    ground.homes["t1"].loops[0].lost = True
    ground.pass_(60)
    assert ground.visits.awake.keys() == set()
