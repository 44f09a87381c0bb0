"""Rescue: every worker, always, takes back what workers have lost; nobody leads, nobody is needed for it.

Only an expired lease or a passed deadline makes work dead; a heartbeat only words the cause. A job rescued with
attempts left is ready at once; with none left only its callback runs, never the body; one with a cancel request
ends as cancelled. The lost worker can change nothing of it any more: its claim_id is gone from the row. Nobody
rescues before its own connection and the server have been up for one renewal period, and a worker renews first
after each reconnect: else the first worker back after an outage would rescue the jobs of all the others.
"""

from __future__ import annotations

import logging
from typing import Protocol

import psycopg

from django_pgjobs import clock, store
from django_pgjobs.conf import get_conf
from django_pgjobs.registry import registry

log = logging.getLogger("django_pgjobs")

CLAIMS = (50, 5, 1)
"""Ledger rows a look takes at most; up to 200 jobs each. Fewer when a slow server cannot take back so many in time."""


class Connected(store.Database, Protocol):
    """A connection that knows since when it has been up."""

    connected_at: float


def rescue(db: Connected) -> list[store.Rescued]:
    """Take back what is dead and return it; wakes workers for what is ready again. May be repeated and may race."""
    conf = get_conf()
    if clock.monotonic() < db.connected_at + conf.renew_seconds:
        return []
    definitions = {name: registry.get(name) for name in registry.names()}
    rescued: list[store.Rescued] = []
    for limit in CLAIMS:
        try:
            rescued = store.rescue_jobs(
                db,
                limit=limit,
                quiet_seconds=conf.renew_seconds,
                grace_seconds=conf.rescue_grace_seconds,
                stale_seconds=conf.stale_seconds,
                without_on_cancel=[name for name, d in definitions.items() if d.on_cancel_func is None],
                without_on_abandon=[name for name, d in definitions.items() if d.on_abandon_func is None],
            )
            break
        except psycopg.errors.QueryCanceled:
            if limit == CLAIMS[-1]:
                raise
    for job in rescued:
        log.warning(
            "job rescued name=%s job=%d attempt=%d claim=%s queue=%s outcome=%s: %s",
            job.name, job.id, job.attempt, job.claim_id, job.queue, job.outcome or "ready", job.message,
        )  # fmt: skip
    store.notify_queues(db, {(job.queue, job.priority) for job in rescued if not job.outcome})
    return rescued
