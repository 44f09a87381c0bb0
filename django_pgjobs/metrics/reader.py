"""The fleet as a web process exports it: one read at most each second, regardless of who asks, and no exception for the
host."""

from __future__ import annotations

import threading

from django.db import router

from django_pgjobs import clock
from django_pgjobs.logs import safe_logger
from django_pgjobs.metrics.families import Family
from django_pgjobs.metrics.fleet import DOWN, Totals, gauges_of
from django_pgjobs.models import Job
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.counting import read_fleet
from django_pgjobs.store.hurried import HurriedDatabase

log = safe_logger("django_pgjobs")

KEPT_SECONDS = 1.0
WAIT_SECONDS = 2.0
"""Time that a scrape waits for the database."""


class FleetReader:
    """Reads the leader's row for the scrapers of this process; ``using``: its database, None to ask the router."""

    def __init__(self, using: str | None = None) -> None:
        self.using = using
        self.totals = Totals()
        self.kept: tuple[float, list[Family]] | None = None
        self.trouble = False
        self.lock = threading.Lock()

    def families(self) -> list[Family]:
        """Return the fleet's metrics; ``pgjobs_fleet_up`` alone, as 0, if they cannot be read. Raises nothing."""
        with self.lock:
            if self.kept is None or clock.monotonic() > self.kept[0] + KEPT_SECONDS:
                families = self._read()
                self.kept = clock.monotonic(), families
            return self.kept[1]

    def _read(self) -> list[Family]:
        try:
            found = read_fleet(HurriedDatabase(self.using or _alias(), WAIT_SECONDS), totals=True)
            families = [*gauges_of(found), *self.totals.families(found)]
        except Exception as error:
            if not self.trouble:
                log.error("metrics of the fleet cannot be read: %s", one_line(error))
            self.trouble = True
            return DOWN
        if self.trouble:
            log.info("metrics of the fleet can be read again")
        self.trouble = False
        return families


def _alias() -> str:
    return str(router.db_for_read(Job))
