"""A run is led up its ladder, and what it comes to: pure, with instants given."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from django_pgjobs import decisions as decide
from django_pgjobs.conf import LADDER_SECONDS
from django_pgjobs.decisions import Failure, Unwritten
from django_pgjobs.execution.failed_attempts import NO_ATTEMPTS
from django_pgjobs.worker.shared.channel_messages import ReleaseRuns, StopRun
from django_pgjobs.worker.shared.ladders import CANCELLED, FLAG, INTERRUPT, LADDERS, LOST, RELEASED, SOFT, TIMEOUT
from django_pgjobs.worker.shared.runs import SENT, HeldRun
from django_pgjobs.worker.supervisor import escalation, executor_process
from django_pgjobs.worker.supervisor.executor_death import Death
from django_pgjobs.worker.supervisor.executor_process import DRAINING, KILLED, READY, TERMINATING, ExecutorProcess
from tests.unit.worker_fakes import child_of, end_of, run_of

FAILURE = Failure("ValueError", "no", (("ValueError", "no"), ("OSError", "why")), "Traceback: …")
DEADLINE = "django_pgjobs.exceptions.DeadlinePassed"


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sent: list[int] = []
    monkeypatch.setattr(executor_process, "_signal_group", lambda pid, number: sent.append(number))
    return sent


@pytest.fixture
def child(signals: list[int]) -> Iterator[ExecutorProcess]:
    child = child_of(threads=3)
    yield child
    child.close()


def running(child: ExecutorProcess, number: int, slot: int = 0) -> HeldRun:
    run = run_of(number * 10, number=number, state=SENT, child=child, timeout_seconds=8.0)
    child.add(run)
    child.board.start(slot, number, 1, "sync")
    return run


def rungs(child: ExecutorProcess) -> list[str]:
    return [message.rung for message in end_of(child).sent if isinstance(message, StopRun)]


def test_a_soft_limit_is_told_once_for_each_start_and_stops_nothing(child: ExecutorProcess) -> None:
    """No ladder, so a kill for another job's sake does not lay it to this one."""
    run = running(child, 1)
    run.job = run.job._replace(extras={"options": {"soft_timeout": 3}})
    child.board.begin(0, 100 * 10**9)
    for now in (102.9, 103.1, 104.0):
        escalation.interrupt_softly(run, child, now)
    assert [message for message in end_of(child).sent if isinstance(message, StopRun)] == [
        StopRun(1, INTERRUPT, SOFT, "", "")
    ]
    assert not run.stops
    run.run = 2
    child.board.start(0, 2, 200 * 10**9, "sync")
    child.board.begin(0, 200 * 10**9)
    escalation.interrupt_softly(run, child, 201.0)
    escalation.interrupt_softly(run, child, 203.5)
    assert len(rungs(child)) == 2
    run.becomes_callback("abandoned")
    run.run = 3
    child.board.start(0, 3, 210 * 10**9, "sync")
    child.board.begin(0, 210 * 10**9)
    escalation.interrupt_softly(run, child, 1000.0)
    assert len(rungs(child)) == 2, "a callback has no soft limit"


def test_a_soft_limit_counts_from_where_the_jobs_own_code_begins(child: ExecutorProcess) -> None:
    """However long the executor took to get there; what an earlier run on the slot showed counts for nothing."""
    run = running(child, 7)
    run.job = run.job._replace(extras={"options": {"soft_timeout": 3}})
    child.board.begin(0, 90 * 10**9)
    child.board.start(0, 7, 100 * 10**9, "sync")
    run.started_at = 100.0
    escalation.interrupt_softly(run, child, 500.0)
    assert rungs(child) == []
    child.board.begin(0, 500 * 10**9)
    escalation.interrupt_softly(run, child, 502.9)
    assert rungs(child) == []
    escalation.interrupt_softly(run, child, 503.1)
    assert rungs(child) == [INTERRUPT]


