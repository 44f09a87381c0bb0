"""``runjobs --inline``: one process, one job at a time in its main thread.

For debuggers, coverage and test runners: ``pdb`` works, nothing is spawned. A thread renews leases and beats; there
is no kill ladder, so a timeout is not enforced. It has every duty of a worker and, if it leads, of a leader. Their
turns come between two jobs: if a job takes longer than the term, another worker leads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

import psycopg

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.context import name_executor
from django_pgjobs.decisions import Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends.kinds import HOLD, RELEASE
from django_pgjobs.execution import events
from django_pgjobs.execution.admission import Turn
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.execution.single_job import Performer, park_unclaimable
from django_pgjobs.logs import facts, log
from django_pgjobs.maintenance.duties import DutyProgress, TimedDuty, duties, upkeep
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.running.opening import wait_for_database
from django_pgjobs.running.runtime import NOT_ADOPTED_STATUS, declared_crons
from django_pgjobs.running.worker import Worker, WorkerOptions
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import claiming, finalising, pausing
from django_pgjobs.store.claiming import ClaimedJob, ClaimReply, ClaimTerms, Line, Pair
from django_pgjobs.store.database import is_data_trouble
from django_pgjobs.store.installation import NotAdopted
from django_pgjobs.store.keeping import ExpiredJob, Rescued
from django_pgjobs.store.stacks import StackAnswer
from django_pgjobs.values import stopping
from django_pgjobs.worker.executor import cleanup, lifecycle, stacks
from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.channel_messages import SignalEvent
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection
from django_pgjobs.worker.shared.runs import HeldClaim, HeldRun
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.run_events import event_of_expiry, events_of_rescue
from django_pgjobs.worker.threads.admitter import HELD_SECONDS, SHORTEST_SECONDS
from django_pgjobs.worker.threads.claim_options import log_claimed
from django_pgjobs.worker.threads.claimer import DEAF_POLL_SECONDS
from django_pgjobs.worker.threads.inbox_messages import FlagsRead, InboxMessage, StacksAsked
from django_pgjobs.worker.threads.lease_keeper import LeaseKeeper
from django_pgjobs.worker.threads.locked_rows import LockedRows
from django_pgjobs.worker.threads.maintainer import Duty, do_duty
from django_pgjobs.worker.threads.minutes import MinuteWriter


class InlineWorker:
    """Claims one job at a time and performs it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.stopped = threading.Event()
        self.held: dict[int, str] = {}
        self.ended = 0
        self.control = RunControl()
        self.frontier = worker.frontier()
        self.admission = worker.admission()
        self.limited = self.admission.declares()
        self.locked = LockedRows()
        self.polled_at = 0.0
        self.tallies = Tallies(lambda name: registry.find(name) is not None)
        self.leader = Leader(worker.author)
        beat_seconds = worker.conf.beat_seconds
        self.keeps_up = False
        self.keeper = LeaseKeeper(
            lambda: worker.connect("keep"),
            self,
            held=lambda _until: list(self.held.copy().items()),
            check_ins=lambda: dict.fromkeys(self.held.copy().values(), 1e9),
            facts=lambda: worker.facts("running", len(self.held), self.ended),
            lease_seconds=worker.conf.lease_seconds,
            renew_seconds=worker.conf.renew_seconds,
            beat_seconds=beat_seconds,
        )
        self.minutes = MinuteWriter(self.tallies, worker.author.release, beat_seconds)
        self.duties: Sequence[Duty] = ()
        self.upkeep: Sequence[Duty] = ()

    def post(self, message: InboxMessage) -> None:
        """Receive a message of the keep thread; pass requests or a lost lease to the running job."""
        control = self.control
        for flag in message.flags if isinstance(message, FlagsRead) else ():
            # Flags may arrive late, when another job runs already.
            if self.held.get(flag.id) == flag.claim_id:
                control.by, control.reason, control.requested = flag.by, flag.reason, flag.cancelled or flag.lost
                if flag.released:
                    control.stopping.announce(stopping.RELEASE, None)
        for request in message.requests if isinstance(message, StacksAsked) else ():
            if self.held.get(request.job_id) == request.claim_id:
                stack = stacks.of_thread(threading.main_thread(), self.worker.conf.bounds.traceback_chars)
                self.keeper.answer_stack(StackAnswer(request.id, stack, "" if stack else "outside"))

    def stop(self, *_: object) -> None:
        """Handle a signal: claim nothing more, and let the running job know."""
        self.stopped.set()
        stopping.of_this_process.announce(stopping.DRAIN, None)

    def run(self) -> int:
        """Work until stopped, idle or done; return the exit status."""
        progress = DutyProgress(self.leader, declared_crons(self.worker))
        self.upkeep = upkeep(progress, lambda: self.worker.connect_alone("vacuum"))
        self.duties = [
            *duties(progress, self._rescued, self.keeper, self._expired),
            TimedDuty("minutes", self.minutes, self.worker.conf.beat_seconds, last=True),
        ]
        self.keeper.start()
        db: WorkerConnection | None = None
        while not self.stopped.is_set():
            try:
                db = db or self.worker.connect("inline")
                if not self._work(db):
                    break
            except TROUBLE as error:
                log.warning("database trouble, will try again: %s", one_line(error))
                if db is not None:
                    db.close()
                db = None
                self.stopped.wait(1.0)
        self._take_leave(db)
        self.keeper.stop()
        self.keeper.join(5.0)
        self.keeper.farewell(self.worker.facts("stopped", 0, self.ended), self.worker.author.worker)
        return 0

    def _take_leave(self, db: WorkerConnection | None) -> None:
        if db is not None:
            with contextlib.suppress(*TROUBLE):
                for duty in (*self.upkeep, *self.duties):
                    do_duty(duty.name, duty.leave, db)
            db.close()

    def _do_duties(self, db: WorkerConnection) -> None:
        for duty in self.duties:
            do_duty(duty.name, duty.tick, db)
        before, self.keeps_up = self.keeps_up, self.leader.leads
        for duty in self.upkeep if before or self.keeps_up else ():
            do_duty(duty.name, duty.tick if self.keeps_up else duty.leave, db)

    def _rescued(self, jobs: list[Rescued]) -> None:
        self.tallies.were_rescued(jobs)
        self._report([event for job in jobs for event in events_of_rescue(job)])

    def _expired(self, jobs: list[ExpiredJob]) -> None:
        self.tallies.expired(jobs)
        self._report([event_of_expiry(job) for job in jobs if job.ended])

    def _report(self, happened: list[SignalEvent]) -> None:
        """Call the receivers of what duties have written, as the executors of another worker do."""
        for what, fields in happened:
            if events.is_wanted(what, fields):
                about = {"database": self.worker.options.database} if what == events.FINISHED else {}
                events.stored(what, {**fields, **about})

    def _work(self, db: WorkerConnection) -> bool:
        """Perform one job, or rest; return whether to continue."""
        options = self.worker.options
        self._do_duties(db)
        if options.max_jobs is not None and self.ended >= options.max_jobs:
            return False
        turn = self._admit(db)
        if self._one(db):
            self.admission.begin_anew()
            return True
        if options.until_idle and not turn.due and not self.locked.wait(db, self.frontier.reaches):
            return False
        pairs = list(self.frontier.reaches)
        due = claiming.next_due(db, pairs) if pairs else None
        waits = [DEAF_POLL_SECONDS, self.worker.conf.poll_seconds, *([] if due is None else [due])]
        if turn.due:
            waits.append(SHORTEST_SECONDS if turn.again else HELD_SECONDS)
        elif turn.seconds is not None:
            waits.append(turn.seconds)
        self.stopped.wait(max(min(waits), 0.0))
        return True

    def _admit(self, db: WorkerConnection) -> Turn:
        """Admit jobs that limits hold: before each job if the code declares limits, otherwise now and then."""
        now = clock.monotonic()
        if not self.limited and not self.admission.overrides and now < self.polled_at + DEAF_POLL_SECONDS:
            return Turn()
        self.polled_at = now
        return self.admission.turn(db)

    def _one(self, db: WorkerConnection) -> bool:
        pauses = pausing.read_pauses(db)
        self.admission.learn(pauses.limits)
        self.frontier.pause(pauses.queues)
        self.frontier.replace(claiming.list_pairs(db))
        self.frontier.scan_all()
        plan = self.frontier.plan(clock.monotonic())
        if not plan:
            return False
        sent_at = clock.monotonic()
        reply = self._claim(db, [visit.pair for visit in plan], self.worker.claim_options().terms(uuid4()))
        if reply is None:
            return True
        jobs, scanned_at = reply
        if jobs:
            log_claimed(jobs, clock.monotonic() - sent_at)
        for job in jobs:
            if job.name in pauses.names and (job.ending is not None or not job.cancelled):
                Performer(db, self.worker.author).hold(job, pauses.names[job.name])
                finalising.delete_claims(db, [job.claim_id])
            elif (
                job.ending is None
                and not job.cancelled
                and pauses.must_count(job.queue, job.name, job.limit_key)
                and registry.resolved(job.name) is not None
            ):
                Performer(db, self.worker.author).hold(job, "", limited=True)
                finalising.delete_claims(db, [job.claim_id])
            else:
                self._perform(db, job, HeldClaim(job.claim_id, sent_at, 1, scanned_at=scanned_at))
        return bool(jobs)

    def _claim(self, db: WorkerConnection, pairs: list[Pair], terms: ClaimTerms) -> ClaimReply | None:
        """Claim a job. Return None if the claim failed on data; the job whose own data it was is parked then."""
        try:
            return claiming.claim_lines(db, {False: Line(pairs, 1)}, (), **terms)
        except (psycopg.Error, UnicodeError) as error:
            if not is_data_trouble(error):
                raise
        job_id = claiming.next_claimable(db, pairs)
        try:
            return None if job_id is None else claiming.claim_one(db, job_id, **terms)
        except (psycopg.Error, UnicodeError) as error:
            if job_id is None or not is_data_trouble(error):
                raise
            park_unclaimable(db, job_id, error)
            return None

    def _perform(self, db: WorkerConnection, job: ClaimedJob, claim: HeldClaim) -> None:
        self.held[job.id] = job.claim_id
        self.control = RunControl()
        cleanup.refresh()
        try:
            performer = Performer(
                db,
                self.worker.author,
                control=self.control,
                waits=partial(_waits, db),
                using=self.worker.options.database,
            )
            ended = performer.perform(job)
            if ended.kind not in (RELEASE, HOLD):
                self.ended += 1
            if ended.recorded:
                self.tallies.stored(ended.kind, [(HeldRun(job, claim), ended.end, None)])
        finally:
            del self.held[job.id]
            cleanup.tidy(facts("name=%s job=%s", job.name, job.id))
            cleanup.refresh()  # duties use this thread's connections, too
        finalising.delete_claims(db, [job.claim_id])


def _waits(db: WorkerConnection, job: ClaimedJob) -> Unwritten | None:
    """Return the decision for a job that was paused while it ran, with its callback still to come; else None."""
    pauses = pausing.read_pauses(db)
    if job.queue in pauses.queues:
        return decide.Released()
    return decide.Held(pauses.names[job.name]) if job.name in pauses.names else None


def run(options: WorkerOptions) -> int:
    """Run an inline worker until stopped; return its exit status. Main thread only."""
    worker = InlineWorker(Worker.of(replace(options, processes=1, threads=1, places={})))
    cleanup.remember_connections()
    name_executor(worker.worker.author.name)
    stopping.of_this_process.why = ""  # a signal may have stopped the worker before, of a program that calls several
    with process.handling(worker.stop):
        try:
            if wait_for_database(worker.worker, worker.stopped) is None:
                return 0
        except NotAdopted as error:
            log.critical("%s", error)
            return NOT_ADOPTED_STATUS
        log.info("inline worker starts worker=%s", worker.worker.author.name)
        lifecycle.say_started(options.database, 1, 1)
        try:
            return worker.run()
        finally:
            lifecycle.say_stopping(lifecycle.DRAINED)
