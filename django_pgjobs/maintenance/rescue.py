"""Rescue: every worker, always, rescues jobs that other workers have lost; it needs no leader.

Only an expired lease allows a rescue; heartbeats only word the cause. A job rescued with attempts left is ready at
once; with none left only its callback runs, never the body; with a cancel request it ends as cancelled. The lost worker
cannot change the job any more: its claim_id is gone from the row.

While a lease runs, deadlines are its worker's business, as it alone knows when the job started and whether it is being
stopped. If its ladder fails (a process in the kernel's hands outlives SIGKILL), the worker itself rescues that job,
``RESCUE_GRACE_SECONDS`` after the deadline.

Silence is not death. After an outage every lease has expired, and the first worker back, or first at the ledger after a
lock on it, could rescue the jobs of all the others. Living workers therefore get time to renew:

* A worker rescues nothing until its own connections and the server have been up for one renewal period. It also waits
  one period after its own check has failed, and after a silence as long as the silence lasted. It renews first.
* A rescue passes the server's time that its worker has just read, and takes only leases that had expired by then. Sent
  before a silence, it may arrive after it, and must not act on later expiries.
* A worker never rescues jobs that it holds itself, until it has read that it has lost them, or cannot stop them.
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
from django_pgjobs.logs import facts_of_attempt, log
from django_pgjobs.states import Ended
from django_pgjobs.store import keeping, memos, notifying
from django_pgjobs.store.database import Database
from django_pgjobs.store.keeping import Rescued

CLAIMS = (20, 5, 1)
"""Ledger rows per batch at most, of up to 200 jobs each; fewer if the server is too slow to rescue so many in time."""

AGAIN_SECONDS = 2.0
"""Time in which batches follow each other without a pause while they find jobs; the rest waits for the next turn."""


CONFIRM_SECONDS = 0.5
"""The pause between finding a lease expired and rescuing its jobs, if it is still expired."""

SOON_SECONDS = 1.5
"""Checks follow each other faster if a rescue is due within this time."""

LEAST_SILENCE_SECONDS = 0.5

Silence = tuple[float, float]
"""The instant at which it ended, on the process's clock, and its duration in seconds."""


class Connected(Database, Protocol):
    """A connection that knows how long it has been up."""

    connected_at: float


class OwnClaims(Protocol):
    """The questions of a rescuer to its own worker; the keep thread answers them."""

    def holds(self) -> Collection[str]:
        """Return the claims that the worker holds and renews."""
        ...

    def overdue(self) -> Collection[tuple[int, str]]:
        """Return (id, claim_id) of the jobs that the worker could not stop after their deadlines."""
        ...

    def silences(self, longer_than: float) -> Iterable[Silence]:
        """Return when renewals failed for longer than that, and since when the keep thread has been connected."""
        ...

    def saw_pauses(self, are_any: bool) -> None:
        """Learn whether there are pauses now."""
        ...


