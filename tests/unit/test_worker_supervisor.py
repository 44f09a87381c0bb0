"""What the main thread of a worker does in one round, without processes and without a database."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from django_pgjobs import clock
from django_pgjobs.ends.kinds import RELEASE, SUCCESS, EndKind
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import Control, Rescued
from django_pgjobs.store.pausing import LimitInForce, Pauses
from django_pgjobs.worker.shared.channel_messages import Drain, Notify, ReleaseRuns, RunJobs, StopSoon
from django_pgjobs.worker.shared.runs import HeldRun, RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor import lease_guard
from django_pgjobs.worker.supervisor.executor_process import DRAINING, KILLED, READY, STARTING, ExecutorProcess
from django_pgjobs.worker.supervisor.home import Home
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.supervisor.recycling import WorkerLimits
from django_pgjobs.worker.supervisor.supervisor import LEAVE_SECONDS, Supervisor
from django_pgjobs.worker.threads.busy_ends import BusyEnds
from django_pgjobs.worker.threads.inbox_messages import Claimed, Idle, JobsRescued, PausesRead
from tests.unit.test_worker_lease_guard import FakeWatchdog
from tests.unit.worker_fakes import child_of, claimed, end_of, under

NOW = 1000.0


class Claimer:
    """Keeps what it is asked for."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int, int | None]] = []
        self.halted = self.busy = False
        self.polls = 0
        self.paused: frozenset[str] = frozenset()

    def request(self, threads: int, loop: int = 0, *, most: int | None = None, slots: object = None) -> None:
        self.requests.append((threads, loop, most))

    def wake_for(self, pair: tuple[str, int]) -> None: ...

    def adopted(self, jobs: list[Any]) -> None: ...

    def halt(self) -> None:
        self.halted = True

    def poll_now(self) -> None:
        self.polls += 1

    def pause(self, queues: frozenset[str]) -> None:
        self.paused = queues


class Finaliser:
    """Keeps what is queued; may say that too much is."""

    def __init__(self) -> None:
        self.full = False
        self.busy = BusyEnds()
        self.puts: list[tuple[EndKind, int]] = []

    def put(self, kind: EndKind, run: HeldRun, end: End) -> None:
        self.puts.append((kind, end.id))

    def delete(self, claim_ids: list[str]) -> None: ...

    def expect(self) -> None: ...


class Admitter:
    """Counts how often it is stirred."""

    def __init__(self) -> None:
        self.wake_ups = 0
        self.admitted_at = 0.0
        self.idle = True

    def wake_up(self) -> None:
        self.wake_ups += 1

    def idle_since(self, instant: float) -> bool:
        return self.idle

    def learn(self, limits: frozenset[LimitInForce]) -> None:
        self.limits = limits


class Worker:
    """A supervisor and what surrounds it."""

    def __init__(self, **limits: Any) -> None:
        self.claimer, self.finaliser, self.admitter = Claimer(), Finaliser(), Admitter()
        parts: Any = (Inbox(), RunTable(), self.claimer, self.finaliser, ["it"], self.admitter, (), Tallies(bool))
        self.home = Home("", *parts)
        recipe: Any = SimpleNamespace(template=None)
        self.main = Supervisor(recipe, WorkerLimits(**{"processes": 1, **limits}), [self.home])
        self.home.knows_pauses = True
        self.main.last_tick = NOW

    def executor(self, **changes: Any) -> ExecutorProcess:
        child = child_of(**changes)
        self.main.pool.children.append(child)
        self.main.pool.booted = True
        return child

    def claims(self, *ids: int, asked_at: float = NOW) -> None:
        self.main._on_message(self.home, Claimed(asked_at, under("a", [claimed(number) for number in ids])))


