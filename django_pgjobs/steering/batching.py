"""Writes an action on jobs in batches: picks the rows, locks them, checks them again, and counts those left out.

Jobs whose key another job has taken, or whose gate stays locked, are skipped and reported. The statements look for such
a holder themselves. If one is registered while they run, the whole statement fails at the unique index; so it does at a
gate that stays locked. Then the batch is halved, each half in a savepoint, until the conflicting job stands alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, OperationalError, models, transaction
from django.db.models import Q

from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import listed, log
from django_pgjobs.states import Hold
from django_pgjobs.steering.trail import Trail, signed
from django_pgjobs.store import acting, steering, waking
from django_pgjobs.store.database import (
    DEADLOCK,
    LOCK_NOT_AVAILABLE,
    UNIQUE_VIOLATION,
    Database,
    at_read_committed,
    on,
    set_lock_timeout,
    sqlstate_of,
)
from django_pgjobs.store.steering import Moved
from django_pgjobs.values.built_in import Act, is_built_in, refusal, refused

TAKEN = "key taken"
BUSY = "busy"

SHORT_LOCK_TIMEOUT = "100ms"
"""Time to wait for another uncommitted job with the same key, after the wait for the first one timed out."""

MOST_WAITS = 30
"""After so many waits in vain the rest of a batch counts as busy: one locked gate may concern all of its jobs."""


@dataclass(slots=True)
class KeyedWrite:
    """Writes a batch, and records in ``refused`` why it did not write some jobs: id → reason."""

    using: str
    write: Callable[[Database, Sequence[int]], Moved]
    refused: dict[int, str] = field(default_factory=dict)
    waits: int = 0

    def __call__(self, db: Database, ids: Sequence[int]) -> list[int]:
        """Write the jobs of a batch whose key is free, within the caller's transaction; return them."""
        try:
            with transaction.atomic(using=self.using):
                moved = self.write(db, ids)
                waking.notify(self.using, moved.notices)
        except DatabaseError as error:
            reason = self._reason(db, error)
            if reason is None:
                raise
            return self._halves(db, ids, reason)
        self.refused.update(dict.fromkeys(moved.taken, TAKEN))
        return moved.changed

    def _reason(self, db: Database, error: DatabaseError) -> str | None:
        """Return the reason if one job's key kept the batch from being written, else None."""
        state = sqlstate_of(error)
        if state in (LOCK_NOT_AVAILABLE, DEADLOCK):
            set_lock_timeout(db, SHORT_LOCK_TIMEOUT)
            self.waits += 1
            return BUSY
        return TAKEN if state == UNIQUE_VIOLATION else None

    def _halves(self, db: Database, ids: Sequence[int], reason: str) -> list[int]:
        if len(ids) == 1 or (reason == BUSY and self.waits >= MOST_WAITS):
            self.refused.update(dict.fromkeys(ids, reason))
            return []
        half = len(ids) // 2
        return self(db, ids[:half]) + self(db, ids[half:])


BATCH = 1000

LOCK_SECONDS = 5

Write = Callable[[Database, Sequence[int]], list[int]]
"""Writes locked rows; returns the ids of those that it changed."""


@dataclass(frozen=True, slots=True)
class Steered:
    """The result of an operator's action: how many jobs it changed, and why it skipped others (reason → number).

    The reason for one of this package's own jobs is the sentence that says what to do instead.
    """

    changed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Steered) -> Steered:
        skipped = dict(self.skipped)
        for reason, number in other.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + number
        return Steered(self.changed + other.changed, skipped)


CHANGED = "changed"
"""The reason for skipping a job that no longer matched the filter when its row was locked."""


def who(by: object) -> str:
    """Return the author of an action as text: ``accounts.User:42 anna`` for a user; text stays text."""
    if by is None or isinstance(by, str):
        return by or ""
    meta = getattr(by, "_meta", None)
    key = getattr(by, "pk", None)
    return f"{meta.label}:{key} {by}" if meta is not None else str(by)


def logged(trail: Trail, steered: Steered) -> Steered:
    """Log who did what, and why; return ``steered``."""
    words = signed(trail.by, trail.reason)
    # The sentence for a job of this package's own is for the caller: its name will do here.
    reasons = ((why.partition(" ")[0] if is_built_in(why) else why, count) for why, count in steered.skipped.items())
    skipped = listed(f"{why}:{count}" for why, count in reasons)
    log.info("operator's %s changed=%d skipped=%s %s", trail.verb, steered.changed, skipped, words)
    return steered


