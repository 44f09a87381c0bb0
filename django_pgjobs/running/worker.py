"""One worker as it was configured: its options, its connections, its claims."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from django_pgjobs import __version__
from django_pgjobs.conf import Conf, get_conf
from django_pgjobs.execution.admission import AdmissionScan
from django_pgjobs.logs import log
from django_pgjobs.store import gates, installation, schemas
from django_pgjobs.store.finalising import Author
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.by_queue import EVERY_OTHER
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.deaths import Deaths
from django_pgjobs.worker.shared.lines import CLAIM_SECONDS, LOCK_TIMEOUT, SharedLine
from django_pgjobs.worker.shared.runs import ALLOWANCE_SECONDS
from django_pgjobs.worker.supervisor.template import ExecutorTemplate
from django_pgjobs.worker.threads.claim_options import ClaimOptions
from django_pgjobs.worker.threads.frontier import Frontier

LEAST_STATEMENT_SECONDS = 1.0

GUARDED = frozenset({"claim", "inline", "maintenance"})
"""Roles of the connections that bring jobs to run: they open no copy of another database, even after the first."""

SUPERVISOR_CONNECTIONS = 7
"""Claim, finalise, keep, listen, maintenance; for the leader also upkeep and VACUUM. With limits add one to admit."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of ``runjobs``; None means the value of the setting."""

    entry: tuple[str, ...] = ()
    entry_options: tuple[str, ...] = ()
    database: str = "default"
    databases: tuple[str, ...] = ()
    """All aliases, if the worker serves more than one."""
    name: str = ""
    queues: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    processes: int | None = None
    threads: int | None = None
    async_slots: int | None = None
    executor_max_jobs: int | None = None
    executor_max_megabytes: int | None = None
    max_jobs: int | None = None
    until_idle: bool = False
    metrics_port: int | None = None
    metrics_host: str | None = None
    places: Mapping[str, int] | None = None
    environment: Mapping[str, str] | None = None
    template: ExecutorTemplate | None = None


