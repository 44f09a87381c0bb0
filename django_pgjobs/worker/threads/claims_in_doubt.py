"""Claims whose answer was lost: this module releases their jobs. They did not run, so it does not charge the attempts.

It looks up such a claim by its claim_id, at once and then less and less often until the lease would be over: the server
process may still commit, as it does not know yet that no client reads its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.store import claiming, finalising, notifying
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import Author, End, ReleasedJob
from django_pgjobs.worker.threads.claim_options import ClaimOptions

FIRST_CHECK_SECONDS = 0.25
"""The pause before the next lookup of a claim in doubt; it doubles each time."""


@dataclass(slots=True)
class Doubt:
    """A claim in doubt that was not found yet: when to look again, and until when it may appear."""

    claim_id: UUID
    until: float
    check_at: float
    pause: float = FIRST_CHECK_SECONDS


class ClaimsInDoubt:
    """The claim thread and the maintenance thread call it. It calls ``released`` for each released job.

    Database errors pass through; calls are repeatable.
    """

    def __init__(self, options: ClaimOptions, released: Callable[[ReleasedJob], None]) -> None:
        self.options = options
        self.released = released
        self.doubts: list[Doubt] = []
        self._lock = threading.Lock()

    def resolve(self, db: Database, claim_id: UUID) -> None:
        """Release the jobs of a claim whose answer was just lost, or remember to look it up."""
        if not self._release(db, claim_id):
            now = clock.monotonic()
            with self._lock:
                self.doubts.append(Doubt(claim_id, now + self.options.lease_seconds, now + FIRST_CHECK_SECONDS))

    def check_doubts(self, db: Database, *, all_of_them: bool) -> None:
        """Look up the claims that are due for it."""
        with self._lock:
            doubts = list(self.doubts)
        for doubt in doubts:
            now = clock.monotonic()
            if now < doubt.check_at and not all_of_them:
                continue
            doubt.pause *= 2
            doubt.check_at = now + doubt.pause
            if self._release(db, doubt.claim_id) or now > doubt.until:
                with self._lock:
                    self.doubts.remove(doubt)

    def _release(self, db: Database, claim_id: UUID) -> bool:
        """Release the jobs of a claim; return whether that is complete; it is not while a row is locked."""
        ids = claiming.read_claim(db, claim_id)
        if not ids:
            return False
        log.warning("claim whose answer was lost is released claim=%s jobs=%d", claim_id, len(ids))
        author = Author(self.options.worker)
        ends = [End(job_id, str(claim_id)) for job_id in ids]
        released = finalising.release_jobs(db, ends, author)
        for job in released:
            self.released(job)
        if released and self.options.notify:
            notifying.notify_queues(db, {(job.queue, job.priority) for job in released}, behind=True)
        finalising.delete_claims(db, [str(claim_id)])
        return len(released) == len(ids)
