"""The line about a claim, at DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django_pgjobs.logs import listed, safe_logger
from django_pgjobs.store.statements import ClaimedJob

log = safe_logger("django_pgjobs")


def claimed(claim_id: object, jobs: Sequence[ClaimedJob], seconds: float) -> None:
    """Log a claim that took ``jobs``; ``seconds``: what its statement took."""
    if log.isEnabledFor(logging.DEBUG):
        queues = listed({job.queue for job in jobs})
        log.debug("jobs claimed claim=%s jobs=%d queue=%s seconds=%.4f", claim_id, len(jobs), queues, seconds)
