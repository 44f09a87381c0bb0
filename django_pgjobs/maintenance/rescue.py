"""Rescue: every worker, always, rescues jobs that other workers have lost; it needs no leader.

Only an expired lease or a passed deadline makes work dead; a heartbeat only words the cause. A job rescued with
attempts left is ready at once; with none left only its callback runs, never the body; one with a cancel request
ends as cancelled. The lost worker can change nothing of it any more: its claim_id is gone from the row.

Silence is no death. After an outage every lease has expired, and the first worker back, or first at the ledger after a
lock on it, could rescue the jobs of all the others. So living workers get the time to renew:

* Nobody rescues before its own connections and the server have been up for one renewal period, nor within one after
  its own check has failed, nor after a silence for as long as that has lasted. A worker that is back renews first.
* A rescue names the server's time that its worker has read a moment before, and takes only what had expired by then.
  Sent before a silence it may arrive after it: it knows no more than it did.
* A worker never rescues what it holds itself, until it has read that it has lost it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Protocol

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import Conf, get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import safe_logger
from django_pgjobs.states import Outcome
from django_pgjobs.store import statements as store

log = safe_logger("django_pgjobs")

CLAIMS = (20, 5, 1)
"""Ledger rows of a batch, at most; up to 200 jobs each. Fewer when a slow server cannot rescue so many in time."""

AGAIN_SECONDS = 2.0
"""For how long batches follow each other at once while they find something; the rest waits for the next turn."""


CONFIRM_SECONDS = 0.5
"""How long after a check that found a lease expired its jobs are rescued, if it still is."""

SOON_SECONDS = 1.5
"""When something is due within that time, checks follow each other faster."""

LEAST_SILENCE_SECONDS = 0.5

Silence = tuple[float, float]
"""When it ended, on the process's clock, and how many seconds it had lasted."""


class Connected(store.Database, Protocol):
    """A connection that knows since when it has been up."""

    connected_at: float


class OwnClaims(Protocol):
    """What a rescuer asks its own worker; the keep thread answers."""

    def holds(self) -> Collection[str]:
        """Return the claims that the worker holds and renews."""
        ...

    def silences(self, longer_than: float) -> Iterable[Silence]:
        """Return when its renewals did not get through for longer than that, and since when it has been connected."""
        ...


