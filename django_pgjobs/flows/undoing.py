"""Compensation: undo by jobs what a job that failed has done (Garcia-Molina, Salem: *Sagas*, 1987).

The finished steps of a durable function that have an ``undo``, or the succeeded members of a batch or flow whose
definitions have one: the latest first, one after the other. Each compensation is a job with attempts and a page of its
own. The list is a step, so it does not change while the members' rows are pruned. The compensations themselves record
what was undone, so a job of ours that is gone, and is registered again, repeats none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from django.core.exceptions import ObjectDoesNotExist
from django.db import DEFAULT_DB_ALIAS
from django.db.models import F, Q
from django.db.models.lookups import GreaterThan

from django_pgjobs.context import running_alias
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import Abandon, InvalidJob, MembersFailed, StepFailed, UnknownJob, UnreadablePayload
from django_pgjobs.fields import LATEST_FIRST
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.registering.encode import Row
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.headers import inherited
from django_pgjobs.serialization.payload import decode_payload, decode_result
from django_pgjobs.states import FlowFlag, MemoKind, Outcome
from django_pgjobs.store import passing
from django_pgjobs.store.database import on
from django_pgjobs.values.backoff import Backoff

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext
    from django_pgjobs.models import Job

MOST = 10_000
"""Number of parts of a job that are undone."""

UNKNOWN_TRIES = 5
UNKNOWN_BACKOFF = Backoff(10, factor=4)
"""Retries of an undo whose job the code does not know: newer workers may be about to start."""

UNKNOWN = "?"
"""Begins the ``undo`` of a part whose job this code does not know, and so neither what undoes it; its name follows."""

BEGUN = FlowFlag.UNDONE | FlowFlag.UNDOING

UNFIT = (InvalidJob, UnreadablePayload, ObjectDoesNotExist, TypeError)
"""Why a part cannot be undone, however often one tries."""


class Part(TypedDict, total=False):
    """A part to undo: a step of the job, or a member, and the name of the job that undoes it.

    ``machine``: the id of the row of a finished step, of a member that continued with the next one.
    """

    job: int
    step: str
    undo: str
    machine: int


def undo(context: JobContext, job_id: int) -> None:
    """Undo the parts of a job. Raises ``Abandon`` if some cannot be undone."""
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    using = running_alias()
    target = Job.objects.using(using).filter(pk=job_id)
    fresh = target.annotate(begun=F("flow").bitand(BEGUN.value)).filter(begun__lt=BEGUN.value)
    fresh.update(flow=F("flow").bitor(BEGUN.value))
    left = _left(context, job_id, using)
    if left:
        raise Abandon(left[:2000])  # the leader sees by this end that nothing is left to try: ``mend_undoing``
    target.update(flow=F("flow").bitand(~FlowFlag.UNDOING.value))


def _left(context: JobContext, job_id: int, using: str | None) -> str:
    """Undo the parts of a job; return what was not undone, and why."""
    from django_pgjobs.models import Memo  # here: the models are not loaded yet

    found: list[Part] = context.step.using(name="parts")(parts_of, job_id, using)
    parts, too_many = found[:MOST], len(found) > MOST
    gathers = Memo.objects.using(using).filter(job_id=context.id, kind=MemoKind.GATHER, finished_at__isnull=False)
    done = set(gathers.filter(error="").values_list("name", flat=True))
    stops = _stops(job_id, using)
    failed: list[str] = []
    missing: dict[str, str] = {}
    for number, part in enumerate(parts):
        name = f"undo {number}"
        if name in done or not (why := _undo_part(context, name, part, using, missing)):
            continue
        failed.append(f"{_words(part)}: {why}")
        if stops:
            return f"{failed[0]} The {len(parts) - number - 1} before it are not undone."
    left = [f"There are more than the latest {MOST} parts: those before them are not undone."] if too_many else []
    return f"{len(failed)} of {len(parts)} parts were not undone. {' '.join(left + failed)}" if failed or left else ""


def _undo_part(context: JobContext, name: str, part: Part, using: str | None, missing: dict[str, str]) -> str:
    """Run the job that undoes a part to its end; return why it was not undone.

    ``missing``: jobs that the code did not come to know in time, and the words for it; parts wait for each only once.
    """
    if not part["undo"]:
        return "More steps than a job keeps have run before it, and those between are not undone."
    try:
        call = _call(part, using)
        if call is not None:
            _remove_result(part, using)
            context.gather([call], name=name)
    except MembersFailed as error:
        return str(error)
    except UnknownJob as error:
        if part["undo"] in missing:
            return missing[part["undo"]]
        try:
            name = f"{name} known"
            tried = context.step.using(name=name, attempts=UNKNOWN_TRIES, backoff=UNKNOWN_BACKOFF)
            tried(_raise, str(error))
        except StepFailed:
            missing[part["undo"]] = one_line(error)
            return missing[part["undo"]]
    except UNFIT as error:
        return one_line(error)
    return ""


def _raise(words: str) -> None:
    raise InvalidJob(words)


def parts_of(job_id: int, using: str | None) -> list[Part]:
    """Return what can be undone of a job, the latest first; one more than ``MOST`` if there is more than that."""
    from django_pgjobs.models import Job, Memo  # here: the models are not loaded yet

    memos = Memo.objects.using(using).filter(job_id=job_id, undo__isnull=False, finished_at__isnull=False, error="")
    parts: list[Part] = [
        {"job": job_id, "step": name, "undo": (call or {})["name"]}
        for name, call in memos.order_by(LATEST_FIRST).values_list("name", "undo")[: MOST + 1]
    ]
    target = Job.objects.using(using).filter(pk=job_id).first()
    if target is None or not target.flow & FlowFlag.GATED:
        return parts
    members = Job.objects.using(using).filter(parent_id=job_id, outcome=Outcome.SUCCEEDED)
    undoes = {name: made for name in set(members.values_list("name", flat=True)) if (made := _undo_of(name))}
    stepped = Q(GreaterThan(F("flow").bitand(FlowFlag.STEPPED.value), 0))
    latest = members.filter(Q(name__in=list(undoes)) | stepped).order_by("-finished_at", "-pk")
    for member in latest.only("pk", "name", "flow", "idempotency_key").iterator():
        if not _is_hit(member, using):
            parts += _parts_of_member(member, undoes, using)
        if len(parts) > MOST:
            break
    return parts[: MOST + 1]


def _parts_of_member(member: Job, undoes: dict[str, str], using: str | None) -> Iterator[Part]:
    """Yield what a member has done, each step that has run, the latest first."""
    from django_pgjobs.store.finalising import STEPS  # here for start-up time

    if member.name in undoes:
        yield {"job": member.pk, "step": "", "undo": undoes[member.name]}
    if not member.flow & FlowFlag.STEPPED:
        return
    steps = list(member.steps.using(using).order_by("-pk").values_list("pk", "name"))
    undone = {name: made for name in {name for _, name in steps} if (made := _undo_of(name))}
    for number, (pk, name) in enumerate(steps):
        if number == len(steps) - 1 and len(steps) >= STEPS and undone:
            yield {"job": member.pk, "step": "", "undo": ""}
        if name in undone:
            yield {"job": member.pk, "step": f"{name}@{pk}", "undo": undone[name], "machine": pk}


def _is_hit(member: Job, using: str | None) -> bool:
    """Return whether a job has done nothing, but returned the result that an earlier one of its idempotency key has
    stored."""
    if member.idempotency_key is None:
        return False
    stored = _stored_results(member, using).order_by("stored_at").values_list("job_id", flat=True).first()
    return stored is not None and stored != member.pk


def _stored_results(member: Job, using: str | None) -> Any:
    from django_pgjobs.models import StoredResult  # here: the models are not loaded yet

    first = member.steps.using(using).order_by("pk").values_list("name", flat=True).first() or member.name
    definition = registry.resolved(first)
    names = {first} if definition is None else {first, definition.name, *definition.aliases}
    return StoredResult.objects.using(using).filter(name__in=names, key=member.idempotency_key)


def _remove_result(part: Part, using: str | None) -> None:
    """Delete the stored result of a member that is about to be undone: it must not be given out any more."""
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    if part["step"] and "machine" not in part:
        return
    member = Job.objects.using(using).filter(pk=part["job"], idempotency_key__isnull=False).first()
    if member is not None:
        _stored_results(member, using).filter(job_id=member.pk).delete()


def _undo_of(name: str) -> str:
    """Return the name of the job that undoes one of this name, empty if nothing does."""
    definition = registry.resolved(name)
    if definition is None:
        return f"{UNKNOWN}{name}"
    return "" if definition._undo_definition is None else definition._undo_definition.name


def _call(part: Part, using: str | None) -> BoundJob | None:
    """Return the call that undoes a part, with the arguments of what it undoes; None if nothing undoes it.

    Raises ``UnknownJob``, and any of ``UNFIT``.
    """
    undo = part["undo"]
    if undo.startswith(UNKNOWN):
        registry.resolve(name := undo.removeprefix(UNKNOWN))
        if not (undo := _undo_of(name)):
            return None
    definition = registry.resolve(undo)
    if not isinstance(definition, JobDefinition):
        raise UnknownJob(f"{part['undo']} is no job that can be registered.")
    text = passing.with_results(on(using or DEFAULT_DB_ALIAS), part["job"], json.dumps(_payload(part, using)))
    args, kwargs = decode_payload(text)
    definition._fits(*args, **kwargs)
    # Without the key of its definition: what it undoes tells it from others.
    return Compensation(
        definition,
        tuple(args),
        kwargs,
        {"target": (part["job"], part["step"]), "key": None},
        headers=_headers(part, using),
    )


@dataclass(frozen=True, slots=True)
class Compensation(BoundJob[object]):
    """A call that undoes something, with the headers of what it undoes."""

    headers: Mapping[str, object] = field(default_factory=dict)

    def _row(self) -> Row:
        """Return the call as a row to register."""
        return BoundJob._row(self)._replace(headers=self.headers)


def _headers(part: Part, using: str | None) -> dict[str, object]:
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    stored = Job.objects.using(using).values_list("headers", flat=True).get(pk=part["job"])
    headers: dict[str, object] = decode_result(inherited(json.dumps(stored)) or "{}")
    return headers


def _payload(part: Part, using: str | None) -> object:
    from django_pgjobs.models import Job, Memo, Step  # here: the models are not loaded yet

    if "machine" in part:
        return Step.objects.using(using).get(pk=part["machine"]).payload
    if not part["step"]:
        return Job.objects.using(using).get(pk=part["job"]).payload
    memo = Memo.objects.using(using).get(job_id=part["job"], name=part["step"])
    return (memo.undo or {})["payload"]


def _stops(job_id: int, using: str | None) -> bool:
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    job: Job | None = Job.objects.using(using).filter(pk=job_id).first()
    if job is None:
        return False
    given = (job.options or {}).get("undo_on_failure")
    definition = registry.resolved(job.name)
    return (given or (definition.undo_on_failure if definition is not None else "")) == "stop"


def _words(part: Part) -> str:
    if part["step"] and "machine" not in part:
        return f"step {part['step']}"
    return f"job {part['job']}" + (f", step {part['step']}" if part["step"] else "")
