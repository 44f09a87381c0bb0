"""The leader's own VACUUM: autovacuum comes once a minute at best, and a busy table has grown considerably by then.

A VACUUM runs in a thread and on a connection of its own, as long as it takes. It waits for no lock, so only one of two
runs. It blocks no one: it is cancelled when another session waits for the table, such as a migration, and when the
worker leaves or no longer leads. Dead rows are counted from the number that the last VACUUM left: rows that an old
snapshot still sees cannot be removed, and must not start the next VACUUM at once. If the server skips a table, because
it is locked or this role may not VACUUM it, the server only warns and still answers VACUUM. Trust its counter of
VACUUMs instead.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Protocol

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log
from django_pgjobs.middleware import on_duty
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import vacuuming
from django_pgjobs.store.database import Database
from django_pgjobs.store.vacuuming import Dead

CHECK_SECONDS = 5.0
IDLE_SECONDS = 30.0
"""The pause if no row has died since the last check."""
AFTER_FAILURE_SECONDS = 60.0
AFTER_SKIP_SECONDS = 15.0
"""The pause after a skip: autovacuum may keep the table for long, while the other table is due."""

LEAVE_SECONDS = 2.0

JOBS_DIED = 300_000
JOBS_SHARE = 0.03
"""The jobs' table is due when so many rows have died since the last time, and at least this share of the table."""

CLAIMS_DIED = 5_000


class VacuumSession(Database, Protocol):
    """A connection for statements without a transaction and without a time limit."""

    @property
    def pid(self) -> int:
        """The pid of the server process behind it."""
        ...

    @property
    def has_turn(self) -> bool:
        """False while that process serves another schema."""
        ...

    def cancel(self) -> None:
        """Cancel the running statement, from another thread; never raises."""
        ...

    def close(self) -> None:
        """Close; never raises."""
        ...


class VacuumedTable:
    """A table, when its VACUUM is due, and how many dead rows the last one left."""

    def __init__(self, name: str, died: int, share: float) -> None:
        self.name = name
        self.died = died
        self.share = share
        self.dead_left = self.dead = 0
        self.settled = True
        self.skipped = False
        self.rest_until = 0.0

    def is_due(self, found: Dead) -> bool:
        """Return whether enough rows have died since the last VACUUM."""
        self.dead_left = min(self.dead_left, found.dead) if self.settled else found.dead
        self.settled = True
        due = found.dead - self.dead_left >= max(self.died, self.share * found.alive)
        self.skipped = self.skipped and due
        return due


class Vacuuming(threading.Thread):
    """One running VACUUM."""

    def __init__(self, table: VacuumedTable, connect: Callable[[], VacuumSession]) -> None:
        super().__init__(name="pgjobs-vacuum", daemon=True)
        self.table = table
        self.connect = connect
        self.session: VacuumSession | None = None
        self.error: Exception | None = None
        self.done = False
        self.unwanted = threading.Event()
        self.began = clock.monotonic()

    def run(self) -> None:
        """Connect, VACUUM, close."""
        try:
            self.session = self.connect()
            if not self.unwanted.is_set():
                before = self._count(self.session)  # where schemas share the session, it may wait for another VACUUM
                if not self.unwanted.is_set():
                    vacuuming.VACUUMS[self.table.name](self.session)
                    self.done = self._count(self.session) != before
        except Exception as error:
            self.error = error
        finally:
            if self.session is not None:
                self.session.close()

    def cancel(self) -> None:
        """End it. Repeatable."""
        self.unwanted.set()
        if self.session is not None:
            self.session.cancel()

    def _count(self, db: Database) -> int | None:
        found = vacuuming.read_dead(db, self.table.name)
        return found and found.vacuums


class Vacuumer:
    """Checks periodically whether a VACUUM is due, and watches the running one. A duty of the leader."""

    name = "vacuum"

    def __init__(self, connect: Callable[[], VacuumSession], first: float = 0.0) -> None:
        self.connect = connect
        self.tables = [
            VacuumedTable("pgjobs_job", JOBS_DIED, JOBS_SHARE),
            VacuumedTable("pgjobs_claim", CLAIMS_DIED, 1.0),
        ]
        self.running: Vacuuming | None = None
        self.check_at = clock.monotonic() + first if first else 0.0
        self.refused = False

    def tick(self, db: Database) -> None:
        """Start a VACUUM that is due; cancel the running one if another session waits for its table."""
        if self.running is not None:
            self._supervise(db, self.running)
        elif get_conf().vacuum and clock.monotonic() >= self.check_at:
            before = self._dead()
            self.check_at = clock.monotonic() + CHECK_SECONDS
            with on_duty(self.name):
                self._start_due(db)
            if self._rests() and before == self._dead():
                self.check_at += IDLE_SECONDS - CHECK_SECONDS

    @property
    def due(self) -> float:
        """The instant before which a tick does nothing."""
        if self.running is not None:
            return 0.0
        return self.check_at if get_conf().vacuum else math.inf

    def leave(self, db: Database) -> None:
        """Cancel the running VACUUM."""
        if self.running is not None:
            self.running.cancel()
            self.running.join(LEAVE_SECONDS)
            self._ended(self.running)

    def _rests(self) -> bool:
        return self.running is None and not any(table.skipped for table in self.tables)

    def _dead(self) -> list[int]:
        return [table.dead for table in self.tables]

    def _start_due(self, db: Database) -> None:
        for table in self.tables:
            found = vacuuming.read_dead(db, table.name)
            table.dead = table.dead if found is None else found.dead
            if found is None or not table.is_due(found) or clock.monotonic() < table.rest_until:
                continue
            if not found.allowed:
                self._refuse(table, found.owner)
                continue
            self.running = Vacuuming(table, self.connect)
            self.running.start()
            return

    def _refuse(self, table: VacuumedTable, owner: str) -> None:
        if not self.refused:
            self.refused = True
            log.warning(
                "worker cannot vacuum its tables, autovacuum alone does it: %s is owned by %s; make the worker's "
                "role a member of that one, or from PostgreSQL 17 on GRANT MAINTAIN ON pgjobs_job, pgjobs_claim to it",
                table.name, owner,
            )  # fmt: skip

    def _supervise(self, db: Database, running: Vacuuming) -> None:
        if not running.is_alive():
            self._ended(running)
        elif (session := running.session) and session.has_turn and vacuuming.is_waited_for(db, session.pid):
            log.info("VACUUM is cancelled, another session waits for the table table=%s", running.table.name)
            running.cancel()

    def _ended(self, running: Vacuuming) -> None:
        self.running = None
        now, table, seconds = clock.monotonic(), running.table, clock.monotonic() - running.began
        if running.unwanted.is_set() or running.error is not None:
            table.rest_until = now + AFTER_FAILURE_SECONDS
            self._log_failure(table, running.error)
        elif running.done:
            table.settled = table.skipped = False
            # A slow table may be due again before its VACUUM ends: spend at most half of the time on it.
            table.rest_until = now + seconds
            log.info("table was vacuumed table=%s seconds=%.1f", table.name, seconds)
        else:
            table.rest_until = now + AFTER_SKIP_SECONDS
            if not table.skipped:
                log.info("server skipped a VACUUM, it is retried table=%s", table.name)
            table.skipped = True

    def _log_failure(self, table: VacuumedTable, error: Exception | None) -> None:
        if error is not None and not isinstance(error, psycopg.errors.QueryCanceled):
            log.warning("VACUUM failed, tried again later table=%s: %s", table.name, one_line(error))
