"""Rescue: every worker, always, takes back what workers have lost; nobody leads, nobody is needed for it.

Only an expired lease or a passed deadline makes work dead; a heartbeat only words the cause. A job rescued with
attempts left is ready at once; with none left only its callback runs, never the body; one with a cancel request
ends as cancelled. The lost worker can change nothing of it any more: its claim_id is gone from the row. Nobody
rescues before its own connection and the server have been up for one renewal period, nor within one after its own
look has failed, and a worker renews first after each reconnect: else the first worker back after an outage, or first
at the ledger after a lock on it, would rescue the jobs of all the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import psycopg

from django_pgjobs import clock, store
from django_pgjobs.conf import Conf, get_conf
from django_pgjobs.logs import safe_logger
from django_pgjobs.registry import registry

log = safe_logger("django_pgjobs")

CLAIMS = (20, 5, 1)
"""Ledger rows a look takes at most; up to 200 jobs each. Fewer when a slow server cannot take back so many in time."""

AGAIN_SECONDS = 2.0
"""For how long looks follow each other at once while they find something; the rest waits for the next turn."""


class Connected(store.Database, Protocol):
    """A connection that knows since when it has been up."""

    connected_at: float


class Rescuer:
    """Takes back what is dead, unless it cannot know that; ``tell`` hears of what was.

    A look that failed, by a lock on our tables or a server that has come to a standstill, has kept renewals waiting
    as well. So after one nobody rescues before a look has been answered again and one renewal period has passed,
    and a batch that was too large for the server is made smaller then, not at once. A new connection is asked at
    once, since it may lead to a standby: were that promoted just before the first look, none could have renewed there.
    """

    def __init__(self, tell: Callable[[list[store.Rescued]], object]) -> None:
        self.tell = tell
        self.size = 0
        self.doubtful = False
        self.sound_since = float("-inf")
        self.asked_on: float | None = None

    def __call__(self, db: Connected) -> list[store.Rescued]:
        """Rescue and return what was taken back; wakes workers for what is ready again. May be repeated, may race."""
        conf = get_conf()
        try:
            return self._rescue(db, conf) if self._is_sound(db, conf) else []
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.QueryCanceled) and not self.doubtful:
                self.size = min(self.size + 1, len(CLAIMS) - 1)
            self.doubtful = True
            raise

    def _is_sound(self, db: Connected, conf: Conf) -> bool:
        if self.doubtful or self.asked_on != db.connected_at:
            _look(db, conf, 0)
            self.asked_on = db.connected_at
            if self.doubtful:
                self.doubtful, self.sound_since = False, clock.monotonic()
        return clock.monotonic() >= max(db.connected_at, self.sound_since) + conf.renew_seconds

    def _rescue(self, db: Connected, conf: Conf) -> list[store.Rescued]:
        """Look as long as there is something. Each look is a transaction of its own, however much is dead."""
        everything: list[store.Rescued] = []
        began = clock.monotonic()
        try:
            while rescued := _look(db, conf, CLAIMS[self.size]):
                everything += rescued
                _say(rescued)
                store.notify_queues(db, {(job.queue, job.priority) for job in rescued if not job.outcome}, behind=True)
                self.tell(rescued)
                _mark_lost(db, conf, rescued)
                if clock.monotonic() > began + AGAIN_SECONDS:
                    break
            else:
                self.size = 0
        finally:
            if everything:
                log.warning("jobs were rescued from workers that had lost them jobs=%d", len(everything))
        return everything


def _look(db: Connected, conf: Conf, limit: int) -> list[store.Rescued]:
    """Take back the dead jobs of up to ``limit`` ledger rows."""
    definitions = {name: registry.get(name) for name in registry.names()}
    return store.rescue_jobs(
        db,
        limit=limit,
        quiet_seconds=conf.renew_seconds,
        grace_seconds=conf.rescue_grace_seconds,
        stale_seconds=conf.silent_seconds,
        without_on_cancel=[name for name, d in definitions.items() if d.on_cancel_func is None],
        without_on_abandon=[name for name, d in definitions.items() if d.on_abandon_func is None],
    )


def _say(rescued: list[store.Rescued]) -> None:
    for job in rescued:
        log.warning(
            "job rescued name=%s job=%d attempt=%d claim=%s queue=%s outcome=%s: %s",
            job.name, job.id, job.attempt, job.claim_id, job.queue, job.outcome or "ready", job.message,
        )  # fmt: skip


def _mark_lost(db: Connected, conf: Conf, rescued: list[store.Rescued]) -> None:
    """Say so at the heartbeats of the workers that lost them; one that comes back beats, which clears it."""
    lost = [job for job in rescued if job.cause == "lost"]
    quiet = min(conf.silent_seconds, conf.lease_seconds / 2)
    for name in store.mark_lost(db, lost, quiet_seconds=quiet) if lost else []:
        log.warning("worker is lost, its leases ran out worker=%s", name)
