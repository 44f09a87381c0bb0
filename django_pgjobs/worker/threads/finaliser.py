"""The finaliser: writes every end, fenced, in batches. A worker drops no job before the job's end is flushed.

It flushes at once when idle, else after a few milliseconds or ``BATCH`` ends. Ends that it could not write because the
server was away stay here; it writes them later, under their fences. If a write matches no row, the finaliser reads the
row: *busy* is tried again, *done* was recorded by an earlier try whose answer was lost, *cancelled* meanwhile becomes a
cancel, *lost* is dropped and reported. It posts ``Stored`` with the recorded ends, ``Lost`` with ends that were not
ours to write, and ``BackendsEnded`` once a dead executor has no server process left.

An end without retention is one fenced DELETE. The DELETE skips jobs that somebody waits for, locks or points to; these
end with their rows kept, and the leader prunes them. A missing row proves nothing: our own try deleted it if the answer
to one was lost, else another worker that has run the job since.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice

import psycopg

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Failure
from django_pgjobs.execution import finalise
from django_pgjobs.execution.attempt import BODY
from django_pgjobs.execution.finalise import ACTIONS, DELETE, END, KINDS, RELEASE, REQUEUES, SUCCESS
from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import Cause, Outcome
from django_pgjobs.store import statements as store
from django_pgjobs.store.sqlstates import NOT_ALLOWED, TRIGGERS, class_of, is_data_trouble
from django_pgjobs.store.statements import Author, End
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.threads.inbox_messages import BackendsEnded, Lost, Refused, Stored, StoredEnd
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

log = safe_logger("django_pgjobs")

BATCH = 500
FLUSH_SECONDS = 0.003
BUSY_SECONDS = 0.1
BACKENDS_SECONDS = 2.0
"""How long to wait for the end of a server process: code that cannot be interrupted may take long."""

BACKENDS_PAUSE_SECONDS = 0.01
STATEMENT_BYTES = 8 * 1024 * 1024
UNFLUSHED_LIMIT = 5000
UNFLUSHED_BYTES = 64 * 1024 * 1024

Entry = tuple[HeldRun, End]
Busy = tuple[str, Entry]


class Finaliser(Loop):
    """Writes ends. Calls ``freed``, in this thread, when a job that may have a limit has ended."""

    role = "finalise"

    def __init__(self, connect: Connect, inbox: Posts, author: Author, freed: Callable[[], None] | None = None) -> None:
        super().__init__(connect, inbox)
        self.author = author
        self.pending: dict[str, deque[Entry]] = {kind: deque() for kind in KINDS}
        self.count = 0
        self.bytes = 0
        self.claims: list[str] = []
        self.backends: list[str] = []
        self.progress: dict[int, tuple[int, str, str]] = {}
        self.last_flush = 0.0
        self.busy = 0
        self.busy_until = 0.0
        self.reported: set[HeldRun] = set()
        self.in_doubt: set[HeldRun] = set()
        self.notifies = get_conf().notify
        self.retention = get_conf().retention_hours
        self.keeps_all = self.retention.keeps_all()
        self.remembers = False
        self.refused: Counter[str] = Counter()
        self.freed = freed

    # Called by the main thread

    def put(self, kind: str, run: HeldRun, end: End) -> None:
        """Queue an end; main receives ``Stored`` or ``Lost`` for it."""
        self.put_many(kind, [(run, end)])

    def put_many(self, kind: str, entries: list[Entry]) -> None:
        """Queue ends of one kind."""
        unkept = [] if self.keeps_all or kind not in (SUCCESS, END) else [e for e in entries if not self._keeps(*e)]
        with self.wake:
            if unkept:
                self.pending[DELETE].extend(unkept)
                self.pending[kind].extend(entry for entry in entries if self._keeps(*entry))
            else:
                self.pending[kind].extend(entries)
            self.count += len(entries)
            self.bytes += sum([_size(end) for _, end in entries])
            self.wake.notify_all()

    def _keeps(self, run: HeldRun, end: End) -> bool:
        return self.retention.of(run.job.queue).hours(end.outcome or Outcome.SUCCEEDED) != 0

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
        """Whether too much is unflushed to dispatch anything more."""
        return self.count >= UNFLUSHED_LIMIT or self.bytes >= UNFLUSHED_BYTES

    # The thread

    def serve(self, db: WorkerConnection) -> None:
        """Flush until stopped, and everything queued before it stops."""
        while self._until_due():
            self._flush(db)

    def _until_due(self) -> bool:
        with self.wake:
            while not (self.count or self.backends or self.progress or self.claims):
                if self.stopping.is_set():
                    return False
                self.wake.wait()
            leaving = self.stopping.is_set()
            until = self.busy_until if leaving else max(self.last_flush + FLUSH_SECONDS, self.busy_until)
            wait = until - clock.monotonic()
            if wait > 0:
                # Only new ends shorten the pause, however many are busy: trying those again would be useless.
                self.wake.wait_for(
                    lambda: self.count - self.busy >= BATCH or self.stopping.is_set() != leaving, timeout=wait
                )
            return not leaving or bool(self.count or self.claims)

    def _flush(self, db: WorkerConnection) -> None:
        self._end_backends(db)
        self.busy = 0
        for kind in KINDS:
            left = len(self.pending[kind])
            while left > 0:  # each once: busy ones go to the end
                left -= self._flush_some(db, kind, min(left, BATCH))
        self._flush_rest(db)
        self.last_flush = clock.monotonic()

    def _end_backends(self, db: WorkerConnection) -> None:
        """End the server processes of killed executors, before any end queued after their death."""
        while self.backends:
            self._terminate(db, self.backends[0])
            self.inbox.post(BackendsEnded(self.backends.pop(0)))

    def _terminate(self, db: WorkerConnection, application_name: str) -> None:
        until = clock.monotonic() + BACKENDS_SECONDS
        try:
            while left := store.terminate_backends(db, application_name):
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
                store.delete_claims(db, claims)
            except Exception:
                self.claims = claims + self.claims
                raise

    def _write_progress(self, db: WorkerConnection, reports: list[tuple[int, str, str]]) -> None:
        try:
            written = set(store.write_progress(db, reports))
        except psycopg.DataError as error:
            if len(reports) > 1:  # one job's progress is at fault; the others' are sound
                for report in reports:
                    self._write_progress(db, [report])
            else:
                log.warning("progress cannot be stored job=%d: %s", reports[0][0], one_line(error))
            return
        missing = [(job_id, claim_id) for job_id, claim_id, _ in reports if job_id not in written]
        readings = store.read_fences(db, missing) if missing else {}
        for job_id, claim_id in missing:
            now = readings.get(job_id)
            # If the job left its claim, we may just have finished it.
            if now is not None and now.claimed and not now.ours:
                self.refused["store progress"] += 1
                reason = finalise.refusal(now)
                log.warning("lease lost, could not store progress job=%d claim=%s: %s", job_id, claim_id, reason)

    def _some(self, kind: str, most: int) -> tuple[list[Entry], int]:
        """Return the first entries of a kind for one statement, and their size; no job twice.

        Two runs of one job, from two claims, would share the one answer for its id.
        """
        entries: list[Entry] = []
        ids: set[int] = set()
        size = 0
        with self.wake:
            for entry in islice(self.pending[kind], most):
                end = entry[1]
                if end.id in ids:
                    break
                ids.add(end.id)
                entries.append(entry)
                size += _size(end)
                if size > STATEMENT_BYTES:
                    break
        return entries, size

    def _flush_some(self, db: WorkerConnection, kind: str, most: int) -> int:
        """Write a batch of one kind; return how many entries it tried."""
        entries, size = self._some(kind, most)
        self._end_backends(db)  # queued by main before these, perhaps a moment ago
        left: list[Busy] = [(kind, entry) for entry in entries]
        try:
            left = self._write(db, kind, entries)
        except BaseException:
            if kind == DELETE and db.gone:
                self.in_doubt.update(run for run, _ in entries)
            raise
        finally:
            # Report each end once, whatever failed half-way: a claim counts its jobs down, a callback starts.
            self._replace(kind, len(entries), size, [busy for busy in left if busy[1][0] not in self.reported])
            self.in_doubt -= self.reported
            self.reported.clear()
        return len(entries)

    def _replace(self, kind: str, count: int, size: int, left: list[Busy]) -> None:
        with self.wake:
            pending = self.pending[kind]
            for _ in range(count):
                pending.popleft()
            for other, entry in left:
                self.pending[other].append(entry)
            self.count -= count - len(left)
            self.bytes -= size
            self.bytes += sum(_size(end) for _, (_, end) in left)
            self.busy += len(left)
        if left:
            self.busy_until = clock.monotonic() + BUSY_SECONDS

    def _report_stored(self, kind: str, stored: Sequence[StoredEnd]) -> None:
        if self.freed is not None and any(run.job.extras for run, _, _ in stored):
            self.freed()  # of its limit's slot, if it has a limit; a needless wake-up costs little
        self.reported.update([run for run, _, _ in stored])
        if kind != DELETE:
            self.inbox.post(Stored(kind, stored))
            return
        for kept in (SUCCESS, END):
            if some := [entry for entry in stored if finalise.kept_as(entry[1]) == kept]:
                self.inbox.post(Stored(kept, some))

    def _report_lost(self, lost: list[Refused]) -> None:
        self.reported.update(run for run, _, _ in lost)
        self.refused.update(action for _, action, _ in lost)
        self.inbox.post(Lost(lost))

    def _write(self, db: WorkerConnection, kind: str, entries: list[Entry]) -> list[Busy]:
        """Write entries of one kind, bisecting to isolate one that cannot be stored; return the busy ones."""
        try:
            # Checked for each job only once this worker has seen one with an idempotency key.
            remember = self.remembers and any(run.remembers for run, _ in entries)
            recorded = finalise.write(db, kind, [end for _, end in entries], self.author, remember=remember)
        except (psycopg.Error, UnicodeError) as error:
            if kind == DELETE and _is_objection(error):
                log.debug("ended jobs cannot be deleted and are kept: %s", one_line(error))
                return self._keep(db, entries)
            if not is_data_trouble(error):
                raise
            return self._bisect(db, kind, entries, error)
        stored = [(run, end, recorded[end.id]) for run, end in entries if end.id in recorded]
        if stored:
            self._report_stored(kind, stored)
            if kind == RELEASE and self.notifies:
                store.notify_queues(db, {(row.queue, row.priority) for _, _, row in stored}, behind=True)
        if len(stored) == len(entries):
            return []
        return self._resolve(db, kind, [(run, end) for run, end in entries if end.id not in recorded])

    def _keep(self, db: WorkerConnection, entries: list[Entry]) -> list[Busy]:
        """End the jobs that were not deleted, and keep their rows."""
        busy: list[Busy] = []
        for kept in (SUCCESS, END):
            if some := [entry for entry in entries if finalise.kept_as(entry[1]) == kept]:
                busy += self._write(db, kept, some)
        return busy

    def _bisect(self, db: WorkerConnection, kind: str, entries: list[Entry], error: Exception) -> list[Busy]:
        if len(entries) > 1:
            half = len(entries) // 2
            return self._write(db, kind, entries[:half]) + self._write(db, kind, entries[half:])
        run, end = entries[0]
        reason = one_line(error)
        log.error("end cannot be stored as it is job=%d kind=%s: %s", end.id, kind, reason)
        failure = Failure(
            "django_pgjobs.exceptions.UnstorableResult", f"What the job came to cannot be stored: {reason}"
        )
        if end.failure is not None and end.failure.kind == failure.kind:
            self._report_lost([(run, ACTIONS[kind], f"it cannot be stored: {reason}")])
            return []
        decision = decide.Abandon("unstorable", failure)
        other, plain = finalise.end_of(decision, end.id, end.claim_id, run.job.name, end.seconds)
        return self._write(db, other, [(run, plain)])

    def _resolve(self, db: WorkerConnection, kind: str, missing: list[Entry]) -> list[Busy]:
        """Resolve writes that matched no row; return those to try again."""
        readings = store.read_fences(db, [(end.id, end.claim_id) for _, end in missing])
        busy: list[Busy] = []
        left: list[Entry] = []
        lost: list[Refused] = []
        done: list[tuple[HeldRun, End, None]] = []
        for run, end in missing:
            now = readings.get(end.id)
            if now is None or not now.ours:
                # Rescue records the attempt too, as lost: only our own cause proves that our write came through.
                if run in self.in_doubt if now is None else end.cause is not None and now.recorded == end.cause:
                    done.append((run, end, None))
                else:
                    lost.append((run, ACTIONS[kind], finalise.refusal(now)))
            elif now.ended and run.kind == BODY and _by_rescue(now.recorded, end):
                # Rescue may end a job too, and leaves the claim on it.
                lost.append((run, ACTIONS[kind], finalise.refusal(now)))
            elif now.ended:
                done.append((run, end, None))
            elif now.cancelled and not now.ending and kind in REQUEUES:
                busy += self._cancel_instead(db, run, end)
            elif kind == DELETE:
                left.append((run, end))
            else:
                busy.append((kind, (run, end)))
        if done:
            self._report_stored(kind, done)
        if lost:
            self._report_lost(lost)
        return busy + self._keep(db, left)

    def _cancel_instead(self, db: WorkerConnection, run: HeldRun, end: End) -> list[Busy]:
        cancel = decide.Cancel("", end.failure, end.cause)
        kind, other = finalise.end_of(cancel, end.id, end.claim_id, run.job.name, end.seconds)
        return self._write(db, kind, [(run, other)])


def _is_objection(error: Exception) -> bool:
    """Whether a DELETE may raise this: besides data errors, an objecting trigger or a missing right."""
    return is_data_trouble(error) or class_of(error) in (*TRIGGERS, *NOT_ALLOWED)


def _by_rescue(recorded: str | None, end: End) -> bool:
    return recorded in (Cause.LOST, Cause.TIMEOUT) and recorded != end.cause


def _size(end: End) -> int:
    if end.failure is None:
        return len(end.result) if end.result else 0
    return len(end.failure.traceback) + len(end.failure.message)