@pytest.mark.parametrize(
    ("ladder", "expected"),
    [
        (TIMEOUT, [(1.0, INTERRUPT), (3.0, signal.SIGTERM), (LADDER_SECONDS, signal.SIGKILL)]),
        (LOST, [(0.0, FLAG), (1.0, INTERRUPT), (3.0, signal.SIGTERM), (LADDER_SECONDS, signal.SIGKILL)]),
        (RELEASED, [(0.0, FLAG), (1.0, INTERRUPT), (3.0, signal.SIGTERM), (LADDER_SECONDS, signal.SIGKILL)]),
        ("ask", [(0.0, FLAG)]),
        ("interrupt", [(0.0, INTERRUPT)]),
        ("kill", [(0.0, signal.SIGKILL)]),
    ],
)
def test_each_rung_comes_at_its_time_and_once(
    child: ExecutorProcess, signals: list[int], ladder: str, expected: list[tuple[float, str | int]]
) -> None:
    """X10 §4: a cancel's first rung comes at once, or it would not be seen within a second."""
    run = running(child, 1)
    heard: list[tuple[float, str | int]] = []
    escalation.stop(run, ladder if ladder in (TIMEOUT, LOST, RELEASED) else CANCELLED, ladder, 100.0)
    for tenths in range(80):
        escalation.advance(run, child, 100.0 + tenths / 10)
        seen: list[str | int] = list(rungs(child))
        seen += signals
        heard += [(tenths / 10, rung) for rung in seen[len(heard) :]]
    assert heard == expected


def test_a_late_look_takes_every_rung_that_is_due(child: ExecutorProcess, signals: list[int]) -> None:
    """The supervisor may have stood still."""
    escalation.stop(run := running(child, 1), TIMEOUT, TIMEOUT, 100.0)
    escalation.advance(run, child, 200.0)
    assert (rungs(child), signals) == ([INTERRUPT], [signal.SIGTERM, signal.SIGKILL])
    assert (child.state, child.culprits) == (KILLED, {1: TIMEOUT})


def test_nothing_is_signalled_for_a_run_that_the_board_does_not_show(
    child: ExecutorProcess, signals: list[int]
) -> None:
    """It may have ended, or never started: its executor has done nothing wrong."""
    run = run_of(10, number=1, state=SENT, child=child)
    child.add(run)
    escalation.stop(run, CANCELLED, "kill", 100.0)
    assert (signals, child.state) == ([], READY)
    child.board.start(0, 1, 1, "sync")
    escalation.advance(run, child, 100.1)
    assert signals == [signal.SIGKILL]


def test_a_wish_may_become_stronger_and_is_not_repeated(child: ExecutorProcess, signals: list[int]) -> None:
    run = running(child, 1)
    for mode in ("ask", "ask", "interrupt", "interrupt", "kill", "kill"):
        escalation.stop(run, CANCELLED, mode, 100.0)
    assert (rungs(child), signals) == ([FLAG, INTERRUPT], [signal.SIGKILL])


def test_after_sigterm_the_executor_gets_nothing_new_and_goes_on_when_the_guilty_has_ended(
    child: ExecutorProcess, signals: list[int]
) -> None:
    """Trap 6: what others fail of from here on is collateral."""
    guilty, neighbour = running(child, 1), running(child, 2, slot=1)
    unstarted = run_of(30, number=3, state=SENT, child=child)
    child.add(unstarted)
    escalation.stop(guilty, TIMEOUT, TIMEOUT, 100.0)
    escalation.advance(guilty, child, 103.0)
    assert (child.state, child.room(is_async=False)) == (TERMINATING, 0)
    assert ReleaseRuns([1, 2, 3]) in end_of(child).sent
    escalation.spare(child)
    assert child.state == TERMINATING
    assert escalation.judged(neighbour, decide.Retried(5.0, FAILURE)) == decide.Released("collateral", FAILURE)
    assert escalation.judged(neighbour, decide.Succeeded("1")) == decide.Succeeded("1")
    child.remove(1)
    escalation.spare(child)
    assert (child.state, child.culprits) == (READY, {})
    later = running(child, 4, slot=2)
    assert escalation.judged(later, decide.Retried(5.0, FAILURE)) == decide.Retried(5.0, FAILURE)


def test_of_a_killed_executor_each_that_was_being_stopped_answers_for_itself(child: ExecutorProcess) -> None:
    late, released, asked, innocent = (running(child, number, slot=number % 3) for number in (1, 2, 3, 4))
    escalation.stop(late, TIMEOUT, TIMEOUT, 100.0)
    escalation.stop(released, RELEASED, RELEASED, 100.0)
    escalation.stop(asked, CANCELLED, "ask", 100.0)
    assert innocent.stops == {}
    escalation.blame(child)
    assert child.culprits == {1: TIMEOUT, 2: RELEASED}


