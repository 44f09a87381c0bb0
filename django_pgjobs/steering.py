"""What an operator may do with jobs: cancel, retry, abandon, release, reschedule.

An operator waits for row locks, up to ``LOCK_SECONDS``; a job that stays locked is reported as *busy*. A job that
a worker has claimed is never overwritten: it gets a request, and its worker acts on it under the fence. So each
of these may be repeated, and may race with claim, end and rescue. The ORM picks and locks the rows here, since
this path is not hot; ``store`` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import OperationalError, models, router, transaction
from django.utils import timezone

from django_pgjobs import store, waking
from django_pgjobs.conf import QUEUE_NAME, get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import safe_logger
from django_pgjobs.registry import registry
from django_pgjobs.states import CancelMode
from django_pgjobs.takenkeys import LOCK_NOT_AVAILABLE, KeyedWrite
from django_pgjobs.trail import Trail

if TYPE_CHECKING:
    from django_pgjobs.models import Job

log = safe_logger("django_pgjobs")

BATCH = 1000
LOCK_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Steered:
    """What an operator's action did: how many jobs it changed, and why it skipped others (reason → number)."""

    changed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Steered) -> Steered:
        skipped = dict(self.skipped)
        for reason, number in other.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + number
        return Steered(self.changed + other.changed, skipped)


Write = Callable[[store.Database, Sequence[int]], list[int]]


def cancel(jobs: type[Job], using: str, ids: Iterable[int], *, mode: str, by: object, reason: str) -> Steered:
    """Cancel: see ``JobQuerySet.cancel``."""
    if mode not in list(CancelMode):
        raise ValueError(f"cancel(mode=…) takes {', '.join(repr(str(m)) for m in CancelMode)}, not {mode!r}")
    callbacks = _names_with("on_cancel_func")

    def write(db: store.Database, held: Sequence[int]) -> list[int]:
        changed = store.cancel_jobs(db, held, mode=mode, by=who(by), reason=reason, with_callback=callbacks)
        waking.tell(using, changed.notices)
        return changed.ids

    trail = Trail("cancel", who(by), reason, mode=mode)
    return _told(trail, _steer(jobs, using, ids, write, trail))


def abandon(jobs: type[Job], using: str, ids: Iterable[int], *, by: object, reason: str) -> Steered:
    """Abandon: see ``JobQuerySet.abandon``."""
    callbacks = _names_with("on_abandon_func")
    text = f"Abandoned by {who(by)}" if by else "Abandoned by an operator"

    def write(db: store.Database, held: Sequence[int]) -> list[int]:
        words = f"{text}: {reason}" if reason else text
        changed = store.abandon_jobs(db, held, reason=words, with_callback=callbacks)
        waking.tell(using, changed.notices)
        return changed.ids

    trail = Trail("abandon", who(by), reason)
    return _told(trail, _steer(jobs, using, ids, write, trail))


def retry(jobs: type[Job], using: str, ids: Iterable[int], *, by: object, reason: str) -> Steered:
    """Retry: see ``JobQuerySet.retry``."""
    attempts = {name: registry.get(name).max_attempts for name in registry.names()}

    def write(db: store.Database, held: Sequence[int]) -> store.Moved:
        return store.retry_jobs(db, held, attempts=attempts, default_attempts=get_conf().default_max_attempts)

    trail = Trail("retry", who(by), reason)
    return _told(trail, _steer(jobs, using, ids, KeyedWrite(using, write), trail))


def release(jobs: type[Job], using: str, ids: Iterable[int], *, by: object, reason: str) -> Steered:
    """Release: see ``JobQuerySet.release``."""
    trail = Trail("release", who(by), reason)
    return _told(trail, _steer(jobs, using, ids, store.release_wish, trail))


def reschedule(
    jobs: type[Job],
    using: str,
    ids: Iterable[int],
    *,
    run_at: datetime | None,
    delay: float | timedelta | None,
    queue: str | None,
    priority: int | None,
    by: object,
    reason: str,
) -> Steered:
    """Reschedule: see ``JobQuerySet.reschedule``."""
    seconds = _check_reschedule(run_at, delay, queue, priority)
    limited = queue is not None and get_conf().queue_limits.of(queue) is not None

    def write(db: store.Database, held: Sequence[int]) -> store.Moved:
        return store.reschedule_jobs(
            db, held, run_at=run_at, delay_seconds=seconds, queue=queue, priority=priority, limited=limited
        )

    trail = Trail("reschedule", who(by), reason, mode=_where_to(run_at, seconds, queue, priority))
    return _told(trail, _steer(jobs, using, ids, KeyedWrite(using, write), trail))


def _where_to(run_at: datetime | None, seconds: float | None, queue: str | None, priority: int | None) -> str:
    said = [f"run_at={run_at.isoformat()}"] if run_at is not None else []
    said += [f"delay={seconds:g}"] if seconds is not None else []
    said += [f"queue={queue}"] if queue is not None else []
    return " ".join([*said, f"priority={priority}"] if priority is not None else said)