@dataclass(slots=True)
class Worker:
    """One worker: its name, its parts, and the facts of its heartbeat."""

    options: WorkerOptions
    conf: Conf
    author: Author
    processes: int
    threads: int
    async_slots: int
    alias: str = ""
    """The alias that its jobs name as their home: empty if it serves one database."""
    refused: str = ""
    """Why it may not use its database at present, as said."""
    lines: Mapping[str, SharedLine] | None = None
    """The connections that the threads of many schemas share, by role; then ``alias`` is the name of one of these."""

    @classmethod
    def of(cls, options: WorkerOptions) -> Worker:
        """Return a worker that has not been started; settings replace options that are None."""
        conf = get_conf()
        name = options.name or f"{socket.gethostname()}:{os.getpid()}"
        author = Author(uuid4(), name, conf.release)
        return cls(
            options,
            conf,
            author,
            conf.processes if options.processes is None else options.processes,
            conf.threads if options.threads is None else options.threads,
            conf.async_slots if options.async_slots is None else options.async_slots,
        )

    def connect(
        self, role: str, *, durable: bool = True, seconds: float | None = None, lock_timeout: str = ""
    ) -> WorkerConnection:
        """Return a new connection for one of the worker's threads. Raises one of ``TROUBLE``."""
        if self.lines is not None:
            return self.lines[role].open(self.alias)
        seconds = max(seconds or self.conf.renew_seconds / 3, LEAST_STATEMENT_SECONDS)
        db = WorkerConnection(
            self.options.database,
            self._named(role),
            statement_seconds=seconds,
            durable=durable,
            lock_timeout=lock_timeout,
        )
        if role in GUARDED and not lock_timeout:  # else each schema has a row of its own
            self._settle(db)
        return db

    def _settle(self, db: WorkerConnection) -> None:
        try:
            installation.settle(db, self.conf.environment)
            self.refused = ""
        except BaseException as error:
            db.close()
            if isinstance(error, installation.NotAdopted) and str(error) != self.refused:
                self.refused = str(error)
                log.error("%s", error)
            raise

    def connect_alone(self, role: str) -> WorkerConnection:
        """Return a new connection for statements without transaction and time limit. Raises like ``connect``."""
        if self.lines is not None:
            return self.lines[role].open(self.alias)
        return WorkerConnection(self.options.database, self._named(role), statement_seconds=None)

    def share_lines(self) -> dict[str, SharedLine]:
        """Return connections for the threads of many schemas, none open yet."""

        connect = partial(self.connect, lock_timeout=LOCK_TIMEOUT)
        settle = partial(schemas.settle, environment=self.conf.environment)
        found = {role: SharedLine(role, partial(connect, role)) for role in ("finalise", "keep", "upkeep")}
        patience = min(self.conf.lease_seconds / 2, CLAIM_SECONDS)
        found["claim"] = SharedLine("claim", partial(connect, "claim", durable=False, seconds=patience), settle)
        found["maintenance"] = SharedLine("maintenance", partial(connect, "maintenance"), settle)
        found["vacuum"] = SharedLine("vacuum", lambda: self.connect_alone("vacuum"))
        return {**found, "admit": found["maintenance"]}

    def visiting(self, schema: str, lines: Mapping[str, SharedLine]) -> Worker:
        """Return the same worker as it is seen in one of many schemas."""
        return replace(self, alias=schema, lines=lines)

    def _named(self, role: str) -> str:
        words = (self.author.name[:40], role) if not self.alias else (self.author.name[:24], self.alias[:15], role)
        return " ".join(["pgjobs", *words])

    def at(self, alias: str) -> Worker:
        """Return the same worker as it is seen in one of its databases."""
        return replace(self, options=replace(self.options, database=alias), alias=alias)

    def facts(
        self,
        state: str = "running",
        running: int = 0,
        finished: int = 0,
        deaths: Deaths | None = None,
        control_taken: int = 0,
    ) -> dict[str, object]:
        """Return the columns of the heartbeat row."""
        options = self.options
        return {
            "id": self.author.worker,
            "name": self.author.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": None if options.queues is None else json.dumps(list(options.queues)),
            "excluded_queues": json.dumps(list(options.excluded)) if options.excluded else None,
            "processes": self.processes,
            "threads": self.threads,
            "async_slots": self.async_slots,
            "places": json.dumps(self.places) if self.places else None,
            "version": __version__,
            "release": self.author.release,
            "state": state,
            "running": running,
            "finished": finished,
            "protocol": gates.KNOWS_UNDO,
            "control_taken": control_taken,
            **(deaths.facts() if deaths is not None else {}),
        }

    @property
    def places(self) -> dict[str, int | None]:
        """Number of jobs of a queue that it runs at once, by queue, None for any; ``"*"``: of all others together.

        Of the setting, only what is about queues that it serves.
        """
        if self.options.places is not None:
            return dict(self.options.places)
        serves, places = self.frontier().serves, self.conf.places.values
        return {name: places[name] for name in places if name == EVERY_OTHER or (serves(name) and name != OWN_QUEUE)}

    def claim_options(self) -> ClaimOptions:
        """Return the parameters that all claims of this worker share."""
        conf = self.conf
        return ClaimOptions(
            worker=self.author.worker,
            lease_seconds=conf.lease_seconds,
            allowance_seconds=ALLOWANCE_SECONDS,
            grace_seconds=conf.rescue_grace_seconds,
            poll_seconds=conf.poll_seconds,
            notify=conf.notify,
            until_idle=self.options.until_idle,
            database=self.alias,
        )

    def frontier(self) -> Frontier:
        """Return the pairs this worker may claim from, none known yet."""
        queues = self.options.queues
        return Frontier(None if queues is None else frozenset(queues), frozenset(self.options.excluded))

    def admission(self) -> AdmissionScan:
        """Return the scan that admits held jobs of this worker's queues."""
        return AdmissionScan(self.frontier().serves, self.conf)
