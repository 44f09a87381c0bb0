"""What one executor does, or cannot do, costs that executor and not the worker."""

from __future__ import annotations

import errno
import logging
import signal
from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs import __version__, clock
from django_pgjobs.worker.executor import lifecycle
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.channel_messages import (
    BootFailed,
    Bye,
    Done,
    Drain,
    Event,
    Hello,
    Notified,
    Notify,
    Ready,
    RunsReleased,
    Succeeded,
)
from django_pgjobs.worker.shared.runs import Table
from django_pgjobs.worker.supervisor import executor_process as children
from django_pgjobs.worker.supervisor import liveness
from django_pgjobs.worker.supervisor.executor_pool import (
    BOOT_TRIES,
    SHORT_LIFE_SECONDS,
    SHORT_LIVES,
    Crew,
)
from django_pgjobs.worker.supervisor.executor_process import DRAINING, KILLED, READY, STARTING, TERMINATING, Child
from django_pgjobs.worker.supervisor.recycling import Recycling
from django_pgjobs.worker.supervisor.signal_relay import MOST_DEATHS, Untold
from tests.unit.worker_fakes import child_of, end_of, run_of

HELLO: Hello = {
    "protocol": channel.PROTOCOL,
    "version": __version__,
    "pid": 0,
    "identity": ["it"],
    "listens": True,
    "jobs": 1,
    "rss": 0,
}


class Selector:
    def register(self, *_: Any) -> None: ...
    def unregister(self, *_: Any) -> None: ...


class Holding:
    """Takes outcomes; one named "bad" cannot be taken."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []
        self.successes: list[Any] = []
        self.table = Table()

    def done(self, child: Child, items: list[Any]) -> None:
        if items == [["bad"]]:
            raise ValueError("not a decision")
        self.outcomes += items

    def succeeded(self, child: Child, *columns: list[Any]) -> None:
        self.successes += zip(*columns, strict=True)

    def settle(self, death: Any) -> None: ...


class Guard:
    """Keeps whom it is to watch over."""

    def __init__(self) -> None:
        self.watched: list[Child] = []

    def add(self, child: Child) -> None:
        self.watched.append(child)

    def forget(self, child: Child) -> None: ...
    def ended(self, child: Child) -> bool:
        return False


class Acker:
    def terminate(self, name: str) -> None: ...


@pytest.fixture
def failed() -> list[str]:
    return []


@pytest.fixture
def crew(failed: list[str], monkeypatch: pytest.MonkeyPatch) -> Crew:
    monkeypatch.setattr(children, "spawn", lambda recipe, number: child_of(number=number, state=STARTING, pidfd=None))
    own: list[Child] = []
    parts: Any = {
        "children": own,
        "untold": Untold(own),
        "selector": Selector(),
        "holding": Holding(),
        "acker": Acker(),
        "guard": Guard(),
        "recycling": Recycling(),
    }
    return Crew(None, 3, ["it"], failed=failed.append, **parts)  # type: ignore[arg-type]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on no process can be started."""

    def refuse() -> None:
        def spawn(recipe: Any, number: int) -> Child:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(children, "spawn", spawn)

    return refuse


def ready(crew: Crew, **changes: Any) -> Child:
    child = child_of(**changes)
    crew.children.append(child)
    crew.booted = True
    return child


def test_the_others_are_started_once_the_first_is_ready(crew: Crew) -> None:
    crew.tick(0.0)
    [first] = crew.children
    crew._on_message(first, Ready(HELLO))
    assert (first.state, crew.booted, len(crew.children)) == (READY, True, 3)
    assert crew.guard.watched == crew.children, "each from its start"  # type: ignore[attr-defined]
    crew._on_message(crew.children[1], Ready(HELLO))
    assert len(crew.children) == 3


def test_a_process_that_cannot_be_started_is_tried_again_later(
    crew: Crew, failed: list[str], refused: Callable[[], None]
) -> None:
    """No memory, no process left: the jobs of the other executors go on, however long that lasts."""
    child = ready(crew)
    refused()
    for _ in range(9):
        crew.boot_after = 0.0
        crew.tick(10.0)
    assert (failed, crew.children, child.state) == ([], [child], READY)
    assert crew.boot_after > 0.0


