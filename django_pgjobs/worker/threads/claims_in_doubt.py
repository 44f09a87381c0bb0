"""Claims whose answer was lost: what they took is released. Nobody runs it, so its attempts are not charged.

Such a claim is looked up by its claim_id, at once and then ever more seldom until its lease would be over, for its
server process may commit it later: it does not know yet that nobody listens any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from django_pgjobs import clock
from django_pgjobs.logs import safe_logger
from django_pgjobs.store import statements as store
from django_pgjobs.worker.threads.claim_options import ClaimOptions

log = safe_logger("django_pgjobs")

FIRST_CHECK_SECONDS = 0.25
"""After how long a claim in doubt is looked up again; the pauses double."""


@dataclass(slots=True)
class Doubt:
    """A claim whose answer was lost and that has not been found: when to look again, and until when it may appear."""

    claim_id: UUID
    until: float
    check_at: float
    pause: float = FIRST_CHECK_SECONDS


class ClaimsInDoubt:
    """Two threads call it: the claim thread and the maintenance thread. ``released`` is called for each released job.

    Raises what the database raises; calls may be repeated.
    """

    def __init__(self, options: ClaimOptions, released: Callable[[store.Released], None]) -> None:
        self.options = options
        self.released = released
        self.doubts: list[Doubt] = []
        self._lock = threading.Lock()

    def resolve(self, db: store.Database, claim_id: UUID) -> None:
        """Release what a claim took whose answer was just lost, or remember to look it up."""
        if not self._release(db, claim_id):
            now = clock.monotonic()
            with self._lock:
                self.doubts.append(Doubt(claim_id, now + self.options.lease_seconds, now + FIRST_CHECK_SECONDS))

    def check_doubts(self, db: store.Database, *, all_of_them: bool) -> None:
        """Look up again the claims whose time has come."""
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

    def _release(self, db: store.Database, claim_id: UUID) -> bool:
        """Release what a claim took; return whether that is done, which it is not while a row is locked."""
        ids = store.read_claim(db, claim_id)
        if not ids:
            return False
        log.warning("claim whose answer was lost is released claim=%s jobs=%d", claim_id, len(ids))
        author = store.Author(self.options.worker)
        ends = [store.End(job_id, str(claim_id)) for job_id in ids]
        released = store.release_jobs(db, ends, author)
        for job in released:
            self.released(job)
        if released and self.options.notify:
            store.notify_queues(db, {(job.queue, job.priority) for job in released}, behind=True)
        store.delete_claims(db, [str(claim_id)])
        return len(released) == len(ids)
