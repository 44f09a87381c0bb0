"""Schedules made at run time: whether workers know their jobs, and whether their arguments still fit.

No code declares such a schedule, so it is never *missing*. It is *broken* while no worker's code knows its job, or its
arguments do not fit the job's signature, and mended by the next worker that starts with code which they fit.

Workers confirm in ``pgjobs_known_job``, one row for each job that schedules name, which jobs their code knows: a worker
that starts has the newest code and says so; the others only confirm what agrees.
The fingerprint there changes with the job's signature. A worker thus finds the schedules to check again by an index,
however many there are, and checks them in batches.
"""

from __future__ import annotations

import psycopg

from django_pgjobs import clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.logs import safe_logger
from django_pgjobs.maintenance.cron_declaring import FRESH_SECONDS, MISSING_SECONDS, RETRY_SECONDS, SYNC_SECONDS
from django_pgjobs.maintenance.cron_firing import TURN_SECONDS, UNFIT_ARGUMENTS, UNKNOWN
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.turns import took_turn
from django_pgjobs.middleware import on_duty
from django_pgjobs.store import scheduling
from django_pgjobs.store.database import Database
from django_pgjobs.store.scheduling import RowJob
from django_pgjobs.store.sqlstates import refusal_of

log = safe_logger("django_pgjobs")

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
        scheduling.confirm_jobs(db, known, overwrite=newest, fresh_seconds=FRESH_SECONDS, stale_seconds=MISSING_SECONDS)
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
    return job.seconds is None or job.seconds > MISSING_SECONDS


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
    return scheduling.orphan_crons(db, job_name, f"{UNKNOWN} {job_name}", older_seconds=MISSING_SECONDS, most=BATCH)
