"""An operator's actions on jobs: cancel, retry, abandon, release, reschedule.

An action waits for row locks, up to ``LOCK_SECONDS``, and reports a job that stays locked as *busy*. It never
overwrites a claimed job: it writes a request, and the job's worker acts on it under the fence. Each action may
therefore be repeated, and may race with claim, end and rescue. The ORM picks and locks the rows, since this path is not
hot; ``store`` writes them. A job may change between picking and locking: the action checks the filter and the job's
state again under the lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import OperationalError, models
from django.db.models import F, Q
from django.db.models.lookups import GreaterThan

from django_pgjobs import waking
from django_pgjobs.conf import get_conf
from django_pgjobs.definition import queue_names, validation
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import facts, listed, safe_logger
from django_pgjobs.states import CANCEL_MEMBERS, OTHERS, TIRELESS, UNDO, WAKE, CancelMode, FlowFlag, Hold, Outcome
from django_pgjobs.steering import reopening
from django_pgjobs.steering.key_conflicts import KeyedWrite
from django_pgjobs.steering.trail import Trail, signed, storable
from django_pgjobs.store import acting, gates, memos, steering
from django_pgjobs.store.batches import cancel_members, list_running_members
from django_pgjobs.store.database import Database, on, set_lock_timeout
from django_pgjobs.store.finished import send_finished
from django_pgjobs.store.notifying import wake_up
from django_pgjobs.store.numbers import count_ends
from django_pgjobs.store.sqlstates import LOCK_NOT_AVAILABLE, sqlstate_of
from django_pgjobs.store.steering import EndedJob, Moved
from django_pgjobs.store.transactions import at_read_committed
from django_pgjobs.values.built_in import Act, is_built_in, refusal, refused
from django_pgjobs.values.invalid_option import InvalidOption

log = safe_logger("django_pgjobs")

BATCH = 1000
LOCK_SECONDS = 5

MOST_CHARS = 200
"""Characters of a queue's name in the numbers over time."""


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


class Destination(NamedTuple):
    """Destination to which ``reschedule`` moves jobs; None leaves a value as it is. ``delay`` is in seconds."""

    run_at: datetime | None = None
    delay: float | None = None
    queue: str | None = None
    priority: int | None = None

    def words(self) -> str:
        """Return the target as *key=value* text."""
        said = [f"run_at={self.run_at.isoformat()}"] if self.run_at is not None else []
        said += [f"delay={self.delay:g}"] if self.delay is not None else []
        said += [f"queue={self.queue}"] if self.queue is not None else []
        return " ".join([*said, f"priority={self.priority}"] if self.priority is not None else said)


UNFINISHED = Q(finished_at=None)
UNCLAIMED = UNFINISHED & Q(claim_id=None)
CLAIMED = UNFINISHED & Q(claim_id__isnull=False)
WAITING = UNCLAIMED & Q(hold=Hold.WAITING)
SUSPENDED = UNCLAIMED & Q(ending=None) & Q(GreaterThan(F("flow").bitand(FlowFlag.REMEMBERS.value), 0))
RETRIABLE = Q(outcome__in=[Outcome.ABANDONED, Outcome.CANCELLED]) | Q(hold=Hold.PARKED)
"""The jobs that an action may change, by conditions on the row's own columns only: PostgreSQL checks these again after
it waited for a lock, and locks no other row."""

UNDONE = "undone"
"""The reason for not retrying a job whose undo has begun: what it remembers is not so any more."""

CHANGED = "changed"
"""The reason for skipping a job that no longer matched the filter when its row was locked."""

Write = Callable[[Database, Sequence[int]], list[int]]


