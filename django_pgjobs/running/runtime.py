"""The composition root: from options to a running worker. The only room that wires conf, worker and maintenance.

For many schemas of one database it makes the rota, and a home for each schema that is woken.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from django.db import connections

from django_pgjobs import clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import listed, log, speaking_of
from django_pgjobs.maintenance.cron_declaring import declared_for
from django_pgjobs.maintenance.duties import DutyProgress
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.registering.served import served_schemas, several_aliases
from django_pgjobs.running.metered import Metered, WorkerSizes
from django_pgjobs.running.opening import (
    NOT_MIGRATED,
    Databases,
    Opener,
    lack_of_columns,
    log_slow_driver,
    pause_after,
    resolve,
    wait_for_database,
)
from django_pgjobs.running.served_database import ServedDatabase
from django_pgjobs.running.worker import SUPERVISOR_CONNECTIONS, Worker, WorkerOptions
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import schemas
from django_pgjobs.store.database import is_read_only, read_statements
from django_pgjobs.store.firing import DeclaredCron
from django_pgjobs.store.installation import NotAdopted
from django_pgjobs.store.keeping import Identity
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection
from django_pgjobs.worker.shared.lines import LOCK_TIMEOUT
from django_pgjobs.worker.supervisor.executor_process import Recipe
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.supervisor.logs import logging_in_a_thread
from django_pgjobs.worker.supervisor.recycling import Recycling, WorkerLimits
from django_pgjobs.worker.supervisor.supervisor import Supervisor
from django_pgjobs.worker.supervisor.template import SPAWNED
from django_pgjobs.worker.supervisor.visits import Visited, Visits
from django_pgjobs.worker.threads.loop import Outage
from django_pgjobs.worker.threads.maintainer import FirstTurns
from django_pgjobs.worker.threads.rota import Rota, SchemaNames

Home = TypeVar("Home", bound=Visited)

OpenHome = Callable[[Worker, Inbox, DutyProgress, Outage, FirstTurns], Home]


def visits_of(
    worker: Worker,
    identity: Identity,
    own_schema: str,
    declared: Mapping[str, DeclaredCron],
    open_home: OpenHome[Home],
) -> Visits[Home]:
    """Return the visits of a worker for many schemas.

    ``open_home`` makes the home of one, ``declared`` are the cron entries of the worker's code.
    """
    each = {entry.name for entry in registry.crons() if entry.each_database}
    everywhere = {name: entry for name, entry in declared.items() if name in each}
    lines, outage, inbox = worker.share_lines(), Outage(), Inbox()

    progress: dict[str, DutyProgress] = {}

    def visit(schema: str, first: FirstTurns) -> Home:
        if schema not in progress:
            crons = declared if schema == own_schema else everywhere
            progress[schema] = DutyProgress(Leader(worker.author, logging.DEBUG), crons)
        return open_home(worker.visiting(schema, lines), Inbox(), progress[schema], outage, first)

    rota = Rota(
        lambda: worker.connect("rota", lock_timeout=LOCK_TIMEOUT),
        inbox,
        frontier=worker.frontier(),
        listens=worker.conf.notify,
        judge=partial(_judged, environment=worker.conf.environment),
    )
    names = SchemaNames(served_schemas, rota.are)
    rota.ask_names = names.wanted.set
    visits = Visits(rota, names, dict.fromkeys(lines.values()), visit, inbox, list(identity.table_identity))
    visits.unnamed = lambda schema: progress.pop(schema, None)
    return visits


def _judged(db: WorkerConnection, environment: str) -> str:
    if (lack := lack_of_columns(db)) is not None:
        return f"{NOT_MIGRATED}{lack}, migrate the schema"
    schemas.settle(db, environment)
    return ""


def reach(worker: Worker, stopped: threading.Event) -> tuple[Identity, str] | None:
    """Wait until the database can be used; return which it is, and the schema of its own path; None if stopped."""
    said, tries = "", 0
    while not stopped.is_set():
        try:
            db = worker.connect("start")
            try:
                if db.pooled:
                    why = "a transaction pooler stands before it, and many schemas need sessions of their own"
                elif is_read_only(db):
                    why = "its server takes no writes"
                else:
                    return db.identity, schemas.own_schema(db)
            finally:
                db.close()
        except TROUBLE as error:
            why = f"it cannot be reached: {one_line(error)}"
        if why.partition(":")[0] != said:
            log.error("database is not served yet, tried again: %s", why)
            said = why.partition(":")[0]
        tries += 1
        stopped.wait(pause_after(tries))
    return None


NOT_ADOPTED_STATUS = 4
"""The exit status of a worker that was started on the copy of a database."""

LEAVE_SECONDS = 5.0
SWITCH_SECONDS = 0.0005
GARBAGE_OBJECTS = 20_000


def run(options: WorkerOptions) -> int:
    """Run a worker in this process until it has drained; return its exit status. Main thread only."""
    worker = Worker.of(options)
    read_statements()
    status = 0
    stopped = threading.Event()
    # A signal before or after the supervisor's own handling must not end the process abruptly.
    with logging_in_a_thread() as listening, process.handling(lambda *_: stopped.set()):
        try:
            if worker.conf.schemas is not None:
                status = _run_schemas(worker, stopped)
            elif options.databases:
                status = _run_several(worker, stopped)
            elif (found := wait_for_database(worker, stopped)) is not None:
                _log_budget(worker, found)
                with _tuned_interpreter():
                    served = ServedDatabase(worker, Inbox(), _progress(worker), list(found.table_identity))
                    status = _serve(worker, [served], stopped)
        except NotAdopted as error:
            log.critical("%s", error)
            status = NOT_ADOPTED_STATUS
        if options.template is not None:
            options.template.close()
    if listening.is_stuck:
        # The reader of stderr has gone. The interpreter would flush it at exit, and hang.
        os._exit(status)
    return status


def _run_several(worker: Worker, stopped: threading.Event) -> int:
    """Run a worker that serves several databases, as soon as there is one of them; return its exit status."""
    log_slow_driver()
    databases = Databases(stopped)
    openers = [Opener(worker.at(alias), Inbox(), databases) for alias in worker.options.databases]
    try:
        found = databases.wait(openers)
        if not found:
            return 0
        resolve(sorted({name for each in found for name in each.names}))
        _log_budget(worker, *(each.identity for each in found))
        with _tuned_interpreter():
            served = [ServedDatabase(each.worker, each.inbox, _progress(each.worker), []) for each in openers]
            return _serve(worker, served, stopped)
    finally:
        for opener in openers:
            opener.leaving.set()


def _run_schemas(worker: Worker, stopped: threading.Event) -> int:
    """Run a worker that serves many schemas of one database; return its exit status."""
    log_slow_driver()
    if (found := reach(worker, stopped)) is None:
        return 0
    identity, own_schema = found
    _log_budget(worker, identity)
    declared = declared_crons(worker)
    with _tuned_interpreter(), registry.without_resolvers():
        visits = visits_of(worker, identity, own_schema, declared, _open_home)
        metered = _metered(worker)
        supervisor = Supervisor(_recipe(worker), _limits(worker), [], visits)
        metered.start(supervisor, lambda: [visit.visited for visit in list(visits.awake.values())])
        visits.start()
        status = supervisor.run(stopped)
        metered.stop()
        until = clock.monotonic() + LEAVE_SECONDS
        for visit in visits.awake.values():
            if visit.leaving is not None:
                visit.leaving.join(max(0.0, until - clock.monotonic()))
        _leave(supervisor, [visit.visited for visit in visits.awake.values() if visit.leaving is None])
        for line in visits.lines:
            line.close()
    _log_farewell(supervisor)
    return status


def _open_home(
    worker: Worker, inbox: Inbox, progress: DutyProgress, outage: Outage, first: FirstTurns
) -> ServedDatabase:
    return ServedDatabase(worker, inbox, progress, [True], outage, first)


def _progress(worker: Worker) -> DutyProgress:
    return DutyProgress(Leader(worker.author), declared_crons(worker))


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
        metered.start(supervisor, lambda: served)
        status = supervisor.run(stopped)
        metered.stop()
        _leave(supervisor, served)
    _log_farewell(supervisor)
    return status


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
        conf.executor_kill_megabytes,
    )
    return WorkerLimits(
        worker.processes, options.max_jobs, options.until_idle, conf.drain_seconds, recycling, worker.places
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
    alone, others = ([], served) if supervisor.visits is not None else (served[:1], served[1:])
    leaving = [threading.Thread(target=each.farewell, args=("stopped",), daemon=True) for each in others]
    for thread in leaving:
        thread.start()
    for each in alone:
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
