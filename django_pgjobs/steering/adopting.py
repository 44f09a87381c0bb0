"""Adopt the copy of a database: its jobs are run, held or cancelled, all in one transaction, and workers serve it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from django.db import models

from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import listed, log
from django_pgjobs.steering.batching import who
from django_pgjobs.steering.trail import signed, storable
from django_pgjobs.store import counting, installation
from django_pgjobs.store.database import Database, at_read_committed, on, set_lock_timeout

LOCK_TIMEOUT = "10s"

REASON = "It came with the copy of a database."


class Adopted(NamedTuple):
    """The numbers of jobs that were left, held or cancelled, and of schedules that were paused."""

    jobs: int
    schedules: int


def refusal(using: str, environment: str) -> str:
    """Return why no worker of this environment serves a database, empty if it is no copy."""
    return installation.read(on(using), environment).refusal()


def adopt(
    jobs: models.QuerySet[models.Model],
    crons: Any,
    environment: str,
    fate: Literal["run", "park", "cancel"],
    *,
    by: object = None,
    reason: str = "",
) -> Adopted | None:
    """Make a copy a database of its own; return None if it is no copy, or no longer the one that was looked at.

    ``jobs``: its unfinished ones, in the database that the query reads. ``crons``: its schedules that are not paused
    until they are resumed.
    ``run`` leaves its jobs as they are. ``park`` holds those that wait or ran, until an operator retries them; those
    that wait for others still do. ``cancel`` ends all, as their callbacks if only these were left; nothing is called,
    nothing undone. With both, all schedules are paused, after a wait for the lock of the job table; after ten seconds
    ``OperationalError`` is raised. Raises ``InvalidJob`` if workers serve the database: it is no copy then, but seen
    from a process of another environment. All or nothing, and repeatable.
    """
    author, words = storable(who(by)), storable(reason)
    using = jobs.db
    with at_read_committed(using):
        db = on(using)
        if fate != "run":
            set_lock_timeout(db, LOCK_TIMEOUT)
            installation.lock_jobs(db)
            _check_is_left(db)
        seen = installation.read(db, environment)
        if not seen.refusal() or not installation.adopt(db, seen, author):
            return None
        if fate == "park":
            changed = installation.park_copied(db, reason=words)
        elif fate == "cancel":
            changed = installation.cancel_copied(db, by=author, reason=words or REASON)
        else:
            changed = jobs.count()
        paused = 0 if fate == "run" else crons.pause(by=author, reason=words or REASON)
    log.warning("database is adopted fate=%s jobs=%d %s", fate, changed, signed(author, reason))
    return Adopted(changed, paused)


def _check_is_left(db: Database) -> None:
    conf = get_conf()
    workers = counting.list_workers(db, silent_seconds=conf.silent_seconds, stale_seconds=conf.stale_seconds)
    if live := [each.name for each in workers if each.live]:
        words = f"Workers serve this database: {listed(live)}. Is ENVIRONMENT right? If it is, stop them first."
        raise InvalidJob(f"{words} If it was copied less than {conf.silent_seconds:g} s ago, wait for so long.")
