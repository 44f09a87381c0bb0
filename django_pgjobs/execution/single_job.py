"""One claimed job in this thread, from its start to its written end: for ``runjobs --inline`` and ``testing``.

A supervisor does the same in batches, with executors and a finalise thread (``worker.supervisor.held_jobs``,
``worker.threads.finaliser``); both decide with ``attempt`` and write with ``finalise``. Knows no lease, no process and
no transaction: it uses the ``Database`` it is given, and it never commits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.context import Reporter
from django_pgjobs.decisions import Decision, Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.ends.kinds import CALLBACK_STARTS, COUNTED, END, MARK, SUCCESS, EndKind, EndTerms
from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.execution import attempt, events, log_lines
from django_pgjobs.execution.atomic_end import AtomicEnds
from django_pgjobs.execution.durable import Memories
from django_pgjobs.execution.failed_attempts import failure_of
from django_pgjobs.execution.fresh_context import fresh_context
from django_pgjobs.execution.prepared import Prepared, RunControl
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import Outcome
from django_pgjobs.store import atomic, claiming, finalising, keys, waking
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.database import Database, Enclosing, is_answer
from django_pgjobs.store.finalising import Author, End, FenceReading, SteppedJob

BUSY_SECONDS = 0.1

ProgressOf = Callable[[Database, ClaimedJob], Reporter]
"""Takes the database and a job; returns the function that ``context.progress()`` calls."""


CertainDecision = Unwritten | decide.Committed | decide.Lost
"""A decision that is not in doubt."""


def park_unclaimable(db: Database, job_id: int, error: Exception) -> bool:
    """Park a job whose own data makes its claim fail, and log it; return False if another worker was quicker."""
    reason = one_line(error)
    parked = claiming.park_unclaimable(db, job_id, f"The claim of this row fails: {reason}", registry.fingerprints())
    if parked:
        log.error("job cannot be claimed and was parked job=%d: %s", job_id, reason)
    return bool(parked)


@dataclass(frozen=True, slots=True)
class WrittenEnd:
    """The last write for a claimed job: its kind, its parameters, and whether it passed the fence."""

    kind: EndKind
    end: End
    recorded: bool


def write_at_once(db: Database, job: ClaimedJob) -> Reporter:
    """Return a reporter that stores each report before it returns."""

    def report(n: float, total: float | None, message: str) -> None:
        progress = json.dumps({"n": n, "total": total, "message": message})
        finalising.write_progress(db, [(*job.fence, {"progress": progress})])

    return report


def _never(job: ClaimedJob) -> Unwritten | None:
    return None


@dataclass(frozen=True, slots=True)
class Performer:
    """Runs claimed jobs and writes their ends on ``db`` in the name of ``author``."""

    db: Enclosing
    author: Author
    run: Callable[[Prepared], Decision] = attempt.run_here
    reporter_of: ProgressOf = write_at_once
    control: RunControl = field(default_factory=RunControl)
    waits: Callable[[ClaimedJob], Unwritten | None] = _never
    """Called between a body and its callback: returns a decision if the job must wait, None if the callback may run."""
    using: str = DEFAULT_DB_ALIAS
    """Django's connection to the database of ``db``, for the transactions of atomic jobs."""

    def perform(self, job: ClaimedJob) -> WrittenEnd:
        """Run a claimed job to the end of its attempt, callback included, and write that end.

        Imports the job's module if its name is not known yet: what is written depends on the callbacks that it has.
        """
        registry.resolved(job.name)
        if job.ending is not None:
            return self._callback(job, job.ending)
        began = clock.monotonic()
        decision: Decision = decide.Cancelled() if job.cancelled else self._attempt(job)
        ended = self._written(job, decision, clock.monotonic() - began)
        if ended.kind != MARK or not ended.recorded:
            return ended
        if (waiting := self.waits(job)) is not None:
            return self._decided(job, waiting)
        error, outcome = ended.end.failure.summary if ended.end.failure else "", ended.end.outcome
        return self._callback(job._replace(error=error, ending=outcome), outcome)

    def _decided(self, job: ClaimedJob, decision: Unwritten, seconds: float | None = None) -> WrittenEnd:
        return self._record(job, *finalise.end_of(decision, job.id, job.claim_id, job.name, seconds))

    def _written(self, job: ClaimedJob, decision: Decision, seconds: float | None) -> WrittenEnd:
        """Write the end of a body, unless its own transaction has."""
        if isinstance(decision, decide.InDoubt):
            return self._written(job, self._settled(job, decision), seconds)
        if isinstance(decision, decide.Committed):
            kind, end = finalise.atomic_end_of(decision, job.id, job.claim_id, seconds)
            self._notify_end(job, kind, end, None)
            return WrittenEnd(kind, end, recorded=True)
        if isinstance(decision, decide.Lost):
            end = End(job.id, job.claim_id, seconds)
            return self._refused(job, SUCCESS, end, finalising.read_fences(self.db, [job.fence]).get(job.id))
        return self._decided(job, decision, seconds)

    def _settled(self, job: ClaimedJob, doubt: decide.InDoubt) -> CertainDecision:
        """Return what the job's own transaction has written, or else what the attempt comes to."""
        while not (found := atomic.settle_doubts(self.db, [job.fence])):
            if not finalising.read_fences(self.db, [job.fence]):
                return decide.Lost()
            time.sleep(BUSY_SECONDS)
        now = found[job.id]
        return decide.Committed(now.marked, now.stepped) if now.committed else doubt.otherwise

    def release(self, job: ClaimedJob) -> WrittenEnd:
        """Release a claimed job, uncharged; if it was cancelled in the meantime, end it."""
        return self._decided(job, decide.Released())

    def hold(self, job: ClaimedJob, reason: str, *, limited: bool = False) -> WrittenEnd:
        """Hold a job whose name is paused, or that a limit must count, uncharged; if it was cancelled, end it."""
        return self._decided(job, decide.Held(reason, limited))

    def _attempt(self, job: ClaimedJob) -> Decision:
        partly = job.ending is not None
        try:
            payload = job.payload
            if payload is None:
                payload = finalising.read_payload(self.db, *job.fence, partly=partly)
        except UnreadablePayload as error:
            log.error("payload cannot be filled name=%s job=%d: %s", job.name, job.id, error)
            return decide.Succeeded() if partly else decide.Abandoned(str(error), failure_of(error))
        if payload is None:
            return decide.Released("the claim was lost before the payload was read")
        reporter = self.reporter_of(self.db, job)
        prepared = attempt.prepare(
            job._replace(payload=payload),
            lambda _: reporter,
            self.control,
            recall=partial(keys.find_result, self.db),
            history=partial(finalising.read_failure, self.db),
            transaction=AtomicEnds(self.using),
            memories=Memories(self.using),
        )
        if not isinstance(prepared, Prepared):
            return prepared
        level = log_lines.level_of(prepared.definition)
        return fresh_context().run(self.run, prepared) if not level else self._run_logged(prepared, level)

    def _run_logged(self, prepared: Prepared, level: int) -> Decision:
        """Run a job and store the lines that it logs, after its own transaction and before its end."""
        kept = log_lines.begin(self.control, level)
        try:
            return fresh_context().run(self.run, prepared)
        finally:
            self.control.lines = None
            if rows := kept.close(get_conf().bounds).sent():
                self._store_lines(prepared.job, log_lines.as_json(rows))

    def _store_lines(self, job: ClaimedJob, rows: str) -> None:
        """Store lines, if the server takes them: no end waits for lines."""
        try:
            for is_first in (True, False):
                with self.db.transaction():
                    if finalising.write_lines(self.db, [(*job.fence, True, rows)]):
                        return
                if is_first:
                    time.sleep(BUSY_SECONDS)  # the row may have been locked
        except Exception as error:
            if not is_answer(error):
                raise
            log.warning("lines of a job cannot be stored job=%d: %s", job.id, one_line(error))

    def _callback(self, job: ClaimedJob, outcome: str) -> WrittenEnd:
        after = finalise.after_callback(job.id, job.claim_id, outcome)
        if job.ending_attempt > CALLBACK_STARTS:
            log.error(
                "callback lost %d processes or workers, the job ends without it name=%s job=%d",
                CALLBACK_STARTS,
                job.name,
                job.id,
            )
            return self._record(job, END, after)
        if finalise.is_counted(job.extras) and registry.find(job.name) is None:
            return self._record(job, END, after)
        decision = self._attempt(job)
        if isinstance(decision, decide.Succeeded):
            return self._record(job, END, after)
        return self._written(job, decision, None)

    def _record(self, job: ClaimedJob, kind: EndKind, end: End) -> WrittenEnd:
        """Write an end. Wait while the row is locked; if the job was cancelled in the meantime, end it as cancelled."""
        remember, counted = job.idempotency_key is not None, finalise.is_counted(job.extras)
        while not (rows := self._write(kind, end, remember=remember, counted=counted)):
            now = finalising.read_fences(self.db, [(end.id, end.claim_id)]).get(end.id)
            if now is None or not now.ours or now.ended:
                return self._refused(job, kind, end, now)
            if now.counted and not counted:  # another job has come to need it since its claim
                counted = True
            elif now.cancelled and not now.ending and kind.requeues:
                kind, end = finalise.cancel_instead(end, job.name)
            else:
                time.sleep(BUSY_SECONDS)
        self._notify_end(job, kind, end, rows[job.id])
        return WrittenEnd(kind, end, recorded=True)

    def _write(self, kind: EndKind, end: End, *, remember: bool, counted: bool) -> dict[int, object]:
        terms = EndTerms(self.author, remember, notify=lambda db, notices: waking.notify(self.using, notices))
        return kinds.write(self.db, COUNTED if counted and kind.final else kind, [end], terms)

    def _refused(self, job: ClaimedJob, kind: EndKind, end: End, now: FenceReading | None) -> WrittenEnd:
        action, reason = kind.verb, finalise.refusal(now)
        log.warning("lease lost, nothing of the job was changed %s: could not %s, %s", job.facts, action, reason)
        _notify(events.LOST, job, executor=self.author.name, claim_id=end.claim_id, action=action, reason=reason)
        return WrittenEnd(kind, end, recorded=False)

    def _notify_end(self, job: ClaimedJob, kind: EndKind, end: End, row: Any) -> None:
        about = {
            "queue": job.queue,
            "executor": self.author.name,
            "duration": end.seconds,
            "error": end.failure.summary if end.failure else _earlier_error(job, kind, end),
        }
        refused = isinstance(row, SteppedJob) and row.refused
        if refused:
            events.step_refused(job.facts)
        elif kinds.lines_are_wanted():
            kinds.log_stored(kind, end, row, job.facts, end.seconds)
        if kind.final:
            outcome = end.outcome or Outcome.SUCCEEDED
            _notify(events.FINISHED, job, **about, outcome=outcome, database=self.using)
        elif kind.signals:
            _notify(events.RETRIED, job, **about, delay=end.delay, retry_at=row.run_at.isoformat())


def _notify(what: str, job: ClaimedJob, **facts: object) -> None:
    if events.is_wanted(what, facts):
        about = {} if job.target is None else {"target_id": job.target}
        events.stored(what, {"job_id": job.id, "name": job.name, "attempt": job.attempt, **about, **facts})


def _earlier_error(job: ClaimedJob, kind: EndKind, end: End) -> str:
    return job.error if kind is END and end.outcome != Outcome.SUCCEEDED else ""