class Rescuer:
    """Rescues jobs whose lease has expired, unless it cannot be sure of that; passes them to ``notify``.

    If a check fails, because of a lock on our tables or a stalled server, renewals have been waiting as well. The next
    rescue therefore waits for a successful check and one renewal period; a batch that was too large for the server
    shrinks then, not immediately. A new connection is checked at once, since it may lead to a standby: if that is
    promoted just before the first check, no worker can have renewed there.

    ``urgent``: the next check should come as soon as possible. ``claims``: those of this worker.
    """

    def __init__(self, notify: Callable[[list[Rescued]], object], claims: OwnClaims | None = None) -> None:
        self.notify = notify
        self.claims = claims
        self.size = 0
        self.urgent = False
        self.doubtful = False
        self.sound_since = float("-inf")
        self.quiet_until = float("-inf")
        self.checked_on: float | None = None
        self.checks: deque[tuple[float, datetime]] = deque()

    def __call__(self, db: Connected) -> list[Rescued]:
        """Rescue jobs and return them; wake workers for those that are ready. Repeatable, and safe in races."""
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

    def has_work(self, db: Connected) -> bool:
        """Return whether there is something to do, or to make sure of, though no lease runs out soon."""
        return self.doubtful or self.checked_on != db.connected_at or bool(self.claims and self.claims.overdue())

    def was_answered(self, began: float, now: float) -> None:
        """Note how long the server took to answer a statement that asked for this rescuer."""
        self._observe_silence(began, now, get_conf())

    def _is_sound(self, db: Connected, conf: Conf) -> bool:
        if self.doubtful or self.checked_on != db.connected_at:
            _rescue_batch(db, conf, 0)
            self.checked_on = db.connected_at
            self.checks.clear()
            if self.doubtful:
                self.doubtful, self.sound_since = False, clock.monotonic()
        return clock.monotonic() >= max(db.connected_at, self.sound_since) + conf.renew_seconds

    def _known(self, db: Connected, conf: Conf) -> datetime | None:
        """Check whether a rescue is due; return the instant before which leases must have expired, or None."""
        began = clock.monotonic()
        seen, self.urgent = keeping.check_claims(db, soon_seconds=SOON_SECONDS)
        now = clock.monotonic()
        self._observe_silence(began, now, conf)
        if now < self.quiet_until:
            self.checks.clear()
            return None
        self.checks.append((now, seen))
        known = None
        while self.checks and self.checks[0][0] <= now - CONFIRM_SECONDS:
            known = self.checks.popleft()[1]
        return known if self.urgent or (self.claims and self.claims.overdue()) else None

    def _observe_silence(self, began: float, now: float, conf: Conf) -> None:
        """Rescue nothing after a silence for as long as it lasted: statements sent in it may be repeated that late.

        In a silence too short to be noticed no lease can run out.
        """
        longer_than = max(LEAST_SILENCE_SECONDS, (conf.lease_seconds - conf.renew_seconds) / 4)
        silences = list(self.claims.silences(longer_than)) if self.claims else []
        if now - began > longer_than:
            silences.append((now, now - began))
        for ended, seconds in silences:
            until = ended + min(conf.lease_seconds, max(conf.renew_seconds, seconds))
            if seconds and until > max(now, self.quiet_until + longer_than):
                log.info(
                    "database was silent, nothing is rescued for a while seconds=%.1f pause=%.1f", seconds, until - now
                )
            self.quiet_until = max(self.quiet_until, until)

    def _rescue(self, db: Connected, conf: Conf, seen: datetime) -> list[Rescued]:
        """Rescue batch after batch, each in a transaction of its own, however many jobs are lost."""
        everything: list[Rescued] = []
        began = clock.monotonic()
        try:
            held = list(self.claims.holds()) if self.claims else []
            overdue = list(self.claims.overdue()) if self.claims else []
            while rescued := _rescue_batch(db, conf, CLAIMS[self.size], seen, held, overdue):
                everything += rescued
                _log(rescued)
                notifying.notify_queues(
                    db, {(job.queue, job.priority) for job in rescued if not job.outcome}, behind=True
                )
                cancels = memos.cancel_gathered(db, [job.id for job in rescued if job.outcome])
                notifying.notify_queues(db, {(one.queue, one.priority) for one in cancels})
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
    db: Connected,
    conf: Conf,
    limit: int,
    seen: datetime | None = None,
    held: Sequence[str] = (),
    overdue: Sequence[tuple[int, str]] = (),
) -> list[Rescued]:
    """Rescue the jobs of up to ``limit`` ledger rows that had expired by ``seen``, and those that are ``overdue``."""
    definitions = {name: registry.get(name) for name in registry.names()}
    return keeping.rescue_jobs(
        db,
        limit=limit,
        quiet_seconds=conf.renew_seconds,
        grace_seconds=conf.rescue_grace_seconds,
        stale_seconds=conf.silent_seconds,
        without_on_cancel=[name for name, d in definitions.items() if d._on_cancel_func is None],
        without_on_abandon=[name for name, d in definitions.items() if d._on_abandon_func is None],
        seen=seen,
        held=held,
        overdue=overdue,
    )


def _log(rescued: list[Rescued]) -> None:
    for job in rescued:
        log.log(
            logging.ERROR if job.given_up else logging.WARNING,
            "job rescued %s outcome=%s cause=%s: %s",
            facts_of_attempt(job.name, job.id, job.attempt, None, job.claim_id, job.queue),
            job.outcome or job.ending or Ended.RETRIED, job.cause, job.message,
        )  # fmt: skip


def _mark_lost(db: Connected, conf: Conf, rescued: list[Rescued]) -> None:
    """Mark the heartbeats of the workers that lost the jobs; a worker that returns clears the mark by its next beat."""
    lost = [job for job in rescued if job.cause == "lost"]
    quiet = min(conf.silent_seconds, conf.lease_seconds / 2)
    for name in keeping.mark_lost(db, lost, quiet_seconds=quiet) if lost else []:
        log.warning("worker is lost, its leases ran out worker=%s", name)
