"""``job_finished`` for ends that no worker writes: an operator's, and those of jobs whose key another one takes.

The process that wrote them sends the signals after its commit, in the thread that committed; so never for a write that
was rolled back, and once for each job. Nothing is kept while no receiver wants such an end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from django.db import transaction

from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.signals import job_finished
from django_pgjobs.store.steering import EndedJob


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
