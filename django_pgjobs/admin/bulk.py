"""Actions on more jobs than a request may change: a job of our own changes them, a thousand at a time.

The request writes the action's row and registers the job with it. Each batch is one transaction with its part of that
row. The last part thus says how far the action has come: the attempt after a killed one continues there. Jobs that were
registered, or that ended, after the confirmation are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.db import router
from django.db.models import Max
from django.db.models.functions import Now

from django_pgjobs.admin.actions import ACTIONS, SteeringAction
from django_pgjobs.context import JobContext, running_alias
from django_pgjobs.diagnosis.health import known_workers
from django_pgjobs.exceptions import Cancel
from django_pgjobs.inspection.liveness import sleeps
from django_pgjobs.jobs import job
from django_pgjobs.models import Action, Job, JobQuerySet, LeaderTerm
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.presentation import filters, job_list, sight
from django_pgjobs.presentation.job_conditions import search_condition
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import STEER as STEER
from django_pgjobs.states import Outcome
from django_pgjobs.steering.batching import Steered, who
from django_pgjobs.steering.trail import ADMIN, open_action, recorded_as
from django_pgjobs.store import acting, claiming, counting
from django_pgjobs.store.database import on

AT_ONCE = 10_000
"""Number of jobs that a request changes itself."""

FIRST = 100
"""The highest priority: jobs that are to be cleared must not start in the meantime."""

BATCH = 1000
MOST_ATTEMPTS = 20

_VERBS = {"run_now": "reschedule", "retry_members": "retry", "undo_again": "retry"}


def is_for_a_job(action: SteeringAction, jobs: JobQuerySet) -> bool:
    """Tell whether the action would change more than ``AT_ONCE`` of these jobs."""
    return len(jobs.filter(action.condition).values_list("pk")[: AT_ONCE + 1]) > AT_ONCE


def is_served(using: str) -> bool:
    """Tell whether a live worker would run the job."""
    return sleeps() or any(worker.live for worker in known_workers(on(using)))


def register_bulk(
    action: SteeringAction, params: Mapping[str, str], user: Any, answers: Mapping[str, Any], words: str, using: str
) -> tuple[Job, int]:
    """Record the action and register its job there, both or neither; return the job and the action's id."""
    chosen = {name: params[name] for name in (*filters.parameters(), "q") if params.get(name)}
    mode, reason = answers.get("mode", ""), answers.get("reason", "")
    with recorded_as(ADMIN, words or "all"), on(using).transaction():
        latest = Job.objects.using(using).aggregate(Max("pk"))["pk__max"] or 0
        action_id = open_action(on(using), _VERBS.get(action.name, action.name), who(user), reason, mode)
        call = steer_many.using(database=using, description=f"{action.verb}: {visible(words) or 'all'}"[:200])
        registered = call.register(
            action=action.name, params=chosen, user_id=str(user.pk), answers=dict(answers), latest=latest,
            confirmed_at=_now(using).isoformat(), action_id=action_id,
        )  # fmt: skip
    return Job.objects.using(using).get(pk=registered.pk), action_id


def _now(using: str) -> datetime:
    rows = LeaderTerm.objects.using(using)
    found = rows.annotate(now=Now()).values_list("now", flat=True).first()
    return found if found is not None else counting.read_statistic(on(using)).now


@job(name=STEER, priority=FIRST, max_attempts=MOST_ATTEMPTS, timeout=None, sensitive=("params",))
def steer_many(
    context: JobContext,
    action: str,
    params: dict[str, str],
    user_id: str,
    answers: dict[str, object],
    latest: int,
    confirmed_at: str,
    action_id: int,
) -> dict[str, object]:
    """Continue an action where its row says that it is; cancelled if its author may not do it any more."""
    using = running_alias() or router.db_for_write(Job)
    chosen = ACTIONS[action]
    user = _author(user_id, chosen)
    parts = ActionPart.objects.using(using).filter(action_id=action_id)
    ids = _ids_of(using, chosen, params, latest, confirmed_at, reveal=user.has_perm(sight.PERMISSION))
    done = parts.aggregate(Max("last_id"))["last_id__max"] or 0
    earlier = Action.objects.using(using).filter(pk=action_id).values_list("changed", flat=True).first() or 0
    ids = [job_id for job_id in ids if job_id > done]
    steered, total = Steered(earlier), earlier + len(ids)
    for start in range(0, len(ids), BATCH):
        if context.cancelled:
            raise Cancel(context.cancel_reason or f"stopped after {steered.changed} jobs")
        user = _author(user_id, chosen)
        batch = JobQuerySet(Job, using=using).filter(pk__in=ids[start : start + BATCH])
        with recorded_as(ADMIN, continues=(action_id, parts.count())):
            steered += chosen.run(batch.filter(chosen.condition), by=user, **answers)
        context.progress(min(start + BATCH, len(ids)) + earlier, total, f"{steered.changed} changed")
    acting.close_action(on(using), action_id, steered.skipped)
    return {"changed": steered.changed, "skipped": steered.skipped}


def _author(user_id: str, action: SteeringAction) -> Any:
    """Return the user, read again. Raises ``Cancel`` if they may not do it any more."""
    user: Any = get_user_model()._default_manager.filter(pk=user_id).first()
    allowed = user is not None and user.is_active and user.is_staff
    if not allowed or not user.has_perms(["pgjobs.view_job", action.permission]):
        raise Cancel(f"its author may not {action.name.replace('_', ' ')} jobs any more")
    return user


def _ids_of(
    using: str, action: SteeringAction, params: dict[str, str], latest: int, confirmed_at: str, *, reveal: bool
) -> list[int]:
    """Return the ids of the jobs of the list as it was, lowest first."""
    search = job_list.settled(JobSearch.of(params, params.get("q", ""), reveal=reveal), using)
    if search.problem or search.complaint:
        raise Cancel("its filter cannot be read any more")
    if search.state in set(Outcome) and search.older_at is None:
        search = replace(search, older_at=datetime.fromisoformat(confirmed_at))
    jobs = JobQuerySet(Job, using=using)
    ranges = job_list.ranges_of(search, claiming.list_pairs(on(using)))
    cut = job_list.bounded(search, jobs, ranges) if search.bounded else []
    matching = jobs.filter(search.listed(), action.condition, pk__lte=latest).exclude(name=STEER)
    matching = matching.filter(search_condition(search.text, search.job_id))
    return sorted(job_list.find_ids(matching, cut or ranges, None))