def test_who_ends_while_its_executor_is_killed_is_still_why_the_others_died(child: ExecutorProcess) -> None:
    """Its outcome is read after the kill, and stands; a neighbour must not be charged for a crash."""
    guilty, neighbour = running(child, 1), running(child, 2, slot=1)
    escalation.stop(guilty, CANCELLED, "kill", 100.0)
    child.remove(1)
    child.board.clear(0)
    death = Death.of(child, -9, 101.0)
    assert (death.collateral, death.charged, death.suspects) == ([neighbour], [], [])


@pytest.mark.parametrize(
    "decision",
    [decide.Retried(5.0, FAILURE), decide.Abandoned(NO_ATTEMPTS, FAILURE), decide.Retried(0.0, FAILURE, TIMEOUT)],
)
def test_a_failure_after_the_deadline_is_a_timeout(child: ExecutorProcess, decision: Unwritten) -> None:
    """C26: whatever it failed of, a cancelled query for one; that is kept as the cause of it."""
    run = running(child, 1)
    escalation.stop(run, TIMEOUT, TIMEOUT, 100.0)
    after = escalation.judged(run, decision)
    assert isinstance(after, decide.Retried)
    assert (after.cause, after.failure.kind, after.failure.traceback) == (TIMEOUT, DEADLINE, FAILURE.traceback)
    assert after.failure.chain[1:] == FAILURE.chain
    words = "The attempt ran longer than 8 s (its timeout)."
    assert after.failure.summary.startswith(f"DeadlinePassed: {words} ← ValueError")


def test_the_interrupt_itself_stands_in_the_chain_once(child: ExecutorProcess) -> None:
    run = running(child, 1)
    escalation.stop(run, TIMEOUT, TIMEOUT, 100.0)
    raised = Failure(DEADLINE, "words", ((DEADLINE, "words"), ("OSError", "why")), "Traceback: …")
    after = escalation.judged(run, decide.Retried(1.0, raised, TIMEOUT))
    assert isinstance(after, decide.Retried)
    assert [kind for kind, _ in after.failure.chain] == [DEADLINE, "OSError"]


@pytest.mark.parametrize(
    "decision",
    [decide.Succeeded("1"), decide.Snoozed(9.0), decide.Cancelled("no need"), decide.Abandoned("no use", FAILURE),
     decide.Parked("unknown")],
)  # fmt: skip
@pytest.mark.parametrize("cause", [TIMEOUT, RELEASED])
def test_what_has_finished_first_stands(child: ExecutorProcess, decision: Unwritten, cause: str) -> None:
    """Protocol, stopping: an end by the job's own word is no failure."""
    run = running(child, 1)
    escalation.stop(run, cause, cause, 100.0)
    assert escalation.judged(run, decision) == decision


def test_a_failure_of_what_was_to_be_handed_back_is_not_charged(child: ExecutorProcess) -> None:
    run = running(child, 1)
    escalation.stop(run, RELEASED, RELEASED, 100.0)
    assert escalation.judged(run, decide.Retried(5.0, FAILURE)) == decide.Released("released", FAILURE)


def test_the_ladder_is_as_long_as_the_settings_allow_for() -> None:
    """Rescue looks at a passed deadline only after ``LADDER_SECONDS`` and more."""
    assert max(seconds for ladder in LADDERS.values() for seconds, _ in ladder) == LADDER_SECONDS


def test_an_executor_that_was_leaving_goes_on_leaving(child: ExecutorProcess, signals: list[int]) -> None:
    """It was told DRAIN: what is sent to it now would die with it, charged."""
    guilty, neighbour = running(child, 1), running(child, 2, slot=1)
    child.state = DRAINING
    escalation.stop(guilty, TIMEOUT, TIMEOUT, 100.0)
    escalation.advance(guilty, child, 103.0)
    assert child.state == TERMINATING
    child.remove(1)
    escalation.spare(child)
    assert child.state == DRAINING
    assert escalation.judged(neighbour, decide.Retried(5.0, FAILURE)) == decide.Retried(5.0, FAILURE), (
        "a failure of its own"
    )
