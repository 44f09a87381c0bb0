"""Writes batches of ends, each under its fence, and resolves those that were not recorded.

If a write matches no row, the row is read: *busy* is tried again, *done* was recorded by an earlier try whose answer
was lost, *cancelled* in the meantime becomes a cancel, *lost* is dropped and reported. An end that was never sent
before cannot be *done*, regardless of the row. A missing row proves nothing: our own try deleted it if the answer to
one was lost, else another worker that has run the job since.

Successes and deletes go by a *fast* statement, which does not look at locks before it writes. Where it meets a locked
row it waits 50 ms, then the server gives up the whole batch, and the batch goes at once by the statement that skips
locked rows. As long as some row is known to be busy all their batches go by that one: no row costs its neighbours the
50 ms again.

Ends for which other jobs wait are *counted*: they go in transactions of their own, with what they release, and their
successes by the same two statements. If another session has locked a gate for 100 ms, the ends that count in it are
busy, and the writer asks for locked gates before it writes more counted ends. Jobs that begin to wait for events go in
transactions of their own, too, which lock the events. One that a sender has locked keeps those who wait for it busy,
and the others wait for it once: 50 ms.

Ends of atomic jobs may be in doubt: the job's own transaction has written another one, perhaps, and committed it. An
executor died while such a job ran, or the connection was lost at its COMMIT. What the worker decided about the
attempt holds only if nothing was committed. The row is therefore read first, and locked: while the transaction may
still commit it has the row locked, and the end is tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Failure
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.ends.kinds import COUNTED, DELETE, EndKind, EndTerms, RowsLocked, is_strict
from django_pgjobs.execution import events
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.payload import unstored
from django_pgjobs.serialization.references import is_unstored
from django_pgjobs.states import BODY, Cause
from django_pgjobs.store import atomic, finalising, notifying
from django_pgjobs.store.database import Database, is_data_trouble
from django_pgjobs.store.finalising import Author, End, FenceReading
from django_pgjobs.store.notifying import Notification
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.threads import locked_ends
from django_pgjobs.worker.threads.busy_ends import BusyEnd, BusyEnds, RunEnd
from django_pgjobs.worker.threads.inbox_messages import RefusedEnd, RefusedEnds, Stored, StoredEnd
from django_pgjobs.worker.threads.loop import Posts


@dataclass
class Doubts:
    """Entries by what their rows show. ``committed``: kind → ends that the jobs wrote; ``open``: they wrote none."""

    committed: dict[EndKind, list[tuple[HeldRun, End, None]]] = field(default_factory=dict)
    open: list[RunEnd] = field(default_factory=list)
    locked: list[RunEnd] = field(default_factory=list)
    lost: list[RefusedEnd] = field(default_factory=list)


def settle(db: Database, action: str, entries: list[RunEnd]) -> Doubts:
    """Read what became of these jobs. Those found out are in doubt no more; ``action``: what was to be written."""
    fences = [run.fence for run, _ in entries]
    found = atomic.settle_doubts(db, fences)
    locked = [fence for fence in fences if fence[0] not in found]
    readings = finalising.read_fences(db, locked) if locked else {}
    doubts = Doubts()
    for run, end in entries:
        now = found.get(end.id)
        if now is None:
            reading = readings.get(end.id)
            if reading is not None and reading.ours:
                doubts.locked.append((run, end))
                continue
            doubts.lost.append((run, action, finalise.refusal(reading)))
        elif now.committed:
            log.info("end in doubt was committed by the job's own transaction %s", run.job.facts)
            kind, own = finalise.atomic_end_of(decide.Committed(now.marked, now.stepped), *run.fence, end.seconds)
            doubts.committed.setdefault(kind, []).append((run, own, None))
        else:
            doubts.open.append((run, end))
        run.in_doubt = False
    return doubts


class EndWriter:
    """Writes ends, and posts the outcome. Calls ``freed`` when a job that may have a limit has ended.

    ``may_wait``: for locked rows, as the server's ``deadlock_timeout`` is long enough. ``skips_locked``: some row is
    known to be locked, so that no statement waits for one. ``remembers``: some job has had an idempotency key.
    ``reported``: runs whose ends have been posted; ``unanswered``: those that a try without an answer may have written.
    """

    def __init__(self, author: Author, inbox: Posts, busy: BusyEnds, freed: Callable[[], None] | None) -> None:
        self.author = author
        self.inbox = inbox
        self.busy = busy
        self.freed = freed
        self.may_wait = True
        self.skips_locked = False
        self.remembers = False
        self.notifies = get_conf().notify
        self.refused: Counter[str] = Counter()
        self.reported: set[HeldRun] = set()
        self.unanswered: set[HeldRun] = set()

    def write(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]:
        """Write entries of one kind, bisecting to isolate one that cannot be stored; return the busy ones."""
        if not kind.fast and any(run.in_doubt for run, _ in entries):
            return self._settle(db, kind, entries)
        if kind.fast and self.remembers:
            keyed = [entry for entry in entries if entry[0].remembers]
            others = [entry for entry in entries if not entry[0].remembers]
            if keyed and others:  # only those without a key have a fast statement
                return self.write(db, kind, others) + self.write(db, kind, keyed)
        if kind is COUNTED and self.busy.has_gates:  # to wait for them each time would keep all ends waiting
            entries, busy = locked_ends.split_known(self.busy, db, entries)
            return busy + (self.write_free(db, kind, entries) if entries else [])
        return self.write_free(db, kind, entries)

    def write_free(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]:
        """Write entries of which no lock is known that keeps them from being written."""
        try:
            recorded = self._record(db, kind, entries)
        except (psycopg.Error, UnicodeError) as error:
            way_round = locked_ends.WAYS_ROUND.get(kind)
            if way_round is not None and (busy := way_round(self, db, entries, error)) is not None:
                return busy
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

    def _report_stored(self, kind: EndKind, stored: Sequence[StoredEnd]) -> None:
        if self.freed is not None and any(run.job.extras for run, _, _ in stored):
            self.freed()  # of its limit's slot, if it has a limit; a needless wake-up costs little
        self.reported.update([run for run, _, _ in stored])
        if not kind.mixed:
            self.inbox.post(Stored(kind, stored))
            return
        for kept, some in locked_ends.by_kept(stored):
            self.inbox.post(Stored(kept, some))

    def _report_lost(self, lost: list[RefusedEnd]) -> None:
        self.reported.update(run for run, _, _ in lost)
        self.refused.update(action for _, action, _ in lost)
        self.inbox.post(RefusedEnds(lost))

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
        return [BusyEnd(kind, entry) for entry in doubts.locked] + (self.write(db, kind, left) if left else [])

    def _record(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> dict[int, object]:
        """Write entries of one kind by their statement, the fast one where there is one and it need not wait long."""
        # Checked for each job only once this worker has seen one with an idempotency key.
        remember = self.remembers and any(run.remembers for run, _ in entries)
        ends = [end for _, end in entries]
        waits = self.may_wait and not self.skips_locked
        terms = EndTerms(self.author, remember, hurried=True, waits=waits, notify=self._notify)
        try:
            return kinds.write(db, kind, ends, terms)
        except RowsLocked as locked:
            log.debug("a row of a batch is locked, the others are ended without it: %s", one_line(locked.error))
        self.skips_locked = True
        return kinds.write(db, kind, ends, replace(terms, waits=False))

    def _notify(self, db: Database, notices: Iterable[Notification]) -> None:
        if self.notifies:
            notifying.notify(db, notices)

    def _bisect(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd], error: Exception) -> list[BusyEnd]:
        if len(entries) > 1:
            return locked_ends.halve(self, db, kind, entries)
        run, end = entries[0]
        reason = one_line(error)
        if end.result is not None and not is_unstored(end.result) and not is_strict(run.job.name):
            events.result_dropped(run.job.name, end.id, reason)
            marked = End(end.id, end.claim_id, end.seconds, result=unstored(reason), outcome=end.outcome)
            return self.write(db, kind, [(run, marked)])
        log.error("end cannot be stored as it is job=%d kind=%s: %s", end.id, kind, reason)
        failure = Failure("django_pgjobs.exceptions.UnstorableResult", f"The end of the job cannot be stored: {reason}")
        if end.failure is not None and end.failure.kind == failure.kind:
            self._report_lost([(run, kind.verb, f"it cannot be stored: {reason}")])
            return []
        decision = decide.Abandoned("unstorable", failure)
        other, plain = finalise.end_of(decision, end.id, end.claim_id, run.job.name, end.seconds)
        return self.write(db, other, [(run, plain)])

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
                other, cancel = finalise.cancel_instead(end, run.job.name)
                busy += self.write(db, other, [(run, cancel)])
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
            busy += self.write(db, COUNTED, counted)
        return busy + locked_ends.keep(self, db, left)


def _by_us(now: FenceReading | None, run: HeldRun, end: End) -> bool:
    """Return whether the row is as our own statement leaves it, and not as a rescue under our claim does."""
    if now is None:
        return True
    if now.ours:
        return run.kind != BODY or now.recorded != Cause.LOST
    return end.cause is not None and now.recorded == end.cause
