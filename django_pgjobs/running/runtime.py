"""The composition root: from options to a running worker. The only room that wires conf, worker and maintenance."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from django.db import connections

from django_pgjobs import clock
from django_pgjobs.checks import check_driver
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import listed, safe_logger, speaking_of
from django_pgjobs.maintenance.checking import Checker
from django_pgjobs.maintenance.cron_declaring import declared_for
from django_pgjobs.maintenance.duties import TimedDuty, duties, upkeep
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.unparking import missing_names
from django_pgjobs.registering.served import several_aliases
from django_pgjobs.running.metered import Metered, WorkerSizes
from django_pgjobs.running.migrated import lack_of
from django_pgjobs.running.opening import NOT_MIGRATED, Databases, Opener, log_distributed, pause_after
from django_pgjobs.running.worker import SUPERVISOR_CONNECTIONS, Worker, WorkerOptions
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import read_statements
from django_pgjobs.store.firing import DeclaredCron
from django_pgjobs.store.keeping import Identity
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.by_queue import EVERY_OTHER
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.connection import TROUBLE
from django_pgjobs.worker.shared.controls import Controls
from django_pgjobs.worker.shared.deaths import CrashWriter
from django_pgjobs.worker.shared.runs import RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.executor_process import Recipe
from django_pgjobs.worker.supervisor.home import Home
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.supervisor.logs import logging_in_a_thread
from django_pgjobs.worker.supervisor.recycling import Recycling
from django_pgjobs.worker.supervisor.supervisor import Supervisor, WorkerLimits
from django_pgjobs.worker.supervisor.template import SPAWNED
from django_pgjobs.worker.threads.admitter import Admitter
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.inbox_messages import JobsExpired, JobsRescued
from django_pgjobs.worker.threads.lease_keeper import LeaseKeeper
from django_pgjobs.worker.threads.listener import Listener
from django_pgjobs.worker.threads.loop import Loop, Outage
from django_pgjobs.worker.threads.maintainer import Maintainer, Upkeeper
from django_pgjobs.worker.threads.minutes import MinuteWriter
from django_pgjobs.worker.threads.unheld_jobs import UnheldJobs

log = safe_logger("django_pgjobs")

CRASHES_SECONDS = 1.0


SCAN_LIMITED_SECONDS = 5.0
"""Interval at which a worker whose code declares no limits scans for jobs that an earlier limit still holds."""

LEAVE_SECONDS = 5.0
SWITCH_SECONDS = 0.0005
GARBAGE_OBJECTS = 20_000
DOUBT_SECONDS = 0.25


def wait_for_database(worker: Worker, stopped: threading.Event) -> Identity | None:
    """Wait until the server is reachable and migrated, and log what is missing; None if ``stopped`` is set first.

    Then resolve the names that rows wait with, as no thread may do later. Runs project code: main thread only.
    """
    _log_slow_driver()
    tries = 0
    while not stopped.is_set():
        try:
            db = worker.connect("start")
            try:
                missing, lack = [], lack_of(db)
                if lack is None:
                    log_distributed(db)
                    missing = missing_names(db)
            finally:
                db.close()
            if lack is None:
                _resolve(missing)
                return db.identity
            log.error("%s%s: run manage.py migrate; waiting", NOT_MIGRATED, lack)
        except TROUBLE as error:
            log.error("database cannot be reached, waiting: %s", one_line(error))
        tries += 1
        stopped.wait(pause_after(tries))
    return None


def _log_slow_driver() -> None:
    for problem in check_driver():
        log.warning("psycopg runs in Python: %s", problem.hint)


def _resolve(names: list[str]) -> None:
    """Make names known that are the paths of something that can be imported."""
    if names:
        try:
            found = [name for name in names if registry.resolved(name) is not None]
        finally:
            cleanup.close_all()
        log.info(
            "names of parked and limited jobs and of schedules resolved name=%s: %d are still unknown",
            listed(found),
            len(names) - len(found),
        )


def run(options: WorkerOptions) -> int:
    """Run a worker in this process until it has drained; return its exit status. Main thread only."""
    worker = Worker.of(options)
    read_statements()
    status = 0
    stopped = threading.Event()
    # A signal before or after the supervisor's own handling must not end the process abruptly.
    with logging_in_a_thread() as listening, process.handling(lambda *_: stopped.set()):
        if options.databases:
            status = _run_several(worker, stopped)
        elif (found := wait_for_database(worker, stopped)) is not None:
            _log_budget(worker, found)
            with _tuned_interpreter():
                served = ServedDatabase(worker, Inbox(), declared_crons(worker), list(found.table_identity))
                status = _serve(worker, [served], stopped)
        if options.template is not None:
            options.template.close()
    if listening.is_stuck:
        # The reader of stderr has gone. The interpreter would flush it at exit, and hang.
        os._exit(status)
    return status


def _run_several(worker: Worker, stopped: threading.Event) -> int:
    """Run a worker that serves several databases, as soon as there is one of them; return its exit status."""
    _log_slow_driver()
    databases = Databases(stopped)
    openers = [Opener(worker.at(alias), Inbox(), databases) for alias in worker.options.databases]
    try:
        found = databases.wait(openers)
        if not found:
            return 0
        _resolve(sorted({name for each in found for name in each.names}))
        _log_budget(worker, *(each.identity for each in found))
        with _tuned_interpreter():
            served = [ServedDatabase(each.worker, each.inbox, declared_crons(each.worker), []) for each in openers]
            return _serve(worker, served, stopped)
    finally:
        for opener in openers:
            opener.leaving.set()


def declared_crons(worker: Worker) -> dict[str, DeclaredCron]:
    """Return the cron entries of this worker's code. Runs project code: call in the main thread, before the others."""
    try:
        return declared_for(worker.options.database)
    finally:
        cleanup.close_all()


