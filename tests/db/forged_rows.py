"""Rows that no registration writes: what was written over each, and a word of why it is held."""

from __future__ import annotations

import json

from django.db import connection

from django_pgjobs.models import Job


def _argument(json_text: str) -> str:
    return f"""payload = '{{"args": [{json_text}], "kwargs": {{}}}}'"""


DEEP = "payload = jsonb_build_object('args', (repeat('[', 12000) || repeat(']', 12000))::jsonb, 'kwargs', '{}'::jsonb)"

FORGED: dict[str, tuple[str, str]] = {
    "timeout NaN": ("timeout_seconds = 'NaN'", "The claim of this row fails"),
    "timeout infinite": ("timeout_seconds = 'Infinity'", "The claim of this row fails"),
    "timeout minus infinite": ("timeout_seconds = '-Infinity'", "The claim of this row fails"),
    "timeout of ages": ("timeout_seconds = 1e300", "The claim of this row fails"),
    "the largest attempt": ("attempt = 2147483647", "The claim of this row fails"),
    "a UUID that is a number": (_argument('{"$uuid": 5}'), "The stored JSON cannot be read"),
    "a zone that is none": (
        _argument(json.dumps({"$time": "00:00:00[America]"})),
        "The stored JSON cannot be read",
    ),
    "a zone without end": (
        _argument(json.dumps({"$time": f"00:00:00[{'x' * 10_000}]"})),
        "The stored JSON cannot be read",
    ),
    "the result of a job beyond all": (_argument('{"$result": 100000000000000000000000}'), "result"),
    "deep": (DEEP, "recursion"),
}


def forge(job: Job, change: str) -> None:
    """Write over the row of a job."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgjobs_job SET {change} WHERE id = {job.pk}")
