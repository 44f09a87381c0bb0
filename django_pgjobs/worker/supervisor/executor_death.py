"""Decides the fate of each job of an executor that has died. Pure: a board, a status, no clock and no I/O.

An executor we killed was killed for its culprits; the others are released, uncharged; so is all that ran in one that
the watchdog ended, *frozen*. One that died by itself with one job running: that job is charged. With several: each half
of them runs again by itself, uncharged, and so on; one that kills its executor alone is charged. What it never started
is free. A run that had left the board without its outcome having arrived has finished, and its outcome is unknown: it
is charged, for ``max_attempts=1`` must not run twice. A job with ``on_crash="abandon"`` that had started is abandoned
in any of these cases, but for those in which it alone was stopped: by its timeout, its memory, or a cancel. One that
the memory guard killed, as several jobs together had taken too much, counts as one that died by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Failure, Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import AttemptFailed, DeadlinePassed, ExecutorDied, JobInterrupted, MemoryExceeded
from django_pgjobs.execution.failed_attempts import RELEASE_REASON, by_default_backoff, failure_of
from django_pgjobs.states import Cause
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.supervisor.executor_process import KILLED, TERMINATING, ExecutorProcess

OURS = (TERMINATING, KILLED)
"""States in which an executor dies by our signal."""

REASONS = ("signal", "exit", "memory", "boot", "killed", "frozen")
"""Why executors end, as metrics tell it."""

NOT_AGAIN = 'It is not run again: on_crash="abandon".'


@dataclass(slots=True)
class Death:
    """An executor's end, and its runs sorted by what it means for them."""

    status: int
    culprits: dict[int, str]
    application_name: str = ""
    frozen: bool = False
    out_of_memory: bool = False
    over: str = ""
    """Why we killed it for its memory, with several jobs in it."""
    unstarted: list[HeldRun] = field(default_factory=list)
    suspects: list[HeldRun] = field(default_factory=list)
    charged: list[HeldRun] = field(default_factory=list)
    collateral: list[HeldRun] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, child: ExecutorProcess, status: int, now: float, *, frozen: bool = False, out_of_memory: bool = False
    ) -> Death:
        """Sort the runs of a reaped ``child`` whose socket has been read to its end."""
        death = cls(status, dict(child.culprits), child.application_name, frozen, out_of_memory, child.over)
        running = child.board.running()
        death.seconds = {number: now - started_ns / 1e9 for number, started_ns in running.items()}
        for number, run in sorted(child.runs.items()):
            if number not in running and number > child.board.high("async" if run.is_async else "sync"):
                death.unstarted.append(run)
            elif number in death.culprits or number not in running:
                death.charged.append(run)
            elif death.culprits or frozen:
                death.collateral.append(run)
            else:
                death.suspects.append(run)
        if len(death.suspects) == 1 and not death.over:
            death.charged += death.suspects
            death.suspects = []
        death._charge_those_not_to_run_again()
        child.runs.clear()
        child.outstanding = {False: 0, True: 0}
        return death

    def _charge_those_not_to_run_again(self) -> None:
        """Charge started jobs with ``on_crash="abandon"``, guilty or not: they may not start again."""
        for others in (self.suspects, self.collateral):
            self.charged += [run for run in others if _ends_by_crash(run)]
            others[:] = [run for run in others if not _ends_by_crash(run)]

    def decisions(self) -> Iterator[tuple[HeldRun, Unwritten]]:
        """Return what each run that will not run again under this claim comes to."""
        for run in self.charged:
            yield run, self._charge(run)
        for run in self.collateral:
            died = AttemptFailed(f"Its process was stopped because {self._because()}; this attempt is not charged.")
            yield run, decide.Released("collateral", failure_of(died))

    def _charge(self, run: HeldRun) -> Unwritten:
        cause = self.culprits.get(run.run)
        if cause in (None, "released") and run.run in self.seconds and _ends_by_crash(run):
            return _abandoned(self._death_of(run, cause))
        if cause == "released" and run.run in self.seconds:
            stopped = AttemptFailed("It was released while it ran; this attempt is not charged.")
            return decide.Released(RELEASE_REASON, failure_of(stopped))
        if cause == "timeout":
            return timed_out(run)
        if cause == "memory":
            return over_memory(run)
        if cause == "cancelled":
            died = ExecutorDied("The job was cancelled, and the process that ran it was killed.")
            return decide.Cancelled(run.cancel_reason, failure_of(died))
        if run.run not in self.seconds:
            lost = ExecutorDied("The job had finished, but its outcome was lost with its process.")
            return _abandoned(lost) if _ends_by_crash(run) else _crashed(run, lost)
        return _crashed(run, self._died())

    def _death_of(self, run: HeldRun, cause: str | None) -> ExecutorDied:
        """Return the words for a run that was not stopped for its own sake and may not start again."""
        if cause == "released":
            return ExecutorDied("It did not stop when it was to be released, and its process was killed.")
        if self.culprits or self.frozen:
            return ExecutorDied(f"Its process was stopped because {self._because()}.")
        return self._died()

    def _because(self) -> str:
        return "its worker stood still for longer than a lease" if self.frozen else "of another job"

    @property
    def runs(self) -> list[HeldRun]:
        """All its runs."""
        return [*self.unstarted, *self.suspects, *self.charged, *self.collateral]

    def of_home(self, alias: str) -> Death:
        """Return it with the runs of one home only."""
        sorts = (self.unstarted, self.suspects, self.charged, self.collateral)
        own = ([run for run in runs if run.job.database == alias] for runs in sorts)
        unstarted, suspects, charged, collateral = own
        return replace(self, unstarted=unstarted, suspects=suspects, charged=charged, collateral=collateral)

    @property
    def suffix(self) -> str:
        """Words that a log line about it adds."""
        if self.over:
            return " (too much memory)"
        return " (out of memory)" if self.out_of_memory else " (worker stood still)" if self.frozen else ""

    def reason(self, was: str, *, booting: bool) -> str:
        """Return the word of ``REASONS`` for an executor that has ended in state ``was``."""
        if self.out_of_memory or self.over:
            return "memory"
        if self.frozen:
            return "frozen"
        if booting:
            return "boot"
        if was in OURS:
            return "killed"
        return "signal" if self.status < 0 else "exit"

    def failure(self) -> decide.Failure:
        """Return what the death says of a run that it ended."""
        return failure_of(self._died())

    def _died(self) -> ExecutorDied:
        if self.over:
            return ExecutorDied(f"The process that ran the job was killed: {self.over}")
        if self.status < 0:
            return ExecutorDied(signal=-self.status, out_of_memory=self.out_of_memory)
        return ExecutorDied(exitcode=self.status)


