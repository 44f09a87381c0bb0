"""Assertions about registered jobs; arguments are compared as the job's function would get them. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import router
from django.utils import timezone

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import UnreadablePayload, UnstorableResult
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.models import Job
from django_pgjobs.serialization.payload import decode_payload, decode_result, encode_result

SHOWN = 20
"""Number of jobs that a failed assertion lists."""


def assert_registered(
    job: JobDefinition[..., Any] | BoundJob,
    /,
    *args: object,
    queue: str | None = None,
    count: int | None = 1,
    database: str | None = None,
    **kwargs: object,
) -> list[Job]:
    """Assert that this job is registered with these arguments, ``count`` times (None: at least once); return them.

    Arguments are compared as the job's function would get them: by name, with defaults filled in, as they come back
    from the database; ``unittest.mock.ANY`` matches everything. If you pass no arguments, any arguments match. A bound
    job (``send.bind(7)``) always gives its arguments, even none, and its options are compared too. Jobs of every state
    count.
    Raises ``AssertionError`` listing what is registered, ``TypeError`` for arguments that the function would not take.
    """
    expected = _Expected.of(job, args, kwargs, queue)
    jobs = _all_jobs(database)
    matching = [row for row in jobs if expected.matches(row)]
    if len(matching) != count if count is not None else not matching:
        number = "at least one" if count is None else str(count)
        raise AssertionError(_complaint(f"{number} expected, {len(matching)} registered: {expected}", jobs))
    return matching


def assert_not_registered(
    job: JobDefinition[..., Any] | BoundJob,
    /,
    *args: object,
    queue: str | None = None,
    database: str | None = None,
    **kwargs: object,
) -> None:
    """Assert that this job is not registered with these arguments; if you pass none, not with any."""
    expected = _Expected.of(job, args, kwargs, queue)
    jobs = _all_jobs(database)
    if any(expected.matches(row) for row in jobs):
        raise AssertionError(_complaint(f"registered, but should not be: {expected}", jobs))


def _all_jobs(database: str | None) -> list[Job]:
    return list(Job.objects.using(database or router.db_for_write(Job)).order_by("id"))


_COLUMNS = {
    "queue": "queue",
    "priority": "priority",
    "max_attempts": "max_attempts",
    "timeout": "timeout_seconds",
    "run_at": "run_at",
    "key": "key",
    "idempotency_key": "idempotency_key",
}
"""Option of ``using`` → the column that shows it."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """The rows that an assertion expects; ``arguments`` is None if any match."""

    definition: JobDefinition[..., Any]
    arguments: Mapping[str, object] | None
    columns: Mapping[str, object]

    @classmethod
    def of(
        cls,
        job: JobDefinition[..., Any] | BoundJob,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        queue: str | None,
    ) -> _Expected:
        columns = {} if queue is None else {"queue": queue}
        if isinstance(job, JobDefinition):
            return cls(job, _bound(job, args, kwargs) if args or kwargs else None, columns)
        if args or kwargs:
            raise TypeError("a bound job has its arguments already")
        options = {
            _COLUMNS[option]: _as_read(value)
            for option, value in job.options.items()
            if option in _COLUMNS and not callable(value)
        }
        return cls(job.definition, _bound(job.definition, job.args, job.kwargs), options | columns)

    def matches(self, row: Job) -> bool:
        """Return whether this row is one of the expected."""
        if row.name not in (self.definition.name, *self.definition.aliases):
            return False
        if any(getattr(row, column) != value for column, value in self.columns.items()):
            return False
        return self.arguments is None or self.arguments == _arguments_of(row, self.definition)

    def __str__(self) -> str:
        arguments = "…" if self.arguments is None else _listed(self.arguments)
        return " ".join([f"{self.definition.name}({arguments})", *(f"{c}={v!r}" for c, v in self.columns.items())])


def _as_read(value: Any) -> object:
    """Return the value as the ORM reads it: without USE_TZ an instant is naive local time."""
    is_instant = isinstance(value, datetime) and not settings.USE_TZ
    return timezone.make_naive(value) if is_instant else value


def _bound(definition: JobPolicy, args: Iterable[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    bound = definition._signature.bind(*map(_as_stored, args), **{name: _as_stored(v) for name, v in kwargs.items()})
    bound.apply_defaults()
    return dict(bound.arguments)


def _as_stored(value: object) -> object:
    """Return the value as it comes back from the database; unstorable values, such as ``ANY``, unchanged."""
    try:
        return decode_result(encode_result(value, get_conf().bounds.payload_bytes))
    except UnstorableResult:
        return value


def _arguments_of(row: Job, definition: JobPolicy | None) -> dict[str, object]:
    """Return the stored arguments by name; in their stored form if no signature fits them."""
    try:
        args, kwargs = decode_payload(json.dumps(row.payload))
        if definition is not None:
            return _bound(definition, args, kwargs)
    except (UnreadablePayload, TypeError):
        pass
    return {"payload": row.payload}


def _listed(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _complaint(what: str, jobs: list[Job]) -> str:
    lines = [f"  {_described(row)}" for row in jobs[:SHOWN]]
    more = [f"  … and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else []
    return "\n".join([what, "Registered:", *(lines or ["  nothing"]), *more])


def _described(row: Job) -> str:
    arguments = _listed(_arguments_of(row, registry.resolved(row.name)))
    return f"#{row.pk} {row.name}({arguments}) {row.state} queue={row.queue!r} priority={row.priority}"