def _log_budget(worker: Worker, found: Identity, *others: Identity) -> None:
    asynchronous = any(definition.is_async for definition in registry.definitions())
    per_executor = (worker.threads + worker.async_slots * asynchronous) * len(connections.settings)
    own = SUPERVISOR_CONNECTIONS + worker.admission().declares()
    total = worker.processes * per_executor + own * max(1, len(worker.options.databases))
    allowed = sum(each.max_connections for each in {each.system: each for each in (found, *others)}.values())
    served = worker.options.queues or ("all", *(f"-{each}" for each in worker.options.excluded))
    log.info(
        "worker starts worker=%s queue=%s processes=%d threads=%d async_slots=%d connections≤%d of %d",
        worker.author.name, listed(served), worker.processes, worker.threads, worker.async_slots,
        total, allowed,
    )  # fmt: skip
    if worker.places:
        places = ", ".join(f"{queue}: {most}" for queue, most in worker.places.items())
        log.info("worker runs at most so many jobs at once queue=%s: %s", listed(worker.places), places)
    if worker.options.databases:
        log.info("worker serves several databases alias=%s", listed(worker.options.databases))
    template = worker.options.template
    if template is not None and template.obstacle:
        curable = sys.platform == "linux"
        log.log(
            logging.WARNING if curable else logging.INFO,
            "executors are not forked from a template, %s: %s", SPAWNED, template.obstacle,
        )  # fmt: skip
    if total > allowed:
        log.warning("the worker may need %d connections, the server allows %d", total, allowed)


@contextlib.contextmanager
def _tuned_interpreter() -> Iterator[None]:
    """Tune this process for a supervisor; undo it afterwards, since ``call_command`` returns to its caller."""
    switch_seconds, thresholds = sys.getswitchinterval(), gc.get_threshold()
    # A busy thread may hold the interpreter for 5 ms at a time; a renewal must not wait for a flush.
    sys.setswitchinterval(SWITCH_SECONDS)
    # Imports stay, and held jobs are in no reference cycle: collecting them would cost a sixth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        sys.setswitchinterval(switch_seconds)


class ServedDatabase:
    """One database of a worker: its home, and the threads that the rest of the worker asks."""

    def __init__(
        self, worker: Worker, inbox: Inbox, declared: Mapping[str, DeclaredCron], identity: list[object]
    ) -> None:
        self.worker = worker
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
        controls.beat_now = keeper.beat_now
        self.leader = leader = Leader(worker.author)
        crashes = CrashWriter(table.deaths, worker.author)
        common = duties(
            leader,
            lambda rescued: inbox.post(JobsRescued(rescued)),
            declared,
            keeper,
            lambda expired: inbox.post(JobsExpired(expired)),
        )
        [check] = [duty for duty in common if isinstance(duty, Checker)]
        self.duties: list[Any] = [
            *common,
            TimedDuty("claims in doubt", claimer.check_doubts, DOUBT_SECONDS, last=True),
            TimedDuty("unheld", UnheldJobs(table), worker.conf.lease_seconds),
            TimedDuty("crashes", crashes, CRASHES_SECONDS, last=True, urgent=lambda: crashes.urgent),
            TimedDuty("limited", admitter.inspect, SCAN_LIMITED_SECONDS, needed=lambda db: check.says("limited_jobs")),
            TimedDuty("minutes", MinuteWriter(tallies, worker.author, beat_seconds), beat_seconds, last=True),
        ]
        maintainer = Maintainer(lambda: worker.connect("maintenance"), inbox, self.duties, check.is_clear)
        kept_up = upkeep(leader, lambda: worker.connect_alone("vacuum"))
        upkeeper = Upkeeper(lambda: worker.connect("upkeep"), inbox, kept_up, lambda: leader.leads)
        loops: list[Loop] = [finaliser, claimer, keeper, maintainer, upkeeper, admitter]
        if worker.conf.notify:
            loops.append(
                Listener(lambda: worker.connect("listen"), inbox, claimer, keeper.read_pauses_now, admitter.wake_up)
            )
        if worker.alias:
            outage = Outage()
            for loop in loops:
                loop.belong(worker.alias, outage)
        self.home = Home(worker.alias, inbox, table, claimer, finaliser, identity, admitter, loops, tallies, controls)

    def farewell(self, state: str) -> None:
        """Write the last heartbeat."""
        table = self.home.table
        facts = self.worker.facts(state, 0, table.ended, table.deaths, self.home.controls.taken)
        self.keeper.farewell(facts, self.worker.author.worker)


