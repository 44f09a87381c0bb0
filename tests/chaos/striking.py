"""How each kind of fault is done to processes, to the way between them and the database, and by operators."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from django.db import DatabaseError, InterfaceError, connection, transaction

from tests.chaos import history as h
from tests.chaos.faults import LEASE_SECONDS, Step
from tests.chaos.ground import Ground, text_of
from tests.chaos.operators import Operators
from tests.plugins.fix_worker import WorkerProcess

TROUBLE = (DatabaseError, InterfaceError, psycopg.Error)


class Striker:
    """Does steps to the workers it has started, and says to the checker what it did."""

    def __init__(self, ground: Ground, over: threading.Event) -> None:
        self.ground = ground
        self.over = over
        self.workers: list[WorkerProcess] = []
        self.killed: set[str] = set()
        self.robbed: set[str] = set()
        self.surprises: list[str] = []
        self.operators = Operators(ground.journal, over)
        self.server_lock = threading.Lock()
        self.lock = threading.Lock()
        self.deeds: dict[str, Callable[[Step], None]] = {
            "kill supervisor": lambda step: self._kill(step, [self._worker(step).pid]),
            "kill executor": lambda step: self._kill(step, self._some(step, self._worker(step).executors())),
            "kill template": lambda step: self._kill(step, self._worker(step).templates()),
            "kill worker": lambda step: self._kill(step, self._all_of(self._worker(step))),
            "kill everything": lambda step: self._kill(step, [p for w in self.workers for p in self._all_of(w)]),
            "freeze supervisor": lambda step: self._freeze(step, [self._worker(step).pid]),
            "freeze executor": lambda step: self._freeze(step, self._some(step, self._worker(step).executors())),
            "freeze template": lambda step: self._freeze(step, self._worker(step).templates()),
            "freeze worker": lambda step: self._freeze(step, self._all_of(self._worker(step))),
            "drain and replace": lambda step: self._terminate_worker(step, 1),
            "hurry": lambda step: self._terminate_worker(step, 2),
            "terminate some": self._terminate_backends,
            "terminate all": lambda step: self._fleeting("terminate", self.ground.server.terminate),
            "cut": self._cut,
            "blackhole": lambda step: self._rule(step, "blackhole", step.match, _direction(step)),
            "partition": self._partition,
            "delay": lambda step: self._rule(step, "delay", step.dice * 0.4, step.match),
            "throttle": lambda step: self._rule(step, "throttle", 3_000 + step.dice * 100_000, step.match),
            "refuse": self._refuse,
            "lose reply": lambda step: self._lose(step, "lose_reply"),
            "lose request": lambda step: self._lose(step, "lose_request"),
            "restart": lambda step: self._restart(step, immediate=False),
            "crash": lambda step: self._restart(step, immediate=True),
            "lock row": self._lock_row,
            "lock table": self._lock_table,
            **self.operators.deeds,
        }

    def strike(self, step: Step) -> None:
        """Do a step; a server that is away makes it nothing."""
        try:
            self.deeds[step.kind](step)
        except TROUBLE:
            connection.close()

    # Workers

    def start_worker(self) -> None:
        """Start one more."""
        processes = 1 + len(self.workers) % 2
        with self.lock:
            self.workers.append(self.ground.workers(processes=processes, threads=4, ready=False))

    def replace_the_dead(self) -> None:
        """Start a worker for each that has ended; one that nobody has stopped is a surprise."""
        for worker in list(self.workers):
            status = worker.process.poll()
            if status is None:
                continue
            if worker.name not in self.killed:
                self.surprises.append(f"{worker.name} ended by itself with {status}: {worker.log[-1000:]}")
            elif status > 0 and worker.name not in self.robbed:
                self.surprises.append(f"{worker.name} ended with {status}: {worker.log[-1000:]}")
            with self.lock:
                self.workers.remove(worker)
            self.start_worker()

    def heal(self) -> None:
        """Take everything back."""
        self.ground.proxy.heal()
        self.ground.server.start()

    def _worker(self, step: Step) -> WorkerProcess:
        with self.lock:
            return self.workers[step.target % len(self.workers)]

    @staticmethod
    def _all_of(worker: WorkerProcess) -> list[int]:
        return sorted({worker.pid, *worker.executors()})

    @staticmethod
    def _some(step: Step, pids: list[int]) -> list[int]:
        return [pids[step.target % len(pids)]] if pids else []

    def _kill(self, step: Step, pids: list[int]) -> None:
        self._mark(pids)  # before: it takes a while, and the checker compares instants
        with self.ground.fault(h.KILL, *pids):
            for pid in pids:
                _signal(pid, signal.SIGKILL)

    def _mark(self, pids: list[int]) -> None:
        """These workers may end: killed themselves, or robbed of the first executor, without which none goes on."""
        for worker in list(self.workers):
            robbed = not worker.said("executor is ready") and set(worker.executors()) & set(pids)
            if worker.pid in pids or robbed:
                self.killed.add(worker.name)
                self.robbed |= {worker.name} if robbed else set()

    def _freeze(self, step: Step, pids: list[int]) -> None:
        with self.ground.fault(h.FREEZE, *pids):
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            self.over.wait(step.seconds)
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    def _terminate_worker(self, step: Step, signals: int) -> None:
        worker = self._worker(step)
        self._mark([worker.pid])
        with self.ground.fault(h.LEAVE, worker.pid):
            for _ in range(signals):
                _signal(worker.pid, signal.SIGTERM)
                time.sleep(0.05)

    # The way

    def _fleeting(self, kind: str, deed: Callable[[], object]) -> None:
        with self.ground.fault(kind):
            deed()

    def _terminate_backends(self, step: Step) -> None:
        with self.ground.fault("terminate"):
            until = time.monotonic() + step.seconds
            while time.monotonic() < until and not self.over.wait(0.5):
                self.ground.server.terminate("^pgjobs ", 1)

    def _cut(self, step: Step) -> None:
        self._fleeting("cut", lambda: self.ground.proxy.cut(step.match, "rst" if step.dice < 0.5 else "fin"))

    def _rule(self, step: Step, kind: str, *arguments: Any) -> None:
        with self.ground.fault(kind):
            rule = getattr(self.ground.proxy, kind)(*arguments)
            self.over.wait(step.seconds)
            self.ground.proxy.heal(rule)
            if step.dice < 0.3:
                self.ground.proxy.cut(step.match)

    def _partition(self, step: Step) -> None:
        """Cut one worker off for longer than its lease while the others go on: what it writes afterwards is stale."""
        with self.ground.fault("blackhole"):
            rule = self.ground.proxy.blackhole(re.escape(self._worker(step).name))
            self.over.wait(LEASE_SECONDS + step.seconds)
            self.ground.proxy.heal(rule)

    def _refuse(self, step: Step) -> None:
        with self.ground.fault("refuse"):
            self.ground.proxy.refuse()
            self.ground.proxy.cut(step.match)
            self.over.wait(step.seconds)
            self.ground.proxy.heal()

    def _lose(self, step: Step, kind: str) -> None:
        with self.ground.fault("cut"):
            rule = getattr(self.ground.proxy, kind)(text_of(step.statement))
            rule.hit.wait(step.seconds)
            self.ground.proxy.heal(rule)

    def _restart(self, step: Step, *, immediate: bool) -> None:
        with self.server_lock, self.ground.fault(h.CRASH if immediate else "restart"):
            self.ground.server.halt(immediate=immediate)
            self.over.wait(step.seconds / 2)
            self.ground.server.start()

    # Locks

    @contextlib.contextmanager
    def _open_transaction(self) -> Iterator[Any]:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            yield cursor

    def _lock_row(self, step: Step) -> None:
        """An admin's open edit of running rows."""
        with self.ground.fault("lock"), self._open_transaction() as cursor:
            cursor.execute(
                "SELECT id FROM pgjobs_job WHERE claim_id IS NOT NULL AND finished_at IS NULL LIMIT 3 FOR UPDATE"
            )
            self.over.wait(step.seconds)

    def _lock_table(self, step: Step) -> None:
        tables = ("pgjobs_job", "pgjobs_claim", "pgjobs_attempt", "pgjobs_memo", "pgjobs_gate", "pgjobs_heartbeat")
        with self.ground.fault("lock"), self._open_transaction() as cursor:
            cursor.execute(f"LOCK TABLE {tables[step.target % len(tables)]}")
            self.over.wait(min(step.seconds, 2.0))


def _direction(step: Step) -> str:
    return ("both", "up", "down")[step.target % 3]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
