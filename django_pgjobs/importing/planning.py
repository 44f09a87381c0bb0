"""Take the schedules of another scheduler in the same database, all in one transaction: each fires here or there."""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

from django.db import transaction

from django_pgjobs.exceptions import InvalidJob, PgJobsError
from django_pgjobs.importing.judging import check_plan, definition_of, judge_call
from django_pgjobs.importing.recurring import ForeignSchedule, OtherScheduler
from django_pgjobs.importing.sources import UNREADABLE
from django_pgjobs.importing.taking import Fate, ImportTally, ReportFates, check_commits, log_import, registered
from django_pgjobs.models import CronEntry
from django_pgjobs.steering.batching import LOCK_SECONDS
from django_pgjobs.steering.crons import CREATED
from django_pgjobs.store.database import at_read_committed, on, set_lock_timeout

AUTHOR = "pgjobs import"


class _Written(NamedTuple):
    """A schedule that was written: its id there, and the job or the entry that it is here."""

    id: str
    job_id: int | None
    entry: str | None


def take_schedules(source: OtherScheduler, using: str, *, apply: bool, report: ReportFates) -> ImportTally:
    """Take all schedules of ``source``; without ``apply`` only say which. Repeatable; reports after the commit.

    Raises ``InvalidJob`` inside a transaction.
    """
    check_commits(using)
    tally = ImportTally(secrets.token_hex(4))
    written: list[_Written] = []
    with at_read_committed(using):
        db = on(using)
        set_lock_timeout(db, f"{LOCK_SECONDS}s")
        locked = [row[0] for row in source.tables.lock(db, {})] if apply else None
        # By statements of their own: they see what those have committed for whom the lock has waited.
        rows = source.tables.read(db, {"ids": locked})
        known = set(CronEntry.objects.using(using).values_list("pk", flat=True))
        fates = [_fate(source, row, using, known, written if apply else None) for row in rows]
        if written:
            ids, job_ids, entries = map(list, zip(*written, strict=True))
            params = {"ids": ids, "job_ids": job_ids, "entries": entries, "run": tally.run}
            if len(source.tables.take(db, params)) != len(written):
                raise InvalidJob(f"Schedules of {source.name} changed while they were locked: nothing was taken.")
    tally.add(fates)
    report(fates)
    if apply:
        log_import(source.name, tally)
    return tally


def _fate(
    source: OtherScheduler, row: tuple[Any, ...], using: str, known: set[str], written: list[_Written] | None
) -> Fate:
    source_id, noted, *parts = row
    stored: list[Any] = [None if part is None else json.loads(part) for part in parts]
    name = str(stored[0].get("name") or stored[0].get("func"))
    if noted:
        return Fate(source_id, name, reason="was imported before")
    try:
        found = source.planned(*stored)
        if found.name in known and found.run_at is None:
            raise InvalidJob(f"a schedule {found.name!r} is here")
        with transaction.atomic(using=using):
            job_id = _put(found, using, write=written is not None)
    except (PgJobsError, *UNREADABLE) as error:
        return Fate(source_id, name, reason=str(error) or type(error).__name__)
    if written is not None:
        written.append(_Written(source_id, job_id, None if found.run_at else found.name))
    if found.run_at is None:
        known.add(found.name)
    return Fate(source_id, found.name, job_id, found.differences)


def _put(found: ForeignSchedule, using: str, *, write: bool) -> int | None:
    """Write a schedule or the one job of it, or only check it; return the id of the job."""
    definition = definition_of(found.job)
    if found.run_at is not None:
        options = {**found.options, "run_at": found.run_at}
        judged = [judge_call(definition, options, found.args, found.kwargs, using)]
        job_id = registered(judged, using)[0] if write else None
        if judged[0].reason:
            raise InvalidJob(judged[0].reason)
        return job_id
    check_plan(definition, found.options, using)
    when = dict(found.when)
    call = definition.using(**found.options, database=using)
    schedule = call.schedule(when.pop("expression", None), name=found.name, by=AUTHOR, **when)
    if not write:
        schedule.check(*found.args, **found.kwargs)
    elif schedule.register(*found.args, **found.kwargs).written != CREATED:  # it has come since ``known`` was read
        raise InvalidJob(f"a schedule {found.name!r} is here")
    if not definition.schedulable:
        found.differences.append("the admin cannot change it: declare @job(schedulable=True)")
    return None
