"""A duty of each worker: find jobs whose rows carry a claim of this worker that it does not hold.

No statement of ours leaves such a job. But a failover or a restored row may take back an end that this worker has
written: then the row runs again under a claim that is renewed for other jobs of it, so that no worker rescues the job.
The worker itself gives it up, as one that it could not stop, ``RESCUE_GRACE_SECONDS`` after the deadline on the row.
"""

from __future__ import annotations

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.store import keeping
from django_pgjobs.store.database import Database
from django_pgjobs.worker.shared.runs import RunTable

SETTLED_SECONDS = 5.0
"""Minimum age of a claim: the main thread may be taking over the jobs of a younger one."""

MOST = 1000
NAMED = 20


class UnheldJobs:
    """Passes the jobs that it has found twice in a row to ``table``."""

    def __init__(self, table: RunTable) -> None:
        self.table = table
        self.found: set[tuple[int, str]] = set()

    def __call__(self, db: Database) -> int:
        """Look once; return how many jobs are known to be held by no worker. Repeatable."""
        # The claims first: what is claimed after that is none of them.
        claims = self.table.claimed_before(clock.monotonic() - SETTLED_SECONDS)
        held = list(self.table.held.copy())
        found = set(keeping.list_unheld(db, claims, held, most=MOST)) if claims else set()
        unheld = frozenset(found & self.found)
        if new := unheld - self.table.unheld:
            log.warning(
                "jobs of this worker that it does not hold are given up after their deadlines jobs=%d: %s",
                len(new), ", ".join(str(job_id) for job_id, _ in sorted(new)[:NAMED]),
            )  # fmt: skip
        self.found, self.table.unheld = found, unheld
        return len(unheld)
