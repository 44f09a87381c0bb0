"""The periodic duties: those of every worker, and those of the leader alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django_pgjobs import clock
from django_pgjobs.logs import safe_logger
from django_pgjobs.maintenance.audit import Audit
from django_pgjobs.maintenance.checking import Checker
from django_pgjobs.maintenance.cron_declaring import CronSync, MarkMissing
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.maintenance.cron_rows import CronRows
from django_pgjobs.maintenance.expired_jobs import JobExpirer
from django_pgjobs.maintenance.expiry import Expirer
from django_pgjobs.maintenance.gates import Recount, open_due_gates
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.mending import Mender
from django_pgjobs.maintenance.notices import Notifier
from django_pgjobs.maintenance.numbers import NumbersKeeper
from django_pgjobs.maintenance.pruning import Pruner
from django_pgjobs.maintenance.rescue import OwnClaims, Rescuer
from django_pgjobs.maintenance.statistics import Measurer, problems_of
from django_pgjobs.maintenance.turns import take_turn
from django_pgjobs.maintenance.unparking import Unparker
from django_pgjobs.maintenance.unpausing import expire_pauses, unpause
from django_pgjobs.maintenance.vacuum import Vacuumer, VacuumSession
from django_pgjobs.middleware import on_duty
from django_pgjobs.store import leading
from django_pgjobs.store.firing import DeclaredCron
from django_pgjobs.store.keeping import ExpiredJob, Rescued

log = safe_logger("django_pgjobs")

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


def duties(
    leader: Leader,
    notify: Callable[[list[Rescued]], object],
    declared: Mapping[str, DeclaredCron],
    claims: OwnClaims | None = None,
    expired: Callable[[list[ExpiredJob]], object] = lambda jobs: None,
) -> list[TimedDuty | Leader | Checker | CronSync | CronRows]:
    """Return the duties of a worker whose code has ``declared`` cron entries.

    Rescues pass the rescued jobs to ``notify``, the leader passes jobs that expired to ``expired``. ``claims`` knows
    which claims this worker holds and whether its renewals succeed.
    """
    rescuer, firer = Rescuer(notify, claims), Firer(lambda: leader.leads)
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
        CronSync(declared, leader),
        CronRows(leader),
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
        TimedDuty("audit", Audit(), AUDIT_SECONDS, leader=leader),
        TimedDuty(
            "heartbeats",
            _expire_heartbeats,
            EXPIRE_HEARTBEATS_SECONDS,
            leader=leader,
            first=EXPIRE_HEARTBEATS_SECONDS,
        ),
        TimedDuty("pauses", expire_pauses, EXPIRE_HEARTBEATS_SECONDS, leader=leader),
    ]
    # Renew the term before each duty: one that waits for a locked table until the statement times out must not lose it.
    return [each for duty in found for each in (leader, duty)]


def upkeep(leader: Leader, connect_alone: Callable[[], VacuumSession]) -> list[TimedDuty | Vacuumer]:
    """Return the leader's slow duties: run them only while it leads, and where nothing urgent waits for them.

    ``connect_alone`` connects for a VACUUM, which has a thread of its own.
    """
    leads = lambda: leader.leads  # noqa: E731
    return [
        TimedDuty("prune", Pruner(leads), PRUNE_SECONDS, leader=leader),
        TimedDuty("expire", Expirer(leads), EXPIRE_SECONDS, leader=leader),
        TimedDuty("recount", Recount(), RECOUNT_SECONDS, leader=leader),
        TimedDuty("mend", Mender(), MEND_SECONDS, leader=leader),
        TimedDuty("statistics", Measurer(leader.author, problems_of), MEASURE_SECONDS, leader=leader),
        TimedDuty("numbers", NumbersKeeper(leads), ADD_UP_SECONDS, leader=leader),
        TimedDuty("notices", Notifier(leader), NOTICE_SECONDS, leader=leader),
        Vacuumer(connect_alone),
    ]


def _expire_heartbeats(db: Any) -> int:
    if expired := leading.expire_heartbeats(db, kept_seconds=KEPT_SECONDS):
        log.info("heartbeats of old workers expired workers=%d", expired)
    return expired
