"""A message of Celery as an argument of a job beside the task's own: JSON, without what says nothing.

Arguments and results pass through the JSON of Celery's own messages, so a task gets what it got from the broker:
lists for tuples, and dates, decimals and UUIDs as themselves.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID

from django.db import router
from kombu.serialization import dumps
from kombu.utils.json import loads

from django_pgjobs.context import running_alias
from django_pgjobs.models import Job

Message = dict[str, Any]

MESSAGE = "celery_message"
"""The argument; a call that has not come through Celery, such as one by a schedule, has none."""

EMBEDDED = ("callbacks", "errbacks", "chain", "chord")
DROPPED = frozenset({"lang", "task", "eta", "timelimit", "argsrepr", "kwargsrepr", "origin"})
"""Headers that the row itself has, or that are made of it."""

SILENT = frozenset({
    "shadow", "group", "retries", "root_id", "parent_id", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps",
})  # fmt: skip
"""Celery's own headers that say nothing if they are false."""

FAILED = "failed"
"""Key of a message that says only how a task failed which never ran, such as the rest of a chain."""

_OF_ROWS = "00000000-0000-8000-8000-"


def packed(value: object) -> Any:
    """Return a value as Celery's JSON keeps it. Raises ``EncodeError``."""
    return json.loads(dumps(value, serializer="json")[2])


def unpacked(value: object) -> Any:
    """Return the value of what ``packed`` returned, which may hold values that our own JSON has revived."""
    return loads(dumps(value, serializer="json")[2])


def made(headers: dict[str, Any], embedded: dict[str, Any], priority: int | None) -> Message:
    """Return what a task's request must know besides its arguments."""
    kept = {
        name: value for name, value in headers.items()
        if name not in DROPPED and value is not None and (value or name not in SILENT)
    }  # fmt: skip
    if any(headers.get("timelimit") or ()):
        kept["timelimit"] = list(headers["timelimit"])
    if kept.get("root_id") == kept["id"]:
        del kept["root_id"]
    kept |= {name: embedded[name] for name in EMBEDDED if embedded.get(name)}
    if priority:
        kept["priority"] = priority
    return kept


def tag_of(task_id: str) -> str:
    """Return the tag by which the job of a task's id is found."""
    tag = f"celery:{task_id}"
    if len(tag) <= 50 and tag.isprintable() and tag == tag.strip():
        return tag
    return f"celery:{hashlib.sha1(task_id.encode(), usedforsecurity=False).hexdigest()}"


def id_of(message: Message, job_id: int) -> str:
    """Return the id of a task; a job that a schedule has fired has one made of its own."""
    return str(message.get("id") or UUID(f"{_OF_ROWS}{job_id:012x}"))


def row_of(task_id: str) -> int | None:
    """Return the job whose id a task's id was made of; None for others."""
    return int(task_id[len(_OF_ROWS) :], 16) if task_id.startswith(_OF_ROWS) else None


def job_of(task_id: str) -> Job | None:
    """Return the latest job of a task's id."""
    jobs = Job.objects.using(running_alias() or router.db_for_write(Job))
    if (row := row_of(task_id)) is not None:
        return jobs.filter(pk=row).first()
    found = list(jobs.tagged(tag_of(task_id)))
    return max(found, key=lambda job: job.pk, default=None)


def message_of(job: Job) -> Message:
    """Return the message that is stored with a job."""
    kwargs = job.payload.get("kwargs") if isinstance(job.payload, dict) else None
    return (kwargs or {}).get(MESSAGE) or {}
