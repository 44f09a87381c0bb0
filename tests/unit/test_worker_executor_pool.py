"""What one executor does, or cannot do, costs that executor and not the worker."""

from __future__ import annotations

import errno
import logging
import signal
from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs import clock
from django_pgjobs.worker.executor import lifecycle
from django_pgjobs.worker.shared.channel_messages import (
    BootFailed,
    Bye,
    Decided,
    Drain,
    Interest,
    Notified,
    Notify,
    Ready,
    RunsReleased,
    SignalEvent,
    StopSoon,
    Successes,
)
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor import executor_liveness
from django_pgjobs.worker.supervisor import executor_process as children
from django_pgjobs.worker.supervisor.dispatcher import Dispatcher
from django_pgjobs.worker.supervisor.executor_pool import (
    BOOT_TRIES,
    ExecutorPool,
)
from django_pgjobs.worker.supervisor.executor_process import (
    DRAINING,
    KILLED,
    READY,
    STARTING,
    TERMINATING,
    ExecutorProcess,
)
from django_pgjobs.worker.supervisor.run_events import EVERY_KIND
from django_pgjobs.worker.supervisor.signal_relay import MOST_DEATHS
from tests.unit.executor_pool_ground import HELLO, booted, exits, ready
from tests.unit.worker_fakes import child_of, end_of, run_of


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on no process can be started."""

    def refuse() -> None:
        def spawn(recipe: Any, number: int) -> ExecutorProcess:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(children, "spawn", spawn)

    return refuse


def test_the_others_are_started_once_the_first_is_ready(pool: ExecutorPool) -> None:
    pool.tick(0.0)
    [first] = pool.children
    pool._on_message(first, Ready(HELLO))
    assert (first.state, pool.booted, len(pool.children)) == (READY, True, 3)
    assert pool.guard.watched == pool.children, "each from its start"  # type: ignore[attr-defined]
    pool._on_message(pool.children[1], Ready(HELLO))
    assert len(pool.children) == 3


def test_a_process_that_cannot_be_started_is_tried_again_later(
    pool: ExecutorPool, failed: list[str], refused: Callable[[], None]
) -> None:
    """No memory, no process left: the jobs of the other executors go on, however long that lasts."""
    child = ready(pool)
    refused()
    for _ in range(9):
        pool.boot_after = 0.0
        pool.tick(10.0)
    assert (failed, pool.children, child.state) == ([], [child], READY)
    assert pool.boot_after > 0.0


def test_a_worker_whose_first_executor_cannot_be_started_stops(
    pool: ExecutorPool, failed: list[str], refused: Callable[[], None]
) -> None:
    refused()
    pool.tick(10.0)
    assert failed == ["an executor cannot boot"]


def test_a_database_that_goes_away_while_the_first_executor_starts_is_waited_for(
    pool: ExecutorPool, failed: list[str]
) -> None:
    """P41: its supervisor had found it a moment before; a restart of the server stops no worker."""
    pauses = []
    for _ in range(9):
        pool.boot_after = 0.0
        pool.tick(0.0)
        [first] = pool.children
        pool._on_message(first, BootFailed("it cannot reach database 'default'", True))
        pool.children.clear()
        pool._boot_failed(first, 3)
        pauses.append(pool.boot_after - clock.monotonic())
    assert failed == []
    assert pool.boot_after > 0.0
    assert pauses[0] <= 1.0 < min(pauses[2:]), "the first pause is the shortest"


def test_a_first_executor_that_the_watchdog_ended_is_started_again(pool: ExecutorPool, failed: list[str]) -> None:
    """D118: the supervisor stood still for longer than a lease; that says nothing about the code."""
    pool.tick(0.0)
    [first] = pool.children
    pool.children.clear()
    pool.guard.ended = lambda child: True  # type: ignore[method-assign]
    pool._boot_failed(first, -9)
    assert failed == []
    pool.tick(pool.boot_after)
    assert len(pool.children) == 1


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGTERM])
def test_a_first_executor_that_others_end_is_tried_again_a_few_times(
    pool: ExecutorPool, failed: list[str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel for want of memory, or a person; where it happens each time the worker stops."""
    for _ in range(BOOT_TRIES):
        pool.boot_after = 0.0
        pool.tick(0.0)
        pool._boot_failed(pool.children.pop(), status, " (out of memory)")
    assert failed == []
    assert f"{signal.Signals(-status).name} ended it before it was ready (out of memory)" in caplog.text
    pool._boot_failed(child_of(state=STARTING), status)
    assert failed == ["an executor cannot boot"]


