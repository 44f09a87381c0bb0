"""``after=``: the jobs that a job needs, given as ``Job`` or by their ids. Pure: registering looks them up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django_pgjobs.values.invalid_option import InvalidOption


class CheckedNeeds(NamedTuple):
    """The ids of needed jobs, and the ``Job`` of those that were given as one, which knows its database."""

    after: tuple[int, ...]
    after_rows: tuple[object, ...]


def check_after(value: object) -> CheckedNeeds:
    """Return the jobs that a job needs. Raises ``InvalidOption``."""
    given = [value] if isinstance(value, int | str) or _is_job(value) or not isinstance(value, Iterable) else [*value]
    return CheckedNeeds(tuple(dict.fromkeys(map(_id_of, given))), tuple(filter(_is_job, given)))


def _is_job(value: object) -> bool:
    return getattr(getattr(value, "_meta", None), "label", None) == "pgjobs.Job"


def _id_of(job: Any) -> int:
    if _is_job(job):
        if job.pk is None:
            raise InvalidOption(f"after takes jobs that are stored, and a job that bypasses the queue is not: {job!r}")
        job = job.pk
    if isinstance(job, bool) or not isinstance(job, int) or not 0 < job < 2**63:
        raise InvalidOption(f"after takes jobs or their ids, not {job!r}")
    return job