class Rescuer:
    """Rescues jobs whose lease has expired, unless it cannot know that; passes them to ``notify``.

    A check that failed, by a lock on our tables or a server that has come to a standstill, has kept renewals waiting
    as well. So after one nobody rescues before a check has succeeded again and one renewal period has passed; a batch
    that was too large for the server shrinks then, not immediately. A new connection is checked at once, since it may
    lead to a standby: if that were promoted just before the first check, nobody could have renewed there.

    ``urgent`` says that the next check should come as soon as it can. ``claims`` are those of this worker.
    """

    def __init__(self, notify: Callable[[list[store.Rescued]], object], claims: OwnClaims | None = None) -> None:
        self.notify = notify
        self.claims = claims
        self.size = 0
        self.urgent = False
        self.doubtful = False
        self.sound_since = float("-inf")
        self.quiet_until = float("-inf")
        self.checked_on: float | None = None
        self.checks: deque[tuple[float, datetime]] = deque()

    def __call__(self, db: Connected) -> list[store.Rescued]:
        """Rescue, and return the rescued jobs; wakes workers for those that are ready. May be repeated, may race."""
        conf = get_conf()
        try:
            if self._is_sound(db, conf) and (seen := self._known(db, conf)) is not None:
                return self._rescue(db, conf, seen)
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.QueryCanceled) and not self.doubtful:
                self.size = min(self.size + 1, len(CLAIMS) - 1)
            self.doubtful = True
            self.checks.clear()
            raise
        return []

    def _is_sound(self, db: Connected, conf: Conf) -> bool:
        if self.doubtful or self.checked_on != db.connected_at:
            _rescue_batch(db, conf, 0)
            self.checked_on = db.connected_at
            self.checks.clear()
            if self.doubtful:
                self.doubtful, self.sound_since = False, clock.monotonic()
        return clock.monotonic() >= max(db.connected_at, self.sound_since) + conf.renew_seconds

    def _known(self, db: Connected, conf: Conf) -> datetime | None:
        """Check whether a rescue is due; return by when leases must have expired to be rescued, None if none is."""
        began = clock.monotonic()
        seen, self.urgent = store.check_claims(db, soon_seconds=SOON_SECONDS)
        now = clock.monotonic()
        self._observe_silence(began, now, conf)
        if now < self.quiet_until:
            self.checks.clear()
            return None
        self.checks.append((now, seen))
        known = None
        while self.checks and self.checks[0][0] <= now - CONFIRM_SECONDS:
            known = self.checks.popleft()[1]
        return known if self.urgent else None

    def _observe_silence(self, began: float, now: float, conf: Conf) -> None:
        """Rescue nothing after a silence for as long as it lasted: what was sent in it may be sent again so late.

        A silence too short to be noticed is too short for a lease to run out in it.
        """
        longer_than = max(LEAST_SILENCE_SECONDS, (conf.lease_seconds - conf.renew_seconds) / 4)
        silences = list(self.claims.silences(longer_than)) if self.claims else []
        if now - began > longer_than:
            silences.append((now, now - began))
        for ended, seconds in silences:
            until = ended + min(conf.lease_seconds, max(conf.renew_seconds, seconds))
            if seconds and until > max(now, self.quiet_until + longer_than):
                log.info("database was silent seconds=%.1f, nothing is rescued for seconds=%.1f", seconds, until - now)
            self.quiet_until = max(self.quiet_until, until)

    def _rescue(self, db: Connected, conf: Conf, seen: datetime) -> list[store.Rescued]:
        """Rescue batch after batch, each in a transaction of its own, however much is dead."""
        everything: list[store.Rescued] = []
        began = clock.monotonic()
        try:
            held = list(self.claims.holds()) if self.claims else []
            while rescued := _rescue_batch(db, conf, CLAIMS[self.size], seen, held):
                everything += rescued
                _log(rescued)
                store.notify_queues(db, {(job.queue, job.priority) for job in rescued if not job.outcome}, behind=True)
                self.notify(rescued)
                _mark_lost(db, conf, rescued)
                if clock.monotonic() > began + AGAIN_SECONDS:
                    break
            else:
                self.size = 0
        finally:
            if everything:
                log.warning("jobs were rescued from workers that had lost them jobs=%d", len(everything))
        return everything


def _rescue_batch(
    db: Connected, conf: Conf, limit: int, seen: datetime | None = None, held: Sequence[str] = ()
) -> list[store.Rescued]:
    """Rescue the dead jobs of up to ``limit`` ledger rows that had expired by ``seen``."""
    definitions = {name: registry.get(name) for name in registry.names()}
    return store.rescue_jobs(
        db,
        limit=limit,
        quiet_seconds=conf.renew_seconds,
        grace_seconds=conf.rescue_grace_seconds,
        stale_seconds=conf.silent_seconds,
        without_on_cancel=[name for name, d in definitions.items() if d.on_cancel_func is None],
        without_on_abandon=[name for name, d in definitions.items() if d.on_abandon_func is None],
        seen=seen,
        held=held,
    )


def _log(rescued: list[store.Rescued]) -> None:
    for job in rescued:
        abandoned = Outcome.ABANDONED in (job.outcome, job.ending)
        log.log(
            logging.ERROR if abandoned else logging.WARNING,
            "job rescued name=%s job=%d attempt=%d claim=%s queue=%s outcome=%s: %s",
            job.name, job.id, job.attempt, job.claim_id, job.queue, job.outcome or job.ending or "ready", job.message,
        )  # fmt: skip


def _mark_lost(db: Connected, conf: Conf, rescued: list[store.Rescued]) -> None:
    """Say so at the heartbeats of the workers that lost them; one that comes back beats, which clears it."""
    lost = [job for job in rescued if job.cause == "lost"]
    quiet = min(conf.silent_seconds, conf.lease_seconds / 2)
    for name in store.mark_lost(db, lost, quiet_seconds=quiet) if lost else []:
        log.warning("worker is lost, its leases ran out worker=%s", name)
