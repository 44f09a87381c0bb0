"""Run jobs inside a test: claim, savepoints, end, summary.

The claim and the ends use the statements of production; the ORM picks the next job, as this is not a hot path. After a
test no job may stay claimed, no matter what was raised, and nothing may be committed inside a transaction of the test.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict, Unpack
from uuid import UUID, uuid4

import psycopg
from asgiref.sync import sync_to_async
from django.db import connections, router
from django.db.models import Exists, Q, QuerySet
from django.db.models.functions import Now
from django.db.transaction import TransactionManagementError

from django_pgjobs import decisions as decide
from django_pgjobs import signals
from django_pgjobs.conf import LADDER_SECONDS, get_conf
from django_pgjobs.context import JobContext, Reporter
from django_pgjobs.decisions import Decision
from django_pgjobs.ends.kinds import HOLD, RELEASE, SUCCESS
from django_pgjobs.exceptions import JobControl
from django_pgjobs.execution import attempt
from django_pgjobs.execution.failed_attempts import besides_suspension, failed
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.execution.single_job import Performer, WrittenEnd, park_unclaimable, write_at_once
from django_pgjobs.models import Job
from django_pgjobs.states import UNDO, Hold
from django_pgjobs.store import admitting, claiming, finalising, pausing, steering
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.database import Database, is_data_trouble, on
from django_pgjobs.store.finalising import Author
from django_pgjobs.testing import crashing, suspended
from django_pgjobs.testing.transactions import savepoint
from django_pgjobs.values.built_in import OWN_QUEUE


@dataclass(frozen=True, slots=True)
class Ran:
    """The summary of ``run_jobs``: ids of jobs, in order of events.

    ``ran`` has an id for every start, so a job that was tried twice is there twice. The other lists show how each start
    ended. ``stepped``: with a next step. ``suspended``: a durable function that continues later. ``crashed``: by
    ``crash_at``. ``lost``: nothing was recorded, because the job is gone or another worker took it. ``errors``: the
    exceptions of failed attempts; ``Snooze``, ``Cancel`` and ``Abandon`` do not count.

    Two lists are about other jobs than those that were started. ``unblocked``: jobs that could run because what they
    waited for came: the end of other jobs, or an event. ``undone``: jobs whose undo succeeded.
    """

    ran: list[int] = field(default_factory=list)
    succeeded: list[int] = field(default_factory=list)
    stepped: list[int] = field(default_factory=list)
    retried: list[int] = field(default_factory=list)
    snoozed: list[int] = field(default_factory=list)
    suspended: list[int] = field(default_factory=list)
    abandoned: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    crashed: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    unblocked: list[int] = field(default_factory=list)
    undone: list[int] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


class RunOptions(TypedDict, total=False):
    """The arguments of ``run_jobs``."""

    queues: str | Collection[str] | None
    limit: int | None
    include_scheduled: bool
    skip_sleeps: bool
    raise_errors: bool
    max_rounds: int
    database: str | None


def run_jobs(
    *,
    queues: str | Collection[str] | None = None,
    limit: int | None = None,
    include_scheduled: bool = False,
    skip_sleeps: bool = False,
    raise_errors: bool = False,
    max_rounds: int = 100,
    database: str | None = None,
) -> Ran:
    """Run jobs in this thread until none is due, including those that they register; return a summary.

    ``queues``: only these, and this package's own. ``limit``: at most this many starts. ``include_scheduled``: do not
    wait for ``run_at`` or for the delay of a retry; a job that sleeps or waits for an event stays asleep.
    ``skip_sleeps``: sleeps of durable functions are over at once, and so are the pauses before a step is tried again;
    waits for events and for other jobs stay. ``raise_errors``: raise the exception of the first failed attempt, once it
    is recorded. ``database``: an alias; by default the router decides.

    Each round takes the due jobs, by priority, ``run_at`` and id. Raises ``RuntimeError`` if jobs are still due after
    ``max_rounds`` rounds: they register or snooze themselves forever. No job is left claimed, no matter what is
    raised.
    """
    runner = JobRunner(_alias(database), raise_errors=raise_errors, early=include_scheduled, without_sleeps=skip_sleeps)
    wanted = None if queues is None else {queues} if isinstance(queues, str) else set(queues)
    for _ in range(max_rounds):
        due = runner.due(wanted)
        if not due:
            return runner.ran
        for job_id in due:
            if limit is not None and len(runner.ran.ran) >= limit:
                return runner.ran
            runner.start(job_id)
    if due := runner.due(wanted):
        first = Job.objects.using(runner.using).get(pk=due[0])
        raise RuntimeError(f"After {max_rounds} rounds {len(due)} jobs are still due, the first is {first}.")
    return runner.ran


async def arun_jobs(**options: Unpack[RunOptions]) -> Ran:
    """``run_jobs`` for async tests."""
    return await sync_to_async(run_jobs)(**options)


def run_job(job: Job, *, raise_errors: bool = False) -> Job:
    """Run this job now, regardless of its ``run_at``, and return it refreshed.

    ``raise_errors``: raise the exception of a failed attempt, once it is recorded. Raises ``ValueError`` if the job
    is not ready to be run.
    """
    using = job._state.db or _alias(None)
    runner = JobRunner(using, raise_errors=raise_errors, early=True)
    if not runner.start(job.pk):
        found = Job.objects.using(using).filter(pk=job.pk).first()
        raise ValueError(f"{found or job} is {found.state if found else 'gone'}, so it cannot be run.")
    job.refresh_from_db()
    return job


def _alias(database: str | None) -> str:
    return router.db_for_write(Job) if database is None else database


class JobRunner:
    """Claims, runs and ends one job after the other."""

    def __init__(self, using: str, *, raise_errors: bool, early: bool, without_sleeps: bool = False) -> None:
        self.using = using
        self.raise_errors = raise_errors
        self.early = early
        self.without_sleeps = without_sleeps
        self.db = on(using)
        self.ran = Ran()
        self.author = Author(uuid4(), "run_jobs", get_conf().release)
        self.spoiled: list[BaseException] = []

    def due(self, queues: Collection[str] | None) -> list[int]:
        """Return the ids of the jobs that can run now, in the order in which to run them."""
        jobs = self._unpaused()
        if queues is not None:
            jobs = jobs.filter(queue__in={*queues, OWN_QUEUE})
        if self.without_sleeps:
            suspended.end_sleeps(jobs)
        due = Q(run_at__lte=Now())
        jobs = jobs.filter(due | ~Exists(suspended.memos(self.using)) if self.early else due)
        return list(jobs.order_by("-priority", "run_at", "id").values_list("pk", flat=True))

    def _unpaused(self) -> QuerySet[Job]:
        pauses = pausing.read_pauses(self.db)
        return self._ready().exclude(queue__in=pauses.queues).exclude(name__in=pauses.names)

    def _ready(self) -> QuerySet[Job]:
        jobs = Job.objects.using(self.using)
        free = Q(hold__isnull=True) | Q(hold=Hold.LIMITED)
        return jobs.filter(free, finished_at__isnull=True, claim_id__isnull=True)

    def start(self, job_id: int) -> bool:
        """Run one job to the end of its attempt; return whether it could be claimed."""
        errors: list[BaseException] = []
        claim_id = uuid4()
        waiting = suspended.waiting(self.using)
        with _collecting_errors(job_id, errors), self._undone_if_it_raises():
            job = self._claim(job_id, claim_id)
            if job is None:
                return False
            ended = self._perform(job, errors)
            finalising.delete_claims(self.db, [str(claim_id)])
        self.ran.unblocked.extend(suspended.unblocked(self.using, waiting))
        if ended is None:
            self._note(job_id, "crashed", errors)
            return True
        self._note(job_id, _heading(ended), errors)
        if job.name == UNDO and ended.recorded and ended.kind == SUCCESS:
            self.ran.undone.append(json.loads(job.payload or "")["args"][0])
        return True

    def _undone_if_it_raises(self) -> AbstractContextManager[object]:
        return savepoint(self.using) if connections[self.using].in_atomic_block else nullcontext()

    def _claim(self, job_id: int, claim_id: UUID) -> ClaimedJob | None:
        jobs = self._ready().filter(pk=job_id)
        if self.early and jobs.filter(run_at__gt=Now()).exists():
            steering.reschedule_jobs(self.db, [job_id], run_at=None, delay_seconds=0.0, queue=None, priority=None)
        if jobs.filter(hold__isnull=False).exists():
            # One job runs at a time here, so no limit of concurrency applies; and no test should wait for a window.
            admitting.admit_one(self.db, job_id)
        conf = get_conf()
        try:
            with self._undone_if_it_raises():
                claimed = claiming.claim_one(
                    self.db,
                    job_id,
                    claim_id=claim_id,
                    worker=self.author.worker,
                    lease_seconds=conf.lease_seconds,
                    allowance_seconds=LADDER_SECONDS,
                    grace_seconds=conf.rescue_grace_seconds,
                ).jobs
        except Exception as error:
            if not is_data_trouble(error):
                raise
            if park_unclaimable(self.db, job_id, error):
                self.ran.parked.append(job_id)
            return None
        return claimed[0] if claimed else None

    def _perform(self, job: ClaimedJob, errors: list[BaseException]) -> WrittenEnd | None:
        """Run a claimed job and write its end; return None if it crashed, and was rescued."""
        guest = _Guest(errors)
        performer = Performer(self.db, self.author, guest.run, guest.reporter, using=self.using)
        try:
            return performer.perform(job)
        except crashing.Crashed:
            crashing.rescue(self.db, self.using, job.claim_id)
            return None
        except BaseException:
            if not connections[self.using].in_atomic_block:
                performer.release(job)
                finalising.delete_claims(self.db, [job.claim_id])
            raise

    def _note(self, job_id: int, heading: str, errors: list[BaseException]) -> None:
        """Add one start to the summary; re-raise Ctrl-C and exceptions of the test framework."""
        self.ran.ran.append(job_id)
        self.ran.errors.extend(errors)
        getattr(self.ran, heading).append(job_id)
        for error in errors:
            if self.raise_errors or not isinstance(error, _JOBS_OWN):
                raise error


def _heading(ended: WrittenEnd) -> str:
    """Return the list of the summary that a start belongs to."""
    if not ended.recorded or ended.kind in (HOLD, RELEASE):
        return "lost"
    return ended.kind.outcome or ended.end.outcome


_JOBS_OWN = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)


@contextmanager
def _collecting_errors(job_id: int, errors: list[BaseException]) -> Iterator[None]:
    """Collect the live exceptions of this job's failed attempts; the database keeps their texts only."""

    def collect(*, context: JobContext, exception: BaseException | None, **_: object) -> None:
        if context.id != job_id or exception is None or isinstance(exception, JobControl):
            return
        if (error := besides_suspension(exception)) is not None:
            errors.append(error)

    signals.attempt_ended.connect(collect, weak=False)
    try:
        yield
    finally:
        signals.attempt_ended.disconnect(collect)


