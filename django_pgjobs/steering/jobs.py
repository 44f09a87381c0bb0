"""An operator's actions on jobs: cancel, retry, abandon, release, reschedule; ask for stacks.

An action waits for row locks, up to ``LOCK_SECONDS``, and reports a job that stays locked as *busy*. It never
overwrites a claimed job: it writes a request, and the job's worker acts on it under the fence. Each action may
therefore be repeated, and may race with claim, end and rescue. The ORM picks and locks the rows, since this path is not
hot; ``store`` writes them. A job may change between picking and locking: the action checks the filter and the job's
state again under the lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact, GreaterThan

from django_pgjobs.conf import get_conf
from django_pgjobs.definition import allowed, queue_names, validation
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import facts
from django_pgjobs.states import CANCEL_MEMBERS, OTHERS, TIRELESS, UNDO, WAKE, CancelMode, FlowFlag, Hold, Outcome
from django_pgjobs.steering import reopening
from django_pgjobs.steering.batching import KeyedWrite, Steered, logged, steer, who
from django_pgjobs.steering.trail import MOST_CHARS, Trail, storable
from django_pgjobs.store import acting, gates, memos, stacks, steering, turns, waking
from django_pgjobs.store.database import Database, on
from django_pgjobs.store.notifying import STACKS, wake_up
from django_pgjobs.store.numbers import count_ends
from django_pgjobs.store.steering import EndedJob, Moved, send_finished
from django_pgjobs.values.built_in import Act
from django_pgjobs.values.setting_rules import InvalidOption

QUEUE_CHARS = 200
"""Characters of a queue's name in the numbers over time."""


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


# Not by ``hold`` alone: PostgreSQL would read the index of held jobs for it.
UNFINISHED = Q(finished_at=None) & ~Q(Exact(Coalesce("hold", Value("", models.TextField())), Value(Hold.MOVING.value)))
UNCLAIMED = UNFINISHED & Q(claim_id=None)
CLAIMED = UNFINISHED & Q(claim_id__isnull=False)
BLOCKED = UNCLAIMED & Q(hold=Hold.BLOCKED)
SUSPENDED = UNCLAIMED & Q(ending=None) & Q(GreaterThan(F("flow").bitand(FlowFlag.REMEMBERS.value), 0))
RETRIABLE = Q(outcome__in=[Outcome.ABANDONED, Outcome.CANCELLED]) | Q(hold=Hold.PARKED)
"""The jobs that an action may change, by conditions on the row's own columns only: PostgreSQL checks these again after
it waited for a lock, and locks no other row."""

UNDONE = "undone"
"""The reason for not retrying a job whose undo has begun: what it remembers is not so any more."""


OUT_OF_TURN = "out of turn"
"""The reason for not unblocking a job before which another of its sequence has not ended."""


def cancel(jobs: models.QuerySet[models.Model], using: str, *, mode: str, by: object, reason: str) -> Steered:
    """Cancel: see ``JobQuerySet.cancel``."""
    if mode not in list(CancelMode):
        raise ValueError(f"cancel(mode=…) takes {', '.join(repr(str(m)) for m in CancelMode)}, not {mode!r}")
    author, words = storable(who(by)), storable(reason)
    batches: list[int] = []
    all_changed: list[int] = []

    def write(db: Database, held: Sequence[int]) -> list[int]:
        callbacks = _names_with("_on_cancel_func")
        changed = steering.cancel_jobs(db, held, mode=mode, by=author, reason=words, with_callback=callbacks)
        members = gates.cancel_members(db, changed.gathering, mode=mode, by=author, reason=words)
        waking.notify(using, members.union(changed.notices))
        _count(db, changed.ended)
        send_finished(using, changed.ended, registry.find)
        batches.extend(changed.gathering)
        all_changed.extend(changed.ids)
        return changed.ids

    trail = Trail("cancel", who(by), reason, mode=mode)
    steered = logged(trail, steer(jobs, using, Act.CANCEL, UNFINISHED, write, trail))
    if gathered := memos.list_gathered(on(using), all_changed):
        cancel(jobs.model._base_manager.filter(pk__in=gathered), using, mode=mode, by=by, reason=reason)
    # Those that run may take all threads: the job that cancels the others would wait for them.
    if batches and (running := gates.list_running_members(on(using), batches)):
        cancel(jobs.model._base_manager.filter(pk__in=running), using, mode=mode, by=by, reason=reason)
    return steered


def abandon(jobs: models.QuerySet[models.Model], using: str, *, by: object, reason: str) -> Steered:
    """Abandon: see ``JobQuerySet.abandon``."""
    text = storable(f"Abandoned by {who(by)}" if by else "Abandoned by an operator")
    text = f"{text}: {storable(reason)}" if reason else text

    def write(db: Database, held: Sequence[int]) -> list[int]:
        callbacks = _names_with("_on_abandon_func")
        changed = steering.abandon_jobs(db, held, reason=text, with_callback=callbacks)
        cancels = memos.cancel_gathered(db, [job.id for job in changed.ended])
        waking.notify(using, [*changed.notices, *(wake_up(one.queue, one.priority) for one in cancels)])
        _count(db, changed.ended)
        send_finished(using, changed.ended, registry.find)
        return changed.ids

    trail = Trail("abandon", who(by), reason)
    return logged(trail, steer(jobs, using, Act.ABANDON, UNCLAIMED, write, trail))