def _check_reschedule(
    run_at: datetime | None, delay: float | timedelta | None, queue: str | None, priority: int | None
) -> float | None:
    if run_at is None and delay is None and queue is None and priority is None:
        raise InvalidJob("reschedule() needs run_at, delay, queue or priority.")
    if run_at is not None and delay is not None:
        raise InvalidJob("reschedule() takes run_at or delay, not both.")
    if run_at is not None and settings.USE_TZ and timezone.is_naive(run_at):
        raise InvalidJob("run_at must be an aware datetime, because USE_TZ is on.")
    if priority is not None and not -100 <= priority <= 100:
        raise InvalidJob(f"priority must be from -100 to 100, not {priority!r}.")
    if queue is not None:
        allowed = get_conf().queues
        if not QUEUE_NAME.fullmatch(queue) or (allowed is not None and queue not in allowed):
            raise InvalidJob(f"There is no queue {queue!r}.")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if seconds is not None and not 0 <= seconds < float("inf"):
        raise InvalidJob(f"delay must be a finite number of seconds ≥ 0, not {delay!r}.")
    return seconds


def who(by: object) -> str:
    """Return text for a user: ``accounts.User:42 anna``; text stays text."""
    if by is None or isinstance(by, str):
        return by or ""
    meta = getattr(by, "_meta", None)
    key = getattr(by, "pk", None)
    return f"{meta.label}:{key} {by}" if meta is not None else str(by)


def _told(trail: Trail, steered: Steered) -> Steered:
    """Log who did what, and why."""
    words = " ".join(f"by={trail.by}: {trail.reason}".split())  # in one line: whoever may cancel must not write the log
    log.info("operator's %s changed=%d skipped=%s %s", trail.verb, steered.changed, steered.skipped, words)
    return steered


def _names_with(callback: str) -> list[str]:
    return [name for name in registry.names() if getattr(registry.get(name), callback) is not None]


def _steer(jobs: type[Job], using: str, ids: Iterable[int], write: Write, trail: Trail) -> Steered:
    done = Steered()
    for batch in _chunks(ids):
        done += _steer_batch(jobs, using, batch, write, trail)
    trail.skip(store.on(using), done.skipped)
    return done


def _chunks(ids: Iterable[int]) -> Iterable[list[int]]:
    everything = list(dict.fromkeys(ids))
    return (everything[start : start + BATCH] for start in range(0, len(everything), BATCH))


def _steer_batch(jobs: type[Job], using: str, ids: list[int], write: Write, trail: Trail) -> Steered:
    """Write what can be locked at once, wait for the rest, report what stays locked as busy."""
    changed, locked = _locked_write(jobs, using, ids, write, trail, wait=False)
    for wait in (True, False):
        # When one row stays locked the wait for all of them fails; the last try takes those that have come free.
        left = sorted(set(ids) - set(locked))
        if not left:
            break
        try:
            more, held = _locked_write(jobs, using, left, write, trail, wait=wait)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", "") != LOCK_NOT_AVAILABLE:
                raise
        else:
            changed, locked = changed + more, locked + held
            break
    refused = write.refused if isinstance(write, KeyedWrite) else {}
    return Steered(len(changed), _skipped(using, set(ids) - set(changed), set(locked), refused))


def _skipped(using: str, ids: set[int], locked: set[int], refused: Mapping[int, str]) -> dict[str, int]:
    """Say why ``ids`` were not changed: reason → number."""
    with at_read_committed(using):
        states = store.read_states(store.on(using), sorted(ids))
    skipped: dict[str, int] = {}
    for job_id in ids:
        state, ending = states.get(job_id, ("unknown", False))
        if job_id in states and job_id not in locked:
            state = "busy"
        elif ending and state == "ready":
            state = "ending"
        state = refused.get(job_id, state)
        skipped[state] = skipped.get(state, 0) + 1
    return skipped


def _locked_write(
    jobs: type[Job], using: str, ids: list[int], write: Write, trail: Trail, *, wait: bool
) -> tuple[list[int], list[int]]:
    """Lock the rows in id order and write them: (changed, locked). With ``wait``, a lock held too long raises."""
    rows: Any = jobs._base_manager.using(using)
    with at_read_committed(using), _lock_timeout(using):
        picked = rows.select_for_update(skip_locked=not wait, no_key=True).filter(pk__in=ids).order_by("pk")
        locked = list(picked.values_list("pk", flat=True))
        changed = write(store.on(using), locked) if locked else []
        trail.add(store.on(using), len(changed), changed)
        return changed, locked


def written_at(row: models.Model) -> str:
    """Return the alias where a row is steered: the one it was read from, or of a replica where the router writes.

    Not simply the latter: of a job that was registered with ``database=…`` most routers know nothing, and another job
    has its id elsewhere.
    """
    read, write = row._state.db, str(router.db_for_write(type(row), instance=row))
    if read is None or read == write or store.is_read_only(store.on(read)):
        return write
    return read


@contextmanager
def at_read_committed(using: str) -> Iterator[None]:
    """Open a transaction at READ COMMITTED, whatever the role's default; inside of the caller's, a savepoint.

    At a higher level one row that a worker has changed meanwhile would fail the whole batch, and at serializable even
    a query that only reads may fail (40001).
    """
    ours = opens_transaction(using)
    with transaction.atomic(using=using):
        if ours:
            store.read_committed(store.on(using))
        yield


def opens_transaction(using: str) -> bool:
    """Whether ``atomic`` opens a transaction here; the level of one that is the caller's is the caller's."""
    connection = transaction.get_connection(using)
    return connection.get_autocommit() and not connection.in_atomic_block


class _lock_timeout:
    """Bound the waits of the open transaction, and give the setting back: the caller's transaction may go on."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.before = ""

    def __enter__(self) -> None:
        self.before = store.set_lock_timeout(store.on(self.using), f"{LOCK_SECONDS}s")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            store.set_lock_timeout(store.on(self.using), self.before)
