"""The finaliser: writes every end, fenced, in batches. A worker drops no job before the job's end is flushed.

It flushes at once when idle, else after a few milliseconds or ``BATCH`` ends. Ends that it could not write because the
server was away stay here; it writes them later, under their fences. Busy ends are set aside and tried again after a
pause; new ones pass them in the meantime. ``EndWriter`` writes the batches and posts ``Stored`` with the recorded ends
and ``RefusedEnds`` with ends that were not ours to write; the finaliser posts ``BackendsEnded`` once a dead executor
has no server process left. It has a connection from the first of these until there was none for a minute.

An end without retention is one fenced DELETE. The DELETE skips jobs that others wait for, lock or point to; these
end with their rows kept, and the leader prunes them.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from itertools import islice

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.ends import finalise
from django_pgjobs.ends.kinds import COUNTED, DELETE, KINDS, EndKind
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import Outcome
from django_pgjobs.store import finalising, keeping
from django_pgjobs.store.database import is_answer
from django_pgjobs.store.finalising import Author, End, RunReport
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.threads import locked_ends
from django_pgjobs.worker.threads.busy_ends import BusyEnd, BusyEnds, RunEnd
from django_pgjobs.worker.threads.end_writer import EndWriter
from django_pgjobs.worker.threads.inbox_messages import BackendsEnded
from django_pgjobs.worker.threads.line_writer import LineWriter
from django_pgjobs.worker.threads.line_writer import write as write_lines
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

BATCH = 500
FLUSH_SECONDS = 0.003
REST_SECONDS = 60.0
"""Time without anything to write after which it closes its connection."""

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


class Finaliser(Loop):
    """Writes ends. Calls ``freed``, in this thread, when a job that may have a limit has ended."""

    role = "finalise"

    def __init__(self, connect: Connect, inbox: Posts, author: Author, freed: Callable[[], None] | None = None) -> None:
        super().__init__(connect, inbox)
        self.pending: dict[EndKind, deque[RunEnd]] = {kind: deque() for kind in KINDS}
        self.count = 0
        self.wakes_at = 0
        """Number of ends that wake the thread: while it collects a batch, fewer would wake it for nothing."""
        self.bytes = 0
        self.claims: list[str] = []
        self.backends: list[str] = []
        self.progress: dict[tuple[int, str], dict[str, str]] = {}
        self.lines = LineWriter()
        self.last_flush = 0.0
        self.busy = BusyEnds()
        self.writer = EndWriter(author, inbox, self.busy, freed)
        self.retention = get_conf().retention
        self.keeps_all = self.retention.keeps_all()
        self.counts = False
        self.rests = True
        """True while it needs no connection."""

    # Called by the main thread

    def expect(self) -> None:
        """Have a connection before jobs end that were claimed now."""
        if self.rests:
            with self.wake:
                self.rests = False
                self.wake.notify_all()

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
        if run.in_doubt or run.logged:  # the lines go with the row when the leader prunes it
            return True
        return self.retention.of(run.job.queue).seconds(end.outcome or Outcome.SUCCEEDED) != 0

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

    def report(self, job_id: int, claim_id: str, progress: str = "", peaks: str = "") -> None:
        """Keep a job's progress, as JSON text, and its peaks of memory; the latest value of each counts."""
        new = {"progress": progress} if progress else {"peaks": json.dumps(peaks)}
        with self.wake:
            self.progress[job_id, claim_id] = self.progress.get((job_id, claim_id), {}) | new
            self.wake.notify_all()

    def log(self, job_id: int, claim_id: str, lines: list[list[object]], *, first: bool) -> None:
        """Keep lines that a job has logged, the ``first`` of its run or more; they are written before later ends."""
        with self.wake:
            self.lines.put(job_id, claim_id, lines, first=first)
            self.wake.notify_all()

    @property
    def has_any(self) -> bool:
        """True while there is anything to write."""
        return bool(self.count or self.backends or self.progress or self.claims or self.lines.fresh)

    @property
    def full(self) -> bool:
        """True if too much is unflushed to dispatch anything more."""
        new = self.count - self.busy.count
        return new >= UNFLUSHED_LIMIT or self.busy.count >= BUSY_LIMIT or self.bytes >= UNFLUSHED_BYTES

    # The thread

    def goes_on(self) -> bool:
        """Return whether it needs a connection."""
        return super().goes_on() and not self.rests

    def run(self) -> None:
        """Serve whenever there is something to write, also if that came while it rested and was asked to end."""
        while not self.stopping.is_set():
            with self.wake:
                self.wake.wait_for(lambda: self.has_any or not self.rests or self.stopping.is_set())
                self.rests = False
            super().run()
        if self.reachable and (self.has_any or self.lines.queued):
            with suppress(psycopg.Error, *TROUBLE), closing(self.connect()) as db:
                self.serve(db)
        self._drop_lines()

    def serve(self, db: WorkerConnection) -> None:
        """Flush until stopped, and everything queued before it stops, or until there was nothing for long."""
        self.writer.may_wait = db.identity.deadlock_seconds >= DEADLOCK_SECONDS
        while self._until_due():
            self._flush(db)
        if self.stopping.is_set():
            self._write_lines(db, last=True)
            self._drop_lines()

    def _until_due(self) -> bool:
        with self.wake:
            self.wakes_at = 0
            while not self.has_any:
                if self.rests or self.stopping.is_set():
                    return False
                held_up = bool(self.lines.queued)
                if not self.wake.wait(max(0.0, self.lines.until - clock.monotonic()) if held_up else REST_SECONDS):
                    if held_up:
                        break
                    self.rests = True
            leaving = self.stopping.is_set()
            self._sleep(self.busy.until, lambda: self._has_new() or self.stopping.is_set() != leaving)
            if not leaving:
                self.wakes_at = self.busy.count + BATCH
                self._sleep(
                    self.last_flush + FLUSH_SECONDS, lambda: self.count >= self.wakes_at or self.stopping.is_set()
                )
            return not leaving or bool(self.count or self.claims or self.lines.fresh)

    def _has_new(self) -> bool:
        return bool(self.count > self.busy.count or self.backends or self.progress or self.claims or self.lines.fresh)

    def _sleep(self, until: float, awake: Callable[[], bool]) -> None:
        wait = until - clock.monotonic()
        if wait > 0:
            self.wake.wait_for(awake, timeout=wait)

    def _flush(self, db: WorkerConnection) -> None:
        self._end_backends(db)
        self._write_lines(db)
        self.writer.skips_locked = self.busy.has_rows
        self._try_again(db)
        waiting = {kind: len(self.pending[kind]) for kind in KINDS}
        self._flush_reports(db)  # before the ends that came behind them, after which their fence would not hold
        for kind, left in waiting.items():
            while left > 0:
                left -= self._flush_some(db, kind, min(left, BATCH))
        self._delete_claims(db)
        self.last_flush = clock.monotonic()

    def _try_again(self, db: WorkerConnection) -> None:
        """Queue busy ends again after their pause, without those whose gates are still locked."""
        if not self.busy or clock.monotonic() < self.busy.until:
            return
        locked = locked_ends.still_locked(self.busy, db)
        with self.wake:
            for kind, entry, _ in self.busy.take(locked):
                self.pending[kind].append(entry)

    def _end_backends(self, db: WorkerConnection) -> None:
        """End the server processes of killed executors, before any end queued after their death."""
        while self.backends:
            self._terminate(db, self.backends[0])
            self.inbox.post(BackendsEnded(self.backends.pop(0)))

    def _write_lines(self, db: WorkerConnection, *, last: bool = False) -> None:
        if not self.lines.queued or not (last or self.lines.may_try):
            return
        with self.wake:
            taken, answered, pause = self.lines.take(), False, 0.0
        try:
            pause = write_lines(db, taken)
            answered = True
        finally:
            with self.wake:
                self.lines.put_back(taken, fresh=not answered, pause=pause)

    def _drop_lines(self) -> None:
        with self.wake:
            self.lines.drop()

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

    def _flush_reports(self, db: WorkerConnection) -> None:
        with self.wake:
            reports, self.progress = [(*fence, given) for fence, given in self.progress.items()], {}
        if reports:
            self._write_progress(db, reports)

    def _delete_claims(self, db: WorkerConnection) -> None:
        with self.wake:
            claims, self.claims = self.claims, []
        if claims:
            try:
                finalising.delete_claims(db, claims)
            except Exception:
                self.claims = claims + self.claims
                raise

    def _write_progress(self, db: WorkerConnection, reports: list[RunReport]) -> None:
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
                self.writer.refused["store progress"] += 1
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
        if self.lines.fresh:
            self._write_lines(db)
        left = entries
        busy: list[BusyEnd] = []
        try:
            busy = self.writer.write(db, kind, entries)
            left = []
        except BaseException as error:
            if not is_answer(error):
                self.writer.unanswered.update(run for run, _ in entries)
            raise
        finally:
            # Report each end once, even after a failure half-way: a claim counts its jobs down, a callback starts.
            left = [entry for entry in left if entry[0] not in self.writer.reported]
            self._replace(kind, len(entries), size, left, busy)
            self.writer.unanswered -= self.writer.reported
            self.writer.reported.clear()
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


# The size of a statement


def sizes_of(ends: Iterable[End]) -> list[int]:
    """Return how many characters each end has, as far as they may be many."""
    return [
        len(end.result or end.columns) if end.failure is None else len(end.failure.traceback) + len(end.failure.message)
        for end in ends
    ]


def fitting(ids: Sequence[int], sizes: Sequence[int], limit: int) -> int:
    """Return how many of the first ends fit a statement: up to the one that passes ``limit``, before a job's second."""
    if len(set(ids)) == len(ids) and sum(sizes) <= limit:
        return len(ids)
    seen: set[int] = set()
    size = 0
    for job_id, more in zip(ids, sizes, strict=True):
        if job_id in seen or size > limit:
            break
        seen.add(job_id)
        size += more
    return len(seen)
