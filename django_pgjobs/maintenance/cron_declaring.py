"""Every worker writes the schedules that its code declares into the database, and checks those made at run time.

A starting worker overwrites the rows of its entries, as its code is the newest. The leader does the same each minute,
and at once when it is elected. The others only confirm that their code still declares their entries. Entries that only
another deployment declares are left alone. An entry that no code has declared for some minutes is marked and does not
fire. A worker evaluates its declarations once, at its start, as descriptions and keys come from project code.

One of many schemas is led by workers of all deployments in turns. There a worker overwrites at its first visit. Later
it confirms the entries that are as its code says. Others it writes if they are missing, or if no worker has confirmed
them for a day: a deployment that was there later may have declared them.

No code declares a schedule made at run time, so it is never *missing*. It is *broken* while no worker's code knows its
job, or its arguments do not fit the job's signature, and mended by the next worker that starts with code which they
fit.

Workers confirm in ``pgjobs_known_job``, one row for each job that schedules name, which jobs their code knows: a worker
that starts has the newest code and says so; the others only confirm what agrees.
The fingerprint there changes with the job's signature. A worker thus finds the schedules to check again by an index,
however many there are, and checks them in batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import timedelta

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db import router
from django.db.models.functions import Now

from django_pgjobs import clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob, UnreadablePayload
from django_pgjobs.inspection import liveness
from django_pgjobs.logs import log
from django_pgjobs.maintenance.cron_firing import REST_SECONDS, TURN_SECONDS, UNFIT, UNFIT_ARGUMENTS, UNKNOWN
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.turns import took_turn
from django_pgjobs.middleware import on_duty
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.registering.served import served_aliases
from django_pgjobs.store import firing, scheduling
from django_pgjobs.store.database import Database, Picking, refusal_of
from django_pgjobs.store.firing import DeclaredCron
from django_pgjobs.store.scheduling import RowJob

SYNC_SECONDS = 60.0

RETRY_SECONDS = 5.0
"""Delay before the next try after trouble with the server."""

FRESH_SECONDS = 30.0
"""A declaration confirmed less than this ago is not written again."""

MISSING_SECONDS = 300.0
MISSING_IN_SCHEMA_SECONDS = 86_400.0
"""The same where one of many schemas is visited now and then, by a worker of either deployment."""


def missing_seconds() -> float:
    """Return the time without confirmation after which no worker's code declares an entry, or knows a job."""
    return MISSING_IN_SCHEMA_SECONDS if liveness.sleeps() else MISSING_SECONDS


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
                    confirms = self.started and liveness.sleeps()
                    if due:
                        every = self.declared.values()
                        self.left = deque(every if confirms else self._to_write(db, leads=term is not None))
                    written = self._write_some(db, now, overwrite=not confirms)
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

    def _write_some(self, db: Database, now: float, *, overwrite: bool) -> int:
        """Write entries until the turn is over; return how many were written."""
        written, before = 0, len(self.left)
        while self.left:
            written += _declare(db, self.left.popleft(), overwrite=overwrite)
            if clock.monotonic() >= now + REST_SECONDS:
                break
        log.debug("cron entries synchronised entries=%d written=%d", before - len(self.left), written)
        return written

    def leave(self, db: Database) -> None:
        """Leave the entries; in a schema that it leads at the next visit the worker confirms all of them."""
        self.term = None


def _declare(db: Database, declared: DeclaredCron, *, overwrite: bool) -> bool:
    stale = missing_seconds()
    try:
        return firing.declare_cron(db, declared, overwrite=overwrite, fresh_seconds=FRESH_SECONDS, stale_seconds=stale)
    except UNFIT as error:
        log.error("cron entry cannot be declared, the others can cron=%s: %s", declared.name, refusal_of(error))
        return False


class MarkMissing:
    """Marks entries that no code declares any more. Not a hot path: the ORM picks them (ADR-0007)."""

    def __call__(self, db: Picking) -> int:
        """Mark them and return how many; a locked row waits for the next turn. Repeatable, also by several at once."""
        with db.orm() as using:
            long_ago = Now() - timedelta(seconds=missing_seconds())
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