def test_a_first_executor_that_crashes_by_itself_stops_the_worker(pool: ExecutorPool, failed: list[str]) -> None:
    pool._boot_failed(child_of(state=STARTING), -signal.SIGSEGV)
    assert failed == ["an executor cannot boot"]


def test_an_outage_is_no_try_of_the_code(pool: ExecutorPool, failed: list[str]) -> None:
    """D118: however often the database was away, code that cannot boot gets its three tries."""
    ready(pool)
    for passes in (*[True] * 9, *[False] * 3):
        pool._cannot_boot("why", pid=1, passes=passes)
    assert failed == []
    pool._cannot_boot("why", pid=1, passes=False)
    assert failed == ["an executor cannot boot"]


def test_starting_the_others_does_not_go_on_for_ever_when_that_fails(
    pool: ExecutorPool, failed: list[str], refused: Callable[[], None]
) -> None:
    pool.tick(0.0)
    refused()
    pool._on_message(pool.children[0], Ready(HELLO))
    assert (len(pool.children), failed) == (1, [])


def test_an_executor_that_sees_another_database_runs_no_job(pool: ExecutorPool) -> None:
    """Its settings lead elsewhere: what it wrote would be lost, and what it read another's."""
    pool.tick(0.0)
    [child] = pool.children
    pool._on_message(child, Ready({**HELLO, "identity": ["another"]}))
    assert (child.state, pool.booted) == (KILLED, False)
    assert child.boot_error == "it sees another database: ['another'] instead of ['it']"


def test_successes_reach_those_who_hold_the_jobs(pool: ExecutorPool) -> None:
    child = ready(pool)
    end_of(child).arriving = [Successes([1, 2], [1000, 2000], ["1", None])]
    pool._on_frames(child)
    assert pool.held_jobs.successes == [(1, 1000, "1"), (2, 2000, None)]  # type: ignore[union-attr]


