"""Take the jobs that wait in another queue of the same database, and return those that no worker has started.

Each batch is one transaction: it locks the rows there, registers the jobs here, marks or deletes the rows, and notes
which job each has become. A process that dies has therefore done all of a batch or nothing of it, and the next run
continues. Two more facts keep a job from coming twice: the other queue's worker leaves out locked rows, as this does,
and the notes are unique by source and id.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db import transaction

from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.importing.judging import Judged, judge
from django_pgjobs.importing.recurring import SCHEDULERS, OtherScheduler
from django_pgjobs.importing.sources import BEHIND, SOURCES, OtherQueue, Waiting, waiting_of
from django_pgjobs.logs import log
from django_pgjobs.models import CronEntry
from django_pgjobs.registering.register import register_all_fresh
from django_pgjobs.steering.batching import LOCK_SECONDS
from django_pgjobs.store import importing, waking
from django_pgjobs.store.database import (
    Database,
    Params,
    Rows,
    at_read_committed,
    on,
    opens_transaction,
    set_lock_timeout,
)
from django_pgjobs.store.importing import Imported
from django_pgjobs.store.steering import read_states

BATCH = 1000

BUSY = "is locked there, or has come since: run the command again"


class Fate(NamedTuple):
    """The fate of one job of another queue, done or expected: the job here, or why it is left.

    ``id``: its id there. ``differences``: what is not as it was there.
    """

    id: str
    name: str
    job_id: int | None = None
    differences: Sequence[str] = ()
    reason: str = ""

    @property
    def is_left(self) -> bool:
        """True if it stays where it is."""
        return bool(self.reason)


def fate_of(found: Waiting, said: Judged, job_id: int | None = None) -> Fate:
    """Return the fate of a job that was judged so, and registered if there is an id."""
    return Fate(found.id, found.name, job_id, said.differences, said.reason)


@dataclass(slots=True)
class ImportTally:
    """Numbers of jobs that a run has taken, with a difference among them, and left."""

    run: str = ""
    taken: int = 0
    different: int = 0
    left: int = 0

    def add(self, fates: Sequence[Fate]) -> None:
        """Count these."""
        self.left += sum(fate.is_left for fate in fates)
        self.taken += sum(not fate.is_left for fate in fates)
        self.different += sum(bool(fate.differences) and not fate.is_left for fate in fates)


ReportFates = Callable[[Sequence[Fate]], None]
"""Reports jobs whose transaction is committed."""


def check_commits(using: str) -> None:
    """Raise ``InvalidJob`` inside a transaction."""
    if not opens_transaction(using):
        raise InvalidJob("An import commits as it goes: not inside a transaction.")


def take(source: OtherQueue, using: str, *, apply: bool, report: ReportFates) -> ImportTally:
    """Take all that waits in ``source``, late arrivals included; without ``apply`` only say what would be taken.

    Raises ``InvalidJob`` inside a transaction, and what a registration raises if a queue here is full: what was
    reported is done then, and the rest still waits there. Repeatable.
    """
    check_commits(using)
    run = secrets.token_hex(4)
    tally = ImportTally(run)
    seen: set[str] = set()
    after = source.first
    while True:
        with at_read_committed(using):
            db = on(using)
            found = _next_batch(db, source, after, lock=apply)
            after = found[-1].id if found else after
            # A worker there takes those of a higher priority first: in this order they get their places in a sequence.
            found.sort(key=lambda each: -each.priority)
            taken = _take_batch(db, source, using, found, run) if apply else _judge_batch(source, using, found)
        seen.update(fate.id for fate in taken if fate.is_left)
        tally.add(taken)
        report(taken)
        if len(taken) < BATCH:  # the end, however fast others add rows
            break
    if apply:
        for missed in _missed(source, using, seen):
            tally.add(missed)
            report(missed)
        log_import(source.name, tally)
    return tally


def log_import(source: str, tally: ImportTally) -> None:
    """Log what a run has done."""
    log.info("imported source=%s run=%s changed=%d skipped=%d", source, tally.run, tally.taken, tally.left)


def _next_batch(db: Database, source: OtherQueue, after: str, *, lock: bool) -> list[Waiting]:
    if not lock:
        return _read(db, source, after, None)
    set_lock_timeout(db, f"{LOCK_SECONDS}s")
    ids = [row[0] for row in source.tables.lock(db, {"after": after, "most": BATCH})]
    # By a statement of its own: what the lock has waited for, and left out, may have changed what the rows say.
    return _read(db, source, after, ids) if ids else []


def _judge_batch(source: OtherQueue, using: str, found: Sequence[Waiting]) -> list[Fate]:
    """Return what would become of these jobs."""
    judged = _judge_all(found, source, using)
    return [fate_of(*pair) for pair in zip(found, judged, strict=True)]


def _take_batch(db: Database, source: OtherQueue, using: str, found: Sequence[Waiting], run: str) -> list[Fate]:
    judged = _judge_all(found, source, using)
    job_ids = registered(judged, using)
    pairs = [(each.id, job_id) for each, job_id in zip(found, job_ids, strict=True) if job_id is not None]
    params = {"ids": [pair[0] for pair in pairs], "job_ids": [pair[1] for pair in pairs], "run": run}
    if pairs and len(source.tables.take(db, params)) != len(pairs):
        raise InvalidJob(f"Rows of {source.name} changed while they were locked: nothing of this batch was taken.")
    return [fate_of(*each) for each in zip(found, judged, job_ids, strict=True)]


def _judge_all(found: Sequence[Waiting], source: OtherQueue, using: str) -> list[Judged]:
    """Judge jobs in their order: what keeps an order with one that is left is left, too."""
    left: set[str] = set()
    judged: list[Judged] = []
    for each in found:
        if each.turn in left:
            each.unreadable = BEHIND
        judged.append(judge(each, source.queue, using))
        if each.turn is not None and judged[-1].row is None:
            left.add(each.turn)
    return judged


def registered(judged: list[Judged], using: str) -> list[int | None]:
    """Register the rows; return the ids, None for one that is left, whose reason is noted in its place of the list.

    Joins the caller's transaction.
    """
    job_ids: list[int | None] = [None] * len(judged)
    while wanted := [at for at, each in enumerate(judged) if each.row is not None]:
        rows = [row for at in wanted if (row := judged[at].row) is not None]
        try:
            with transaction.atomic(using=using):
                ids, fresh = register_all_fresh(rows, using, get_conf())
        except DuplicateJob as error:
            _leave(judged, [at for at in wanted if judged[at].key == (error.queue, error.key)], str(error))
            continue
        taken = set(fresh)
        for number, at in enumerate(wanted):
            if number in taken:
                job_ids[at] = ids[number]
            else:
                _leave(judged, [at], f"its key {judged[at].key[1]!r} is taken by job {ids[number]}")
        break
    return job_ids


def _leave(judged: list[Judged], places: Sequence[int], reason: str) -> None:
    if not places:
        raise InvalidJob(reason)
    for at in places:
        judged[at] = judged[at]._replace(row=None, reason=reason)


def _read(db: Database, source: OtherQueue, after: str, ids: Sequence[str] | None) -> list[Waiting]:
    rows = source.tables.read(db, {"after": after, "most": BATCH, "ids": None if ids is None else list(ids)})
    return [waiting_of(source, row) for row in rows]


def _missed(source: OtherQueue, using: str, seen: set[str]) -> Iterator[list[Fate]]:
    """Yield the jobs that still wait there and were not reported: they were locked, or have come since."""
    after = source.first
    while True:
        with at_read_committed(using):
            found = _read(on(using), source, after, None)
        if not found:
            return
        after = found[-1].id
        if missed := [
            Fate(each.id, each.name, reason=each.unreadable or BUSY) for each in found if each.id not in seen
        ]:
            yield missed


# Undo


@dataclass(slots=True)
class UndoneImport:
    """Number of jobs that an undo has returned, or would, and why it keeps the others (reason → number)."""

    returned: int = 0
    kept: dict[str, int] = field(default_factory=dict)

    def keep(self, reason: str, number: int = 1) -> None:
        """Count jobs that stay here."""
        self.kept[reason] = self.kept.get(reason, 0) + number


PutBack = Callable[[Database, Params], Rows]


def undo(
    run: str, using: str, *, apply: bool, report: Callable[[Sequence[Imported]], None], put_back: PutBack | None = None
) -> UndoneImport:
    """Return the jobs of a run that no worker has started to their queue; without ``apply`` only count them.

    ``put_back``: has those of these ids wait there again, and returns their ids; by default by the source's statement.

    A job that has started, or on which another depends, stays here. Repeatable until nothing of it is here. Raises
    ``InvalidJob`` for such a run, and inside a transaction.
    """
    check_commits(using)
    done, after = UndoneImport(), ""
    while True:
        with at_read_committed(using):
            db = on(using)
            notes = importing.list_imported(db, run, after=after, most=BATCH)
            if not notes and not after:
                raise InvalidJob(f"Nothing here is of a run {run!r}: it has another name, or all of it went back.")
            given = _return_batch(db, using, notes, run, done, put_back, apply=apply)
        done.returned += len(given)
        report(given)
        if len(notes) < BATCH:
            break
        after = notes[-1].source_id
    if apply:
        log.info("import undone run=%s changed=%d skipped=%d", run, done.returned, sum(done.kept.values()))
    return done


def _return_batch(
    db: Database,
    using: str,
    notes: Sequence[Imported],
    run: str,
    done: UndoneImport,
    put_back: PutBack | None,
    *,
    apply: bool,
) -> list[Imported]:
    set_lock_timeout(db, f"{LOCK_SECONDS}s")
    ids = [note.job_id for note in notes if note.job_id is not None]
    locked = importing.lock_imported(db, ids)
    entries = _free_entries(using, notes, done)
    waiting = [note for note in notes if note.job_id in locked or note.entry in entries]
    if started := [job_id for job_id in ids if job_id not in locked]:
        states = read_states(db, started)
        for job_id in started:
            state = states[job_id][0] if job_id in states else "gone"
            done.keep(f"{state}, started or needed" if state == "ready" else state)
    if not apply or not waiting:
        return waiting
    name = waiting[0].source
    if put_back is None:
        source: OtherQueue | OtherScheduler = SOURCES[name] if name in SOURCES else SCHEDULERS[name]
        put_back = source.tables.put_back
    back = {row[0] for row in put_back(db, {"ids": [note.source_id for note in waiting]})}
    given = [note for note in waiting if note.source_id in back]
    if given:
        if gone := [note.entry for note in given if note.entry is not None]:
            CronEntry.objects.using(using).filter(pk__in=gone).remove(by="pgjobs import")
        waking.notify(using, importing.withdraw_imported(db, given, run))
    if len(given) < len(waiting):
        done.keep(f"{name} does not take it back", len(waiting) - len(given))
    return given


def _free_entries(using: str, notes: Sequence[Imported], done: UndoneImport) -> set[str]:
    """Lock the schedules of a run, so that no leader fires them; return those that their scheduler can continue."""
    names = [note.entry for note in notes if note.entry is not None]
    if not names:
        return set()
    rows = CronEntry.objects.using(using).filter(pk__in=names, origin=CronEntry.Origin.ROW)
    locked = {entry.pk: entry for entry in rows.select_for_update().order_by("pk")}
    free: set[str] = set()
    for name in names:
        entry = locked.get(name)
        if entry is None:
            done.keep("gone")
        elif entry.max_fires is not None and entry.fires_made:
            done.keep("has fired")
        elif entry.last_fire_at is not None and entry.next_fire_at is None:
            done.keep("has fired, and does not say when it fires next")
        else:
            free.add(name)
    return free