BATCH = 200


class CronRows:
    """Confirms the jobs that schedules name and checks their arguments. A duty of every worker."""

    name = "cron_rows"

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.due = 0.0
        self.term: int | None = None
        self.started = False

    def tick(self, db: Database) -> None:
        """Confirm and check what is due; what a turn does not finish, the next one does."""
        now, term = clock.monotonic(), self.leader.term if self.leader.leads else None
        elected = term is not None and term != self.term
        if now < self.due and not elected:
            return
        self.due = now + RETRY_SECONDS
        with on_duty(self.name):
            done = self._turn(db, now, leads=term is not None)
        self.started, self.term = True, term
        self.due = now + SYNC_SECONDS if done else now
        took_turn(self.name, now)

    def _turn(self, db: Database, now: float, *, leads: bool) -> bool:
        jobs = scheduling.list_row_jobs(db)
        done = self._confirm(db, jobs, newest=not self.started, until=now + TURN_SECONDS)
        if leads:
            done = _mark_orphans(db, jobs, until=now + TURN_SECONDS) and done
        return done

    def leave(self, db: Database) -> None:
        """Do nothing: other workers, or the next deploy, may know the jobs."""

    def _confirm(self, db: Database, jobs: list[RowJob], *, newest: bool, until: float) -> bool:
        """Confirm the jobs that this code knows, and check their schedules; return whether all is done."""
        known = {job.name: policy._fingerprint for job in jobs if (policy := registry.find(job.name)) is not None}
        if not known:
            return True
        stale = missing_seconds()
        scheduling.confirm_jobs(db, known, overwrite=newest, fresh_seconds=FRESH_SECONDS, stale_seconds=stale)
        mine = {
            job.name: known[job.name]
            for job in jobs
            if job.name in known and (newest or job.fingerprint == known[job.name] or _is_stale(job))
        }
        return all(_check_arguments(db, name, fingerprint, until=until) for name, fingerprint in mine.items())


def _check_arguments(db: Database, job_name: str, fingerprint: str, *, until: float) -> bool:
    """Check the schedules of a job that were not checked against this code; return whether none is left."""
    while found := scheduling.list_unchecked_crons(db, job_name, fingerprint, most=BATCH):
        judged = [(entry, _misfit(job_name, entry.payload)) for entry in found]
        try:
            changed = scheduling.judge_crons(db, job_name, fingerprint, judged)
        except psycopg.DataError as error:  # forged arguments that are text here, but no JSON to the server
            log.error("schedules of a job cannot be checked name=%s: %s", job_name, refusal_of(error))
            return True
        for name, reason in changed:
            if reason:
                log.error("cron entry is broken, it does not fire until it is mended cron=%s: %s", name, reason)
            else:
                log.info("cron entry is mended cron=%s", name)
        if clock.monotonic() >= until or len(found) < BATCH:
            return len(found) < BATCH
    return True


def _misfit(job_name: str, payload: str) -> str:
    policy = registry.find(job_name)
    if policy is None:
        return ""
    try:
        policy._load(payload)
    except UnreadablePayload as error:
        return f"{UNFIT_ARGUMENTS} {job_name}: {error}"
    return ""


def _is_stale(job: RowJob) -> bool:
    return job.seconds is None or job.seconds > missing_seconds()


def _mark_orphans(db: Database, jobs: list[RowJob], *, until: float) -> bool:
    """Mark the schedules of jobs that no worker has confirmed for long; return whether all are marked."""
    for job in jobs:
        if _is_stale(job) and registry.find(job.name) is None:
            while marked := _orphan(db, job.name):
                for name in marked:
                    log.error("cron entry is broken, no worker's code knows its job cron=%s name=%s", name, job.name)
                if clock.monotonic() >= until:
                    return False
    return True


def _orphan(db: Database, job_name: str) -> list[str]:
    # A process that registers may have newer code than the workers: give their deploy as long as any other.
    return scheduling.orphan_crons(db, job_name, f"{UNKNOWN} {job_name}", older_seconds=missing_seconds(), most=BATCH)