def _serve(worker: Worker, served: list[ServedDatabase], stopped: threading.Event) -> int:
    metered = _metered(worker)
    says = several_aliases()  # also a worker for one of several says which
    for each in served:
        each.duties += metered.duties(each.worker.alias or (worker.options.database if says else ""))
    supervisor = Supervisor(_recipe(worker), _limits(worker), [each.home for each in served])
    with registry.without_resolvers():
        for each in served:
            if each.home.identity:  # the others wait to be opened
                each.home.start()
        metered.start(supervisor, [each.keeper for each in served], [each.leader for each in served])
        status = supervisor.run(stopped)
        metered.stop()
        _leave(supervisor, served)
    _log_farewell(supervisor)
    return status


def _is_known(name: str) -> bool:
    return registry.find(name) is not None or registry.learned(name) is not None


def _metered(worker: Worker) -> Metered:
    options, conf = worker.options, worker.conf
    sizes = WorkerSizes(worker.processes, worker.threads, worker.async_slots)
    port = options.metrics_port or conf.metrics_port
    return Metered(options.metrics_host or conf.metrics_host, port, worker.author, sizes)


def _recipe(worker: Worker) -> Recipe:
    return Recipe(
        entry=worker.options.entry,
        options=worker.options.entry_options,
        threads=worker.threads,
        async_slots=worker.async_slots,
        database=",".join(worker.options.databases) or worker.options.database,
        name=worker.author.name,
        worker=worker.author.worker,
        environment=worker.options.environment,
        template=worker.options.template,
    )


def _limits(worker: Worker) -> WorkerLimits:
    options = worker.options
    conf = worker.conf
    recycling = Recycling(
        options.executor_max_jobs or conf.executor_max_jobs,
        options.executor_max_megabytes or conf.executor_max_megabytes,
    )
    return WorkerLimits(
        worker.processes, options.max_jobs, options.until_idle, conf.drain_seconds, recycling, worker.places
    )


def _keeper(worker: Worker, inbox: Inbox, table: RunTable, claimer: Claimer, controls: Controls) -> LeaseKeeper:
    conf = worker.conf

    def facts() -> dict[str, object]:
        state = "draining" if claimer.halted else "quiet" if controls.quiet else "running"
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


def _leave(supervisor: Supervisor, served: list[ServedDatabase]) -> None:
    """Flush, stop the threads, write the last heartbeat; do not wait long for an unreachable database."""
    served = [each for each in served if each.home.identity]
    loops = [loop for each in served for loop in each.home.loops]
    for loop in loops:
        loop.stop()
    until = clock.monotonic() + LEAVE_SECONDS
    for loop in loops:
        loop.join(max(0.0, until - clock.monotonic()))
    for home in supervisor.homes:
        home.inbox.close()
    supervisor.pool.guard.reap()
    leaving = [threading.Thread(target=each.farewell, args=("stopped",), daemon=True) for each in served[1:]]
    for thread in leaving:
        thread.start()
    for each in served[:1]:
        each.farewell("stopped")
    until = clock.monotonic() + LEAVE_SECONDS
    for thread in leaving:
        thread.join(max(0.0, until - clock.monotonic()))


def _log_farewell(supervisor: Supervisor) -> None:
    homes = supervisor.homes
    for home in homes:
        if home.finaliser.count:
            with speaking_of(home.alias):
                log.warning(
                    "ends could not be written, other workers rescue these jobs jobs=%d locked=%d",
                    home.finaliser.count, home.finaliser.busy.count,
                )  # fmt: skip
    log.info(
        "worker stopped jobs=%d refused=%d statements=%d cpu_supervisor=%.3fs cpu_executors=%.3fs",
        supervisor.ended, sum(home.finaliser.writer.refused.total() for home in homes),
        sum(loop.statements for home in homes for loop in home.loops), _cpu(children=False), _cpu(children=True),
    )  # fmt: skip


def _cpu(*, children: bool) -> float:
    times = os.times()
    return times.children_user + times.children_system if children else times.user + times.system