def cancel(jobs: models.QuerySet[Any], using: str, *, mode: str, by: object, reason: str) -> Steered:
    """Cancel: see ``JobQuerySet.cancel``."""
    if mode not in list(CancelMode):
        raise ValueError(f"cancel(mode=…) takes {', '.join(repr(str(m)) for m in CancelMode)}, not {mode!r}")
    author, words = storable(who(by)), storable(reason)
    batches: list[int] = []
    all_changed: list[int] = []

    def write(db: Database, held: Sequence[int]) -> list[int]:
        callbacks = _names_with("on_cancel_func")
        changed = steering.cancel_jobs(db, held, mode=mode, by=author, reason=words, with_callback=callbacks)
        waking.notify(using, changed.notices)
        waking.notify(using, cancel_members(using, changed.gathering, mode=mode, by=author, reason=words))
        _count(db, changed.ended)
        send_finished(using, changed.ended, registry.find)
        batches.extend(batch.id for batch in changed.gathering)
        all_changed.extend(changed.ids)
        return changed.ids

    trail = Trail("cancel", who(by), reason, mode=mode)
    steered = _logged(trail, _steer(jobs, using, Act.CANCEL, UNFINISHED, write, trail))
    if gathered := memos.list_gathered(on(using), all_changed):
        cancel(jobs.model._base_manager.filter(pk__in=gathered), using, mode=mode, by=by, reason=reason)
    # Those that run may take all threads: the job that cancels the others would wait for them.
    if batches and (running := list_running_members(on(using), batches)):
        cancel(jobs.model._base_manager.filter(pk__in=running), using, mode=mode, by=by, reason=reason)
    return steered


def abandon(jobs: models.QuerySet[Any], using: str, *, by: object, reason: str) -> Steered:
    """Abandon: see ``JobQuerySet.abandon``."""
    text = storable(f"Abandoned by {who(by)}" if by else "Abandoned by an operator")
    text = f"{text}: {storable(reason)}" if reason else text

    def write(db: Database, held: Sequence[int]) -> list[int]:
        callbacks = _names_with("on_abandon_func")
        changed = steering.abandon_jobs(db, held, reason=text, with_callback=callbacks)
        cancels = memos.cancel_gathered(db, [job.id for job in changed.ended])
        waking.notify(using, [*changed.notices, *(wake_up(one.queue, one.priority) for one in cancels)])
        _count(db, changed.ended)
        send_finished(using, changed.ended, registry.find)
        return changed.ids

    trail = Trail("abandon", who(by), reason)
    return _logged(trail, _steer(jobs, using, Act.ABANDON, UNCLAIMED, write, trail))


def _count(db: Database, jobs: Sequence[EndedJob]) -> None:
    """Add these ends to the numbers over time, as no worker has; names and queues within the bounds of theirs."""
    ends: Counter[tuple[str, str, str]] = Counter()
    for job in jobs:
        queue = job.queue if len(job.queue) <= MOST_CHARS and job.queue.isprintable() else OTHERS
        ends[queue, job.name if registry.find(job.name) else OTHERS, job.outcome] += 1
    if ends:
        count_ends(db, ends)


def retry(jobs: models.QuerySet[Any], using: str, *, by: object, reason: str) -> Steered:
    """Retry: see ``JobQuerySet.retry``."""

    def write(db: Database, held: Sequence[int]) -> Moved:
        attempts = {name: registry.get(name).max_attempts for name in registry.names()}
        attempts |= dict.fromkeys((UNDO, WAKE, CANCEL_MEMBERS), TIRELESS)
        most = get_conf().default_max_attempts
        return reopening.retry(
            db,
            held,
            lambda ids: steering.retry_jobs(db, ids, attempts=attempts, default_attempts=most),
            lambda undone: keyed.refused.update(dict.fromkeys(undone, UNDONE)),
        )

    keyed = KeyedWrite(using, write)
    trail = Trail("retry", who(by), reason)
    return _logged(trail, _steer(jobs, using, Act.RETRY, RETRIABLE, keyed, trail))


def release(jobs: models.QuerySet[Any], using: str, *, by: object, reason: str, force: bool = False) -> Steered:
    """Release: see ``JobQuerySet.release``."""
    if force:
        trail = Trail("release", who(by), reason, mode="force")
        keyed = KeyedWrite(using, _open_by_force)
        return _logged(trail, _steer(jobs, using, Act.LET_GO_ON, WAITING | SUSPENDED, keyed, trail))
    trail = Trail("release", who(by), reason)
    return _logged(trail, _steer(jobs, using, Act.RELEASE, CLAIMED, steering.request_release, trail))


