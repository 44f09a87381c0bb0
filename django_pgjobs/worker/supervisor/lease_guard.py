"""The supervisor's side of trust: until when its leases hold, for the watchdog and the executors.

Main thread only; nothing here blocks. A claim is trusted until a margin before its lease can run out, counted from
*before* the query that claimed or renewed it. The watchdog gets the earliest of these instants after each renewal.
While renewals are late or the server is away, each tick extends the watchdog's deadline by one lease: an outage must
kill nothing, since no other worker can take the jobs then. A supervisor that stands still extends nothing.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.worker.shared.channel_messages import TrustUntil
from django_pgjobs.worker.shared.runs import RunTable, trust_seconds
from django_pgjobs.worker.supervisor import watchdog
from django_pgjobs.worker.supervisor.executor_process import DRAINING, READY, TERMINATING, ExecutorProcess


class Watchdog:
    """A process that ends our executors when we are killed or stand still. Raises ``OSError`` if it cannot start."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(watchdog.__file__)],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self.sock = ours
        self._fired = False

    def say(self, verb: str, number: int) -> None:
        """Send it a line; drop the line if the watchdog is dead, or stopped for so long that its socket is full."""
        with suppress(OSError):
            self.sock.send(f"{verb} {number}\n".encode())

    @property
    def fired(self) -> bool:
        """True if it ended our executors because this process stood still."""
        with suppress(OSError):
            self._fired = self._fired or bool(self.sock.recv(64))
        return self._fired

    @property
    def gone(self) -> bool:
        """True if it has stopped watching."""
        return self.process.poll() is not None or self.fired

    def close(self) -> None:
        """Dismiss it: it ends as soon as it has no executor to watch."""
        self.sock.close()

    def reap(self) -> None:
        """Wait for its end after the dismissal."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)


class LeaseGuard:
    """Keeps a watchdog over ``children``, the shared list of executors, and informs both about leases.

    ``tables``: the jobs held, by home. A home whose leases cannot be renewed sets no deadline to the others.
    """

    def __init__(self, tables: Mapping[str, RunTable], lease_seconds: float, children: list[ExecutorProcess]) -> None:
        self.tables = tables
        self.children = children
        self.lease_seconds = lease_seconds
        self.watchdog: Watchdog | None = None
        self.last: Watchdog | None = None
        self.until = 0.0
        self._watched: dict[ExecutorProcess, Watchdog | None] = {}

    def add(self, child: ExecutorProcess) -> None:
        """Watch over an executor that was started."""
        self.tick(clock.monotonic())
        self._watched = {each: watcher for each, watcher in self._watched.items() if each in self.children}
        self._watched[child] = self.watchdog
        self._say("add", child.pid)

    def remove(self, child: ExecutorProcess) -> None:
        """Stop watching an executor that has ended."""
        self._say("remove", child.pid)

    def ended(self, child: ExecutorProcess) -> bool:
        """Return whether the watchdog has ended this executor."""
        watcher = self._watched.get(child)
        return watcher is not None and watcher.fired

    def renewed(self, asked_at: float, claim_ids: Iterable[str], home: str = "") -> None:
        """Record that a query begun at ``asked_at`` renewed these claims of a home, and perhaps no others."""
        table = self.tables[home]
        table.renewed(asked_at, claim_ids)
        now = clock.monotonic()
        at_most = now + trust_seconds()
        self._arm(now, self._earliest(now, at_most))
        for child in self.children:
            if child.state in (READY, DRAINING, TERMINATING):
                child.end.send(TrustUntil(table.trusted_until(at_most), home))

    def adopted(self) -> None:
        """Record a claim; one sent long ago is the first to lose trust."""
        now = clock.monotonic()
        earliest = self._earliest(now, self.until)
        if earliest < self.until:
            self._arm(now, earliest)

    def tick(self, now: float) -> None:
        """Extend the watchdog's deadline if renewals are late, as this process lives."""
        if self.until < now + self.lease_seconds / 3:
            self._arm(now, self._earliest(now, now + self.lease_seconds) if self.tables.keys() - {""} else 0.0)

    def _earliest(self, now: float, at_most: float) -> float:
        """Return until when the claims of all homes are trusted, without homes that are late with their renewals."""
        found = [table.trusted_until(at_most) for table in self.tables.values()]
        return min([until for until in found if until > now + self.lease_seconds / 3] or found)

    def _arm(self, now: float, until: float) -> None:
        # A claim that is not renewed although we live is lost, or locked for a moment: the ladder handles it.
        self.until = until if until > now + self.lease_seconds / 3 else now + self.lease_seconds
        if self.watchdog is None or self.watchdog.gone:
            self._replace()
        self._say("until", int(self.until * 1e9))

    def _replace(self) -> None:
        old, self.watchdog = self.watchdog, None
        if old is not None:
            log.warning("watchdog has ended, replaced fired=%s", old.fired)
            old.close()
            old.reap()
        try:
            self.watchdog = Watchdog()
        except OSError as error:
            log.error("watchdog cannot be started, executors are without: %s", error)
            return
        for child in self.children:
            if not (old is not None and old.fired and self._watched.get(child) is old):
                self._watched[child] = self.watchdog
                self._say("add", child.pid)

    def _say(self, verb: str, number: int) -> None:
        if self.watchdog is not None:
            self.watchdog.say(verb, number)

    def close(self) -> None:
        """Dismiss the watchdog; it ends while the rest of the shutdown continues."""
        self.last, self.watchdog = self.watchdog, None
        if self.last is not None:
            self.last.close()

    def reap(self) -> None:
        """Wait for the end of the dismissed watchdog."""
        if self.last is not None:
            self.last.reap()
