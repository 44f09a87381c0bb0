"""The periodic duties: those of every worker, and those of the leader alone.

One statement, the check, asks for all duties that wait for rows whether there are any. At rest there are none, and it
is nearly all that a worker sends. A duty whose question is answered with no stays away. An answer that is not known is
a yes: while a table is locked, or right after an election, duties take their turns without a check. And none stays away
for longer than a minute, whatever the answers were.

The leader asks each second. The others ask half as often, since a leader has found the same before them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.inspection import liveness
from django_pgjobs.logs import log
from django_pgjobs.maintenance.audit import Audit
from django_pgjobs.maintenance.cron_declaring import CronRows, CronSync, MarkMissing
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.maintenance.expiry import Expirer, JobExpirer
from django_pgjobs.maintenance.gates import Recount, open_due_gates
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.mending import Mender
from django_pgjobs.maintenance.notices import Notifier
from django_pgjobs.maintenance.pruning import Pruner
from django_pgjobs.maintenance.rescue import SOON_SECONDS, OwnClaims, Rescuer
from django_pgjobs.maintenance.statistics import Measurer, NumbersKeeper, problems_of
from django_pgjobs.maintenance.turns import take_turn, took_turn
from django_pgjobs.maintenance.unparking import Unparker, expire_pauses, unpause
from django_pgjobs.maintenance.vacuum import Vacuumer, VacuumSession
from django_pgjobs.middleware import on_duty
from django_pgjobs.store import keeping, leading
from django_pgjobs.store.database import Database
from django_pgjobs.store.firing import DeclaredCron
from django_pgjobs.store.keeping import ExpiredJob, Rescued, ThereIs

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


UNPARK_SECONDS = 30.0
UNPAUSE_SECONDS = 1.0
GATES_SECONDS = 1.0
RECOUNT_SECONDS = 5.0
MEND_SECONDS = 5.0
RESCUE_SECONDS = 1.0
AUDIT_SECONDS = 1.0
PRUNE_SECONDS = 1.0
EXPIRE_HEARTBEATS_SECONDS = 60.0
CRON_SECONDS = 0.5
MISSING_SECONDS = 60.0
MEASURE_SECONDS = 15.0
EXPIRE_SECONDS = 10.0
EXPIRE_JOBS_SECONDS = 1.0
ADD_UP_SECONDS = 60.0
NOTICE_SECONDS = 0.5
UNNEEDED_SECONDS = 60.0
"""Interval of the turns of a duty for which nothing seems to be there."""

KEPT_SECONDS = 86_400.0
"""Retention of a worker's row after its last heartbeat."""


class TimedDuty:
    """A duty, its period in seconds (jittered, so that workers do not run in step), and when it is due.

    With ``leader`` only the leader performs it. The first turn comes after ``first`` seconds; with ``last`` there is
    one more turn when the worker leaves. While ``urgent()`` is true the duty is due at every tick. While ``needed`` is
    false of the connection it has a turn a minute, and as long as what performs it rests (``rest_until``) none.
    """

    def __init__(
        self,
        name: str,
        perform: Callable[[Any], object],
        seconds: float,
        *,
        leader: Leader | None = None,
        first: float = 0.0,
        last: bool = False,
        urgent: Callable[[], bool] = lambda: False,
        needed: Callable[[Any], bool] = lambda db: True,
    ) -> None:
        self.name = name
        self.perform = perform
        self.seconds = seconds
        self.leader = leader
        self.last = last
        self.urgent = urgent
        self.needed = needed
        self.needed_at = 0.0
        """Instant from which it is needed, regardless of ``needed``."""
        self.due = clock.monotonic() + first if first else 0.0

    def tick(self, db: object) -> None:
        """Perform the duty on this connection if it is due."""
        now = clock.monotonic()
        due = self.urgent() or (now >= self.due and (now >= self.needed_at or self.needed(db)))
        if due and (self.leader is None or self.leader.leads):
            self.due = now + self.seconds * random.uniform(0.8, 1.0)  # noqa: S311 (jitter)
            self.needed_at = now + UNNEEDED_SECONDS
            with on_duty(self.name):
                take_turn(self.name, self.perform, db)
            self.due = max(self.due, getattr(self.perform, "rest_until", 0.0))

    def leave(self, db: object) -> None:
        """Perform the duty once more if it has asked for a last turn."""
        if self.last:
            with on_duty(self.name):
                take_turn(self.name, self.perform, db)


