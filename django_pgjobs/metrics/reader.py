"""The fleet as a web process exports it: one read at most each second, regardless of who asks, and no exception for the
host.

Of several databases each is read beside the others: one that does not answer is not up, and the others are.
"""

from __future__ import annotations

import threading
from collections import defaultdict

from django.db import router

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.metrics.families import Family, of_databases
from django_pgjobs.metrics.fleet import DOWN, Totals, gauges_of
from django_pgjobs.models import Job
from django_pgjobs.registering.served import several_aliases
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.asking import Reply, ask_each
from django_pgjobs.store.counting import StoredFleet, read_fleet
from django_pgjobs.store.database import HurriedDatabase

KEPT_SECONDS = 1.0
WAIT_SECONDS = 2.0
"""Time that a scrape waits for the database."""


class FleetReader:
    """Reads the leader's row for the scrapers of this process; ``using``: its database, None to ask the router."""

    def __init__(self, using: str | None = None) -> None:
        self.using = using
        self.totals: defaultdict[str, Totals] = defaultdict(Totals)
        self.kept: tuple[float, list[Family]] | None = None
        self.troubled: set[str] = set()
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
            aliases = self._aliases()
            replies = ask_each(aliases, _read, seconds=WAIT_SECONDS)
        except Exception as error:
            self._say("", one_line(error))
            return DOWN
        if len(replies) == 1:
            return self._families(replies[0], "")
        return of_databases({reply.alias: self._families(reply, f" alias={reply.alias}") for reply in replies})

    def _aliases(self) -> tuple[str, ...]:
        if self.using is not None:
            return (self.using,)
        return several_aliases() or (str(router.db_for_read(Job)),)

    def _families(self, reply: Reply[StoredFleet], where: str) -> list[Family]:
        families, trouble = DOWN, "" if reply.trouble is None else reply.trouble.text
        if reply.answer is not None:
            try:
                families = [*gauges_of(reply.answer), *self.totals[reply.alias].families(reply.answer)]
            except Exception as error:
                trouble = one_line(error)
        self._say(where, trouble)
        return families

    def _say(self, where: str, trouble: str) -> None:
        """Log that trouble has begun, or is over."""
        if trouble and where not in self.troubled:
            log.error("metrics of the fleet cannot be read%s: %s", where, trouble)
        if not trouble and where in self.troubled:
            log.info("metrics of the fleet can be read again%s", where)
        self.troubled = self.troubled | {where} if trouble else self.troubled - {where}


def _read(alias: str) -> StoredFleet:
    return read_fleet(HurriedDatabase(alias, WAIT_SECONDS), totals=True)
