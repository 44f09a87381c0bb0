"""Check-ins of cron entries with Sentry: in progress from the first attempt on, ``ok`` or ``error`` when the job ends.

All attempts of a fire share one check-in, whose id follows from the job and the fire, so another process can continue
it. A retry, a snooze or a suspension leaves it in progress, and each attempt says so again, which renews its time. A
cancelled job is ``ok``: that was a decision. A job whose process is killed says nothing; its next attempt does, and if
there is none, Sentry itself notices that it has taken too long.

Sentry's schedules know minutes. Entries that may fire more often, by six fields or an interval with seconds, do not
check in. The schedules of entries that this process does not declare are Sentry's to know.
"""

from __future__ import annotations

import math
import re
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import UUID, uuid5

from django.conf import settings
from sentry_sdk.crons import capture_checkin

from django_pgjobs import decisions as decide
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import log
from django_pgjobs.telemetry.attempts import settled
from django_pgjobs.values.interval import is_interval, length_of

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext
    from django_pgjobs.decisions import Decision
    from django_pgjobs.definition.cron_declaration import CronDeclaration

SLUG_LIMIT = 50
HASH_DIGITS = 8

_NAMESPACE = UUID("c5cf9e2f-6f0e-4f0b-9b43-5a4a6e2f1d0c")
_NOT_IN_SLUGS = re.compile(r"[^a-z0-9_-]+")

_noted: set[str] = set()


def begin(context: JobContext) -> None:
    """Say that an attempt of a cron entry's job has started; nothing for other jobs."""
    _check_in(context, "in_progress")


def end(context: JobContext, decision: Decision) -> None:
    """Say how a cron entry's job has ended, if this decision ends it."""
    status = _status_of(decision)
    if status is not None:
        _check_in(context, status)


def _check_in(context: JobContext, status: str) -> None:
    if context.cron_entry is None or context.fire_at is None:
        return
    config = monitor_config(context.cron_entry, context.timeout)
    if config is not None:
        capture_checkin(
            monitor_slug=slug_of(monitor_of(context)),
            check_in_id=check_in_of(context),
            status=status,
            monitor_config=config or None,
        )


def _status_of(decision: Decision) -> str | None:
    match settled(decision):
        case decide.Committed(stepped=True):
            return None
        case decide.Succeeded() | decide.Committed() | decide.Cancelled():
            return "ok"
        case decide.Abandoned():
            # A transaction in doubt may have succeeded, and the outcome is found out elsewhere.
            return None if isinstance(decision, decide.InDoubt) else "error"
        case _:
            return None


def check_in_of(context: JobContext) -> str:
    """Return the id of a fire's check-in, the same in all attempts and processes."""
    return uuid5(_NAMESPACE, f"{context.database} {context.id} {context.fire_at} {monitor_of(context)}").hex


def monitor_of(context: JobContext) -> str:
    """Return what is monitored: the entry, or that of one database if each has one."""
    entry = str(context.cron_entry)
    declared = _declaration_of(entry)
    return f"{entry} {context.database}" if declared is not None and declared.each_database else entry


def _declaration_of(entry: str) -> CronDeclaration | None:
    return next((each for each in registry.crons() if each.name == entry), None)


def slug_of(entry: str) -> str:
    """Return the name of an entry's monitor: hyphens for dots; a hash keeps names apart that Sentry does not allow."""
    plain = entry.replace(".", "-")
    if 0 < len(plain) <= SLUG_LIMIT and not _NOT_IN_SLUGS.search(plain) and not plain.isdigit():
        return plain
    slug = _NOT_IN_SLUGS.sub("-", plain[: 4 * SLUG_LIMIT].lower())
    digest = sha256(entry.encode("utf-8", "backslashreplace")).hexdigest()[:HASH_DIGITS]
    return f"{slug[: SLUG_LIMIT - HASH_DIGITS - 1].strip('-_') or 'cron'}-{digest}"


def monitor_config(entry: str, timeout: float | None) -> dict[str, object] | None:
    """Return what creates or updates an entry's monitor; empty if this process does not declare the entry.

    None if the entry cannot be watched, which is logged once. ``timeout``: the job's, in seconds.
    """
    declared = _declaration_of(entry)
    if declared is None:
        return {}
    schedule = _schedule_of(declared)
    if schedule is None:
        if entry not in _noted:
            _noted.add(entry)
            log.info("cron entry does not check in, Sentry's schedules know no seconds cron=%s", entry)
        return None
    config: dict[str, object] = {"schedule": schedule, "timezone": declared.zone or settings.TIME_ZONE}
    if timeout is not None:
        config["max_runtime"] = max(1, math.ceil(timeout / 60))
    return config


def _schedule_of(declared: CronDeclaration) -> dict[str, object] | None:
    expression = declared.expression
    if is_interval(expression):
        number, unit = length_of(expression)
        return None if unit == "second" else {"type": "interval", "value": number, "unit": unit}
    if len(expression.split()) > 5:
        return None
    return {"type": "crontab", "value": "@daily" if expression == "@midnight" else expression}
