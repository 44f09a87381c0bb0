"""The statements of an operator's actions, on rows that the caller has locked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from django.db import transaction

from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.signals import job_finished
from django_pgjobs.states import CancelMode, Ending, Outcome
from django_pgjobs.store.database import Database, Rows
from django_pgjobs.store.notifying import Notification, ended, scan_behind, wake_up


class EndedJob(NamedTuple):
    """A job that a statement has ended although no worker had it. ``error``: in one line, or empty."""

    id: int
    name: str
    queue: str
    attempt: int
    outcome: str
    error: str = ""


class Changed(NamedTuple):
    """The jobs that were written, and the notifications to send after the commit.

    ``gathering``: batches that wait for their members, which got the request. ``ended``: those that have ended.
    """

    ids: list[int]
    notices: list[Notification]
    gathering: Sequence[int] = ()
    ended: Sequence[EndedJob] = ()


def cancel_jobs(
    db: Database, ids: Sequence[int], *, mode: str, by: str, reason: str, with_callback: Sequence[str]
) -> Changed:
    """Cancel: unclaimed jobs end (or only their callback is left), claimed ones get the request."""
    params = {
        "ids": list(ids),
        "mode": mode,
        "modes": list(CancelMode),
        "endings": list(Ending),
        "by": by,
        "reason": reason,
        "with_callback": list(with_callback),
    }
    return _changed(db.fetch("cancel_jobs", params), Outcome.CANCELLED, "")


def abandon_jobs(db: Database, ids: Sequence[int], *, reason: str, with_callback: Sequence[str]) -> Changed:
    """Abandon unclaimed jobs: they end, or only their callback is left."""
    params = {"ids": list(ids), "reason": reason, "with_callback": list(with_callback)}
    return _changed(db.fetch("abandon_jobs", params), Outcome.ABANDONED, reason)


def _changed(rows: Rows, outcome: str, error: str) -> Changed:
    notices = [ended(job_id) for job_id, _, _, waited, *_ in rows if waited]
    notices += [wake_up(queue, priority) for _, queue, priority, _, due, *_ in rows if due]
    notices += [scan_behind(queue) for _, queue, _, _, _, old, *_ in rows if old]
    gathering = [row[0] for row in rows if row[6]]
    over = [
        EndedJob(job_id, name, queue, attempt, outcome, error)
        for job_id, queue, *_, name, attempt, has_ended in rows
        if has_ended
    ]
    return Changed([row[0] for row in rows], notices, gathering, over)


class Moved(NamedTuple):
    """The jobs that were written, those that were not because another job has their key, and the notifications."""

    changed: list[int]
    taken: list[int]
    notices: list[Notification]


def retry_jobs(db: Database, ids: Sequence[int], *, attempts: Mapping[str, int], default_attempts: int) -> Moved:
    """Make abandoned, cancelled and parked jobs ready; ``attempts``: name → how many more attempts it gets.

    Fails as a whole (23505) if another job takes a key while it runs.
    """
    params = {
        "ids": list(ids),
        "names": list(attempts),
        "attempts": list(attempts.values()),
        "default_attempts": default_attempts,
    }
    return _moved(db.fetch("retry_jobs", params))


def request_release(db: Database, ids: Sequence[int]) -> list[int]:
    """Ask the workers of these claimed jobs to release them."""
    return [row[0] for row in db.fetch("request_release", {"ids": list(ids)})]


def reschedule_jobs(
    db: Database,
    ids: Sequence[int],
    *,
    run_at: datetime | None,
    delay_seconds: float | None,
    queue: str | None,
    priority: int | None,
    limited: bool = False,
) -> Moved:
    """Move unclaimed jobs to another instant, queue or priority; fails as ``retry_jobs`` does.

    ``limited``: the target queue has a limit.
    """
    params = {
        "ids": list(ids),
        "run_at": run_at,
        "delay": delay_seconds,
        "queue": queue,
        "priority": priority,
        "limited": limited,
    }
    return _moved(db.fetch("reschedule_jobs", params))


def _moved(rows: Rows) -> Moved:
    moved = [row for row in rows if not row[1]]
    notices = [wake_up(queue, priority) for _, _, queue, priority, _ in moved]
    notices += [scan_behind(queue) for _, _, queue, _, old in moved if old]
    return Moved([row[0] for row in moved], [row[0] for row in rows if row[1]], notices)


def read_states(db: Database, ids: Sequence[int]) -> dict[int, tuple[str, bool]]:
    """Return id → (state, whether only the callback is left) for the jobs that exist."""
    return {row[0]: (row[1], row[2]) for row in db.fetch("read_states", {"ids": list(ids)})}


# The signal for ends that no worker writes: an operator's, and those of jobs whose key another one takes


def send_finished(using: str, ended: Sequence[EndedJob], definition_of: Callable[[str], object]) -> None:
    """Send ``job_finished`` for these jobs when the transaction on ``using`` commits. Asks no database.

    ``ended``: those of one statement, so of one outcome. ``definition_of``: name → sender. Django logs what receivers
    raise.
    """
    if not ended or not job_finished.is_wanted(ended[0].outcome):
        return
    # A bulk action may end millions of jobs in one transaction: eight bytes for each, and one entry for all alike.
    alike: dict[EndedJob, array[int]] = {}
    for job in ended:
        alike.setdefault(job._replace(id=0), array("q")).append(job.id)
    transaction.on_commit(partial(_send, alike, definition_of, using), using=using, robust=True)


def _send(alike: Mapping[EndedJob, Iterable[int]], definition_of: Callable[[str], object], using: str) -> None:
    for job, ids in alike.items():
        sender = definition_of(job.name)
        about = {
            "name": job.name,
            "queue": job.queue,
            "attempt": job.attempt,
            "outcome": job.outcome,
            "database": using,
            "by_worker": False,
        }
        for job_id in ids:
            job_finished.send_robust(
                sender, job_id=job_id, **about, executor="", duration=None, error=one_line(job.error)
            )
