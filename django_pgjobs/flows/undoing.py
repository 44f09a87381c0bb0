"""Compensation: undo by jobs what a job that failed has done (Garcia-Molina, Salem: *Sagas*, 1987).

The finished steps of a durable function that have an ``undo``, or the succeeded members of a batch or flow whose
definitions have one: the latest first, one after the other. Each compensation is a job with attempts and a page of its
own. The list is a step, so it does not change while the members' rows are pruned.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypedDict

from django_pgjobs.context import running_alias
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import Abandon, MembersFailed, UnknownJob
from django_pgjobs.indexes import LATEST_FIRST
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.serialization.payload import decode_payload
from django_pgjobs.states import Flow, Outcome

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext
    from django_pgjobs.definition.policy import JobPolicy
    from django_pgjobs.models import Job

MOST = 10_000
"""How many parts of a job are undone."""


class Part(TypedDict):
    """A part to undo: a step of the job, or a member, and the name of the job that undoes it."""

    job: int
    step: str
    undo: str


def undo(context: JobContext, job_id: int) -> None:
    """Undo the parts of a job. Raises ``Abandon`` if some cannot be undone."""
    alias = running_alias()
    found: list[Part] = context.step.using(name="parts")(parts_of, job_id, alias)
    parts, too_many = found[:MOST], len(found) > MOST
    stops = _stops(job_id, alias)
    failed: list[str] = []
    for number, part in enumerate(parts):
        try:
            context.gather([_call(part, alias)], name=f"undo {number}")
        except MembersFailed as error:
            failed.append(f"{_words(part)}: {error}")
            if stops:
                raise Abandon(f"{failed[0]} The {len(parts) - number - 1} before it are not undone.") from error
    left = [f"There are more than the latest {MOST} parts: those before them are not undone."] if too_many else []
    if failed or left:
        raise Abandon(f"{len(failed)} of {len(parts)} parts were not undone. {' '.join(left + failed)}"[:2000])


def parts_of(job_id: int, alias: str | None) -> list[Part]:
    """Return what can be undone of a job, the latest first; one more than ``MOST`` if there is more than that."""
    from django_pgjobs.models import Job, Memo  # here: the models are not loaded yet

    memos = Memo.objects.using(alias).filter(job_id=job_id, undo__isnull=False, finished_at__isnull=False, error="")
    parts: list[Part] = [
        {"job": job_id, "step": name, "undo": (call or {})["name"]}
        for name, call in memos.order_by(LATEST_FIRST).values_list("name", "undo")[: MOST + 1]
    ]
    target = Job.objects.using(alias).filter(pk=job_id).first()
    if target is None or not target.flow & Flow.GATED:
        return parts
    members = Job.objects.using(alias).filter(parent_id=job_id, outcome=Outcome.SUCCEEDED)
    undoes = {name: made.name for name in set(members.values_list("name", flat=True)) if (made := _undo_of(name))}
    latest = members.filter(name__in=list(undoes)).order_by("-finished_at", "-pk")
    for pk, name in latest.values_list("pk", "name")[: MOST + 1]:
        parts.append({"job": pk, "step": "", "undo": undoes[name]})
    return parts


def _undo_of(name: str) -> JobPolicy | None:
    definition = registry.resolved(name)
    return None if definition is None else definition.undo_definition


def _call(part: Part, alias: str | None) -> BoundJob:
    """Return the call that undoes a part, with the arguments of what it undoes."""
    from django_pgjobs.models import Job, Memo  # here: the models are not loaded yet

    definition = registry.resolve(part["undo"])
    if not isinstance(definition, JobDefinition):
        raise UnknownJob(f"{part['undo']} is no job that can be registered.")
    if part["step"]:
        memo = Memo.objects.using(alias).get(job_id=part["job"], name=part["step"])
        args, kwargs = _arguments((memo.undo or {})["payload"])
    else:
        args, kwargs = _arguments(Job.objects.using(alias).get(pk=part["job"]).payload)
    definition.fits(*args, **kwargs)
    return BoundJob(definition, tuple(args), kwargs, {"target": (part["job"], part["step"])})


def _arguments(payload: Any) -> tuple[list[Any], dict[str, Any]]:
    return decode_payload(json.dumps(payload))


def _stops(job_id: int, alias: str | None) -> bool:
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    job: Job | None = Job.objects.using(alias).filter(pk=job_id).first()
    if job is None:
        return False
    given = (job.options or {}).get("undo_on_failure")
    definition = registry.resolved(job.name)
    return (given or (definition.undo_on_failure if definition is not None else "")) == "stop"


def _words(part: Part) -> str:
    return f"step {part['step']}" if part["step"] else f"job {part['job']}"