def test_a_worker_whose_first_executor_cannot_be_started_stops(
    crew: Crew, failed: list[str], refused: Callable[[], None]
) -> None:
    refused()
    crew.tick(10.0)
    assert failed == ["an executor cannot boot"]


def test_a_database_that_goes_away_while_the_first_executor_starts_is_waited_for(crew: Crew, failed: list[str]) -> None:
    """P41: its supervisor had found it a moment before; a restart of the server stops no worker."""
    for _ in range(9):
        crew.boot_after = 0.0
        crew.tick(0.0)
        [first] = crew.children
        crew._on_message(first, BootFailed("it cannot reach database 'default'", True))
        crew.children.clear()
        crew._boot_failed(first, 3)
    assert failed == []
    assert crew.boot_after > 0.0


def test_a_first_executor_that_the_watchdog_ended_is_started_again(crew: Crew, failed: list[str]) -> None:
    """D118: the supervisor stood still for longer than a lease; that says nothing about the code."""
    crew.tick(0.0)
    [first] = crew.children
    crew.children.clear()
    crew.guard.ended = lambda child: True  # type: ignore[method-assign]
    crew._boot_failed(first, -9)
    assert failed == []
    crew.tick(crew.boot_after)
    assert len(crew.children) == 1


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGTERM])
def test_a_first_executor_that_others_end_is_tried_again_a_few_times(
    crew: Crew, failed: list[str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel for want of memory, or a person; where it happens each time the worker stops."""
    for _ in range(BOOT_TRIES):
        crew.boot_after = 0.0
        crew.tick(0.0)
        crew._boot_failed(crew.children.pop(), status, " (out of memory)")
    assert failed == []
    assert f"{signal.Signals(-status).name} ended it before it was ready (out of memory)" in caplog.text
    crew._boot_failed(child_of(state=STARTING), status)
    assert failed == ["an executor cannot boot"]


def test_a_first_executor_that_crashes_by_itself_stops_the_worker(crew: Crew, failed: list[str]) -> None:
    crew._boot_failed(child_of(state=STARTING), -signal.SIGSEGV)
    assert failed == ["an executor cannot boot"]


def test_an_outage_is_no_try_of_the_code(crew: Crew, failed: list[str]) -> None:
    """D118: however often the database was away, code that cannot boot gets its three tries."""
    ready(crew)
    for passes in (*[True] * 9, *[False] * 3):
        crew._cannot_boot("why", pid=1, passes=passes)
    assert failed == []
    crew._cannot_boot("why", pid=1, passes=False)
    assert failed == ["an executor cannot boot"]


def test_starting_the_others_does_not_go_on_for_ever_when_that_fails(
    crew: Crew, failed: list[str], refused: Callable[[], None]
) -> None:
    crew.tick(0.0)
    refused()
    crew._on_message(crew.children[0], Ready(HELLO))
    assert (len(crew.children), failed) == (1, [])


def test_an_executor_that_sees_another_database_runs_no_job(crew: Crew) -> None:
    """Its settings lead elsewhere: what it wrote would be lost, and what it read another's."""
    crew.tick(0.0)
    [child] = crew.children
    crew._on_message(child, Ready({**HELLO, "identity": ["another"]}))
    assert (child.state, crew.booted) == (KILLED, False)
    assert child.boot_error == "it sees another database: ['another'] instead of ['it']"


def test_successes_reach_those_who_hold_the_jobs(crew: Crew) -> None:
    child = ready(crew)
    end_of(child).arriving = [Succeeded([1, 2], [1000, 2000], ["1", None])]
    crew._on_frames(child)
    assert crew.holding.successes == [(1, 1000, "1"), (2, 2000, None)]  # type: ignore[attr-defined]


def test_of_executors_that_are_killed_those_are_told_that_have_jobs(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator reads why jobs were handed back; who is killed already is not killed again."""
    busy, idle, dead = ready(crew), ready(crew), ready(crew, state=KILLED)
    busy.add(run_of(1, number=1), run_of(2, number=2))
    dead.add(run_of(3, number=3))
    crew.kill("released")
    assert [child.state for child in crew.children] == [KILLED] * 3
    assert (busy.culprits, idle.culprits, dead.culprits) == ({1: "released", 2: "released"}, {}, {})
    assert [record.getMessage() for record in caplog.records] == [
        f"executor killed cause=released pid={busy.pid} jobs=2"
    ]


def test_an_executor_that_sends_nonsense_is_killed_after_what_it_said_before(crew: Crew) -> None:
    child, other = ready(crew), ready(crew)
    end_of(child).arriving = [Done([[1]]), Done([["bad"]])]
    crew._on_frames(child)
    assert crew.holding.outcomes == [[1]]  # type: ignore[attr-defined]
    assert (child.state, other.state) == (KILLED, READY)
    assert "not a decision" in end_of(child).broken


def test_an_executor_whose_stream_is_broken_is_killed_once(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    child = ready(crew)
    end_of(child).eof, end_of(child).broken = True, "a frame of 4294967295 bytes"
    with caplog.at_level(logging.ERROR):
        crew._on_frames(child)
        crew._on_frames(child)
    assert child.state == KILLED
    assert len(caplog.records) == 1


def test_an_executor_that_has_closed_its_channel_and_lives_on_is_killed(crew: Crew) -> None:
    """None of its runs would ever end. One that is about to exit has closed it too, so a moment is waited."""
    crew.processes = 1
    child = ready(crew)
    end_of(child).eof = True
    states = []
    for now in (50.0, 50.0 + liveness.DEAF_SECONDS, 50.1 + liveness.DEAF_SECONDS, 60.0):
        crew.tick(now)
        states.append(child.state)
    assert states == [READY, READY, KILLED, KILLED]


def events(number: int) -> Callable[[], list[Event]]:
    return lambda: [("finished", {"job_id": number})]


def answers_at(crew: Crew, child: Child, instants: list[float]) -> list[str]:
    """Tick at these instants; return the states of ``child`` after each."""
    states = []
    for now in instants:
        crew.tick(now)
        states.append(child.state)
    return states


def test_an_executor_that_answers_nothing_and_runs_nothing_is_killed(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent to it would never start."""
    crew.processes = 1
    child = ready(crew, asked_at=1000.0)
    assert answers_at(crew, child, [1000.0]) == [READY]
    assert answers_at(crew, child, [1000.0 + step for step in range(1, 13)]) == [READY] * 11 + [KILLED]
    assert "does not answer and runs nothing" in caplog.text


@pytest.mark.parametrize("why", ["it answers", "a job runs", "the machine was suspended"])
def test_an_executor_that_may_be_well_is_not_killed(crew: Crew, why: str) -> None:
    crew.processes = 1
    child = ready(crew, asked_at=1000.0)
    if why == "a job runs":
        child.board.start(0, 1, 1_000_000_000, "sync")
    answers_at(crew, child, [1000.0, 1001.0, 1002.0])
    if why == "it answers":
        crew.holding.back = lambda child, numbers: None  # type: ignore[method-assign]
        crew._on_message(child, RunsReleased([], "asked"))
    step = 3600.0 if why == "the machine was suspended" else 1.0
    assert answers_at(crew, child, [1002.0 + step * count for count in range(1, 30)]) == [READY] * 29


def test_an_executor_that_does_not_leave_is_killed(crew: Crew) -> None:
    """B6: the process that it was to end by itself cannot; after its BYE it gets as long as it allows itself."""
    silent, leaving_one, busy = ready(crew, number=1), ready(crew, number=2), ready(crew, number=3)
    busy.add(run_of(1, number=1))
    for child in (silent, leaving_one, busy):
        child.state = DRAINING
    crew._on_message(leaving_one, Bye(0))
    for now in range(1, 100):
        crew.tick(float(now))
        if now == lifecycle.EXIT_SECONDS + 1:
            assert (silent.state, leaving_one.state) == (DRAINING, DRAINING)
        if now == lifecycle.EXIT_SECONDS + 3:
            assert (silent.state, leaving_one.state) == (DRAINING, KILLED)
    assert (silent.state, busy.state) == (KILLED, DRAINING)


def test_an_executor_gets_its_whole_time_to_leave_after_a_pause_of_the_worker() -> None:
    child = child_of(state=DRAINING)
    liveness.check(child, 0.1, last_look=0.0)
    liveness.check(child, 1000.0, last_look=0.1)
    assert (child.state, child.idle_since) == (DRAINING, None)


def test_what_an_executor_had_not_told_when_it_died_is_told_by_another(crew: Crew, mortal: None) -> None:
    """C59: also what the dead one had said on the socket counts."""
    one, two, _ = booted(crew)
    crew.untold.tell(events(1))
    crew.untold.tell(events(2))
    end_of(one).arriving = [Notified(1)]
    exits(one, -9)
    crew.tick(1.0)
    assert [message.events for message in end_of(two).sent] == [events(2)()]
    crew._on_message(two, Notified(3))
    assert not crew.untold.sent_to(two)


@pytest.mark.parametrize("status", [9, 0])
def test_a_receiver_that_ends_its_process_does_so_a_few_times_whatever_the_status(
    crew: Crew, mortal: None, status: int
) -> None:
    """C59: no executor that was not told to leave exits 0 for a reason of its own."""
    crew.processes = 1
    booted(crew, 1)
    crew.untold.tell(events(1))
    for _ in range(MOST_DEATHS):
        [child] = crew.children
        assert crew.untold.sent_to(child)
        exits(child, status)
        crew.tick(1.0)
        crew._on_message(crew.children[0], Ready(HELLO))
    assert not crew.untold.sent_to(crew.children[0])


def test_an_executor_that_was_told_to_leave_says_nothing_of_what_it_was_telling(crew: Crew, mortal: None) -> None:
    """C59: its receivers were slow, and another goes on with them."""
    one, two, _ = booted(crew)
    crew.untold.tell(events(1))
    one.state = DRAINING
    exits(one, 0)
    crew.tick(1.0)
    assert [batch.deaths for batch in crew.untold.sent_to(two)] == [0]


def test_in_a_drain_the_last_that_listens_stays_until_nothing_is_left_to_be_told(crew: Crew) -> None:
    one, two, deaf = ready(crew, listens=True), ready(crew, listens=True), ready(crew)
    run = run_of(1)
    crew.holding.table.held[1] = run
    crew.dismiss()
    assert (one.state, two.state, deaf.state) == (DRAINING, READY, DRAINING)
    crew.untold.listened = True
    crew.untold.tell(events(1))
    del crew.holding.table.held[1]
    crew.dismiss()
    assert [type(message) for message in end_of(two).sent] == [Notify, Drain]


def test_nobody_is_told_where_nobody_listens(crew: Crew) -> None:
    crew.untold.tell(lambda: pytest.fail("asked for"))
    assert not crew.untold.fresh


def test_an_outcome_that_cannot_be_read_leaves_its_run_to_the_death_of_its_executor() -> None:
    """And what came before it in the same frame counts."""
    from django_pgjobs.worker.supervisor.held_jobs import Holding as Real

    class Acking:
        def __init__(self) -> None:
            self.ids: list[int] = []

        def put_many(self, kind: str, entries: list[Any]) -> None:
            self.ids += [end.id for _, end in entries]

    acking: Any = Acking()
    holding = Real(None, None, acking, hear=lambda pair: None, tell=lambda items: None)  # type: ignore[arg-type]
    child = child_of()
    one, two = run_of(10, number=1), run_of(20, number=2)
    child.add(one)
    child.add(two)
    with pytest.raises(TypeError):
        holding.succeeded(child, [1, 2], [100_000, "long"], ["1", "2"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="not a decision"):
        holding.done(child, [[2, 0.1, "dance"]])
    assert acking.ids == [10]
    assert child.runs == {2: two}


def test_an_executor_that_was_terminated_for_its_only_job_gets_jobs_again(crew: Crew) -> None:
    crew.processes = 1
    child = ready(crew)
    child.state, child.culprits = TERMINATING, {7: "timeout"}
    crew.tick(1.0)
    assert child.state == TERMINATING
    child.remove(7)
    crew.tick(2.0)
    assert child.state == READY


# Replacing


def booted(crew: Crew, count: int = 3) -> list[Child]:
    """So many executors that are ready, as ``crew`` has started them."""
    crew.tick(0.0)
    for child in crew.children:
        crew._on_message(child, Ready(HELLO))
    for _ in range(count - len(crew.children)):
        crew.spawn()
    for child in crew.children:
        crew._on_message(child, Ready(HELLO))
    return list(crew.children)


statuses: dict[int, int] = {}


def exits(child: Child, status: int) -> None:
    """Let it have ended."""
    statuses[child.number] = status


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children whose end can be said."""
    statuses.clear()
    monkeypatch.setattr(Child, "exit_status", lambda child, ended: statuses.get(child.number))


def test_a_successor_is_ready_before_an_executor_goes(crew: Crew, mortal: None) -> None:
    """Nothing is lost and nothing waits: it gets jobs until the other one can take them."""
    crew.recycling = Recycling(max_jobs=10)
    one, two, three = booted(crew)
    one.done = two.done = 10
    crew.tick(1.0)
    assert (one.leaving, two.leaving, len(crew.children)) == ("it has run 10 jobs", "", 4)
    assert (one.state, end_of(one).sent) == (READY, [])
    crew.tick(2.0)
    assert len(crew.children) == 4
    successor = crew.children[-1]
    crew._on_message(successor, Ready(HELLO))
    assert (one.state, end_of(one).sent) == (DRAINING, [Drain()])
    assert (two.state, three.state) == (READY, READY)
    exits(one, 0)
    crew.tick(3.0)
    assert one not in crew.children
    assert two.leaving
    assert len([child for child in crew.children if not child.leaving]) == 3


def test_executors_that_finish_long_jobs_do_not_pile_up(crew: Crew, mortal: None) -> None:
    crew.recycling = Recycling(max_jobs=1)
    booted(crew)
    for now in range(1, 20):
        for child in crew.children:
            child.done = 1
            if child.state == STARTING:
                crew._on_message(child, Ready(HELLO))
                break
        crew.tick(float(now))
    assert len(crew.children) <= 2 * crew.processes


def test_one_that_dies_while_its_successor_starts_is_replaced_by_that(crew: Crew, mortal: None) -> None:
    crew.recycling = Recycling(max_jobs=10)
    one, *_ = booted(crew)
    one.done = 10
    crew.tick(1.0)
    exits(one, -9)
    crew.tick(2.0)
    assert (one in crew.children, len(crew.children)) == (False, 3)


def test_a_storm_of_deaths_is_slowed_down_and_one_long_life_ends_it(
    crew: Crew, mortal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    booted(crew)
    pauses = []
    for _ in range(SHORT_LIVES + 4):
        exits(crew.children[-1], -11)
        crew.tick(now)
        pauses.append(max(0.0, crew.boot_after - now))
        now = max(now + 0.1, crew.boot_after)
        crew.tick(now)
        crew._on_message(crew.children[-1], Ready(HELLO))
    assert pauses[:SHORT_LIVES] == [0.0] * SHORT_LIVES
    assert pauses[SHORT_LIVES:] == [1.0, 2.0, 4.0, 8.0]
    now += SHORT_LIFE_SECONDS + 1
    exits(crew.children[0], -11)
    crew.tick(now)
    assert (crew.short_lives, len(crew.children)) == (0, 3)


def test_another_version_stops_the_worker(crew: Crew, failed: list[str], mortal: None) -> None:
    """Protocol trap 18: new code in an old worker."""
    booted(crew)
    crew.spawn()
    crew._on_message(crew.children[-1], Ready({**HELLO, "version": "99.0"}))
    assert failed == ["another version was deployed"]
    assert crew.children[-1].state == KILLED
    assert len(crew.children) == 4


def test_after_a_pause_of_the_worker_a_job_is_led_up_rung_by_rung_all_the_same(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspended machine wakes up long after a deadline: the job still gets its second, and its neighbours theirs."""
    sent: list[int] = []
    monkeypatch.setattr(children, "_signal_group", lambda pid, number: sent.append(number))
    child = ready(crew, threads=2)
    run = run_of(1, number=1, state="sent", child=child, timeout_seconds=8.0)
    child.add(run)
    child.board.start(0, 1, 1_000_000_000, "sync")
    crew.check_deadlines(child, 5.0)
    crew.last_look = 5000.0
    for now in (5000.1, 5000.2, 5001.1, 5002.9):
        crew.check_deadlines(child, now)
    assert sent == []
    crew.check_deadlines(child, 5003.1)
    assert sent == [signal.SIGTERM]
