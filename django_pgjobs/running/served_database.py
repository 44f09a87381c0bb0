"""One database of a worker, or one of many schemas in it: what its home is made of, and how it is left."""

from __future__ import annotations

from typing import Any

from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance.duties import Checker, DutyProgress, TimedDuty, duties, upkeep
from django_pgjobs.maintenance.vacuum import Vacuumer
from django_pgjobs.running.worker import Worker
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.by_queue import EVERY_OTHER
from django_pgjobs.worker.shared.controls import Controls
from django_pgjobs.worker.shared.deaths import CrashWriter
from django_pgjobs.worker.shared.runs import RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.home import Home
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.threads.admitter import Admitter
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.inbox_messages import JobsExpired, JobsRescued
from django_pgjobs.worker.threads.lease_keeper import LeaseKeeper
from django_pgjobs.worker.threads.listener import Hearer, Listener
from django_pgjobs.worker.threads.loop import Loop, Outage
from django_pgjobs.worker.threads.maintainer import REST_SECONDS, FirstTurns, Maintainer, Upkeeper
from django_pgjobs.worker.threads.minutes import MinuteWriter
from django_pgjobs.worker.threads.unheld_jobs import UnheldJobs

CRASHES_SECONDS = 1.0
DOUBT_SECONDS = 0.25
SCAN_LIMITED_SECONDS = 5.0
"""Interval at which a worker whose code declares no limits scans for jobs that an earlier limit still holds."""

VISIT_SECONDS = 0.05
"""Interval at which the leader's slow duties look whether it leads, in a schema that is awake for a moment only."""


class ServedDatabase:
    """One database of a worker: its home, and the threads that the rest of the worker asks."""

    def __init__(
        self,
        worker: Worker,
        inbox: Inbox,
        progress: DutyProgress,
        identity: list[object],
        outage: Outage | None = None,
        first: FirstTurns = FirstTurns(),  # noqa: B008 (a tuple)
    ) -> None:
        self.worker = worker
        self.first = first
        self.progress = progress
        is_schema = worker.lines is not None
        table, tallies = RunTable(), Tallies(_is_known)
        beat_seconds = worker.conf.beat_seconds
        # A claim may have to skip many dead rows, and only claims wait for it; its lease counts from its beginning.
        patience = worker.conf.lease_seconds / 2
        claimer = Claimer(
            lambda: worker.connect("claim", durable=False, seconds=patience),
            inbox,
            worker.frontier(),
            worker.claim_options(),
            frozenset(name for name in registry.names() if registry.get(name).is_async),
            frozenset(worker.places and {*worker.places, OWN_QUEUE}) - {EVERY_OTHER},
        )
        admitter = Admitter(lambda: worker.connect("admit"), inbox, worker.admission(), claimer.wake_for_admitted)
        freed = admitter.wake_up if admitter.declares else None
        finaliser = Finaliser(lambda: worker.connect("finalise"), inbox, worker.author, freed)
        controls = Controls()
        self.keeper = keeper = _keeper(worker, inbox, table, claimer, controls)
        controls.beat_now, controls.answer_stack = keeper.beat_now, keeper.answer_stack
        self.leader = leader = progress.leader
        leader.stand_by()
        crashes = CrashWriter(table.deaths, worker.author)
        common = duties(
            progress,
            lambda rescued: inbox.post(JobsRescued(rescued)),
            keeper,
            lambda expired: inbox.post(JobsExpired(expired)),
        )
        [check] = [duty for duty in common if isinstance(duty, Checker)]
        self.check = check
        self.duties: list[Any] = [
            *common,
            TimedDuty("claims in doubt", claimer.check_doubts, DOUBT_SECONDS, last=True),
            TimedDuty("unheld", UnheldJobs(table), worker.conf.lease_seconds),
            TimedDuty("crashes", crashes, CRASHES_SECONDS, last=True, urgent=lambda: crashes.urgent),
            TimedDuty("limited", admitter.inspect, SCAN_LIMITED_SECONDS, needed=lambda db: check.says("limited_jobs")),
            TimedDuty("minutes", MinuteWriter(tallies, worker.author.release, beat_seconds), beat_seconds, last=True),
        ]
        maintainer = Maintainer(lambda: worker.connect("maintenance"), inbox, self.duties, check.is_clear, first.duties)
        self.kept_up = kept_up = upkeep(progress, lambda: worker.connect_alone("vacuum"), first.slow)
        rest_seconds = VISIT_SECONDS if is_schema and not first.slow else REST_SECONDS
        upkeeper = Upkeeper(lambda: worker.connect("upkeep"), inbox, kept_up, lambda: leader.leads, rest_seconds)
        loops: list[Loop] = [finaliser, claimer, keeper, maintainer, upkeeper, admitter]
        parts = (claimer, keeper.read_pauses_now, admitter.wake_up, keeper.read_stacks_now)
        self.hearer = Hearer(*parts)
        if worker.conf.notify and not is_schema:  # the rota listens for all schemas
            loops.append(Listener(lambda: worker.connect("listen"), inbox, *parts))
        if worker.alias:
            outage = outage or Outage()
            for loop in loops:
                loop.belong(worker.alias, outage)
        self.home = Home(
            worker.alias, inbox, table, claimer, finaliser, identity, admitter, loops, tallies, is_schema, controls
        )

    @property
    def is_kept_up(self) -> bool:
        """True once each of the leader's slow duties has had a turn, and no failure waits to be told."""
        return all(duty.due for duty in self.kept_up) and not self.progress.notifier.waits

    @property
    def has_duties(self) -> bool:
        """True while jobs of others' leases or limits, gates or a VACUUM keep it busy, or that is not known yet."""
        if any(duty.running for duty in self.kept_up if isinstance(duty, Vacuumer)):
            return True
        found = self.check.found
        if found is None:
            return not self.first.duties
        return bool(found.leases or found.gates or found.limited_jobs or found.fires)

    def leave(self) -> None:
        """End the threads of a home that holds no job; wait for that, and delete its heartbeat."""
        for loop in self.home.loops:
            loop.stop()
        for loop in self.home.loops:
            loop.join()
        self.farewell("stopped")

    def farewell(self, state: str) -> None:
        """Write the last heartbeat."""
        table = self.home.table
        facts = self.worker.facts(state, 0, table.ended, table.deaths, self.home.controls.taken)
        self.keeper.farewell(facts, self.worker.author.worker, remove=self.home.is_schema)


def _is_known(name: str) -> bool:
    return registry.find(name) is not None or registry.learned(name) is not None


def _keeper(worker: Worker, inbox: Inbox, table: RunTable, claimer: Claimer, controls: Controls) -> LeaseKeeper:
    conf = worker.conf

    def facts() -> dict[str, object]:
        state = "draining" if controls.draining else "quiet" if controls.quiet else "running"
        return worker.facts(state, len(table.held), table.ended, table.deaths, controls.taken)

    return LeaseKeeper(
        lambda: worker.connect("keep"),
        inbox,
        held=table.fences,
        check_ins=table.check_ins,
        overdue=table.overdue,
        facts=facts,
        lease_seconds=conf.lease_seconds,
        renew_seconds=conf.renew_seconds,
        beat_seconds=conf.beat_seconds,
        listens=claimer.listening.is_set,
    )
