"""The finaliser: writes every end, fenced, in batches. A worker drops no job before the job's end is flushed.

It flushes at once when idle, else after a few milliseconds or ``BATCH`` ends. Ends that it could not write because the
server was away stay here; it writes them later, under their fences. If a write matches no row, the finaliser reads the
row: *busy* is tried again, *done* was recorded by an earlier try whose answer was lost, *cancelled* in the meantime
becomes a cancel, *lost* is dropped and reported. An end that was never sent before cannot be *done*, regardless of the
row. It posts ``Stored`` with the recorded ends, ``RefusedEnds`` with ends that were not ours to write, and
``BackendsEnded`` once a dead executor has no server process left.

Successes and deletes go by a *fast* statement, which does not look at locks before it writes; those of jobs with an
idempotency key never do. Where it meets a locked row it waits 50 ms, then the server gives up the whole batch, and the
batch goes at once by the statement that skips locked rows. As long as some row is known to be busy all their batches go
by that one: no row costs its neighbours the 50 ms again.

Ends for which other jobs wait are *counted*: they go in transactions of their own, with what they release. If another
session has locked a gate for 100 ms, the ends that count in it are busy, and the finaliser asks for locked gates before
it writes more counted ends.

Jobs that begin to wait for events go in transactions of their own, too, which lock the events. One that a sender has
locked keeps those who wait for it busy, and the others wait for it once: 50 ms.

Busy ends are set aside and tried again after a pause. New ones pass them in the meantime.

An end without retention is one fenced DELETE. The DELETE skips jobs that others wait for, lock or point to; these
end with their rows kept, and the leader prunes them. A missing row proves nothing: our own try deleted it if the answer
to one was lost, else another worker that has run the job since.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import psycopg

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Failure
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.ends.callbacks import BODY
from django_pgjobs.ends.kinds import AWAIT, COUNTED, DELETE, END, KINDS, NEXT, SUCCESS, EndKind, EndTerms
from django_pgjobs.execution import events
from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import Cause, Outcome
from django_pgjobs.store import finalising, keeping, memos, notifying
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import Author, End, FenceReading
from django_pgjobs.store.notifying import Notification
from django_pgjobs.store.sqlstates import is_answer, is_data_trouble, is_objection
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.threads import locked_gates
from django_pgjobs.worker.threads.busy_ends import BusyEnd, BusyEnds, RunEnd
from django_pgjobs.worker.threads.doubts import settle
from django_pgjobs.worker.threads.end_sizes import fitting, sizes_of
from django_pgjobs.worker.threads.inbox_messages import BackendsEnded, RefusedEnd, RefusedEnds, Stored, StoredEnd
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

log = safe_logger("django_pgjobs")

BATCH = 500
FLUSH_SECONDS = 0.003
BACKENDS_SECONDS = 2.0
"""Time to wait for the end of a server process: code that cannot be interrupted may take long."""

BACKENDS_PAUSE_SECONDS = 0.01
DEADLOCK_SECONDS = 0.2
"""The least ``deadlock_timeout`` at which to wait for a locked row: below it, the server could end the statement of
another session that waits for us before our own gives up after 50 ms."""

STATEMENT_BYTES = 8 * 1024 * 1024
UNFLUSHED_LIMIT = 5000
UNFLUSHED_BYTES = 64 * 1024 * 1024

BUSY_LIMIT = 20_000
"""Number of ends that may wait for locks before a worker dispatches nothing more."""

LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


class Finaliser(Loop):
    """Writes ends. Calls ``freed``, in this thread, when a job that may have a limit has ended."""

    role = "finalise"

    def __init__(self, connect: Connect, inbox: Posts, author: Author, freed: Callable[[], None] | None = None) -> None:
        super().__init__(connect, inbox)
        self.author = author
        self.pending: dict[EndKind, deque[RunEnd]] = {kind: deque() for kind in KINDS}
        self.count = 0
        self.wakes_at = 0
        """Number of ends that wake the thread: while it collects a batch, fewer would wake it for nothing."""
        self.bytes = 0
        self.claims: list[str] = []
        self.backends: list[str] = []
        self.progress: dict[int, tuple[int, str, str]] = {}
        self.last_flush = 0.0
        self.busy = BusyEnds()
        self.may_wait = True
        self.skips_locked = False
        self.reported: set[HeldRun] = set()
        self.unanswered: set[HeldRun] = set()
        self.notifies = get_conf().notify
        self.retention = get_conf().retention_hours
        self.keeps_all = self.retention.keeps_all()
        self.remembers = False
        self.counts = False
        self.refused: Counter[str] = Counter()
        self.freed = freed

    # Called by the main thread

    def put(self, kind: EndKind, run: HeldRun, end: End) -> None:
        """Queue an end; main receives ``Stored`` or ``RefusedEnds`` for it."""
        self.put_many(kind, [(run, end)])

    def put_many(self, kind: EndKind, entries: list[RunEnd]) -> None:
        """Queue ends of one kind."""
        if self.counts and kind.final:
            if counted := [entry for entry in entries if entry[0].gate is not None]:
                self._put(COUNTED, counted)
            entries = [entry for entry in entries if entry[0].gate is None]
        self._put(kind, entries)

    def _put(self, kind: EndKind, entries: list[RunEnd]) -> None:
        unkept = [] if self.keeps_all or not kind.final or kind.mixed else [e for e in entries if not self._keeps(*e)]
        with self.wake:
            if unkept:
                self.pending[DELETE].extend(unkept)
                self.pending[kind].extend(entry for entry in entries if self._keeps(*entry))
            else:
                self.pending[kind].extend(entries)
            self.count += len(entries)
            self.bytes += sum(sizes_of(end for _, end in entries))
            if self.count >= self.wakes_at:
                self.wake.notify_all()

    def _keeps(self, run: HeldRun, end: End) -> bool:
        return run.in_doubt or self.retention.of(run.job.queue).hours(end.outcome or Outcome.SUCCEEDED) != 0

    def delete(self, claim_ids: list[str]) -> None:
        """Queue the deletion of ledger rows whose jobs have all ended; no hurry."""
        with self.wake:
            self.claims.extend(claim_ids)
            if len(self.claims) == len(claim_ids):
                self.wake.notify_all()

    def terminate(self, application_name: str) -> None:
        """End the server processes of a dead executor before any end queued later; main receives ``BackendsEnded``."""
        with self.wake:
            self.backends.append(application_name)
            self.wake.notify_all()

    def report(self, job_id: int, claim_id: str, progress: str) -> None:
        """Keep a job's progress; the latest value counts."""
        with self.wake:
            self.progress[job_id] = (job_id, claim_id, progress)
            self.wake.notify_all()

    @property
    def full(self) -> bool:
        """True if too much is unflushed to dispatch anything more."""
        new = self.count - self.busy.count
        return new >= UNFLUSHED_LIMIT or self.busy.count >= BUSY_LIMIT or self.bytes >= UNFLUSHED_BYTES

    # The thread

    def serve(self, db: WorkerConnection) -> None:
        """Flush until stopped, and everything queued before it stops."""
        self.may_wait = db.identity.deadlock_seconds >= DEADLOCK_SECONDS
        while self._until_due():
            self._flush(db)

    def _until_due(self) -> bool:
        with self.wake:
            self.wakes_at = 0
            while not (self.count or self.backends or self.progress or self.claims):
                if self.stopping.is_set():
                    return False
                self.wake.wait()
            leaving = self.stopping.is_set()
            self._sleep(self.busy.until, lambda: self._has_new() or self.stopping.is_set() != leaving)
            if not leaving:
                self.wakes_at = self.busy.count + BATCH
                self._sleep(
                    self.last_flush + FLUSH_SECONDS, lambda: self.count >= self.wakes_at or self.stopping.is_set()
                )
            return not leaving or bool(self.count or self.claims)

    def _has_new(self) -> bool:
        return bool(self.count > self.busy.count or self.backends or self.progress or self.claims)

    def _sleep(self, until: float, awake: Callable[[], bool]) -> None:
        wait = until - clock.monotonic()
        if wait > 0:
            self.wake.wait_for(awake, timeout=wait)

    def _flush(self, db: WorkerConnection) -> None:
        self._end_backends(db)
        self.skips_locked = self.busy.has_rows
        self._try_again(db)
        for kind in KINDS:
            left = len(self.pending[kind])
            while left > 0:
                left -= self._flush_some(db, kind, min(left, BATCH))
        self._flush_rest(db)
        self.last_flush = clock.monotonic()

    def _try_again(self, db: WorkerConnection) -> None:
        """Queue busy ends again after their pause, without those whose gates are still locked."""
        if not self.busy or clock.monotonic() < self.busy.until:
            return
        locked = locked_gates.still_locked(self.busy, db)
        with self.wake:
            for kind, entry, _ in self.busy.take(locked):
                self.pending[kind].append(entry)

    def _end_backends(self, db: WorkerConnection) -> None:
        """End the server processes of killed executors, before any end queued after their death."""
        while self.backends:
            self._terminate(db, self.backends[0])
            self.inbox.post(BackendsEnded(self.backends.pop(0)))

    def _terminate(self, db: WorkerConnection, application_name: str) -> None:
        until = clock.monotonic() + BACKENDS_SECONDS
        try:
            while left := keeping.terminate_backends(db, application_name):
                if clock.monotonic() > until:
                    log.warning("server processes of a dead executor do not end processes=%d", left)
                    return
                time.sleep(BACKENDS_PAUSE_SECONDS)
        except psycopg.ProgrammingError as error:
            # No end may wait for a right that this role lacks.
            log.error("server processes of a dead executor are left: %s", one_line(error))

    def _flush_rest(self, db: WorkerConnection) -> None:
        with self.wake:
            reports, self.progress = list(self.progress.values()), {}
            claims, self.claims = self.claims, []
        if reports:
            self._write_progress(db, reports)
        if claims:
            try:
                finalising.delete_claims(db, claims)
            except Exception:
                self.claims = claims + self.claims
                raise

    def _write_progress(self, db: WorkerConnection, reports: list[tuple[int, str, str]]) -> None:
        try:
            written = set(finalising.write_progress(db, reports))
        except psycopg.DataError as error:
            if len(reports) > 1:  # one job's progress is at fault; the others' are sound
                for report in reports:
                    self._write_progress(db, [report])
            else:
                log.warning("progress cannot be stored job=%d: %s", reports[0][0], one_line(error))
            return
        missing = [(job_id, claim_id) for job_id, claim_id, _ in reports if job_id not in written]
        readings = finalising.read_fences(db, missing) if missing else {}
        for job_id, claim_id in missing:
            now = readings.get(job_id)
            # If the job left its claim, we may just have finished it.
            if now is not None and now.claimed and not now.ours:
                self.refused["store progress"] += 1
                reason = finalise.refusal(now)
                log.warning("lease lost, could not store progress job=%d claim=%s: %s", job_id, claim_id, reason)

    def _some(self, kind: EndKind, most: int) -> tuple[list[RunEnd], int]:
        """Return the first entries of a kind for one statement, and their size; no job twice.

        Two runs of one job, from two claims, would share the one answer for its id.
        """
        with self.wake:
            entries = list(islice(self.pending[kind], most))
        sizes = sizes_of(end for _, end in entries)
        count = fitting([end.id for _, end in entries], sizes, STATEMENT_BYTES)
        return entries[:count], sum(sizes[:count])

    def _flush_some(self, db: WorkerConnection, kind: EndKind, most: int) -> int:
        """Write a batch of one kind; return how many entries it tried."""
        entries, size = self._some(kind, most)
        self._end_backends(db)  # queued by main before these, perhaps a moment ago
        left = entries
        busy: list[BusyEnd] = []
        try:
            busy = self._write(db, kind, entries)
            left = []
        except BaseException as error:
            if not is_answer(error):
                self.unanswered.update(run for run, _ in entries)
            raise
        finally:
            # Report each end once, even after a failure half-way: a claim counts its jobs down, a callback starts.
            left = [entry for entry in left if entry[0] not in self.reported]
            self._replace(kind, len(entries), size, left, busy)
            self.unanswered -= self.reported
            self.reported.clear()
        return len(entries)

    def _replace(self, kind: EndKind, count: int, size: int, left: list[RunEnd], busy: list[BusyEnd]) -> None:
        """Take the first ``count`` entries off; put back those ``left``, and set the busy ones aside."""
        with self.wake:
            pending = self.pending[kind]
            for _ in range(count):
                pending.popleft()
            pending.extend(left)
            if busy:
                self.busy.add(busy)
            self.count -= count - len(left) - len(busy)
            self.bytes -= size
            self.bytes += sum(sizes_of(end for _, end in [*left, *(each.entry for each in busy)]))

    def _report_stored(self, kind: EndKind, stored: Sequence[StoredEnd]) -> None:
        if self.freed is not None and any(run.job.extras for run, _, _ in stored):
            self.freed()  # of its limit's slot, if it has a limit; a needless wake-up costs little
        self.reported.update([run for run, _, _ in stored])
        if not kind.mixed:
            self.inbox.post(Stored(kind, stored))
            return
        for kept in (SUCCESS, END):
            if some := [entry for entry in stored if kinds.kept_as(entry[1]) == kept]:
                self.inbox.post(Stored(kept, some))

    def _report_lost(self, lost: list[RefusedEnd]) -> None:
        self.reported.update(run for run, _, _ in lost)
        self.refused.update(action for _, action, _ in lost)
        self.inbox.post(RefusedEnds(lost))

    def _write(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]:
        """Write entries of one kind, bisecting to isolate one that cannot be stored; return the busy ones."""
        if not kind.fast and any(run.in_doubt for run, _ in entries):
            return self._settle(db, kind, entries)
        if kind == COUNTED and self.busy.has_gates:  # to wait for them each time would keep all ends waiting
            entries, busy = locked_gates.split_by(self.busy, db, entries)
            return busy + (self._write_now(db, kind, entries) if entries else [])
        return self._write_now(db, kind, entries)

    def _write_now(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]:
        if kind.fast and self.remembers:
            keyed = [entry for entry in entries if entry[0].remembers]
            others = [entry for entry in entries if not entry[0].remembers]
            if keyed and others:  # only those without a key have a fast statement
                return self._write_now(db, kind, others) + self._write_now(db, kind, keyed)
        try:
            recorded = self._record(db, kind, entries)
        except (psycopg.Error, UnicodeError) as error:
            if kind == DELETE and is_objection(error):
                log.debug("ended jobs cannot be deleted and are kept: %s", one_line(error))
                return self._keep(db, entries)
            if kind == COUNTED and isinstance(error, LOCKED):
                free, busy = locked_gates.split(db, entries)
                if len(free) == len(entries):  # the gate was released just now
                    return [BusyEnd(kind, entry) for entry in entries]
                return busy + (self._write_now(db, kind, free) if free else [])
            if kind == AWAIT and isinstance(error, LOCKED):
                self.skips_locked = True
                return self._without_locked_events(db, entries)
            if kind == NEXT and (isinstance(error, LOCKED) or _key_is_taken(error)):
                # Another session is about to commit the key of one of these jobs in the queue of its next step.
                return self._halve(db, kind, entries) if len(entries) > 1 else [BusyEnd(kind, entries[0])]
            if not is_data_trouble(error):
                raise
            return self._bisect(db, kind, entries, error)
        stored = [(run, end, recorded[end.id]) for run, end in entries if end.id in recorded]
        if stored:
            self._report_stored(kind, stored)
            if kind.wakes and self.notifies:
                self._wake(db, kind, [row for _, _, row in stored])
        if len(stored) == len(entries):
            return []
        return self._resolve(db, kind, [(run, end) for run, end in entries if end.id not in recorded])

    def _wake(self, db: WorkerConnection, kind: EndKind, rows: list[Any]) -> None:
        pairs = {(row.queue, row.priority) for row in rows if kind.behind or row.due}
        if pairs:
            notifying.notify_queues(db, pairs, behind=kind.behind)

    def _settle(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]:
        """Write those of ``entries`` that are certain; of those in doubt, those that their jobs have not written."""
        doubts = settle(db, kind.verb, [entry for entry in entries if entry[0].in_doubt])
        for own, stored in doubts.committed.items():
            self._report_stored(own, stored)
        if doubts.lost:
            self._report_lost(doubts.lost)
        left = [entry for entry in entries if not entry[0].in_doubt and entry[0] not in self.reported]
        return [BusyEnd(kind, entry) for entry in doubts.locked] + (self._write(db, kind, left) if left else [])

    def _record(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> dict[int, Any]:
        """Write entries of one kind by one statement, the fast one where there is one and it need not wait long."""
        # Checked for each job only once this worker has seen one with an idempotency key.
        remember = self.remembers and any(run.remembers for run, _ in entries)
        ends = [end for _, end in entries]
        waits = self.may_wait and not self.skips_locked
        terms = EndTerms(self.author, remember, hurried=True, waits=waits, notify=self._notify)
        try:
            return kinds.write(db, kind, ends, terms)
        except LOCKED as error:
            if not (kind.fast and terms.fast):
                raise
            log.debug("a row of a batch is locked, the others are ended without it: %s", one_line(error))
        self.skips_locked = True
        return kinds.write(db, kind, ends, replace(terms, waits=False))

    def _notify(self, db: Database, notices: Iterable[Notification]) -> None:
        if self.notifies:
            notifying.notify(db, notices)

    def _without_locked_events(self, db: WorkerConnection, entries: list[RunEnd]) -> list[BusyEnd]:
        """Suspend the jobs whose events no other session has locked: a sender may take long to commit."""
        with db.transaction(undo=True):  # to commit the locks would be to wait for the disk
            locked = memos.list_locked_events(db, [event for _, end in entries for event in end.events])
        if not locked:  # some unknown event is about to be sent, or its lock was released just now
            return self._halve(db, AWAIT, entries) if len(entries) > 1 else [BusyEnd(AWAIT, entries[0])]
        free = [entry for entry in entries if locked.isdisjoint(entry[1].events)]
        busy = [BusyEnd(AWAIT, entry) for entry in entries if not locked.isdisjoint(entry[1].events)]
        return busy + (self._write_now(db, AWAIT, free) if free else [])

    def _keep(self, db: WorkerConnection, entries: list[RunEnd]) -> list[BusyEnd]:
        """End the jobs that were not deleted, and keep their rows."""
        busy: list[BusyEnd] = []
        for kept in (SUCCESS, END):
            if some := [entry for entry in entries if kinds.kept_as(entry[1]) == kept]:
                busy += self._write(db, kept, some)
        return busy

    def _halve(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]:
        half = len(entries) // 2
        return self._write(db, kind, entries[:half]) + self._write(db, kind, entries[half:])

    def _bisect(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd], error: Exception) -> list[BusyEnd]:
        if len(entries) > 1:
            return self._halve(db, kind, entries)
        run, end = entries[0]
        reason = one_line(error)
        if end.result is not None and get_conf().unstorable_result == "drop":
            events.result_dropped(run.job.name, end.id, reason)
            return self._write(db, kind, [(run, End(end.id, end.claim_id, end.seconds, outcome=end.outcome))])
        log.error("end cannot be stored as it is job=%d kind=%s: %s", end.id, kind, reason)
        failure = Failure("django_pgjobs.exceptions.UnstorableResult", f"The end of the job cannot be stored: {reason}")
        if end.failure is not None and end.failure.kind == failure.kind:
            self._report_lost([(run, kind.verb, f"it cannot be stored: {reason}")])
            return []
        decision = decide.Abandoned("unstorable", failure)
        other, plain = finalise.end_of(decision, end.id, end.claim_id, run.job.name, end.seconds)
        return self._write(db, other, [(run, plain)])

    def _resolve(self, db: WorkerConnection, kind: EndKind, missing: list[RunEnd]) -> list[BusyEnd]:
        """Resolve writes that matched no row; return those to try again."""
        readings = finalising.read_fences(db, [(end.id, end.claim_id) for _, end in missing])
        busy: list[BusyEnd] = []
        left: list[RunEnd] = []
        counted: list[RunEnd] = []
        lost: list[RefusedEnd] = []
        done: list[tuple[HeldRun, End, None]] = []
        for run, end in missing:
            now = readings.get(end.id)
            if now is None or not now.ours or now.ended:
                # Only a try whose answer was lost can have written it; the row alone could be a rescue's work.
                if run in self.unanswered and _by_us(now, run, end):
                    done.append((run, end, None))
                else:
                    lost.append((run, kind.verb, finalise.refusal(now)))
            elif now.cancelled and not now.ending and kind.requeues:
                busy += self._cancel_instead(db, run, end)
            elif now.counted and kind.final and kind is not COUNTED:
                counted.append((run, end))  # another job has come to need it since its claim
            elif kind == DELETE:
                left.append((run, end))
            else:
                busy.append(BusyEnd(kind, (run, end)))
        if done:
            self._report_stored(kind, done)
        if lost:
            self._report_lost(lost)
        if counted:
            busy += self._write(db, COUNTED, counted)
        return busy + self._keep(db, left)

    def _cancel_instead(self, db: WorkerConnection, run: HeldRun, end: End) -> list[BusyEnd]:
        cancel = decide.Cancelled("", end.failure, end.cause)
        kind, other = finalise.end_of(cancel, end.id, end.claim_id, run.job.name, end.seconds)
        return self._write(db, kind, [(run, other)])


def _by_us(now: FenceReading | None, run: HeldRun, end: End) -> bool:
    """Return whether the row is as our own statement leaves it, and not as a rescue under our claim does."""
    if now is None:
        return True
    if now.ours:
        return run.kind != BODY or now.recorded != Cause.LOST
    return end.cause is not None and now.recorded == end.cause


def _key_is_taken(error: Exception) -> bool:
    return isinstance(error, psycopg.errors.UniqueViolation) and error.diag.constraint_name == "pgjobs_job_unique_key"