def timed_out(run: HeldRun, failure: Failure | None = None) -> Unwritten:
    """Return what an attempt comes to that was longer than its timeout; ``failure`` is how it ended when stopped."""
    return by_default_backoff(run.job, _stopped(run, DeadlinePassed, _too_long(run), failure), Cause.TIMEOUT)


def over_memory(run: HeldRun, failure: Failure | None = None) -> Unwritten:
    """Return what an attempt comes to that took more memory than it may; ``failure`` is how it ended when stopped."""
    words = run.memory.words if run.memory is not None else ""
    return by_default_backoff(run.job, _stopped(run, MemoryExceeded, words, failure), Cause.FAILED)


def _stopped(run: HeldRun, error: type[JobInterrupted], words: str, failure: Failure | None) -> Failure:
    kind = f"{error.__module__}.{error.__qualname__}"
    failure = failure or Failure(kind, words, traceback=run.stack)
    causes = failure.chain[1:] if failure.kind == kind else failure.chain
    return Failure(kind, words, ((kind, words), *causes), failure.traceback)


def _too_long(run: HeldRun) -> str:
    if run.job.until is not None and run.stops_at == run.job.until:
        return "The job's deadline passed while the attempt ran."
    definition = registry.find(run.job.name)
    timeout = run.job.timeout
    default = definition is not None and timeout == get_conf().default_timeout_seconds
    words = "the default timeout, set timeout= to change it" if default else "its timeout"
    return f"The attempt ran longer than {timeout:g} s ({words})."


def _ends_by_crash(run: HeldRun) -> bool:
    return run.job.ending is None and run.job.option("on_crash") == "abandon"


def _abandoned(error: ExecutorDied) -> Unwritten:
    return decide.Abandoned(NOT_AGAIN, failure_of(ExecutorDied(f"{error} {NOT_AGAIN}")), Cause.CRASHED)


def _crashed(run: HeldRun, error: ExecutorDied) -> Unwritten:
    return by_default_backoff(run.job, failure_of(error), "crashed")
