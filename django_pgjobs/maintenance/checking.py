"""The check: one statement asks for all duties that wait for rows whether there are any.

At rest there are none, and the check is nearly all that a worker sends. A duty whose question is answered with no stays
away. An answer that is not known is a yes: while a table is locked, or right after an election, duties take their turns
without a check. And none stays away for longer than a minute, whatever the answers were.

The leader asks each second. The others ask half as often, since a leader has found the same before them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import safe_logger
from django_pgjobs.maintenance.expired_jobs import JobExpirer
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.rescue import SOON_SECONDS, Rescuer
from django_pgjobs.maintenance.turns import took_turn
from django_pgjobs.middleware import on_duty
from django_pgjobs.store import keeping
from django_pgjobs.store.database import Database
from django_pgjobs.store.keeping import ThereIs

log = safe_logger("django_pgjobs")

LEADER_SECONDS = 1.0
OTHERS_SECONDS = 2.0
"""The period; shorter if renewals are: within one of them no lease may run out unseen."""

TROUBLE_SECONDS = 5.0
"""The pause after a check that failed; the duties look for themselves in the meantime."""

AHEAD_SECONDS = OTHERS_SECONDS + 0.5
"""Time ahead within which leases and fires count as due: until the next check, and a tick of its thread."""


class Checker:
    """Asks for the duties. A duty of every worker, before those that ask for its answers."""

    name = "check"

    def __init__(
        self, leader: Leader, rescuer: Rescuer, expirer: JobExpirer, saw_pauses: Callable[[bool], object]
    ) -> None:
        self.leader = leader
        self.rescuer = rescuer
        self.expirer = expirer
        self.saw_pauses = saw_pauses
        self.found: ThereIs | None = None
        """The latest answers; None while they are not known."""

        self.due = 0.0

    def tick(self, db: Database) -> None:
        """Ask if that is due."""
        now = clock.monotonic()
        if now < self.due:
            return
        self.found, self.due = None, now + TROUBLE_SECONDS
        with on_duty(self.name):
            self.found = self._ask(db, now)
        period = LEADER_SECONDS if self.leader.leads else min(OTHERS_SECONDS, get_conf().renew_seconds)
        self.due = now + period * random.uniform(0.8, 1.0)  # noqa: S311 (jitter)

    def _ask(self, db: Database, now: float) -> ThereIs:
        found = keeping.check_duties(
            db,
            lease_seconds=SOON_SECONDS + AHEAD_SECONDS,
            fire_seconds=AHEAD_SECONDS,
            leads=self.leader.leads,
            expired_after=self.expirer.walk.after,
        )
        self.rescuer.was_answered(now, clock.monotonic())
        self.saw_pauses(found.pauses)
        took_turn(self.name, now)
        return found

    def leave(self, db: Database) -> None:
        """Do nothing."""

    def is_clear(self) -> bool:
        """Return whether there is nothing to do, as far as is known."""
        return self.found is not None and not any(self.found._replace(crons=False, unled=False))

    def says(self, question: str) -> bool:
        """Return whether there is something, as far as is known; if it is not known, there may be."""
        return self.found is None or getattr(self.found, question) is not False