def _open_by_force(db: Database, held: Sequence[int]) -> Moved:
    # A batch that was let proceed takes no more members.
    opened = gates.open_gates(db, held, force=True, close=True)
    woken = memos.wake_suspended(db, held)
    notices = gates.notices_of(opened) | {wake_up(job.queue, job.priority) for job in woken if job.queue is not None}
    return Moved([*(job.id for job in opened), *(job.id for job in woken)], [], list(notices))


def close_batches(jobs: models.QuerySet[Any], using: str, *, by: object, reason: str) -> Steered:
    """Let those of ``jobs`` that are batches, open for members, end when the members that they have do. Repeatable.

    Waits for row locks as the other actions do. Jobs that are no open batches are skipped.
    """
    trail = Trail("close", who(by), reason)
    return _logged(trail, _steer(jobs, using, Act.CLOSE, WAITING, KeyedWrite(using, _close), trail))


def _close(db: Database, held: Sequence[int]) -> Moved:
    found = gates.lock_open_batches(db, held)
    return Moved(found, [], list(gates.notices_of(gates.open_gates(db, found, close=True, locked=True))))


def reschedule(
    jobs: models.QuerySet[Any],
    using: str,
    *,
    run_at: datetime | None,
    delay: float | timedelta | None,
    queue: str | None,
    priority: int | None,
    by: object,
    reason: str,
) -> Steered:
    """Reschedule: see ``JobQuerySet.reschedule``."""
    to = _checked_target(run_at, delay, queue, priority)
    limited = to.queue is not None and get_conf().queue_limits.of(to.queue) is not None

    def write(db: Database, held: Sequence[int]) -> Moved:
        return steering.reschedule_jobs(
            db, held, run_at=to.run_at, delay_seconds=to.delay, queue=to.queue, priority=to.priority, limited=limited
        )

    trail = Trail("reschedule", who(by), reason, mode=to.words())
    return _logged(trail, _steer(jobs, using, Act.RESCHEDULE, UNCLAIMED, KeyedWrite(using, write), trail))


def revert(
    using: str, action_id: int, parts: Mapping[int, models.QuerySet[Any]], *, verb: str, by: object, reason: str
) -> Steered:
    """Put the jobs of an action back where it found them: those that are still where it has put them.

    ``parts``: the number of each part → its jobs. ``verb``: that of the action, ``retry`` or ``reschedule``. The undo
    of a move is a move too; that of a retry ends jobs as they had ended, and calls nothing.
    """
    act, own = (Act.RESCHEDULE, verb) if verb == "reschedule" else (Act.ABANDON, "revert")
    trail, done = Trail(own, who(by), reason), Steered()
    for part, jobs in parts.items():
        done += _steer(jobs, using, act, UNCLAIMED, _reverting(using, action_id, part), trail)
    trail.skip(on(using), done.skipped)
    return _logged(trail, done)


def _reverting(using: str, action_id: int, part: int) -> KeyedWrite:
    def write(db: Database, held: Sequence[int]) -> Moved:
        judged = acting.judge_former(db, action_id, part)
        keyed.refused.update({job_id: judged[job_id] for job_id in held if judged[job_id]})
        return acting.revert_jobs(db, action_id, part, [job_id for job_id in held if not judged[job_id]])

    keyed = KeyedWrite(using, write)
    return keyed


