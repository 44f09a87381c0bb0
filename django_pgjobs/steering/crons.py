"""An operator's actions on cron entries: pause, resume, stop, run now, and override declared values; schedules made at
run time: write, delete.

Deploys undo none of it: declared values have columns of their own. Each action may be repeated, and joins the caller's
transaction. The leader sees it within half a second. The statement that fires checks for a pause itself, so nothing
fires once a pause is committed. Writing and deleting schedules leaves an open transaction usable no matter what it
raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError
from django.db.models import Model, QuerySet, Value
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan
from django.utils.translation import gettext_lazy as _

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import DuplicateJob, InvalidJob, JobDoesNotExist, UnreadablePayload
from django_pgjobs.logs import log
from django_pgjobs.serialization import encoder
from django_pgjobs.states import CancelMode
from django_pgjobs.steering.batching import Steered, who
from django_pgjobs.steering.trail import Trail, Until, end_of, reason_of, recorded_as, signed
from django_pgjobs.store import firing, scheduling, waking
from django_pgjobs.store.database import at_read_committed, on, refusal_of
from django_pgjobs.store.scheduling import CronAsRead, RowCron
from django_pgjobs.values import schedule as cron

MOST_PREVIEWED = 1000

MOST_NAMED = 5
"""Number of entries that the record of an action names."""

OVERRIDES = ("expression", "zone", "payload")

JSON_COLUMNS = ("declared_payload", "declared_options", "payload")
"""Columns that lists do not read: one forged number of 5000 digits would keep every row from being shown."""


def pause(entries: QuerySet[Model], using: str, *, by: object, reason: str, until: Until) -> int:
    """Stop entries from firing; see ``CronEntryQuerySet.pause``."""
    instant, seconds = end_of(until)
    reason = reason_of(who(by), reason)
    ends = instant if seconds is None else Now() + timedelta(seconds=seconds)
    chosen = entries if instant is None else entries.filter(GreaterThan(Value(instant), Now()))
    columns = {"paused_at": Now(), "paused_by": who(by), "paused_reason": reason, "paused_until": ends}
    changed = _change(chosen, using, Trail("pause", who(by), reason, kind="cron"), columns)
    if not changed and instant is not None and entries.using(using).exists():
        raise InvalidJob(f"until={until!r} is in the past by the database's clock: give a later instant.")
    return _logged("pause", by, reason, changed)


def resume(entries: QuerySet[Model], using: str, *, by: object) -> int:
    """Let paused entries fire again; see ``CronEntryQuerySet.resume``."""
    pause = {"paused_at": None, "paused_by": "", "paused_reason": "", "paused_until": None}
    columns = {**pause, "in_force_since": Now(), "next_fire_at": None, "check_at": Now()}
    changed = _change(entries, using, Trail("resume", who(by), kind="cron"), columns)
    return _logged("resume", by, "", changed)


def stop(entries: QuerySet[Model], using: str, jobs: Any, *, by: object, reason: str, mode: str) -> Steered:
    """Pause entries and cancel their unfinished ``jobs``; see ``CronEntryQuerySet.stop``."""
    if mode not in list(CancelMode):
        raise ValueError(f"stop(mode=…) takes {', '.join(repr(str(m)) for m in CancelMode)}, not {mode!r}")
    names = list(entries.values_list("pk", flat=True))
    pause(entries, using, by=by, reason=reason, until=None)
    unfinished = jobs.filter(cron_entry__in=names, finished_at__isnull=True)
    with recorded_as(filter_words=f"cron entry {listed(names)}"):
        stopped: Steered = unfinished.cancel(mode=mode, by=by, reason=reason)
    return stopped


def override(entries: QuerySet[Model], using: str, entry: Any, *, by: object, values: Mapping[str, object]) -> None:
    """Override values that the code declares for ``entry``, the only one of ``entries``.

    Empty values remove an override. Raises ``TypeError`` for other names, ``ValidationError`` for bad values.
    """
    if unknown := values.keys() - set(OVERRIDES):
        raise TypeError(f"override() takes {', '.join(OVERRIDES)}, not {', '.join(sorted(unknown))}")
    if entry.origin == entry.Origin.ROW:
        raise InvalidJob(
            f"cron entry {entry.pk!r} was made at run time: no code declares values to override. Register it again."
        )
    checked = check_overrides(entry.job_name, {name: value or None for name, value in values.items()})
    columns: dict[str, object] = {**checked, "broken": "", "next_fire_at": None, "check_at": Now()}
    if checked.keys() & {"expression", "zone"}:
        columns["in_force_since"] = Now()
    _change(entries, using, Trail("override", who(by), mode=", ".join(checked), kind="cron"), columns)
    said = ", ".join(f"{name} {value!r}" for name, value in checked.items() if name != "payload")
    log.info("operator's override cron=%s %s", entry.pk, signed(who(by), said))


def _change(entries: QuerySet[Model], using: str, trail: Trail, columns: Mapping[str, object]) -> int:
    with at_read_committed(using):
        trail.subject = listed(entries.using(using).order_by("pk").values_list("pk", flat=True)[: MOST_NAMED + 1])
        changed = entries.using(using).update(**columns)
        trail.add(on(using), changed)
    return changed


def _logged(verb: str, by: object, reason: str, changed: int) -> int:
    log.info("operator's %s of cron entries changed=%d %s", verb, changed, signed(who(by), reason))
    return changed


def run_now(name: str, using: str, by: object) -> int:
    """Register the job of an entry at once; return its id. Raises what ``CronEntry.run_now`` raises."""
    try:
        with at_read_committed(using):
            found = firing.run_cron(on(using), name)
            made = [found.job_id] if found is not None and found.job_id is not None else []
            Trail("run now", who(by), kind="cron", subject=name).add(on(using), len(made), made)
            if found is not None and found.wakes is not None:
                waking.notify(using, [found.wakes])
    except (DataError, IntegrityError) as error:
        raise InvalidJob(f"cron entry {name!r}: its job cannot be inserted: {refusal_of(error)}") from error
    if found is None:
        raise JobDoesNotExist(f"There is no cron entry {name!r}.")
    if found.busy:
        raise InvalidJob(f"cron entry {name!r}: its last job has not finished, and its overlap policy forbids two")
    if found.job_id is None:
        raise DuplicateJob(message=f"cron entry {name!r}: an unfinished job has the key of its job")
    log.info("operator's run now cron=%s job=%d %s", name, found.job_id, signed(who(by)))
    return found.job_id


def listed(names: Iterable[str]) -> str:
    """Return the first ``MOST_NAMED`` names as text."""
    first = list(names)
    return ", ".join(first[:MOST_NAMED]) + (", …" if len(first) > MOST_NAMED else "")


def check_overrides(job_name: str, values: Mapping[str, object]) -> dict[str, object]:
    """Return the overrides, checked against this process's definition of the job. Raises ``ValidationError``."""
    wrong: dict[str, object] = {}
    checked: dict[str, object] = {}
    for name, value in values.items():
        try:
            checked[name] = None if value is None else _CHECKS[name](job_name, value)
        except (cron.InvalidCron, UnreadablePayload) as error:
            wrong[name] = str(error)
        except ValidationError as error:
            wrong[name] = error.messages
    if wrong:
        raise ValidationError(wrong)
    return checked


def check_payload(job_name: str, value: object) -> object:
    """Return arguments as a row keeps them. Raises ``UnreadablePayload`` or ``ValidationError``."""
    definition = registry.resolved(job_name)
    if definition is None:
        raise ValidationError(
            _("This process knows no job %(name)s, so its arguments cannot be checked."), params={"name": job_name}
        )
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = encoder.size_of(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadablePayload(f"The arguments are not JSON: {error}") from None
    except encoder.Refused as refusal:
        raise UnreadablePayload(f"The arguments cannot be stored: they contain {refusal}.") from None
    limit = get_conf().bounds.payload_bytes
    if size > limit:
        raise UnreadablePayload(f"The arguments take more than {limit} bytes.")
    definition._load(text)
    return value


_CHECKS: dict[str, Any] = {
    "expression": lambda job_name, value: cron.check_expression(value),
    "zone": lambda job_name, value: cron.check_zone(value).key,
    "payload": check_payload,
}


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


def remove(entries: QuerySet[Model], using: str, *, by: object, reason: str) -> int:
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
