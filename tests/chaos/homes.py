"""A second home for the workers of a fault test: another server, the proxy before it, and who registers there.

Both homes have one journal, and a checker each: keys of jobs of the second begin with ``PREFIX``. What is done to the
second home is told to its own checker alone, so nothing excuses the first one for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.db import DatabaseError, connection, connections, transaction

from django_pgjobs.models import Job
from tests.chaos import audit
from tests.chaos import history as h
from tests.chaos.ground import ChaosServer, Ground, Producer, wall_until
from tests.chaos.jobs import act
from tests.chaos.journal import Journal
from tests.chaos.proxy import Proxy
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import WorkerProcess

ALIAS = "second"
BOTH = f"--database=default,{ALIAS}"
PREFIX = "second/"


class Share(Journal):
    """The lines of a journal that are about the jobs of one home, and those that are about no job."""

    def __init__(self, whole: Journal, is_mine: Callable[[str], bool]) -> None:
        super().__init__(whole.path.parent)
        self.is_mine = is_mine

    def lines(self, *kinds: str) -> Iterator[dict[str, Any]]:
        return (line for line in super().lines(*kinds) if "key" not in line or self.is_mine(line["key"]))


class SecondHome:
    """Its server, its proxy, what is registered there, what was done to it, and the verdict over it."""

    def __init__(self, ground: Ground, server: ChaosServer, proxy: Proxy) -> None:
        self.ground = ground
        self.server = server
        self.proxy = proxy
        self.journal = Share(ground.journal, lambda key: key.startswith(PREFIX))
        ground.journal = Share(ground.journal, lambda key: not key.startswith(PREFIX))
        self.register = Producer(self.journal, database=ALIAS, prefix=PREFIX)
        self.faults: list[h.Fault] = []

    def workers(self, *arguments: str, **others: Any) -> WorkerProcess:
        """Start a worker that serves both homes."""
        env = {"PGJOBS_TEST_SECOND_DATABASE_URL": self.proxy.url, **others.pop("env", {})}
        return self.ground.workers(BOTH, *arguments, env=env, **others)

    @contextlib.contextmanager
    def fault(self, kind: str) -> Iterator[None]:
        """Say that something is done to this home inside this block."""
        begin = time.time()
        try:
            yield
        finally:
            self.faults.append(h.Fault(kind, begin, time.time()))

    def family(self) -> list[int]:
        """Return the processes of the server, the postmaster first."""
        children = subprocess.run(
            ["ps", "-o", "pid=,comm=", "--ppid", str(self.server.pid)], capture_output=True, text=True, check=False
        )
        found = [line.split(maxsplit=1) for line in children.stdout.splitlines()]
        return [self.server.pid or 0, *(int(pid) for pid, name in found if "postgres" in name)]

    def kill(self) -> None:
        """Kill the server and all its backends, as a machine that loses power."""
        self._kill(self.family())

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.server.pid is None, 10, "the server is dead")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep the server from running, while its connections stay open."""
        pids = self.family()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def dead(self) -> Iterator[None]:
        """Kill the server, and start it again after the block."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    @contextlib.contextmanager
    def half_open(self) -> Iterator[None]:
        """Let the network swallow what is sent to the server, in both directions."""
        rule = self.proxy.blackhole()
        try:
            yield
        finally:
            self.proxy.heal(rule)

    def start(self) -> None:
        """Start the server if it does not run; connections to it are made anew."""
        connections[ALIAS].close()
        self.server.start()

    def copy_to(self, place: Path) -> None:
        """Take a backup of the halted server."""
        subprocess.run(["cp", "-a", str(self._data()), str(place)], check=True)

    def restore(self, place: Path) -> None:
        """Put a backup in the place of what the halted server has."""
        shutil.rmtree(self._data())
        subprocess.run(["cp", "-a", str(place), str(self._data())], check=True)

    def _data(self) -> Path:
        directory = self.server.embedded.directory
        assert directory is not None
        return Path(directory.data)

    def ended(self, *jobs: Job, timeout: float = 30) -> list[Job]:
        """Wait until these jobs have ended; return them as they are then."""
        found = Job.objects.using(ALIAS).filter(pk__in=[job.pk for job in jobs])
        wait_until(lambda: found.exclude(finished_at=None).count() == len(jobs), timeout, f"{len(jobs)} jobs end there")
        return list(found.order_by("pk"))

    def check(self, *, recovery_seconds: float = 60.0) -> h.Report:
        """Stop all workers, and compare the witnesses of both homes; return the report over this one."""
        self.proxy.heal()
        self.start()
        self.ground.check(recovery_seconds=recovery_seconds)
        wall_until(lambda: not self.server.ask(audit.CONNECTIONS_LEFT), patience(5))
        faults = [*self.ground.faults, *self.faults]
        report = h.check(audit.collect(self.server.url, self.journal, faults=faults, recovery_seconds=recovery_seconds))
        assert not report.violations, str(report)
        return report


@contextlib.contextmanager
def second_home(ground: Ground, server: ChaosServer) -> Iterator[SecondHome]:
    """Lead the alias ``second`` of this process to a server, and a proxy of its own before it for the workers."""
    parts = urlsplit(server.url)
    own: Any = connection.copy(ALIAS)
    own.settings_dict |= {
        "HOST": parts.hostname, "PORT": parts.port, "NAME": parts.path[1:], "USER": parts.username,
        "PASSWORD": parts.password or "",
    }  # fmt: skip
    connections[ALIAS], connections.settings[ALIAS] = own, own.settings_dict
    with Proxy.before(server.url) as proxy:
        home = SecondHome(ground, server, proxy)
        try:
            yield home
        finally:
            proxy.heal()
            home.start()
            home.journal.close()
            own.close()
            del connections[ALIAS], connections.settings[ALIAS]


# Kills between a registration's statement and its commit


def kill_before_commit(home: SecondHome, turn: int) -> str:
    """Kill the second home while one registration is between its statement and its commit, and one is committing.

    Before, one is acknowledged. Starts the server again. Returns what became of the one that was committing.
    """
    home.register(act, key=f"{PREFIX}acknowledged-{turn}")
    fates: list[str] = []
    ready, go = threading.Event(), threading.Event()

    def commits() -> None:
        try:
            with transaction.atomic(using=ALIAS):
                _register(home, f"{PREFIX}racing-{turn}")
                ready.set()
                go.wait(30)
            home.journal.note("registered", key=f"{PREFIX}racing-{turn}", fate=h.COMMITTED)
            fates.append("acknowledged")
        except DatabaseError:
            fates.append("unknown")
        finally:
            ready.set()
            connections[ALIAS].close()

    thread = threading.Thread(target=commits)
    thread.start()
    key = f"{PREFIX}between-{turn}"
    with home.fault(h.CRASH):
        try:
            with transaction.atomic(using=ALIAS):
                _register(home, key)
                ready.wait(30)
                family = home.family()  # so that the kill and the other commit are within a millisecond
                go.set()
                threading.Event().wait(turn % 4 / 2000)
                home._kill(family)
        except DatabaseError:
            home.journal.note("registered", key=key, fate=h.ROLLED_BACK)
        else:
            raise AssertionError("a commit on a server that was dead has succeeded")
        thread.join(30)
        home.start()
    return fates[0]


def _register(home: SecondHome, key: str) -> None:
    home.journal.note("registering", key=key)
    act.using(database=ALIAS).register(key=key)


# How the first home fares meanwhile


class Pace:
    """Registers a job at the first home every so often, and says how fast those were picked up."""

    def __init__(self, ground: Ground, every: float) -> None:
        self.ground = ground
        self.every = every
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._register, daemon=True)
        self.windows: list[tuple[str, float, float]] = []

    def __enter__(self) -> Pace:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join(30)
        wait_until(lambda: not Job.objects.filter(finished_at=None).exists(), 30, "all at the first home have ended")

    def _register(self) -> None:
        due = time.monotonic()
        while not self.over.wait(max(0.0, due - time.monotonic())):
            due += self.every  # by the clock, so that what it costs to register does not slow them down
            self.ground.register(act, key=self.ground.register.key("paced"))
        connection.close()

    @contextlib.contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Say what is the matter inside this block."""
        began = time.time()
        try:
            yield
        finally:
            self.windows.append((name, began, time.time()))

    def pickups(self) -> dict[str, list[float]]:
        """Return the seconds from before each registration until its start, sorted, by window of the registration."""
        begun = {line["key"]: line["wall"] / 1e9 for line in self.ground.journal.lines("registering")}
        starts: dict[str, float] = {}
        for line in self.ground.journal.lines("start"):
            starts.setdefault(line["key"], line["wall"] / 1e9)
        found: dict[str, list[float]] = {}
        for key, at in begun.items():
            for name, began, until in self.windows:
                if key.startswith("paced") and began <= at < until:
                    found.setdefault(name, []).append(starts.get(key, float("inf")) - at)
        return {name: sorted(seconds) for name, seconds in found.items()}

    def rates(self) -> dict[str, float]:
        """Return how many of those jobs ended per second, by window of the end."""
        ends = [line["wall"] / 1e9 for line in self.ground.journal.lines("end") if line["key"].startswith("paced")]
        found: dict[str, float] = {}
        for name in {name for name, _, _ in self.windows}:
            spans = [(began, until) for each, began, until in self.windows if each == name]
            count = sum(began <= at < until for at in ends for began, until in spans)
            found[name] = count / sum(until - began for began, until in spans)
        return found


def share(seconds: list[float], part: float) -> float:
    """Return the value that this part of a sorted list is not above."""
    return seconds[min(len(seconds) - 1, int(part * len(seconds)))]
