"""Register a job again, from its row."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from django.db import connections, models

from django_pgjobs import waking
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.registering import capacity
from django_pgjobs.store.registering import NewJob, register_job, register_special
from django_pgjobs.store.transactions import written_at

J = TypeVar("J", bound=models.Model)


def register_again(row: J) -> J:
    """Register a new job like ``row``, due at once; see ``Job.register_again``."""
    job: Any = row
    alias = written_at(row)
    definition = registry.find(job.name)
    new = NewJob(
        name=job.name,
        payload=json.dumps(job.payload),
        queue=job.queue,
        priority=job.priority,
        max_attempts=definition.max_attempts if definition else max(1, job.max_attempts),
        timeout_seconds=job.timeout_seconds,
        headers=None if job.headers is None else json.dumps(job.headers),
        description=job.description,
        limit_key=job.limit_key,
        tags=job.tags,
    )
    register = register_special if new.is_special else register_job
    with capacity.passing(connections[alias], get_conf(), (new.queue,)):
        registered = register(alias, new)
    if registered is None:
        raise InvalidJob(f"job {new.name!r}: its key is taken")
    waking.registered(connections[alias], [new.wakes], get_conf())
    return type(row)._base_manager.using(alias).get(pk=registered.id)
