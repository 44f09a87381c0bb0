"""Undo of an operator's action: a retry or a move goes back, a pause is resumed, and what was resumed paused again.

Only what is still as the action has left it goes back; the rest is counted, with the reason. An undo is an action
itself, with the reason *undo of action 12*. The admin and the shell both come here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models.functions import Now

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Action, JobQuerySet, QueueState
from django_pgjobs.models.jobs import Job
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.queues import pauses
from django_pgjobs.steering import jobs as steering
from django_pgjobs.steering.batching import CHANGED, Steered
from django_pgjobs.steering.trail import REVERSIBLE
from django_pgjobs.store import acting
from django_pgjobs.store.database import at_read_committed, on

PERMISSIONS: dict[str, tuple[str, ...]] = {
    "retry": ("pgjobs.abandon_job", "pgjobs.cancel_job"),
    "reschedule": ("pgjobs.reschedule_job",),
    "pause": ("pgjobs.pause_queue",),
    "resume": ("pgjobs.pause_queue",),
}
"""Verb → what a user must be allowed to do to undo it: the permission for the opposite."""

INSTEAD: dict[str, str] = {
    "cancel": "a cancel may have stopped what ran: retry the jobs that it has cancelled",
    "abandon": "callbacks of abandoned jobs have run: retry the jobs that it has abandoned",
    "revert": "it is an undo itself: retry the jobs that it has put back",
    "send": "an event is withdrawn on its own page, while no job has read it",
    "withdraw": "send the event again",
    "release": "what was released runs again",
    "unblock": "what was unblocked may have run",
}
"""Verb → why it cannot be undone, and what to do."""

OTHERWISE = "only a retry, a reschedule, a pause and a resume can be undone"

AT_ONCE = 10_000
"""Number of jobs that a request looks at and puts back."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """The effects of an undo now: how many jobs or pauses, and why not others (reason → number).

    ``refusal``: why there is nothing to offer at all, or empty.
    """

    count: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    refusal: str = ""


def prospect(action: Action) -> Prospect:
    """Return what an undo of this action would change, as things are now; reads, and takes no lock."""
    using, verb = str(action._state.db), action.verb
    if refusal := _refusal(action, AT_ONCE):
        return Prospect(refusal=refusal)
    if verb in REVERSIBLE:
        db, reasons = on(using), Counter[str]()
        for part in _parts(action):
            reasons.update(acting.judge_former(db, action.pk, part).values())
        count = reasons.pop("", 0)
        return Prospect(count, dict(reasons))
    return Prospect(*((1, {}) if _standing(action, using) else (0, {CHANGED: 1})))


def revert(action_id: int, *, by: object, database: str, at_once: int | None = None) -> Steered:
    """Undo an action; return how much went back, and why the rest did not.

    ``by``: a user or a text. ``at_once``: refuse an action on more jobs. Each thousand jobs are a transaction of their
    own. Raises ``InvalidJob`` if there is no such action, and if it cannot be undone. Repeatable: what has gone back is
    skipped.
    """
    action = Action.objects.using(database).filter(pk=action_id).first()
    if action is None:
        raise InvalidJob(f"There is no action {action_id}: its time may be over.")
    if refusal := _refusal(action, at_once):
        raise InvalidJob(refusal)
    reason = f"undo of action {action.pk}"
    if action.verb not in REVERSIBLE:
        return _revert_pause(action, database, by, reason)
    parts = {part: JobQuerySet(Job, using=database).filter(pk__in=ids) for part, ids in _parts(action).items()}
    return steering.revert(database, action.pk, parts, verb=action.verb, by=by, reason=reason)


def _refusal(action: Action, at_once: int | None = None) -> str:
    head = f"Action {action.pk} cannot be undone: "
    if action.verb not in PERMISSIONS or action.kind in ("cron", "worker"):
        return f"{head}{INSTEAD.get(action.verb, OTHERWISE)}."
    if action.verb == "resume" and _former_pause(action) is None:
        return f"{head}the pause that it has ended is not on record any more: pause it again."
    if action.verb not in REVERSIBLE:
        return ""
    if at_once is not None and action.changed > at_once:
        command = f"manage.py pgjobs undo-action {action.pk}"
        return f"{head}{action.changed} jobs are more than a page changes at once: write {command}."
    if not _parts(action):
        return f"{head}its record does not say where its jobs stood."
    return ""


def _parts(action: Action) -> dict[int, list[int]]:
    found = ActionPart.objects.using(action._state.db).filter(action_id=action.pk, former__isnull=False)
    return dict(found.order_by("part").values_list("part", "job_ids"))


# Pauses


def _standing(action: Action, using: str, *, lock: bool = False) -> bool:
    """Return whether what a pause or resume has written is in force, without a later pause or resume."""
    rows: Any = QueueState.objects.using(using).filter(kind=action.kind, name=action.subject).annotate(now=Now())
    state = (rows.select_for_update() if lock else rows).first()
    later = Action.objects.using(using).filter(kind=action.kind, subject=action.subject, pk__gt=action.pk)
    if state is None or later.filter(verb__in=("pause", "resume")).exists():
        return False
    if action.verb == "pause":
        return bool(state.until is None or state.until > state.now)
    former = _until(_former_pause(action))
    return bool(state.until <= state.now and (former is None or former > state.now))


def _former_pause(resume: Action) -> Any:
    """Return the action that had paused what this one has resumed; None if its time is over."""
    earlier = Action.objects.using(resume._state.db).filter(kind=resume.kind, subject=resume.subject)
    return earlier.filter(pk__lt=resume.pk, verb="pause").order_by("-pk").first()


def _until(pause: Action) -> datetime | None:
    text = pause.mode.removeprefix("until=")
    return datetime.fromisoformat(text) if text else None


def _revert_pause(action: Action, using: str, by: object, reason: str) -> Steered:
    with at_read_committed(using):
        if not _standing(action, using, lock=True):
            return Steered(0, {CHANGED: 1})
        if action.verb == "pause":
            return Steered(int(pauses.resume(action.kind, action.subject, by=by, reason=reason, database=using)))
        former = _former_pause(action)
        words = f"{former.reason[:400]} ({reason})" if former.reason else reason
        pauses.pause(action.kind, action.subject, by=by, reason=words, until=_until(former), database=using)
    return Steered(1)
