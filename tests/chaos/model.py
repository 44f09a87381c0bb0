"""A small model of what the tables must say: one job a dataclass, no SQL, no clock, no concurrency.

The state machine does everything twice, to the tables and to this, and compares them. A claim is a string here; a
lease is good or has run out; a job is due or not yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

SUCCEEDED, CANCELLED, ABANDONED = "succeeded", "cancelled", "abandoned"


@dataclass
class ModelJob:
    """What a row of a job must say."""

    callbacks: bool
    max_attempts: int
    retried_attempts: int
    due: bool = True
    attempt: int = 0
    claim: str | None = None
    overdue: bool = False
    outcome: str | None = None
    ending: str | None = None
    ending_attempt: int = 0
    parked: bool = False
    cancel: bool = False
    release: bool = False

    @property
    def state(self) -> str:
        if self.outcome is not None:
            return self.outcome
        if self.claim is not None:
            return "running"
        return "parked" if self.parked else "ready"

    @property
    def unclaimed(self) -> bool:
        return self.outcome is None and self.claim is None

    def held_by(self, claim: str) -> bool:
        """Whether a write under this claim counts."""
        return self.claim == claim and self.outcome is None

    def may_go_back(self, claim: str) -> bool:
        """Whether it may go back into the queue under this claim: not while its end is to be cancelled."""
        return self.held_by(claim) and (not self.cancel or self.ending is not None)

    def give_back(self) -> None:
        """It was not its own fault: the start does not count."""
        if self.ending is None:
            self.attempt = max(self.attempt - 1, 0)
        else:
            self.ending_attempt = max(self.ending_attempt - 1, 0)
        self.let_go()

    def let_go(self) -> None:
        self.claim, self.overdue, self.release = None, False, False

    def go_on(self, *, max_attempts: int, retried_attempts: int) -> None:
        """It is its next step now, a job without callbacks, and due."""
        self.callbacks, self.max_attempts, self.retried_attempts = False, max_attempts, retried_attempts
        self.attempt, self.due = 0, True
        self.let_go()

    def end(self, outcome: str) -> None:
        """It ends; the claim stays on the row, so that a late write can be told from a repeated one."""
        self.outcome = outcome

    def end_or_call_back(self, outcome: str) -> None:
        """It ends at once, or as soon as its callback has run."""
        self.parked = False
        if self.callbacks:
            self.ending, self.due, self.claim = outcome, True, None
        else:
            self.end(outcome)


@dataclass
class Model:
    """What the tables must say."""

    jobs: dict[int, ModelJob] = field(default_factory=dict)
    history: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    ledger: dict[str, set[int]] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    steps: set[tuple[int, str]] = field(default_factory=set)
    """Which (job, claim) has finished a step."""

    def claimable(self) -> set[int]:
        return {number for number, job in self.jobs.items() if job.unclaimed and job.due and not job.parked}

    def claim(self, claim: str, ids: Iterable[int]) -> None:
        """These were claimed: the body's start is charged, or the callback's."""
        self.ledger[claim] = set(ids)
        for number in ids:
            job = self.jobs[number]
            job.claim = claim
            if job.ending is None:
                job.attempt += 1
            else:
                job.ending_attempt += 1

    def record(self, number: int, claim: str, cause: str) -> None:
        """Keep how an attempt failed; what is kept of a claim is kept once."""
        self.history.setdefault((number, claim), (self.jobs[number].attempt, cause))

    def live(self, claim: str) -> set[int]:
        """The jobs that a claim still holds."""
        named = self.ledger.get(claim, set())
        return {number for number in named if number in self.jobs and self.jobs[number].held_by(claim)}

    def forget(self, claim: str) -> bool:
        """Strike a claim that holds nothing any more."""
        if claim not in self.ledger or self.live(claim):
            return False
        del self.ledger[claim]
        return True

    def rescue(self) -> set[int]:
        """Take back what is dead; return which jobs that were."""
        taken: set[int] = set()
        for claim in list(self.ledger):
            dead = {n for n in self.live(claim) if claim in self.expired or self.jobs[n].overdue}
            for number in dead:
                self._take_back(number, claim)
            if dead or claim in self.expired:
                self.forget(claim)
            taken |= dead
        return taken

    def _take_back(self, number: int, claim: str) -> None:
        job = self.jobs[number]
        self.record(number, claim, "lost" if claim in self.expired else "timeout")
        last = job.attempt >= job.max_attempts
        end = None if job.ending is not None else CANCELLED if job.cancel else ABANDONED if last else None
        if end is not None and not job.callbacks:
            job.end(end)
            job.overdue = job.release = False
        else:
            job.ending = job.ending or end
            job.let_go()

    def cancel(self, number: int) -> bool:
        job = self.jobs[number]
        if job.outcome is not None or (job.claim is None and job.ending is not None):
            return False
        job.cancel = True
        if job.claim is None:
            job.end_or_call_back(CANCELLED)
        return True

    def abandon(self, number: int) -> bool:
        job = self.jobs[number]
        if not job.unclaimed or job.ending is not None:
            return False
        job.end_or_call_back(ABANDONED)
        return True

    def retry(self, number: int) -> bool:
        job = self.jobs[number]
        if job.outcome not in (ABANDONED, CANCELLED) and not job.parked:
            return False
        if job.outcome is not None:
            job.max_attempts = job.attempt + job.retried_attempts
            job.ending, job.ending_attempt = None, 0
        job.outcome, job.parked, job.cancel, job.due = None, False, False, True
        job.let_go()
        return True

    def reschedule(self, number: int, *, due: bool) -> bool:
        job = self.jobs[number]
        if job.unclaimed:
            job.due = due
        return job.unclaimed

    def want_back(self, number: int) -> bool:
        job = self.jobs[number]
        running = job.outcome is None and job.claim is not None
        job.release = job.release or running
        return running
