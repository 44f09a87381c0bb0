"""What the death of an executor means for each job it had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_pgjobs import Backoff
from django_pgjobs import decisions as decide
from django_pgjobs import job as define
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Decision
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.supervisor.executor_death import Death
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from tests.unit.worker_fakes import child_of, run_of

NOW = 100.0


@define(name="deaths.known", backoff=Backoff(7, jitter=0))
def known() -> None: ...


@pytest.fixture
def child() -> Iterator[ExecutorProcess]:
    child = child_of(threads=3, async_slots=2)
    yield child
    child.close()


def sent(child: ExecutorProcess, *numbers: int, **changes: Any) -> list[HeldRun]:
    """Runs of jobs that were sent to an executor."""
    runs = [run_of(number * 10, number=number, **changes) for number in numbers]
    for run in runs:
        child.add(run)
    return runs


def starts(child: ExecutorProcess, number: int, slot: int = 0, *, at: float = 90.0, buffer: str = "sync") -> None:
    child.board.start(slot, number, int(at * 1e9), buffer)


def only(death: Death) -> tuple[HeldRun, Decision]:
    [found] = death.decisions()
    return found


def test_what_was_never_started_is_free(child: ExecutorProcess) -> None:
    runs = sent(child, 4, 2)
    death = Death.of(child, -9, NOW)
    assert death.unstarted == runs[::-1]
    assert list(death.decisions()) == []
    assert (child.runs, child.outstanding) == ({}, {False: 0, True: 0})


def test_each_buffer_has_its_own_order(child: ExecutorProcess) -> None:
    """A later start of a thread says nothing of what waits for the loop."""
    [later] = sent(child, 5)
    [waiting, done] = [sent(child, number, is_async=True)[0] for number in (4, 2)]
    starts(child, 5)
    starts(child, 2, slot=3, buffer="async")
    child.board.clear(3)
    death = Death.of(child, -9, NOW)
    assert death.unstarted == [waiting]
    assert death.charged == [done, later]


def test_a_job_that_dies_alone_with_its_executor_is_charged_with_the_signal(child: ExecutorProcess) -> None:
    [run] = sent(child, 3)
    starts(child, 3, at=97.5)
    death = Death.of(child, -11, NOW)
    found, decision = only(death)
    assert found is run
    assert isinstance(decision, decide.Retried)
    assert decision.cause == "crashed"
    assert "SIGSEGV" in decision.failure.message
    assert death.seconds[3] == pytest.approx(2.5)


def test_an_exit_is_named_by_its_status(child: ExecutorProcess) -> None:
    sent(child, 3)
    starts(child, 3)
    _, decision = only(Death.of(child, 5, NOW))
    assert isinstance(decision, decide.Retried)
    assert "5" in decision.failure.message


def test_the_last_attempt_is_abandoned(child: ExecutorProcess) -> None:
    sent(child, 3, attempt=3, max_attempts=3)
    starts(child, 3)
    _, decision = only(Death.of(child, -9, NOW))
    assert isinstance(decision, decide.Abandoned)
    assert (decision.reason, decision.cause) == ("no attempts left", "crashed")


@pytest.mark.parametrize(("name", "least", "most"), [("deaths.known", 7, 7), ("deaths.unknown", 13.5, 16.5)])
def test_the_next_attempt_waits_by_the_numeric_backoff(
    child: ExecutorProcess, name: str, least: float, most: float
) -> None:
    sent(child, 3, name=name)
    starts(child, 3)
    _, decision = only(Death.of(child, -9, NOW))
    assert isinstance(decision, decide.Retried)
    assert least <= decision.seconds <= most


def test_in_company_nobody_is_charged_and_each_is_a_suspect(child: ExecutorProcess) -> None:
    one, two, waiting = sent(child, 3, 4, 5)
    starts(child, 3)
    starts(child, 4, slot=1)
    death = Death.of(child, -9, NOW)
    assert (death.suspects, death.unstarted, death.charged) == ([one, two], [waiting], [])
    assert list(death.decisions()) == []


@pytest.mark.parametrize("culprits", [{}, {4: "timeout"}])
def test_a_finished_job_whose_outcome_is_lost_is_charged_whoever_was_to_blame(
    child: ExecutorProcess, culprits: dict[int, str]
) -> None:
    """``max_attempts=1`` must not run twice."""
    finished, other = sent(child, 3, 4)
    starts(child, 3)
    starts(child, 4)
    child.culprits = culprits
    death = Death.of(child, -9, NOW)
    assert death.charged == [finished, other]
    decisions = {run.run: decision for run, decision in death.decisions()}
    assert isinstance(decisions[3], decide.Retried)
    assert "outcome was lost" in decisions[3].failure.message


def test_of_an_executor_that_was_killed_for_one_job_the_others_are_released(child: ExecutorProcess) -> None:
    culprit, neighbour = sent(child, 3, 4, timeout_seconds=8.0)
    starts(child, 3)
    starts(child, 4, slot=1)
    child.culprits = {3: "timeout"}
    culprit.stack = "where it hung"
    (first, timed_out), (second, released) = Death.of(child, -9, NOW).decisions()
    assert (first, second) == (culprit, neighbour)
    assert isinstance(timed_out, decide.Retried)
    assert timed_out.cause == "timeout"
    assert timed_out.failure.traceback == "where it hung"
    assert "longer than 8 s (its timeout)" in timed_out.failure.message
    assert isinstance(released, decide.Released)
    assert released.failure is not None
    assert "not charged" in released.failure.message


def test_a_timeout_that_nobody_has_chosen_says_where_it_comes_from(child: ExecutorProcess) -> None:
    sent(child, 3, name="deaths.known", timeout_seconds=get_conf().default_timeout_seconds)
    starts(child, 3)
    child.culprits = {3: "timeout"}
    _, decision = only(Death.of(child, -9, NOW))
    assert isinstance(decision, decide.Retried)
    assert "the default timeout, set timeout= to change it" in decision.failure.message


def test_a_job_that_was_to_be_killed_is_cancelled(child: ExecutorProcess) -> None:
    sent(child, 3, cancel_reason="too dear")
    starts(child, 3)
    child.culprits = {3: "cancelled"}
    _, decision = only(Death.of(child, -9, NOW))
    assert isinstance(decision, decide.Cancelled)
    assert (decision.reason, decision.cause) == ("too dear", "cancelled")
    assert decision.failure is not None
    assert decision.failure.summary == "ExecutorDied: The job was cancelled, and the process that ran it was killed."


def test_what_was_handed_back_while_it_ran_is_released(child: ExecutorProcess) -> None:
    sent(child, 3, max_attempts=1)
    starts(child, 3)
    child.culprits = {3: "released"}
    _, decision = only(Death.of(child, -9, NOW))
    assert isinstance(decision, decide.Released)
    assert decision.failure is not None


def test_what_ran_while_its_worker_stood_still_is_not_charged(child: ExecutorProcess) -> None:
    """The watchdog has ended it; nobody of it is a culprit. What had finished unheard is charged all the same."""
    finished, alone, unstarted = sent(child, 1, 2, 3)
    starts(child, 1)
    child.board.clear(0)
    starts(child, 2)
    death = Death.of(child, -6, NOW, frozen=True)
    assert death.unstarted == [unstarted]
    decisions = dict(death.decisions())
    assert isinstance(decisions[finished], decide.Retried)
    release = decisions[alone]
    assert isinstance(release, decide.Released)
    assert release.failure is not None
    assert "stood still" in release.failure.message


def test_a_job_that_had_finished_when_it_was_to_be_handed_back_is_charged(child: ExecutorProcess) -> None:
    """Its outcome is lost: ``max_attempts=1`` must not run twice, whoever killed its executor."""
    sent(child, 3, max_attempts=1)
    starts(child, 3)
    child.board.clear(0)
    child.culprits = {3: "released"}
    _, decision = only(Death.of(child, -9, NOW))
    assert isinstance(decision, decide.Abandoned)
    assert decision.failure is not None
    assert "outcome was lost" in decision.failure.message


# on_crash="abandon"

ONCE: dict[str, Any] = {"extras": {"options": {"on_crash": "abandon"}}}


def judged(death: Death, run: HeldRun) -> Decision:
    return next(decision for found, decision in death.decisions() if found is run)


def test_a_job_that_must_not_run_again_is_abandoned_by_a_crash_in_company(child: ExecutorProcess) -> None:
    """Guilty or not, it had started. Its neighbours run again by halves, as ever; what had not started is free."""
    [once, waiting], others = sent(child, 1, 9, **ONCE), sent(child, 2, 3)
    for slot, number in enumerate((1, 2, 3)):
        starts(child, number, slot)
    death = Death.of(child, -9, NOW)
    decision = judged(death, once)
    assert isinstance(decision, decide.Abandoned)
    assert decision.cause == "crashed"
    assert decision.failure is not None
    assert decision.failure.summary.endswith('SIGKILL. It is not run again: on_crash="abandon".')
    assert (death.suspects, death.unstarted) == (others, [waiting])


def test_its_only_neighbour_stays_a_suspect_and_is_not_charged(child: ExecutorProcess) -> None:
    [once], [other] = sent(child, 1, **ONCE), sent(child, 2)
    starts(child, 1)
    starts(child, 2, 1)
    death = Death.of(child, -9, NOW)
    assert death.suspects == [other]
    assert [run for run, _ in death.decisions()] == [once]


@pytest.mark.parametrize("frozen", [True, False])
def test_a_process_that_is_killed_because_of_others_is_a_crash_for_it(child: ExecutorProcess, frozen: bool) -> None:
    [once], [guilty] = sent(child, 1, **ONCE), sent(child, 2)
    starts(child, 1)
    starts(child, 2, 1)
    if not frozen:
        child.culprits[2] = "timeout"
    decision = judged(Death.of(child, -9, NOW, frozen=frozen), once)
    assert isinstance(decision, decide.Abandoned)
    assert decision.failure is not None
    assert ("of another job" in decision.failure.message) is not frozen
    assert guilty not in child.runs.values()


@pytest.mark.parametrize(
    ("cause", "kind"), [("released", decide.Abandoned), ("timeout", decide.Retried), ("cancelled", decide.Cancelled)]
)
def test_only_its_own_timeout_and_its_own_cancel_are_no_crash(
    child: ExecutorProcess, cause: str, kind: type[Decision]
) -> None:
    """A timeout is a failure like any other; one that is killed while it is released did not stop in time."""
    [once] = sent(child, 1, **ONCE)
    starts(child, 1)
    child.culprits[1] = cause
    assert isinstance(judged(Death.of(child, -9, NOW), once), kind)


def test_its_callback_runs_again_after_a_crash(child: ExecutorProcess) -> None:
    [run] = sent(child, 1, ending="abandoned", **ONCE)
    starts(child, 1)
    assert isinstance(judged(Death.of(child, -9, NOW), run), decide.Retried)


def test_options_that_somebody_wrote_by_hand_break_nothing(child: ExecutorProcess) -> None:
    [run] = sent(child, 1, extras={"options": ["on_crash"]})
    starts(child, 1)
    assert isinstance(judged(Death.of(child, -9, NOW), run), decide.Retried)
