"""Register a job again, from its row."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from django.db import connections, models

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob, UnreadablePayload
from django_pgjobs.registering import capacity
from django_pgjobs.registering.encode import Row, new_job
from django_pgjobs.registering.next_step import alone
from django_pgjobs.registering.register import as_fresh
from django_pgjobs.registering.waiting import insert_in_turn
from django_pgjobs.states import FlowFlag
from django_pgjobs.store import waking
from django_pgjobs.store.database import on, written_at
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.store.passing import with_results
from django_pgjobs.store.registering import register_job
from django_pgjobs.values.built_in import Act, refusal
from django_pgjobs.values.setting_rules import InvalidOption

J = TypeVar("J", bound=models.Model)

OF_SEQUENCE = FlowFlag.NEEDED | FlowFlag.YIELDS
"""The bits of ``flow`` that a job of a sequence is registered with."""


def register_again(row: J) -> J:
    """Register a new job like ``row``, due at once; see ``Job.register_again``."""
    job: Any = row
    using = written_at(row)
    if why := refusal(job.name, Act.REGISTER_AGAIN):
        raise InvalidJob(f"job {job.pk}: {why}")
    new = _first_step(job, using) if job.flow else _same(job, using)
    with capacity.passing(connections[using], get_conf(), (new.queue,)):
        registered = insert_in_turn(using, new) if new.sequence is not None else register_job(using, new)
    if registered is None or isinstance(registered, int):
        raise InvalidJob(f"job {new.name!r}: its key is taken")
    waking.registered(connections[using], [new.wakes], get_conf())
    return as_fresh(type(row)._base_manager.using(using).get(pk=registered.id))


def _same(job: Any, using: str) -> NewJob:
    definition = registry.resolved(job.name)
    return NewJob(
        name=job.name,
        payload=_payload(job, using, job.payload),
        queue=job.queue,
        priority=job.priority,
        max_attempts=definition.max_attempts if definition else max(1, job.max_attempts),
        timeout_seconds=job.timeout_seconds,
        headers=None if job.headers is None else json.dumps(job.headers),
        description=job.description,
        limit_key=job.limit_key,
        tags=job.tags,
        options=_without_cursors(job.options),
        flow=job.flow & OF_SEQUENCE if job.sequence is not None else 0,
        sequence=job.sequence,
    )


DONE = frozenset({"each", "peaks"})
"""The options in which a job keeps its work so far."""


def _without_cursors(options: object) -> Any:
    """Return the options of a job without what it has done."""
    return (
        {name: options[name] for name in options if name not in DONE} or None if isinstance(options, dict) else options
    )


def _payload(job: Any, using: str, stored: object) -> str:
    """Return arguments as JSON text, with the results that the job has got: the new one needs no other job."""
    try:
        return with_results(on(using), job.pk, json.dumps(stored))
    except UnreadablePayload as error:
        raise InvalidJob(f"job {job.pk} cannot be registered again: {error}") from None


def _first_step(job: Any, using: str) -> NewJob:
    """Return the job as it began; only its definition knows the limits and options of its first step."""
    first = job.steps.using(using).order_by("pk").first()
    if first is None:
        return _same(job, using)
    definition = registry.resolved(first.name)
    if definition is None:
        raise InvalidJob(f"job {first.name!r}, the first step, is not known here")
    payload = _payload(job, using, first.payload)
    try:
        args, kwargs = definition._load(payload)
    except UnreadablePayload as error:
        raise InvalidJob(f"job {first.name!r}: {error}") from None
    try:
        plan = definition._plan.changed({"queue": first.queue, "priority": job.priority})
    except InvalidOption as error:
        raise InvalidJob(f"job {first.name!r}: {error}") from None
    headers = None if job.headers is None else json.dumps(job.headers)
    new = new_job(Row(definition, alone(plan), tuple(args), kwargs), headers, payload)
    flow = job.flow & OF_SEQUENCE if job.sequence is not None else 0
    return new._replace(description=job.description, tags=job.tags, flow=flow, sequence=job.sequence)
