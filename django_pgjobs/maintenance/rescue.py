"""Rescue: every worker, always, takes back what workers have lost; nobody leads, nobody is needed for it.

Only an expired lease or a passed deadline makes work dead; a heartbeat only words the cause. A job rescued with
attempts left is ready at once; with none left only its callback runs, never the body; one with a cancel request
ends as cancelled. The lost worker can change nothing of it any more: its claim_id is gone from the row.

Silence is no death. After an outage every lease has run out, and the first worker back, or first at the ledger after a
lock on it, could rescue the jobs of all the others. So whoever lives gets the time to renew:

* Nobody rescues before its own connections and the server have been up for one renewal period, nor within one after
  its own look has failed, nor after a silence for as long as that has lasted. A worker back renews first.
* A rescue names the server's time that its worker has read a moment before, and takes only what had expired by then.
  Sent before a silence it may arrive after it: it knows no more than it did.
* A worker leaves alone what it holds itself, until it has read that it has lost it.
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
"""Ledger rows a look takes at most; up to 200 jobs each. Fewer when a slow server cannot take back so many in time."""

AGAIN_SECONDS = 2.0
"""For how long looks follow each other at once while they find something; the rest waits for the next turn."""


CONFIRM_SECONDS = 0.5
"""How long after a look that found a lease expired it is taken, if it still is."""

SOON_SECONDS = 1.5
"""When something is due within that time looks follow each other faster."""

LEAST_SILENCE_SECONDS = 0.5

Silence = tuple[float, float]
"""When it ended, on the process's clock, and how many seconds it had lasted."""


class Connected(store.Database, Protocol):
    """A connection that knows since when it has been up."""

    connected_at: float


class Own(Protocol):
    """What a rescuer asks its own worker; the keep thread answers."""

    def holds(self) -> Collection[str]:
        """Return the claims that the worker holds and renews."""
        ...

    def silences(self, longer_than: float) -> Iterable[Silence]:
        """Return when its renewals did not get through for longer than that, and since when it has been connected."""
        ...


class Rescuer:
    """Takes back what is dead, unless it cannot know that; ``tell`` hears of what was, ``own`` is its own worker.

    A look that failed, by a lock on our tables or a server that has come to a standstill, has kept renewals waiting
    as well. So after one nobody rescues before a look has been answered again and one renewal period has passed,
    and a batch that was too large for the server is made smaller then, not at once. A new connection is asked at
    once, since it may lead to a standby: were that promoted just before the first look, none could have renewed there.

    ``urgent`` says that the next look should come as soon as it can.
    """

    def __init__(self, tell: Callable[[list[store.Rescued]], object], own: Own | None = None) -> None:
        self.tell = tell
        self.own = own
        self.size = 0
        self.urgent = False
        self.doubtful = False
        self.sound_since = float("-inf")
        self.quiet_until = float("-inf")
        self.asked_on: float | None = None
        self.looks: deque[tuple[float, datetime]] = deque()

    def __call__(self, db: Connected) -> list[store.Rescued]:
        """Rescue and return what was taken back; wakes workers for what is ready again. May be repeated, may race."""
        conf = get_conf()
        try:
            if self._is_sound(db, conf) and (seen := self._known(db, conf)) is not None:
                return self._rescue(db, conf, seen)
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.QueryCanceled) and not self.doubtful:
                self.size = min(self.size + 1, len(CLAIMS) - 1)
            self.doubtful = True
            self.looks.clear()
            raise
        return []

    def _is_sound(self, db: Connected, conf: Conf) -> bool:
        if self.doubtful or self.asked_on != db.connected_at:
            _look(db, conf, 0)
            self.asked_on = db.connected_at
            self.looks.clear()
            if self.doubtful:
                self.doubtful, self.sound_since = False, clock.monotonic()
        return clock.monotonic() >= max(db.connected_at, self.sound_since) + conf.renew_seconds

    def _known(self, db: Connected, conf: Conf) -> datetime | None:
        """Look whether anything is due; return by when leases must have expired to be taken, None if none is."""
        asked_at = clock.monotonic()
        seen, self.urgent = store.look_at_claims(db, soon_seconds=SOON_SECONDS)
        now = clock.monotonic()
        self._heed(asked_at, now, conf)
        if now < self.quiet_until:
            self.looks.clear()
            return None
        self.looks.append((now, seen))
        known = None
        while self.looks and self.looks[0][0] <= now - CONFIRM_SECONDS:
            known = self.looks.popleft()[1]
        return known if self.urgent else None

    def _heed(self, asked_at: float, now: float, conf: Conf) -> None:
        """Be quiet after a silence for as long as it has lasted: so late may what was sent in it be sent again.

        A silence too short to be noticed is too short for a lease to run out in it.
        """
        longer_than = max(LEAST_SILENCE_SECONDS, (conf.lease_seconds - conf.renew_seconds) / 4)
        silences = list(self.own.silences(longer_than)) if self.own else []
        if now - asked_at > longer_than:
            silences.append((now, now - asked_at))
        for ended, seconds in silences:
            until = ended + min(conf.lease_seconds, max(conf.renew_seconds, seconds))
            if seconds and until > max(now, self.quiet_until + longer_than):
                log.info("database was silent seconds=%.1f, nothing is rescued for seconds=%.1f", seconds, until - now)
            self.quiet_until = max(self.quiet_until, until)

    def _rescue(self, db: Connected, conf: Conf, seen: datetime) -> list[store.Rescued]:
        """Look as long as there is something. Each look is a transaction of its own, however much is dead."""
        everything: list[store.Rescued] = []
        began = clock.monotonic()
        try:
            held = list(self.own.holds()) if self.own else []
            while rescued := _look(db, conf, CLAIMS[self.size], seen, held):
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


def _look(
    db: Connected, conf: Conf, limit: int, seen: datetime | None = None, held: Sequence[str] = ()
) -> list[store.Rescued]:
    """Take back the dead jobs of up to ``limit`` ledger rows that had expired by ``seen``."""
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


def _say(rescued: list[store.Rescued]) -> None:
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
