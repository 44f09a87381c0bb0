"""The nemesis at work: a server, a proxy, workers, producers, and three lanes of faults; then silence and the verdict.

Order of an end: the lanes stop, everything is healed, what is open must end, probes registered afterwards must end
too, the workers drain with status 0, and the checker compares all witnesses.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from django.db import DatabaseError, InterfaceError, connection, transaction

from django_pgjobs import register_many
from django_pgjobs.models import Job
from django_pgjobs.states import GATHERING
from tests.chaos import audit, compound_judging, compounds
from tests.chaos import history as h
from tests.chaos.faults import LANES, steps
from tests.chaos.ground import Ground, wall_until
from tests.chaos.jobs import aact, act, called
from tests.chaos.striking import Striker
from tests.plugins.fix_db import patience
from tests.plugins.fix_worker import BUGS

log = logging.getLogger("nemesis")

BACKLOG = 1500
PRODUCERS = 2
PROBES = 20
IDLE_SECONDS = 180.0
"""Longer than what nobody serves any more may have to wait for the leader."""

COMPOUNDS_A_SECOND = 1.5
COMPOUNDS_AT_ONCE = 60
"""So many batches, flows and durable functions are open at most, however long the backlog of single jobs is."""
RECOVERY_SECONDS = 4.0

OPEN_COMPOUNDS = (*compounds.OWNERS, *GATHERING)

Mixed = tuple[float, Any, str, dict[str, Any]]

MIX: tuple[Mixed, ...] = (
    (500, act, "succeed", {}),
    (40, act.using(max_attempts=1), "succeed", {}),
    (40, aact, "succeed", {}),
    (6, act, "fail", {"times": 1}),
    (3, act, "sleep", {"seconds": 0.1}),
    (1, act, "sleep", {"seconds": 0.5}),
    (0.2, act, "sleep", {"seconds": 3.0}),
    (2, aact, "sleep", {"seconds": 0.2}),
    (2, act, "snooze", {"seconds": 0.2}),
    (1, act, "cancel", {}),
    (1, act, "abandon", {}),
    (1, act.using(max_attempts=2), "raise", {}),
    (2, called, "raise", {}),
    (2, called, "succeed", {}),
    (0.3, called, "raise", {"callback": "raise"}),
    (1, act, "register_child", {}),
    (1, act, "register_child", {"commit": False}),
    (0.15, act, "die", {"how": "kill", "times": 1}),
    (0.1, act, "die", {"how": "exit", "times": 1}),
    (0.1, act.using(timeout=0.5, max_attempts=1), "sleep", {"seconds": 5.0}),
    (0.5, act, "leave_transaction", {}),
    (0.5, act, "close_connection", {}),
    (0.3, act, "end_backend", {}),
    (0.5, act, "query", {"seconds": 0.05}),
    (0.2, act, "change_session", {}),
    (0.1, act, "fork", {"how": "exit"}),
    (0.1, act, "hold_gil", {"seconds": 0.3}),
    (0.2, act, "obey", {"seconds": 1.0}),
    (0.1, act, "start_program", {"seconds": 5.0}),
)


@dataclass(frozen=True)
class Plan:
    """What is asked of the nemesis."""

    seconds: float
    seed: int
    jobs: int
    workers: int = 3
    pace: float = 1.0
    """Stretches the pauses between faults, for a machine on which a worker takes long to start."""


class Storm:
    """One run."""

    def __init__(self, ground: Ground, plan: Plan, say: Callable[[str], None]) -> None:
        self.ground = ground
        self.plan = plan
        self.say = say
        self.over = threading.Event()
        self.registered = 0
        self.began = time.monotonic()
        self.striker = Striker(ground, self.over)
        self.failures: list[str] = []
        self.mix: Counter[str] = Counter()
        """What was registered, by kind."""

    def run(self) -> h.Report:
        """Rage, heal, wait, judge."""
        for _ in range(self.plan.workers):
            self.striker.start_worker()
        work: list[tuple[Callable[[Any], None], Any]] = [(self._lane, lane) for lane in LANES]
        work += [(self._produce, number) for number in range(PRODUCERS)]
        work.append((self._compose, 0))
        threads = [threading.Thread(target=self._guarded, args=each, daemon=True) for each in work]
        for thread in threads:
            thread.start()
        try:
            while not self._done() and not self.failures:
                time.sleep(0.2)
                self.striker.replace_the_dead()
        finally:
            self.over.set()
        for thread in threads:
            thread.join()
        return self._judge()

    def _done(self) -> bool:
        return time.monotonic() > self.began + self.plan.seconds and self.registered >= self.plan.jobs

    def _guarded(self, work: Callable[[Any], None], argument: Any) -> None:
        try:
            work(argument)
        except BaseException as error:
            log.exception("a thread of the nemesis failed")
            self.failures.append(f"the nemesis itself failed: {error!r}")
        finally:
            connection.close()

    # Faults

    def _lane(self, lane: str) -> None:
        for step in steps(self.plan.seed, lane):
            if self.over.wait(step.pause * self.plan.pace):
                return
            log.info("%.1f %s", time.monotonic() - self.began, step)
            self.striker.strike(step)

    # Registrations

    def _produce(self, number: int) -> None:
        chance = random.Random(f"{self.plan.seed} producer {number}")
        rate = max(1.0, self.plan.jobs / max(self.plan.seconds, 1.0) / PRODUCERS * 1.2)
        due = time.monotonic()
        while not self.over.is_set():
            size = chance.choice((1, 1, 5, 20, 100, 300))
            try:
                self._register(chance, number, size)
                due = max(due + size / rate, time.monotonic() - 5)
                while not self.over.wait(max(0.0, min(due - time.monotonic(), 1.0))) and self._backlog() > BACKLOG:
                    pass
            except (DatabaseError, InterfaceError, psycopg.Error):
                connection.close()
                self.over.wait(0.2)

    def _backlog(self) -> int:
        return Job.objects.filter(finished_at=None).count()

    def _register(self, chance: random.Random, number: int, size: int) -> None:
        """Register some jobs in one transaction; one in twenty is rolled back."""
        mixed = chance.choices(MIX, [each[0] for each in MIX], k=size)
        keys = [f"p{number}-{time.monotonic_ns()}-{n}" for n in range(size)]
        calls = [
            definition.bind(key=key, role=role, **facts)
            for key, (_, definition, role, facts) in zip(keys, mixed, strict=True)
        ]
        rolled_back = chance.random() < 0.05
        for key in keys:
            self.ground.journal.note("registering", key=key)
        with transaction.atomic():
            register_many(calls)
            if rolled_back:
                transaction.set_rollback(True)
        fate = h.ROLLED_BACK if rolled_back else h.COMMITTED
        for key in keys:
            self.ground.journal.note("registered", key=key, fate=fate)
        self.registered += 0 if rolled_back else size
        self.mix.update(f"a_job:{role}" for _, _, role, _ in mixed)

    def _compose(self, number: int) -> None:
        """Register durable functions, sagas, batches and flows."""
        chance = random.Random(f"{self.plan.seed} compounds")
        while not self.over.wait(chance.uniform(0.0, 2.0 / COMPOUNDS_A_SECOND)):
            try:
                if Job.objects.filter(finished_at=None, name__in=OPEN_COMPOUNDS).count() < COMPOUNDS_AT_ONCE:
                    self._register_compound(chance)
            except (DatabaseError, InterfaceError, psycopg.Error):
                connection.close()
                self.over.wait(0.2)

    def _register_compound(self, chance: random.Random) -> None:
        """Register one in a transaction; one in twenty is rolled back."""
        key = f"c{time.monotonic_ns()}"
        rolled_back = chance.random() < 0.05
        self.ground.journal.note("registering", key=key)
        with transaction.atomic():
            kind, keys = compounds.register(key, chance)
            for each in keys:
                self.ground.journal.note("registering", key=each)
            if rolled_back:
                transaction.set_rollback(True)
        for each in keys:
            self.ground.journal.note("registered", key=each, fate=h.ROLLED_BACK if rolled_back else h.COMMITTED)
        self.registered += 0 if rolled_back else len(keys)
        self.mix[kind] += 0 if rolled_back else 1

    # The end

    def _judge(self) -> h.Report:
        self.striker.heal()
        self.ground.stage.open(compounds.SETTLED)
        self.striker.operators.settle()
        self.striker.replace_the_dead()
        healed_at = time.time()
        self.say(f"healed after {time.monotonic() - self.began:.0f} s, {self.registered} jobs registered; waiting")
        probe = act.using(priority=50)
        probes = [self.ground.register(probe, key=f"probe-{n}") for n in range(PROBES)]
        wall_until(lambda: not self._open([job.pk for job in probes]), patience(20))
        slow = self._open([job.pk for job in probes])
        began = time.monotonic()
        wall_until(self._is_idle, patience(IDLE_SECONDS))
        self.say(f"idle after {time.monotonic() - began:.1f} s more")
        self._drain()
        history = self.ground.history(recovery_seconds=patience(RECOVERY_SECONDS))
        history.healed_at = healed_at
        report = h.check(history)
        known = audit.collect_compounds(self.ground.server.url, self.ground.journal, compounds.OWNERS)
        report.violations += compound_judging.check(known)
        self.say(f"registered {_words(self.mix)}")
        self.say(f"operators {_words(self.striker.operators.done)}")
        self.say(f"left {_words(compound_judging.counts(known))}")
        report.violations += self._more([f"probe {pk} had not ended in time" for pk in slow])
        return report

    def _is_idle(self) -> bool:
        self.striker.replace_the_dead()
        return self.striker.operators.take_up() and not self._backlog()

    def _open(self, ids: list[int]) -> list[int]:
        return list(Job.objects.filter(pk__in=ids, finished_at=None).values_list("pk", flat=True))

    def _drain(self) -> None:
        for worker in self.striker.workers:
            status = worker.stop(60)
            if status and worker.name not in self.striker.robbed:
                self.failures.append(f"{worker.name} drained with status {status}")
        wall_until(lambda: not self.ground.server.ask(audit.CONNECTIONS_LEFT), patience(5))

    def _more(self, words: Iterable[str]) -> list[h.Violation]:
        """Return what is to be seen in no row: workers that ended, bugs they logged, probes that did not end."""
        bugs = [
            f"{worker.log_path}: {line}"
            for worker in self.ground.workers.started
            for line in worker.log.splitlines()
            if any(bug in line for bug in BUGS[:3])
        ]
        found = [*words, *self.failures, *self.striker.surprises, *self.striker.operators.surprises, *bugs]
        return [h.Violation("worker", "", None, each) for each in found]


def _words(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name.replace(' ', '_')}={count}" for name, count in sorted(counts.items()))
