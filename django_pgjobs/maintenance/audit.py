"""The audit: no bug, lost row or manual change in the tables strands a running job. A slow duty of the leader.

Rescue finds jobs through the ledger. If a job's row says that it runs but no ledger row names it, no worker would ever
rescue it. The audit therefore walks the unfinished jobs in slices, in the order of the claim's index, and gives each
such job a new ledger row with a full lease. If its owner lives, it renews that row with its others; if not, the job is
rescued.
"""

from __future__ import annotations

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log
from django_pgjobs.store import leading
from django_pgjobs.store.database import Database
from django_pgjobs.store.leading import Audited, ClaimPosition

SLICES = (10_000, 1_000, 100)
"""Jobs per slice; fewer if the server is too slow to read so many in time."""

REST_SECONDS = 60.0
"""The pause between two walks; slices follow each other by the period of the duty."""

NAMED = 20


class Audit:
    """Walks the unfinished jobs and remembers where it is."""

    def __init__(self) -> None:
        self.after = leading.BEGINNING
        self.rest_until = 0.0

    def __call__(self, db: Database) -> int:
        """Check the next slice; return how many jobs had no ledger row. Repeatable, also by several at once."""
        now = clock.monotonic()
        if now < self.rest_until:
            return 0
        limit, found = _slice(db, self.after)
        if found is None or found.walked < limit:
            self.after, self.rest_until = leading.BEGINNING, now + REST_SECONDS
        else:
            self.after = found.position
        if found is None or not found.ids:
            return 0
        log.error(
            "running jobs without a claim got one jobs=%d: %s",
            len(found.ids), ", ".join(map(str, found.ids[:NAMED])),
        )  # fmt: skip
        return len(found.ids)


def _slice(db: Database, after: ClaimPosition) -> tuple[int, Audited | None]:
    lease = get_conf().lease_seconds
    for limit in SLICES[:-1]:
        try:
            return limit, leading.audit_claims(db, after, limit=limit, lease_seconds=lease)
        except psycopg.errors.QueryCanceled:
            continue
    return SLICES[-1], leading.audit_claims(db, after, limit=SLICES[-1], lease_seconds=lease)