def _count(db: Database, jobs: Sequence[EndedJob]) -> None:
    """Add these ends to the numbers over time, as no worker has; names and queues within the bounds of theirs."""
    ends: Counter[tuple[str, str, str]] = Counter()
    for job in jobs:
        queue = job.queue if len(job.queue) <= QUEUE_CHARS and job.queue.isprintable() else OTHERS
        ends[queue, job.name if registry.find(job.name) else OTHERS, job.outcome] += 1
    if ends:
        count_ends(db, ends)


def retry(jobs: models.QuerySet[models.Model], using: str, *, by: object, reason: str) -> Steered:
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
    return logged(trail, steer(jobs, using, Act.RETRY, RETRIABLE, keyed, trail))


def unblock(jobs: models.QuerySet[models.Model], using: str, *, by: object, reason: str) -> Steered:
    """Unblock: see ``JobQuerySet.unblock``."""

    def write(db: Database, held: Sequence[int]) -> Moved:
        waiting = turns.lock_turns(db, held)
        # A batch that was unblocked takes no more members.
        opened = gates.open_gates(db, [one for one in held if one not in waiting], force=True, close=True)
        opened += turns.unblock(db, waiting) if waiting else []
        keyed.refused.update(dict.fromkeys(waiting.keys() - {job.id for job in opened}, OUT_OF_TURN))
        woken = memos.wake_suspended(db, held)
        notices = gates.notices_of(opened) | {
            wake_up(job.queue, job.priority) for job in woken if job.queue is not None
        }
        return Moved([*(job.id for job in opened), *(job.id for job in woken)], [], list(notices))

    keyed = KeyedWrite(using, write)
    trail = Trail("unblock", who(by), reason)
    return logged(trail, steer(jobs, using, Act.UNBLOCK, BLOCKED | SUSPENDED, keyed, trail))


def release(jobs: models.QuerySet[models.Model], using: str, *, by: object, reason: str) -> Steered:
    """Release: see ``JobQuerySet.release``."""
    trail = Trail("release", who(by), reason)
    return logged(trail, steer(jobs, using, Act.RELEASE, CLAIMED, steering.request_release, trail))


def close_batches(jobs: models.QuerySet[models.Model], using: str, *, by: object, reason: str) -> Steered:
    """Let those of ``jobs`` that are batches, open for members, end when the members that they have do. Repeatable.

    Waits for row locks as the other actions do. Jobs that are no open batches are skipped.
    """
    trail = Trail("close", who(by), reason)
    return logged(trail, steer(jobs, using, Act.CLOSE, BLOCKED, KeyedWrite(using, _close), trail))


def _close(db: Database, held: Sequence[int]) -> Moved:
    found = gates.lock_open_batches(db, held)
    return Moved(found, [], list(gates.notices_of(gates.open_gates(db, found, close=True, locked=True))))


def reschedule(
    jobs: models.QuerySet[models.Model],
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
    return logged(trail, steer(jobs, using, Act.RESCHEDULE, UNCLAIMED, KeyedWrite(using, write), trail))


def revert(
    using: str,
    action_id: int,
    parts: Mapping[int, models.QuerySet[models.Model]],
    *,
    verb: str,
    by: object,
    reason: str,
) -> Steered:
    """Put the jobs of an action back where it found them: those that are still where it has put them.

    ``parts``: the number of each part → its jobs. ``verb``: that of the action, ``retry`` or ``reschedule``. The undo
    of a reschedule is one too; that of a retry ends jobs as they had ended, and calls nothing.
    """
    act, own = (Act.RESCHEDULE, verb) if verb == "reschedule" else (Act.ABANDON, "revert")
    trail, done = Trail(own, who(by), reason), Steered()
    for part, jobs in parts.items():
        done += steer(jobs, using, act, UNCLAIMED, _reverting(using, action_id, part), trail)
    trail.skip(on(using), done.skipped)
    return logged(trail, done)


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
        allowed.check_start(target.run_at, target.delay, get_conf())
        if target.queue is not None:
            allowed.check_allowed_queue(target.queue, get_conf().queues)
            queue_names.notice(target.queue, facts("call=reschedule"), get_conf())
    except InvalidOption as error:
        raise InvalidJob(str(error)) from None
    if target == Destination():
        raise InvalidJob("reschedule() needs run_at, delay, queue or priority.")
    return target


def _names_with(callback: str) -> list[str]:
    return [name for name in registry.names() if getattr(registry.get(name), callback) is not None]


def take_stacks(jobs: models.QuerySet[models.Model], using: str, *, by: object = None, reason: str = "") -> Steered:
    """Ask the workers of these jobs for their stacks: see ``Job.take_stack``.

    A request is a row about the claim that holds the job. The worker of that claim learns of it by a notification, else
    by its next heartbeat, and answers under the fence of that claim. It grants no right to the job and changes nothing.
    """
    words = {"by": storable(who(by))[:MOST_CHARS], "reason": storable(reason)[:MOST_CHARS]}

    def write(db: Database, held: Sequence[int]) -> list[int]:
        asked = stacks.ask_stacks(db, held, **words)
        waking.notify(using, [STACKS] if asked else [])
        return asked

    trail = Trail("stack", who(by), reason)
    return logged(trail, steer(jobs, using, Act.STACK, CLAIMED, write, trail))
