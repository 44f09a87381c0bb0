"""Every worker writes the schedules that its code declares into the database.

A starting worker overwrites the rows of its entries, as its code is the newest. The leader does the same each minute,
and at once when it is elected. The others only confirm that their code still declares their entries. Entries that only
another deployment declares are left alone. An entry that no code has declared for some minutes is marked and does not
fire. A worker evaluates its declarations once, at its start, as descriptions and keys come from project code."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import timedelta

from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.db.models.functions import Now

from django_pgjobs import clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import safe_logger
from django_pgjobs.maintenance.cron_firing import REST_SECONDS, UNFIT
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.turns import took_turn
from django_pgjobs.middleware import on_duty
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.registering.served import served_aliases
from django_pgjobs.store import firing
from django_pgjobs.store.database import Database, Picking
from django_pgjobs.store.firing import DeclaredCron
from django_pgjobs.store.sqlstates import refusal_of

log = safe_logger("django_pgjobs")

SYNC_SECONDS = 60.0

RETRY_SECONDS = 5.0
"""Delay before the next try after trouble with the server."""

FRESH_SECONDS = 30.0
"""A declaration confirmed less than this ago is not written again."""

MISSING_SECONDS = 300.0


def declared_for(database: str) -> dict[str, DeclaredCron]:
    """Return the entries that this worker's code declares for ``database``, by name; log those that are invalid.

    Calls the project's code for descriptions and keys, which may query the database and be slow.
    """
    found: dict[str, DeclaredCron] = {}
    served = served_aliases()
    # Each entry has one home, whichever databases this worker serves: elsewhere it would fire once more.
    home = next(iter(served), None) or router.db_for_write(Job)
    for entry in registry.crons():
        is_here = (entry.database or home) == database
        if not served or database in served if entry.each_database else is_here:
            try:
                found[entry.name] = entry.declared()
            except (InvalidJob, ImproperlyConfigured) as error:
                log.error("cron entry cannot be declared cron=%s: %s", entry.name, error)
    return found


class CronSync:
    """Writes the entries that this worker's code has ``declared`` into their rows. A duty of every worker."""

    name = "cron_sync"

    def __init__(self, declared: Mapping[str, DeclaredCron], leader: Leader) -> None:
        self.declared = dict(declared)
        self.leader = leader
        self.due = 0.0
        self.term: int | None = None
        self.started = False
        self.left: deque[DeclaredCron] = deque()
        """Entries that are still to be written, a part in each tick: a thousand entries at once would cost a term."""
        self.taken: set[str] = set()
        """Names that schedules made at run time have."""

    def tick(self, db: Database) -> None:
        """Declare or refresh the entries if that is due. Without entries, send no query."""
        now, term = clock.monotonic(), self.leader.term if self.leader.leads else None
        due = now >= self.due or (term is not None and term != self.term)
        if not due and not self.left:
            return
        retry_at, self.due = now + RETRY_SECONDS, now + SYNC_SECONDS if due else self.due
        written = 0
        try:
            if self.declared:
                with on_duty(self.name):
                    if due:
                        self.left = deque(self._to_write(db, leads=term is not None))
                    written = self._write_some(db, now)
                took_turn(self.name, now, written)
        except BaseException:
            self.due = retry_at
            self.left.clear()
            raise
        self.term = term
        self.started = self.started or not self.left

    def _to_write(self, db: Database, *, leads: bool) -> list[DeclaredCron]:
        known = firing.refresh_crons(db, list(self.declared), fresh_seconds=FRESH_SECONDS)
        for name in sorted(name for name, is_row in known.items() if is_row and name not in self.taken):
            self.taken.add(name)
            log.error("cron entry cannot be declared, a schedule made at run time has its name cron=%s", name)
        missing_only = self.started and not leads
        return [each for name, each in self.declared.items() if not missing_only or name not in known]

    def _write_some(self, db: Database, now: float) -> int:
        """Write entries until the turn is over; return how many were written."""
        written, before = 0, len(self.left)
        while self.left:
            written += _declare(db, self.left.popleft())
            if clock.monotonic() >= now + REST_SECONDS:
                break
        log.debug("cron entries synchronised entries=%d written=%d", before - len(self.left), written)
        return written

    def leave(self, db: Database) -> None:
        """Do nothing: the entries stay when a worker leaves."""


def _declare(db: Database, declared: DeclaredCron) -> bool:
    try:
        return firing.declare_cron(db, declared, overwrite=True, fresh_seconds=FRESH_SECONDS)
    except UNFIT as error:
        log.error("cron entry cannot be declared, the others can cron=%s: %s", declared.name, refusal_of(error))
        return False


class MarkMissing:
    """Marks entries that no code declares any more. Not a hot path: the ORM picks them (ADR-0007)."""

    def __call__(self, db: Picking) -> int:
        """Mark them and return how many; a locked row waits for the next turn. Repeatable, also by several at once."""
        with db.orm() as using:
            long_ago = Now() - timedelta(seconds=MISSING_SECONDS)
            declared = CronEntry.objects.using(using).filter(origin=CronEntry.Origin.CODE)
            old = declared.filter(missing_since=None, declared_at__lt=long_ago)
            names = list(old.select_for_update(skip_locked=True, no_key=True).values_list("name", flat=True))
            marked = firing.mark_missing_crons(db, names) if names else []
        for name, job_name in marked:
            log.warning(
                "cron entry is declared by no worker's code any more, it does not fire until one does cron=%s name=%s",
                name, job_name,
            )  # fmt: skip
        return len(marked)
