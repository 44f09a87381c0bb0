"""Schedules made at run time: write one to its row, delete some; who changed what goes into the trail.

Both join the caller's transaction and leave it usable no matter what they raise. The leader sees a change within half a
second after the commit.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import safe_logger
from django_pgjobs.steering.batching import who
from django_pgjobs.steering.crons import listed
from django_pgjobs.steering.trail import Trail, signed
from django_pgjobs.steering.until import reason_of
from django_pgjobs.store import scheduling
from django_pgjobs.store.database import on
from django_pgjobs.store.scheduling import CronAsRead, RowCron
from django_pgjobs.store.transactions import at_read_committed

log = safe_logger("django_pgjobs")

CREATED, CHANGED, UNCHANGED = "created", "changed", "unchanged"

SAID = ("job_name", "expression", "zone", "misfire", "overlap", "enabled", "starts_at", "ends_at", "max_fires")
"""Values that the record of a change repeats; arguments may be secret, so it only names them."""


def put(using: str, row: RowCron, *, by: object, reason: str) -> str:
    """Write a schedule to its row; return ``created``, ``changed`` or ``unchanged``.

    Blocks while another session changes or fires an entry of its name. Raises ``InvalidJob`` if code declares that
    name.
    """
    reason = reason_of(who(by), reason)
    if any(entry.name == row.name for entry in registry.crons()):
        raise _taken(row.name)
    db = on(using)
    with at_read_committed(using):
        before = scheduling.read_cron(db, row.name)
        if before is not None and not before.is_row:
            raise _taken(row.name)
        created = scheduling.put_cron(db, row)
        if created is None:
            now = before or scheduling.read_cron(db, row.name)
            if now is None or not now.is_row:
                raise _taken(row.name)
            return UNCHANGED
        done = CREATED if created else CHANGED
        words = _differences(before, row) if before is not None else _words(row)
        verb = "add" if created else "change"
        Trail(verb, who(by), reason, mode=words, kind="cron", subject=row.name).add(db, 1)
    log.info("schedule %s cron=%s name=%s %s", done, row.name, row.job_name, signed(who(by), reason))
    return done


def remove(entries: QuerySet[Any], using: str, *, by: object, reason: str) -> int:
    """Delete schedules; see ``CronEntryQuerySet.remove``."""
    reason = reason_of(who(by), reason)
    db = on(using)
    with at_read_committed(using):
        found = scheduling.remove_crons(db, list(entries.using(using).values_list("pk", flat=True)))
        if kept := sorted(name for name, free in found.items() if not free):
            raise InvalidJob(
                f"Nothing is deleted: code declares {listed(map(repr, kept))}, and would declare it again. "
                "Pause it, or take it out of the code."
            )
        names = sorted(found)
        Trail("delete", who(by), reason, kind="cron", subject=listed(names)).add(db, len(names))
    log.info("schedules deleted changed=%d %s", len(names), signed(who(by), reason))
    return len(names)


def _taken(name: str) -> InvalidJob:
    return InvalidJob(f"cron entry {name!r} is declared by code: give the schedule another name.")


def _words(row: RowCron) -> str:
    return f"{row.job_name} {row.expression} {row.zone}"


def _differences(before: CronAsRead, row: RowCron) -> str:
    said = [
        f"{name}: {_text(old)} → {_text(new)}"
        for name in SAID
        if (old := getattr(before, name)) != (new := getattr(row, name))
    ]
    named = [
        name
        for name, old, new in (("arguments", before.payload, row.payload), ("options", before.options, row.options))
        if json.loads(old) != json.loads(new)
    ]
    mended = ["mended"] if before.broken else []
    return "; ".join([*said, *named, *mended])


def _text(value: object) -> str:
    if value is None:
        return "–"
    return value.isoformat(" ", "seconds") if isinstance(value, datetime) else str(value)