def _checked_target(run_at: object, delay: object, queue: object, priority: object) -> Destination:
    """Return the target, checked by the rules of a registration. Raises ``InvalidJob``."""
    try:
        target = Destination(
            None if run_at is None else validation.check_run_at(run_at),
            None if delay is None else validation.seconds("delay", delay),
            None if queue is None else validation.check_queue(queue),
            None if priority is None else validation.check_int("priority", priority, validation.PRIORITIES),
        )
        validation.check_start(target.run_at, target.delay, get_conf())
        if target.queue is not None:
            validation.check_allowed_queue(target.queue, get_conf().queues)
            queue_names.notice(target.queue, facts("call=reschedule"), get_conf())
    except InvalidOption as error:
        raise InvalidJob(str(error)) from None
    if target == Destination():
        raise InvalidJob("reschedule() needs run_at, delay, queue or priority.")
    return target


def who(by: object) -> str:
    """Return the author of an action as text: ``accounts.User:42 anna`` for a user; text stays text."""
    if by is None or isinstance(by, str):
        return by or ""
    meta = getattr(by, "_meta", None)
    key = getattr(by, "pk", None)
    return f"{meta.label}:{key} {by}" if meta is not None else str(by)


def _logged(trail: Trail, steered: Steered) -> Steered:
    """Log who did what, and why; return ``steered``."""
    words = signed(trail.by, trail.reason)
    # The sentence for a job of this package's own is for the caller: its name will do here.
    reasons = ((why.partition(" ")[0] if is_built_in(why) else why, count) for why, count in steered.skipped.items())
    skipped = listed(f"{why}:{count}" for why, count in reasons)
    log.info("operator's %s changed=%d skipped=%s %s", trail.verb, steered.changed, skipped, words)
    return steered


def _names_with(callback: str) -> list[str]:
    return [name for name in registry.names() if getattr(registry.get(name), callback) is not None]


@dataclass(slots=True)
class _Batch:
    """Jobs to steer together: ``meant`` are all of them; a job in no other set could not be locked."""

    jobs: models.QuerySet[Any]
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

    def _rows(self, ids: Sequence[int]) -> Any:
        rows: Any = self.jobs.model._base_manager.using(self.using)
        return rows.filter(self.eligible, pk__in=ids)

    def _still_asked_for(self, ids: Sequence[int]) -> set[int]:
        if not ids:
            return set()
        found: Any = self.jobs.using(self.using)
        if found.query.combinator:
            found = self.jobs.model._base_manager.using(self.using).filter(pk__in=found.values("pk"))
        # Drop a slice but keep its filter: which rows are the first ten may differ by now.
        found.query.clear_limits()
        found.query.distinct, found.query.distinct_fields = False, ()
        return set(found.filter(pk__in=ids).order_by().values_list("pk", flat=True))


def _steer(jobs: models.QuerySet[Any], using: str, act: Act, eligible: Q, write: Write, trail: Trail) -> Steered:
    with at_read_committed(using):
        ids = sorted(set(jobs.using(using).values_list("pk", flat=True)))
    done = Steered()
    for start in range(0, len(ids), BATCH):
        meant = ids[start : start + BATCH]
        built_in = _refused(jobs, using, meant, act)
        done += Steered(0, dict(Counter(built_in.values())))
        _resolve_names(jobs, using, meant)
        done += _steer_batch(_Batch(jobs, using, eligible, write, trail, set(meant) - built_in.keys()))
    trail.skip(on(using), done.skipped)
    return done


def _refused(jobs: models.QuerySet[Any], using: str, ids: Sequence[int], act: Act) -> dict[int, str]:
    """Return those of these jobs that are this package's own and do not take ``act``, and why."""
    rows: Any = jobs.model._base_manager.using(using)
    found = rows.filter(pk__in=ids, name__in=refused(act)).values_list("pk", "name", "hold")
    with at_read_committed(using):
        reasons = {job_id: refusal(name, act, parked=hold == Hold.PARKED) for job_id, name, hold in found}
    return {job_id: reason for job_id, reason in reasons.items() if reason}


def _resolve_names(jobs: models.QuerySet[Any], using: str, ids: Sequence[int]) -> None:
    """Make the names of these jobs known, before any row is locked: only their definitions know their callbacks."""
    if not registry.may_find_more:
        return
    rows: Any = jobs.model._base_manager.using(using)
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
