"""The supervisor's records of claimed jobs: the claims it holds, and each job's run. No I/O, main thread only.

A *run* is one dispatch of a job to an executor; everything on the channel names the run, never the job, so that an
answer about an earlier dispatch cannot be taken for one about a later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Protocol

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel import SupervisorEnd
from django_pgjobs.worker.shared.deaths import Deaths
from django_pgjobs.worker.shared.ladders import Stop

FRESH_SECONDS = 2.0
"""Time that a claimed job may wait before its fence is read again and found sound."""

ALLOWANCE_SECONDS = 5.0
"""Allowance that the deadline on the row adds to the timeout, for the time between claim and start."""

MARGIN_SECONDS = 1.0
"""Margin by which we take a lease for ended sooner than the database, so that runs end in time."""

NEVER_SECONDS = 1e9

DUE_SECONDS = 5.0
"""Maximum age of a due check: a rescue goes by what it read seconds ago, and renewals continue."""

ERROR_CHARS = 100_000

WAITING, SENT, RELEASING, ENDING = "waiting", "sent", "releasing", "ending"


@dataclass(slots=True, eq=False)
class HeldClaim:
    """One claim: when it was asked for, how many of its jobs have not been flushed, until when it surely holds.

    ``scanned_at``: when the claim was made, by the database's clock.
    """

    claim_id: str
    asked_at: float
    open: int
    trusted_until: float = 0.0
    scanned_at: datetime | None = None


@dataclass(slots=True)
class Usage:
    """The memory of the process of one run, in bytes: when the run began, and at most since.

    ``done``: how many jobs the process had ended when the run began; ``company``: others have run there since.
    ``words``: why the run is stopped; ``kept``: the peak that was written at ``kept_at``.
    """

    run: int
    start: int
    done: int
    began: float
    peak: int = 0
    company: bool = False
    words: str = ""
    kept: int = 0
    kept_at: float = 0.0


UNSTOPPED: Mapping[str, Stop] = MappingProxyType({})


class ExecutorView(Protocol):
    """The process that a run was sent to, as the run sees it. ``ExecutorProcess`` is one."""

    end: SupervisorEnd
    board: Board
    state: str
    runs: dict[int, HeldRun]
    culprits: dict[int, str]
    drained: bool

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM to its whole group."""

    def kill(self) -> None:
        """Send SIGKILL to its whole group."""


class HeldRun:
    """A claimed job on its way. ``run`` is 0 until it is dispatched; instants are ``clock.monotonic()``.

    ``error`` is how the body failed, for its callback; ``stops`` why it is being stopped, by cause; ``collateral`` that
    its executor was terminated for another; ``alone`` that it may have killed one, so it runs beside other suspects
    only, ``after`` which one: its connections have not been seen to end; ``remembers`` that it has an idempotency key;
    ``gate`` that its end counts in a gate: which one, 0 for others. One is made per job, so what seldom differs is the
    class's until it does.
    """

    state: str = WAITING
    run: int = 0
    is_async: bool = False
    child: ExecutorView | None = None
    started_at: float = 0.0
    error: str = ""
    cancelled: bool = False
    cancel_mode: str = ""
    cancel_by: str = ""
    cancel_reason: str = ""
    released: bool = False
    remembers: bool = False
    logged: bool = False
    """True if lines of it are kept."""
    gate: int | None = None
    stops: Mapping[str, Stop] = UNSTOPPED
    in_doubt: bool = False
    """True if its own transaction may have ended it."""
    collateral: bool = False
    alone: bool = False
    suspected: int = 0
    """Number of executors that have died with it, under this claim."""
    after: str = ""
    executor: str = ""
    """The executor it was sent to last, by the name of its connections."""
    duration: float | None = None
    """Seconds the body took, once that is known; its callback is written after it."""
    stack: str = ""
    """The stack of its thread when it was to be interrupted at its deadline."""
    memory: Usage | None = None
    """The memory that its process took while it ran, if that is measured."""
    soft_run: int = 0
    """The number of the run that was interrupted at its soft limit."""

    def __init__(
        self, job: ClaimedJob, claim: HeldClaim, size: int = 0, fresh_until: float = 0.0, since: float = 0.0
    ) -> None:
        self.job = job
        self.claim = claim
        self.size = size
        """Characters that travel to its executor, as far as they may be many."""
        self.fresh_until = fresh_until
        self.since = since

    @property
    def kind(self) -> str:
        """The name of the function to call: ``body``, or a callback."""
        return self.job.kind

    @property
    def fence(self) -> tuple[int, str]:
        """The fence that every write made for it must match."""
        return self.job.fence

    def becomes_callback(self, outcome: str) -> None:
        """Continue as the callback of this outcome, once its error is known: the callback sees it."""
        # As plain text, as from a claim: no frame carries an enum.
        self.job = self.job._replace(ending=str(outcome), error=(self.error or self.job.error)[:ERROR_CHARS])
        self.size += len(self.job.error)

    @property
    def stops_at(self) -> float | None:
        """Time at which it is stopped, counted from ``started_at``: at the end of its timeout or at the job's own
        deadline."""
        until = self.job.until if self.job.ending is None else None
        timeout = self.job.timeout
        if timeout is None:
            return until
        return self.started_at + timeout if until is None else min(self.started_at + timeout, until)