class DutyProgress:
    """The memory of duties: how far their walks have come, and which schedules they have declared.

    A worker for many schemas keeps that of each from one visit to the next. A visit has time for a turn or two: a walk
    that starts over would never get past its first slice.
    """

    def __init__(self, leader: Leader, declared: Mapping[str, DeclaredCron]) -> None:
        leads = lambda: leader.leads  # noqa: E731
        self.leader = leader
        self.cron_sync = CronSync(declared, leader)
        self.cron_rows = CronRows(leader)
        self.firer = Firer(leads)
        self.audit = Audit()
        self.pruner = Pruner(leads)
        self.expirer = Expirer(leads)
        self.recount = Recount()
        self.mender = Mender()
        self.numbers = NumbersKeeper(leads)
        self.notifier = Notifier(leader)


def duties(
    progress: DutyProgress,
    notify: Callable[[list[Rescued]], object],
    claims: OwnClaims | None = None,
    expired: Callable[[list[ExpiredJob]], object] = lambda jobs: None,
) -> list[TimedDuty | Leader | Checker | CronSync | CronRows]:
    """Return the duties of a worker.

    Rescues pass the rescued jobs to ``notify``, the leader passes jobs that expired to ``expired``. ``claims`` knows
    which claims this worker holds and whether its renewals succeed.
    """
    leader, firer, rescuer = progress.leader, progress.firer, Rescuer(notify, claims)
    expirer = JobExpirer(expired, lambda: leader.leads)
    check = Checker(leader, rescuer, expirer, claims.saw_pauses if claims is not None else lambda are_any: None)
    leader.is_vacant = partial(check.says, "unled")
    found: list[TimedDuty | Checker | CronSync | CronRows] = [
        check,
        TimedDuty(
            "rescue",
            rescuer,
            RESCUE_SECONDS,
            urgent=lambda: rescuer.urgent,
            needed=lambda db: check.says("leases") or rescuer.has_work(db),
        ),
        TimedDuty("unpark", Unparker(), UNPARK_SECONDS),
        TimedDuty("unpause", unpause, UNPAUSE_SECONDS, needed=lambda db: check.says("paused_jobs")),
        TimedDuty("gates", open_due_gates, GATES_SECONDS, needed=lambda db: check.says("gates")),
        progress.cron_sync,
        progress.cron_rows,
        TimedDuty(
            "cron_eval",
            firer,
            CRON_SECONDS,
            leader=leader,
            needed=lambda db: check.says("fires") or firer.has_work() or (firer.is_due() and check.says("crons")),
        ),
        TimedDuty("cron_missing", MarkMissing(), MISSING_SECONDS, leader=leader),
        TimedDuty(
            "expire_jobs",
            expirer,
            EXPIRE_JOBS_SECONDS,
            leader=leader,
            needed=lambda db: check.says("expired_jobs"),
        ),
        TimedDuty("audit", progress.audit, AUDIT_SECONDS, leader=leader),
        TimedDuty(
            "heartbeats",
            _expire_heartbeats,
            EXPIRE_HEARTBEATS_SECONDS,
            first=0.0 if liveness.sleeps() else EXPIRE_HEARTBEATS_SECONDS,  # a visit lasts no minute
            leader=leader,
        ),
        TimedDuty("pauses", expire_pauses, EXPIRE_HEARTBEATS_SECONDS, leader=leader),
    ]
    # Renew the term before each duty: one that waits for a locked table until the statement times out must not lose it.
    return [each for duty in found for each in (leader, duty)]


def upkeep(
    progress: DutyProgress, connect_alone: Callable[[], VacuumSession], first: float = 0.0
) -> list[TimedDuty | Vacuumer]:
    """Return the leader's slow duties: run them only while it leads, and where nothing urgent waits for them.

    ``connect_alone`` connects for a VACUUM, which has a thread of its own. The first turn of each comes after ``first``
    seconds.
    """
    leader = progress.leader
    timed = partial(TimedDuty, leader=leader, first=first)
    return [
        timed("prune", progress.pruner, PRUNE_SECONDS),
        timed("expire", progress.expirer, EXPIRE_SECONDS),
        timed("recount", progress.recount, RECOUNT_SECONDS),
        timed("mend", progress.mender, MEND_SECONDS),
        timed("statistics", Measurer(leader.author, problems_of), MEASURE_SECONDS),
        timed("numbers", progress.numbers, ADD_UP_SECONDS),
        timed("notices", progress.notifier, NOTICE_SECONDS),
        Vacuumer(connect_alone, first),
    ]


def _expire_heartbeats(db: Database) -> int:
    if expired := leading.expire_heartbeats(db, kept_seconds=KEPT_SECONDS):
        log.info("heartbeats of old workers expired workers=%d", expired)
    return expired