class _Spoiled(Exception):
    """Leaves the savepoints without an error."""


class _Guest:
    """Runs one job within the test's transactions: in a savepoint of each, undone if the job breaks one of them."""

    def __init__(self, errors: list[BaseException]) -> None:
        self.errors = errors
        self.unwritten: Callable[[], None] | None = None

    def run(self, prepared: Prepared) -> Decision:
        """Run the job and return the decision."""
        decision: Decision = decide.Succeeded()
        mortal = crashing.Mortal.made(prepared)
        try:
            with ExitStack() as stack:
                aliases = [c.alias for c in connections.all(initialized_only=True) if c.in_atomic_block]
                for using in aliases:
                    stack.enter_context(savepoint(using))
                prepared.outer_blocks = _open_blocks(prepared)
                decision = attempt.run_here(prepared)
                if any(_is_broken(using) for using in aliases):
                    raise _Spoiled
        except _Spoiled:
            if (
                isinstance(decision, decide.Succeeded | decide.Stepped | decide.Committed)
                and prepared.job.ending is None
            ):
                decision, self.unwritten = self._failed(prepared), None
        if mortal is not None:
            mortal.check_alive(decision)
        if self.unwritten is not None:
            self.unwritten()
        return decision

    def _failed(self, prepared: Prepared) -> Decision:
        error = TransactionManagementError(
            "The job caught a database error outside of atomic(). Inside a transaction, as in a TestCase, no query "
            "can follow that: put what may fail into atomic(), or test it in a TransactionTestCase."
        )
        self.errors.append(error)
        return failed(prepared, error)

    def reporter(self, db: Database, job: ClaimedJob) -> Reporter:
        """Return a reporter that writes at once in this thread; an ``async def`` job's last report is written later."""
        write, home = write_at_once(db, job), threading.get_ident()

        def report(n: float, total: float | None, message: str) -> None:
            # Another thread has another connection, which cannot see the rows of an open transaction.
            if threading.get_ident() == home:
                write(n, total, message)
            else:
                self.unwritten = partial(write, n, total, message)

        return report


def _open_blocks(prepared: Prepared) -> int:
    using = getattr(prepared.memories, "using", None)
    return 0 if using is None else len(connections[using].atomic_blocks)


def _is_broken(using: str) -> bool:
    wrapper = connections[using]
    if wrapper.needs_rollback or wrapper.vendor != "postgresql" or wrapper.connection is None:
        return bool(wrapper.needs_rollback)
    status = wrapper.connection.info.transaction_status
    return bool(status == psycopg.pq.TransactionStatus.INERROR)