@dataclass(slots=True)
class _Batch:
    """Jobs to steer together: ``meant`` are all of them; a job in no other set could not be locked."""

    jobs: models.QuerySet[models.Model]
    using: str
    eligible: Q
    write: Write
    trail: Trail
    meant: set[int]
    changed: set[int] = field(default_factory=set)
    locked: set[int] = field(default_factory=set)
    strayed: set[int] = field(default_factory=set)

    def go(self, *, wait: bool) -> None:
        """Lock the rows that are left, in id order, and write them, in one transaction.

        With ``wait`` it blocks for up to ``LOCK_SECONDS``, then raises ``OperationalError``; else it skips locked rows.
        """
        left = sorted(self.meant - self.locked)
        with at_read_committed(self.using), _lock_timeout(self.using):
            rows = self._rows(left).select_for_update(skip_locked=not wait, no_key=True).order_by("pk")
            locked = list(rows.values_list("pk", flat=True))
            # In a statement of its own: it sees every change made before the locks, with any joins of the filter.
            asked = self._still_asked_for(locked)
            held = [job for job in locked if job in asked]
            db = on(self.using)
            before = acting.read_former(db, held) if held and self.trail.is_reversible else {}
            changed = self.write(db, held) if held else []
            former = acting.former_of(before, acting.read_former(db, changed)) if before and changed else None
            self.trail.add(db, len(changed), changed, former)
        self.locked.update(locked)
        self.strayed.update(set(locked) - asked)
        self.changed.update(changed)

    def busy(self) -> set[int]:
        """Return the jobs that the action could write if no other session held their rows."""
        return set(self._rows(sorted(self.meant - self.locked)).values_list("pk", flat=True))

    def _rows(self, ids: Sequence[int]) -> models.QuerySet[models.Model]:
        rows = self.jobs.model._base_manager.using(self.using)
        return rows.filter(self.eligible, pk__in=ids)

    def _still_asked_for(self, ids: Sequence[int]) -> set[int]:
        if not ids:
            return set()
        found = self.jobs.using(self.using)
        if found.query.combinator:
            found = self.jobs.model._base_manager.using(self.using).filter(pk__in=found.values("pk"))
        # Drop a slice but keep its filter: which rows are the first ten may differ by now.
        found.query.clear_limits()
        found.query.distinct, found.query.distinct_fields = False, ()
        return set(found.filter(pk__in=ids).order_by().values_list("pk", flat=True))


def steer(
    jobs: models.QuerySet[models.Model],
    using: str,
    act: Act,
    eligible: Q,
    write: Write,
    trail: Trail,
    after: Callable[[], None] | None = None,
) -> Steered:
    """Write all of ``jobs`` in batches, each in a transaction of its own; call ``after`` behind each."""
    with at_read_committed(using):
        ids = sorted(set(jobs.using(using).values_list("pk", flat=True)))
    done = Steered()
    for start in range(0, len(ids), BATCH):
        meant = ids[start : start + BATCH]
        built_in = _refused(jobs, using, meant, act)
        done += Steered(0, dict(Counter(built_in.values())))
        _resolve_names(jobs, using, meant)
        done += _steer_batch(_Batch(jobs, using, eligible, write, trail, set(meant) - built_in.keys()))
        if after is not None:
            after()
    trail.skip(on(using), done.skipped)
    return done


def _refused(jobs: models.QuerySet[models.Model], using: str, ids: Sequence[int], act: Act) -> dict[int, str]:
    """Return those of these jobs that are this package's own and do not take ``act``, and why."""
    rows = jobs.model._base_manager.using(using)
    found = rows.filter(pk__in=ids, name__in=refused(act)).values_list("pk", "name", "hold")
    with at_read_committed(using):
        reasons = {job_id: refusal(name, act, parked=hold == Hold.PARKED) for job_id, name, hold in found}
    return {job_id: reason for job_id, reason in reasons.items() if reason}


def _resolve_names(jobs: models.QuerySet[models.Model], using: str, ids: Sequence[int]) -> None:
    """Make the names of these jobs known, before any row is locked: only their definitions know their callbacks."""
    if not registry.may_find_more:
        return
    rows = jobs.model._base_manager.using(using)
    with at_read_committed(using):
        missing = rows.filter(pk__in=ids).exclude(name__in=registry.names()).values_list("name", flat=True)
        names = set(missing.distinct().order_by())
    for name in names:
        registry.resolved(name)


def _steer_batch(batch: _Batch) -> Steered:
    """Write the rows that can be locked at once, wait for the rest, report those that stay locked as busy."""
    batch.go(wait=False)
    busy: set[int] = set()
    if batch.meant - batch.locked:
        try:
            batch.go(wait=True)
        except OperationalError as error:
            if sqlstate_of(error) != LOCK_NOT_AVAILABLE:
                raise
            # One row that stays locked fails the wait for all of them; the last try takes those released since.
            batch.go(wait=False)
            with at_read_committed(batch.using):
                busy = batch.busy()
    reasons = dict.fromkeys(busy, "busy") | dict.fromkeys(batch.strayed, CHANGED)
    reasons |= batch.write.refused if isinstance(batch.write, KeyedWrite) else {}
    return Steered(len(batch.changed), _skipped(batch.using, batch.meant - batch.changed, reasons))


def _skipped(using: str, ids: set[int], reasons: Mapping[int, str]) -> dict[str, int]:
    """Return why ``ids`` were not changed: reason → number. A job without a reason counts under its state."""
    if not ids:
        return {}
    with at_read_committed(using):
        states = steering.read_states(on(using), sorted(ids))
    skipped: dict[str, int] = {}
    for job_id in ids:
        state, ending = states.get(job_id, ("unknown", False))
        if job_id in states:
            state = reasons.get(job_id, "ending" if ending and state == "ready" else state)
        skipped[state] = skipped.get(state, 0) + 1
    return skipped


class _lock_timeout:
    """Bound the lock waits of the open transaction, and restore the setting: the caller's transaction may continue."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.before = ""

    def __enter__(self) -> None:
        self.before = set_lock_timeout(on(self.using), f"{LOCK_SECONDS}s")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            set_lock_timeout(on(self.using), self.before)