class RunTable:
    """Every job this worker holds, by id, the claims they came by, and how many have reached their end here."""

    def __init__(self) -> None:
        self.held: dict[int, HeldRun] = {}
        self.claims: dict[str, HeldClaim] = {}
        self.ended = 0
        self.deaths = Deaths()
        self.unheld: frozenset[tuple[int, str]] = frozenset()
        """(id, claim_id) of jobs whose rows carry a claim of this worker, though it does not hold them."""

    def adopt(self, asked_at: float, jobs: Sequence[ClaimedJob], scanned_at: datetime | None = None) -> list[HeldRun]:
        """Take note of the claim of these jobs, at least one, and return a run for each."""
        claim_id = jobs[0].claim_id
        trusted_until = asked_at + trust_seconds()
        claim = self.claims[claim_id] = HeldClaim(claim_id, asked_at, len(jobs), trusted_until, scanned_at)
        fresh_until = asked_at + FRESH_SECONDS
        runs = [HeldRun(job, claim, size, fresh_until, asked_at) for job, size in zip(jobs, _sizes(jobs), strict=True)]
        self.held.update(zip(map(_ID, jobs), runs, strict=True))
        return runs

    def remove(self, runs: Iterable[HeldRun]) -> list[str]:
        """Forget jobs; return the ids of the claims that had no others."""
        held, finished = self.held, []
        for run in runs:
            job_id, claim = run.job.id, run.claim
            if held.get(job_id) is run:
                del held[job_id]
            claim.open -= 1
            if not claim.open:
                self.claims.pop(claim.claim_id, None)
                finished.append(claim.claim_id)
        return finished

    def renewed(self, asked_at: float, claim_ids: Iterable[str]) -> None:
        """Trust these claims for another lease, counted from before they were renewed."""
        for claim_id in claim_ids:
            claim = self.claims.get(claim_id)
            if claim is not None:
                claim.trusted_until = max(claim.trusted_until, asked_at + trust_seconds())

    def trusted_until(self, at_most: float) -> float:
        """Return the earliest instant at which one of the claims held is trusted no more."""
        return min((claim.trusted_until for claim in self.claims.values()), default=at_most)

    def fences(self, until: float = math.inf) -> list[tuple[int, str]]:
        """Return (id, claim_id) of the jobs held that have not ended and were claimed by then; called by any thread."""
        return [run.fence for run in self.held.copy().values() if run.state != ENDING and run.claim.asked_at <= until]

    def check_ins(self) -> dict[str, float]:
        """Return claim_id → seconds until this worker gives a job of it up; may be called from another thread.

        Counted from the start that the board shows: a job may wait before it, or run again alone long after its claim.
        A job whose end is being written has stopped: a rescue could only end it wrongly.
        """
        check_ins = dict.fromkeys(self.claims.copy(), NEVER_SECONDS)
        now = clock.monotonic()
        for run, given_up_at in self._ends_of_patience():
            claim_id = run.job.claim_id
            check_ins[claim_id] = min(check_ins.get(claim_id, NEVER_SECONDS), max(given_up_at - now, -DUE_SECONDS))
        return check_ins | {claim_id: -DUE_SECONDS for _, claim_id in self.unheld if claim_id in check_ins}

    def claimed_before(self, until: float) -> list[str]:
        """Return the claims held that were asked for by then; may be called from another thread."""
        return [claim_id for claim_id, claim in self.claims.copy().items() if claim.asked_at <= until]

    def overdue(self) -> list[tuple[int, str]]:
        """Return (id, claim_id) of the jobs that this worker could not stop; may be called from another thread.

        And of those that it does not hold: no rescue takes them before the deadlines on their rows.
        """
        now = clock.monotonic()
        return [*(run.fence for run, given_up_at in self._ends_of_patience() if given_up_at <= now), *self.unheld]

    def _ends_of_patience(self) -> Iterator[tuple[HeldRun, float]]:
        """Yield the runs that have started and must stop, and when this worker gives each up if it has not."""
        grace = get_conf().rescue_grace_seconds
        for run in self.held.copy().values():
            if run.started_at and run.state != ENDING and (stops_at := run.stops_at) is not None:
                # A job that starts after its own deadline is about to be abandoned: it has its time for that.
                yield run, max(stops_at, run.started_at) + ALLOWANCE_SECONDS + grace


def trust_seconds() -> float:
    """Return how long a claim or renewal is believed in, from before it was asked for."""
    lease = get_conf().lease_seconds
    return lease - min(MARGIN_SECONDS, lease / 10)


_ID = attrgetter("id")
_TEXTS = itemgetter(*map(ClaimedJob._fields.index, ("payload", "headers", "description", "name", "queue")))


def _sizes(jobs: Sequence[ClaimedJob]) -> list[int]:
    return [
        len(payload or "") + len(headers or "") + len(description) + len(name) + len(queue)
        for payload, headers, description, name, queue in map(_TEXTS, jobs)
    ]
