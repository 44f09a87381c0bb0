"""The audit: no bug, no lost row and no hand in the tables strands a running job. The leader's, slowly.

Rescue finds jobs by the ledger. A job that runs, by its row, and that no ledger row names would run for ever: so the
unfinished jobs are walked in slices, in the order of the claim's index, and such a job is given a new ledger row with
a full lease. If its owner lives, it renews that row with its others; if not, rescue takes the job back.
"""

from __future__ import annotations

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import safe_logger
from django_pgjobs.store import statements as store

log = safe_logger("django_pgjobs")

SLICES = (10_000, 1_000, 100)
"""Jobs a slice looks at; fewer when a slow server cannot look at so many in time."""

REST_SECONDS = 60.0
"""The pause between two walks; slices follow each other by the period of the duty."""

NAMED = 20


class Audit:
    """Where the walk is."""

    def __init__(self) -> None:
        self.after = store.BEGINNING
        self.rest_until = 0.0

    def __call__(self, db: store.Database) -> int:
        """Look at the next slice; return how many jobs had no ledger row. May be repeated, and by several at once."""
        now = clock.monotonic()
        if now < self.rest_until:
            return 0
        limit, found = _slice(db, self.after)
        if found is None or found.walked < limit:
            self.after, self.rest_until = store.BEGINNING, now + REST_SECONDS
        else:
            self.after = found.position
        if found is None or not found.ids:
            return 0
        log.error(
            "running jobs without a claim got one jobs=%d: %s",
            len(found.ids), ", ".join(map(str, found.ids[:NAMED])),
        )  # fmt: skip
        return len(found.ids)


def _slice(db: store.Database, after: store.ClaimPosition) -> tuple[int, store.Audited | None]:
    lease = get_conf().lease_seconds
    for limit in SLICES[:-1]:
        try:
            return limit, store.audit_claims(db, after, limit=limit, lease_seconds=lease)
        except psycopg.errors.QueryCanceled:
            continue
    return SLICES[-1], store.audit_claims(db, after, limit=SLICES[-1], lease_seconds=lease)