def test_of_executors_that_are_killed_those_are_told_that_have_jobs(
    pool: ExecutorPool, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator reads why jobs were released; who is killed already is not killed again."""
    busy, idle, dead = ready(pool), ready(pool), ready(pool, state=KILLED)
    busy.add(run_of(1, number=1), run_of(2, number=2))
    dead.add(run_of(3, number=3))
    pool.kill("released")
    assert [child.state for child in pool.children] == [KILLED] * 3
    assert (busy.culprits, idle.culprits, dead.culprits) == ({1: "released", 2: "released"}, {}, {})
    assert [record.getMessage() for record in caplog.records] == [
        f"executor killed cause=released pid={busy.pid} jobs=2"
    ]


def test_an_executor_that_sends_nonsense_is_killed_after_what_it_said_before(pool: ExecutorPool) -> None:
    child, other = ready(pool), ready(pool)
    end_of(child).arriving = [Decided([[1]]), Decided([["bad"]])]
    pool._on_frames(child)
    assert pool.held_jobs.outcomes == [[1]]  # type: ignore[union-attr]
    assert (child.state, other.state) == (KILLED, READY)
    assert "not a decision" in end_of(child).broken


def test_an_executor_whose_stream_is_broken_is_killed_once(
    pool: ExecutorPool, caplog: pytest.LogCaptureFixture
) -> None:
    child = ready(pool)
    end_of(child).eof, end_of(child).broken = True, "a frame of 4294967295 bytes"
    with caplog.at_level(logging.ERROR):
        pool._on_frames(child)
        pool._on_frames(child)
    assert child.state == KILLED
    assert len(caplog.records) == 1


def test_an_executor_that_has_closed_its_channel_and_lives_on_is_killed(pool: ExecutorPool) -> None:
    """None of its runs would ever end. One that is about to exit has closed it too, so a moment is waited."""
    pool.processes = 1
    child = ready(pool)
    end_of(child).eof = True
    states = []
    for now in (50.0, 50.0 + executor_liveness.DEAF_SECONDS, 50.1 + executor_liveness.DEAF_SECONDS, 60.0):
        pool.tick(now)
        states.append(child.state)
    assert states == [READY, READY, KILLED, KILLED]


def events(number: int) -> Callable[[], list[SignalEvent]]:
    return lambda: [("finished", {"job_id": number, "outcome": "abandoned"})]


def answers_at(pool: ExecutorPool, child: ExecutorProcess, instants: list[float]) -> list[str]:
    """Tick at these instants; return the states of ``child`` after each."""
    states = []
    for now in instants:
        pool.tick(now)
        states.append(child.state)
    return states


def test_an_executor_that_answers_nothing_and_runs_nothing_is_killed(
    pool: ExecutorPool, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent to it would never start."""
    pool.processes = 1
    child = ready(pool, asked_at=1000.0)
    assert answers_at(pool, child, [1000.0]) == [READY]
    assert answers_at(pool, child, [1000.0 + step for step in range(1, 13)]) == [READY] * 11 + [KILLED]
    assert "does not answer and runs nothing" in caplog.text


@pytest.mark.parametrize("why", ["it answers", "a job runs", "the machine was suspended"])
def test_an_executor_that_may_be_well_is_not_killed(pool: ExecutorPool, why: str) -> None:
    pool.processes = 1
    child = ready(pool, asked_at=1000.0)
    if why == "a job runs":
        child.board.start(0, 1, 1_000_000_000, "sync")
    answers_at(pool, child, [1000.0, 1001.0, 1002.0])
    if why == "it answers":
        pool.held_jobs.unstarted = lambda child, numbers: None  # type: ignore[method-assign]
        pool._on_message(child, RunsReleased([], "asked"))
    step = 3600.0 if why == "the machine was suspended" else 1.0
    assert answers_at(pool, child, [1002.0 + step * count for count in range(1, 30)]) == [READY] * 29


def test_an_executor_that_does_not_leave_is_killed(pool: ExecutorPool) -> None:
    """The process that it was to end by itself cannot; after its BYE it gets as long as it allows itself."""
    silent, leaving_one, busy = ready(pool, number=1), ready(pool, number=2), ready(pool, number=3)
    busy.add(run_of(1, number=1))
    for child in (silent, leaving_one, busy):
        child.state = DRAINING
    pool._on_message(leaving_one, Bye(0))
    for now in range(1, 100):
        pool.tick(float(now))
        if now == lifecycle.EXIT_SECONDS + 1:
            assert (silent.state, leaving_one.state) == (DRAINING, DRAINING)
        if now == lifecycle.EXIT_SECONDS + 3:
            assert (silent.state, leaving_one.state) == (DRAINING, KILLED)
    assert (silent.state, busy.state) == (KILLED, DRAINING)


def test_an_executor_gets_its_whole_time_to_leave_after_a_pause_of_the_worker() -> None:
    child = child_of(state=DRAINING)
    executor_liveness.check(child, 0.1, last_check=0.0)
    executor_liveness.check(child, 1000.0, last_check=0.1)
    assert (child.state, child.idle_since) == (DRAINING, None)


def test_an_executor_that_loads_a_receiver_later_hears_of_what_ends_from_then_on(pool: ExecutorPool) -> None:
    one = ready(pool)
    pool.relay.notify(events(1))
    pool._on_message(one, Interest(list(EVERY_KIND)))
    pool.relay.notify(events(2))
    assert [message.events for message in end_of(one).sent] == [events(2)()]


def test_what_an_executor_had_not_told_when_it_died_is_told_by_another(pool: ExecutorPool, mortal: None) -> None:
    """C59: also what the dead one had said on the socket counts."""
    one, two, _ = booted(pool)
    pool.relay.notify(events(1))
    pool.relay.notify(events(2))
    end_of(one).arriving = [Notified(1)]
    exits(one, -9)
    pool.tick(1.0)
    assert [message.events for message in end_of(two).sent] == [events(2)()]
    pool._on_message(two, Notified(3))
    assert not pool.relay.sent_to(two)


@pytest.mark.parametrize("status", [9, 0])
def test_a_receiver_that_ends_its_process_does_so_a_few_times_whatever_the_status(
    pool: ExecutorPool, mortal: None, status: int
) -> None:
    """C59: no executor that was not told to leave exits 0 for a reason of its own."""
    pool.processes = 1
    booted(pool, 1)
    pool.relay.notify(events(1))
    for _ in range(MOST_DEATHS):
        [child] = pool.children
        assert pool.relay.sent_to(child)
        exits(child, status)
        pool.tick(1.0)
        pool._on_message(pool.children[0], Ready(HELLO))
    assert not pool.relay.sent_to(pool.children[0])


def test_an_executor_that_was_told_to_leave_says_nothing_of_what_it_was_telling(
    pool: ExecutorPool, mortal: None
) -> None:
    """C59: its receivers were slow, and another goes on with them."""
    one, two, _ = booted(pool)
    pool.relay.notify(events(1))
    one.state = DRAINING
    exits(one, 0)
    pool.tick(1.0)
    assert [batch.deaths for batch in pool.relay.sent_to(two)] == [0]


def test_in_a_drain_the_last_that_listens_stays_until_nothing_is_left_to_be_told(pool: ExecutorPool) -> None:
    one, two, deaf = ready(pool, listens=True), ready(pool, listens=True), ready(pool)
    pool.held_jobs.holds_any = True  # type: ignore[misc]
    pool.dismiss()
    assert (one.state, two.state, deaf.state) == (DRAINING, READY, DRAINING)
    pool.relay.wanted = one.listens
    pool.relay.notify(events(1))
    pool.held_jobs.holds_any = False  # type: ignore[misc]
    pool.dismiss()
    assert [type(message) for message in end_of(two).sent] == [Notify, Drain]


def test_all_jobs_hear_until_when_a_drain_waits_for_them(pool: ExecutorPool) -> None:
    """Those of an executor that is being replaced and waits for them, too."""
    one, two = ready(pool), ready(pool)
    one.state = DRAINING
    pool.announce_drain(25.0)
    assert [end_of(child).sent for child in (one, two)] == [[StopSoon("drain", 25.0)]] * 2


def test_nobody_is_told_where_nobody_listens(pool: ExecutorPool) -> None:
    pool.relay.notify(lambda: pytest.fail("asked for"))
    assert not pool.relay.fresh


def test_an_outcome_that_cannot_be_read_leaves_its_run_to_the_death_of_its_executor() -> None:
    """And what came before it in the same frame counts."""
    from django_pgjobs.worker.supervisor.held_jobs import HeldJobs as Real

    class Acking:
        def __init__(self) -> None:
            self.ids: list[int] = []

        def put_many(self, kind: str, entries: list[Any]) -> None:
            self.ids += [end.id for _, end in entries]

    acking: Any = Acking()
    nobody: Any = None
    held_jobs = Real(
        nobody,
        Dispatcher(),
        acking,
        wake_for=lambda pair: None,
        notify=lambda items, kinds=(): None,
        tallies=Tallies(bool),
    )
    child = child_of()
    one, two = run_of(10, number=1), run_of(20, number=2)
    child.add(one)
    child.add(two)
    with pytest.raises(TypeError):
        held_jobs.succeeded(child, [1, 2], [100_000, "long"], ["1", "2"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="not a decision"):
        held_jobs.done(child, [[2, 0.1, "dance"]])
    for runs in ([2], [2, []]):
        with pytest.raises(ValueError, match="no columns"):
            held_jobs.succeeded(child, runs, [1, 1], ["1", "2"])  # type: ignore[arg-type]
    assert acking.ids == [10]
    assert child.runs == {2: two}
    odd, behind = run_of(30, number=3, ending="abandoned"), run_of(40, number=4)
    child.add(odd, behind)
    with pytest.raises(AttributeError):
        held_jobs.succeeded(child, [2, 3, 4], [1, 1, 1], ["1", "1", "1"])
    assert acking.ids == [10, 20]
    assert child.runs == {4: behind}
    assert child.outstanding == {False: 1, True: 0}


def test_an_executor_that_was_terminated_for_its_only_job_gets_jobs_again(pool: ExecutorPool) -> None:
    pool.processes = 1
    child = ready(pool)
    child.state, child.culprits = TERMINATING, {7: "timeout"}
    pool.tick(1.0)
    assert child.state == TERMINATING
    child.remove(7)
    pool.tick(2.0)
    assert child.state == READY
