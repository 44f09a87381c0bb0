"""The history of a job so far: its row, every attempt that did not succeed, and the worker that runs it now.

A result, for those who asked for one, needs all of it at one instant: ``read_result`` is one statement, and so is
``read_results``, however many jobs it reads. Text from the row is untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from uuid import UUID

from django_pgjobs.states import Cause, JobState, Outcome
from django_pgjobs.store import results
from django_pgjobs.store.database import on
from django_pgjobs.store.results import ReadAttempt, ResultFacts

__all__ = ["ReadAttempt", "ReadResult", "read_result", "read_results"]


class ReadResult(ResultFacts):
    """A job and its history at one instant, and what follows from them. The fields are those of ``ResultFacts``."""

    __slots__ = ()

    @property
    def failures(self) -> tuple[ReadAttempt, ...]:
        """The charged attempts that did not succeed, the oldest first; released ones do not count.

        Lost callbacks of an ending job are none: the history keeps them under the number of the body's last attempt.
        """
        charged = [one for one in self.attempts if one.number > 0 and one.cause != Cause.RELEASED]
        if self.ending_attempt > 1:
            again = sum(1 for _ in takewhile(lambda one: one.number == self.attempt, reversed(charged)))
            charged = charged[: len(charged) - max(again - 1, 0)]
        return tuple(one for position, one in enumerate(charged) if not self._ran_again(one, charged[position + 1 :]))

    def _ran_again(self, one: ReadAttempt, later: Sequence[ReadAttempt]) -> bool:
        """Return whether its executor died with this attempt and it ran again uncharged, under the same number."""
        if one.cause != Cause.CRASHED:
            return False
        goes_on = (
            one.number == self.attempt
            and self.ending is None
            and (self.outcome == Outcome.SUCCEEDED or self.state == JobState.RUNNING)
        )
        return goes_on or any(each.number == one.number for each in later)

    @property
    def last_failure(self) -> ReadAttempt | None:
        """Failure of the latest charged attempt; None if it succeeded, still runs, or there is none."""
        last = next(reversed(self.failures), None)
        return last if last is not None and last.number == self.attempt else None

    @property
    def is_running(self) -> bool:
        """True if a worker has it, or its body has run for the last time and only its callback is left."""
        return self.outcome is None and (self.state == JobState.RUNNING or self.ending is not None)

    @property
    def started_at(self) -> datetime | None:
        """Instant at which the body of its first charged attempt began; None if none has."""
        return (self.first_started_at or self.last_attempted_at) if self.attempt else None

    @property
    def last_attempted_at(self) -> datetime | None:
        """Instant at which its latest charged attempt began; None if none has.

        The body's start once the attempt has ended, else the claim's: the job may wait in a buffer of its worker.
        """
        if not self.attempt:
            return None
        if (last := self.last_failure) is not None and last.started_at is not None:
            return last.started_at
        if self.finished_at is None or self.duration_seconds is None or self.claimed_at is None:
            return self.claimed_at
        return max(self.claimed_at, self.finished_at - timedelta(seconds=self.duration_seconds))

    @property
    def workers(self) -> tuple[UUID | None, ...]:
        """The worker of each charged attempt by number, so ``attempt`` of them; None where it is not known."""
        found = {one.number: one.worker for one in self.failures}
        if self.attempt and self.attempt not in found:
            found[self.attempt] = self.claimed_by if self.outcome is None else self.worker
        return tuple(found.get(number) for number in range(1, self.attempt + 1))

    @property
    def is_abandoned_by_hand(self) -> bool:
        """True if an operator abandoned it: no attempt of its own did."""
        return self.outcome == Outcome.ABANDONED and self.error_class is None


def read_result(using: str, job_id: int) -> ReadResult | None:
    """Return how the job ``job_id`` in the database ``using`` went so far; None if it is not there.

    One statement, no lock; repeatable. Name the alias that jobs are written to: a replica may be late.
    """
    return read_results(using, [job_id]).get(job_id)


def read_results(using: str, ids: Iterable[int]) -> dict[int, ReadResult]:
    """Return the same for each of these jobs that is there: id → result. One statement for all of them."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    return {facts.id: ReadResult._make(facts) for facts in results.read_result(on(using), wanted)}