def makers_of(kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Make workers of this kind while the time stands still, and close them."""
    monkeypatch.setattr(clock, "monotonic", lambda: NOW)
    monkeypatch.setattr(lease_guard, "Watchdog", FakeWatchdog)
    made: list[Any] = []

    def make(**limits: Any) -> Any:
        made.append(kind(**limits))
        return made[-1]

    yield make
    for main in (each.main for each in made):
        for closed in (main.selector, *(home.inbox for home in main.homes), main.signals, main._signalled):
            closed.close()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make workers; the time stands still."""
    yield from makers_of(Worker, monkeypatch)


def sent(child: ExecutorProcess) -> list[type]:
    return [type(message) for message in end_of(child).sent]


def test_what_was_claimed_is_sent_and_more_is_asked_for(worker: Any) -> None:
    """For two threads two jobs at a time; jobs on the loop have room of their own."""
    serving = worker()
    child = serving.executor(threads=2, async_slots=3)
    serving.main._advance()
    serving.claims(1)
    serving.main._advance()
    assert sent(child) == [RunJobs]
    assert serving.claimer.requests == [(2, 3, None), (1, 3, None)]


def test_a_tick_that_is_due_keeps_no_claimed_job_waiting(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker at rest ticks rarely, so one is due with every job that comes alone."""
    serving = worker()
    child = serving.executor()
    before: list[list[type]] = []
    monkeypatch.setattr(serving.main.pool, "tick", lambda now: before.append(sent(child)))
    serving.main.last_tick = NOW - 10
    serving.claims(1)
    serving.main._advance()
    assert before == [[RunJobs]]


def test_while_too_much_is_not_written_yet_nothing_starts_and_nothing_is_claimed(worker: Any) -> None:
    serving = worker()
    child = serving.executor()
    serving.finaliser.full = True
    serving.claims(1)
    serving.main._advance()
    assert (sent(child), serving.claimer.requests) == ([], [(0, 0, None)])


def test_nothing_is_claimed_before_it_is_known_what_is_paused(worker: Any) -> None:
    serving = worker()
    serving.executor()
    serving.home.knows_pauses = False
    serving.main._advance()
    serving.main._on_message(serving.home, PausesRead(Pauses(frozenset({"mail"}))))
    serving.main._advance()
    assert serving.claimer.requests == [(0, 0, None), (2, 3, None)]
    assert serving.claimer.paused == {"mail"}


def test_an_admitter_hears_of_the_limits_that_operators_set_and_of_each_end(worker: Any) -> None:
    serving = worker()
    serving.finaliser.writer = SimpleNamespace(freed=None)
    limits = frozenset({LimitInForce("queue", "mail", 2, None, None)})
    serving.main._on_message(serving.home, PausesRead(Pauses(limits=limits)))
    assert serving.admitter.limits == limits
    assert serving.finaliser.writer.freed == serving.admitter.wake_up


def test_a_claim_that_took_long_is_trusted_from_before_it_was_asked_for(worker: Any) -> None:
    """P11: the watchdog hears at once, not at the next renewal."""
    serving = worker()
    serving.main.pool.guard.renewed(NOW, [])
    before = serving.main.pool.guard.until
    serving.claims(1, asked_at=NOW - 15)
    assert serving.main.pool.guard.until == before - 15


def test_what_a_socket_did_not_take_is_sent_in_every_round_in_a_drain_too(worker: Any) -> None:
    serving = worker()
    child = serving.executor()
    for _ in range(2):
        end_of(child).kept = 7
        serving.main._advance()
        assert end_of(child).kept == 0
        serving.main.drain("test")
        serving.main.last_tick = NOW


def test_no_more_are_asked_for_than_are_to_end_and_then_the_worker_drains(worker: Any) -> None:
    """``--max-jobs``: what has ended and what is held counts."""
    serving = worker(max_jobs=3)
    serving.executor(threads=4)
    serving.claims(1)
    serving.main._advance()
    assert serving.claimer.requests == [(2, 3, 2)]
    for number in (1, 2, 3):
        run = (
            serving.home.table.held.get(number)
            or serving.home.table.adopt(NOW, under(f"c{number}", [claimed(number)]))[0]
        )
        serving.home.held_jobs.stored(SUCCESS, [(run, End(number, run.claim.claim_id), None)])
        assert not serving.claimer.halted
        serving.main._advance()
    assert serving.claimer.halted


def test_an_idle_worker_leaves_when_it_has_looked_after_its_last_job(worker: Any) -> None:
    """``--until-idle``: what has become due since is looked for first, what a limit holds back too."""
    serving = worker(until_idle=True)
    serving.executor()
    serving.home.held_jobs.ends.last_removed = NOW - 1
    serving.main._on_message(serving.home, Idle(NOW - 2))
    serving.main._advance()
    assert (serving.claimer.polls, serving.admitter.wake_ups, serving.claimer.halted) == (1, 1, False)
    serving.admitter.idle = False
    serving.main._on_message(serving.home, Idle(NOW - 0.5))
    serving.main._advance()
    assert (serving.claimer.polls, serving.claimer.halted) == (1, False)
    serving.admitter.idle = True
    serving.main._advance()
    assert serving.claimer.halted


def test_a_worker_that_holds_jobs_or_starts_is_not_idle(worker: Any) -> None:
    serving = worker(until_idle=True)
    serving.executor()
    serving.claims(1)
    serving.main._on_message(serving.home, Idle(NOW + 1))
    serving.main._advance()
    starting = worker(until_idle=True)
    starting.executor(state=STARTING)
    starting.main.pool.booted = False
    starting.main._on_message(starting.home, Idle(NOW + 1))
    starting.main._advance()
    assert (serving.claimer.halted, starting.claimer.halted) == (False, False)


def test_a_drain_begins_once_and_hands_back_what_has_not_started(worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    serving = worker()
    child = serving.executor(threads=1)
    serving.claims(1, 2, 3)
    child.mean_seconds = 60.0
    serving.home.dispatcher.dispatch(serving.main.pool.children, NOW)
    with caplog.at_level(logging.INFO):
        serving.main.drain("SIGTERM")
        serving.main.drain("again")
    assert [record.getMessage() for record in caplog.records if "drains" in record.getMessage()] == [
        "worker drains held=3: SIGTERM"
    ]
    assert sent(child) == [RunJobs, ReleaseRuns, StopSoon]
    assert serving.finaliser.puts == [(RELEASE, 2), (RELEASE, 3)]
    serving.main._advance()
    assert serving.claimer.requests == []


def test_a_drain_is_in_the_row_at_once(worker: Any) -> None:
    serving = worker()
    told: list[bool] = []
    serving.home.controls.beat_now = lambda: told.append(serving.claimer.halted)
    serving.main.drain("SIGTERM")
    assert told == [True], "the heartbeat that it asks for says that it drains"


def test_a_worker_that_drains_takes_up_a_drain_and_nothing_else(worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    serving = worker()
    serving.main.drain("SIGTERM")
    with caplog.at_level(logging.INFO):
        serving.main._on_control(serving.home, Control(1, "quiet", "anna", "its disk"))
    assert (serving.home.controls.taken, serving.home.controls.quiet) == (0, False)
    assert "worker drains, and does not take up the request of an operator: quiet" in caplog.text
    assert "worker takes up" not in caplog.text
    serving.main._on_control(serving.home, Control(2, "drain", "anna", ""))
    assert serving.home.controls.taken == 2


def test_a_worker_that_cannot_go_on_drains_and_exits_with_status_one(worker: Any) -> None:
    serving = worker()
    serving.main._fail("an executor cannot boot")
    assert (serving.main.exit_status, serving.claimer.halted) == (1, True)


def test_in_a_drain_idle_executors_leave_and_at_its_limit_the_others_are_killed(worker: Any) -> None:
    serving = worker(drain_seconds=10.0)
    idle, busy = serving.executor(), serving.executor()
    [run] = serving.home.table.adopt(NOW, under("a", [claimed(1)]))
    run.run, run.child = 1, busy
    busy.add(run)
    serving.main.drain("test")
    serving.main._drain_on(NOW + 9.9, serving.main.draining_until)
    assert (idle.state, sent(idle)) == (DRAINING, [StopSoon, Drain])
    assert busy.state not in (DRAINING, KILLED)
    for _ in range(2):
        serving.main._drain_on(NOW + 10.0, serving.main.draining_until)
    assert [child.state for child in (idle, busy)] == [KILLED, KILLED]
    assert busy.culprits == {1: "released"}


def test_a_drain_goes_on_with_every_tick(worker: Any) -> None:
    serving = worker()
    child = serving.executor()
    serving.main._tick(NOW)
    assert child.state == READY
    serving.main.drain("test")
    serving.main._advance()
    assert child.state == DRAINING


def test_the_first_signal_drains_and_the_second_hurries(worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Others are none of its business."""
    serving = worker(drain_seconds=10.0)
    serving.main.stop_signals = (signal.SIGTERM,)
    until = []
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
        serving.main._signalled.send(bytes([number]))
        serving.main._on_signal()
        until.append(serving.main.draining_until)
    assert until == [None, NOW + 10.0, NOW]
    assert "second signal, running jobs are released now signal=SIGTERM" in caplog.text


def test_a_worker_is_gone_when_its_executors_are_and_what_they_ended_is_written(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is away is waited for a while only: leases run out."""
    serving = worker(drain_seconds=10.0)
    child = serving.executor()
    assert not serving.main._gone()
    serving.main.drain("test")
    assert not serving.main._gone()
    serving.main.pool.children.remove(child)
    assert serving.main._gone()
    serving.claimer.busy = True
    assert not serving.main._gone()
    serving.claimer.busy = False
    serving.home.table.adopt(NOW, under("a", [claimed(1)]))
    for later, gone in ((10.0 + LEAVE_SECONDS, False), (10.1 + LEAVE_SECONDS, True)):
        monkeypatch.setattr(clock, "monotonic", lambda later=later: NOW + later)
        assert serving.main._gone() is gone


def test_what_was_rescued_is_told_and_may_free_a_place_of_a_limit(worker: Any) -> None:
    serving = worker()
    child = serving.executor(listens=True)
    serving.main.relay.wanted = child.listens
    rescued = Rescued(7, "shop.sell", "default", 0, 1, UUID(int=1), "its worker died", "", "", "lost")
    serving.main._on_message(serving.home, JobsRescued([rescued]))
    assert serving.admitter.wake_ups == 1
    [message] = end_of(child).sent
    assert isinstance(message, Notify)
    assert [name for name, _ in message.events] == ["rescued", "retried"]
