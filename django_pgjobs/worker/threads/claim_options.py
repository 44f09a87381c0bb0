"""Options of every claim of a worker, for the server and the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django_pgjobs.logs import listed, log
from django_pgjobs.store.claiming import ClaimedJob, ClaimTerms


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """Options of every claim of this worker. Seconds; ``grace`` is how long others wait after a passed deadline."""

    worker: UUID
    lease_seconds: float
    allowance_seconds: float
    grace_seconds: float
    poll_seconds: float
    notify: bool
    until_idle: bool = False
    database: str = ""
    """The alias that claimed jobs name as their home, if there are others."""

    def terms(self, claim_id: UUID) -> ClaimTerms:
        """Return what the statement of one claim gets."""
        return ClaimTerms(
            claim_id=claim_id,
            worker=self.worker,
            lease_seconds=self.lease_seconds,
            allowance_seconds=self.allowance_seconds,
            grace_seconds=self.grace_seconds,
            database=self.database,
        )


def log_claimed(jobs: Sequence[ClaimedJob], seconds: float) -> None:
    """Log the claim of ``jobs``, at least one; ``seconds``: what its statement took."""
    if log.isEnabledFor(logging.DEBUG):
        claim_id, queues = jobs[0].claim_id, listed({job.queue for job in jobs})
        log.debug("jobs claimed claim=%s jobs=%d queue=%s seconds=%.4f", claim_id, len(jobs), queues, seconds)
