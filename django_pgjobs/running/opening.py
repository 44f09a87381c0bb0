"""Opening the databases of a worker: each is tried until it can be served, and costs the others nothing.

Of several, one that is away, silent, read-only, not migrated or the same as another is logged once, and tried again.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Sequence
from typing import NamedTuple

from django.apps import apps

from django_pgjobs import clock
from django_pgjobs.checks import check_driver
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import listed, log, speaks_of
from django_pgjobs.maintenance.unparking import missing_names
from django_pgjobs.running.worker import Worker
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import installation, keeping
from django_pgjobs.store.database import is_read_only
from django_pgjobs.store.installation import NotAdopted
from django_pgjobs.store.keeping import Identity
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.shared import identity
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.threads.inbox_messages import HomeOpened


def lack_of(db: WorkerConnection) -> str | None:
    """Return what is missing, in parentheses, or empty if it is all of the tables; None if nothing is."""
    return lack_of_columns(db) if db.identity.table is not None else ""


def lack_of_columns(db: WorkerConnection) -> str | None:
    """Return the same for the tables that the session's path leads to now."""
    models = list(apps.get_app_config("pgjobs").get_models())
    known = keeping.list_columns(db, [model._meta.db_table for model in models])
    needed = {
        (model._meta.db_table, field.column)
        for model in models
        for field in model._meta.concrete_fields
        if not field.generated  # computed by queries
    }
    if not known:
        return ""
    if missing := sorted(needed - known):
        table, column = missing[0]
        return f" (column {table}.{column} does not exist)"
    return None


ANSWER_SECONDS = 15.0
LONGEST_WAIT_SECONDS = 10.0
TOGETHER_SECONDS = 1.0
"""Time that a start waits for the other databases after the first has answered."""

DISTRIBUTED = "migrate them with the connection option -c citus.enable_ddl_propagation=off"
"""The cure for tables that Citus has distributed."""

NOT_MIGRATED = "the tables of django-pgjobs are not there, or older than this code"


def log_distributed(db: WorkerConnection) -> None:
    """Say once that claims go through Citus, which costs more than half of their speed, and notifications."""
    if keeping.read_distributed(db, db.identity):
        log.warning("tables are distributed by Citus, keep them local: %s", DISTRIBUTED)


def pause_after(tries: int) -> float:
    """Return for how many seconds to wait after so many tries to use a database."""
    longest: float = min(LONGEST_WAIT_SECONDS, 0.5 * 2 ** min(tries, 6))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 (jitter)


def wait_for_database(worker: Worker, stopped: threading.Event) -> Identity | None:
    """Wait until the server is reachable and migrated, and log what is missing; None if ``stopped`` is set first.

    Then resolve the names that rows wait with, as no thread may do later. Runs project code: main thread only. Raises
    ``NotAdopted`` for the copy of another database.
    """
    log_slow_driver()
    tries = 0
    while not stopped.is_set():
        try:
            db = worker.connect("start")
            try:
                missing, lack = [], lack_of(db)
                if lack is None:
                    installation.settle(db, worker.conf.environment)
                    log_distributed(db)
                    missing = missing_names(db)
            finally:
                db.close()
            if lack is None:
                resolve(missing)
                return db.identity
            log.error("%s%s: run manage.py migrate; waiting", NOT_MIGRATED, lack)
        except NotAdopted:
            raise
        except TROUBLE as error:
            log.error("database cannot be reached, waiting: %s", one_line(error))
        tries += 1
        stopped.wait(pause_after(tries))
    return None


def log_slow_driver() -> None:
    """Say once that psycopg runs in Python, and the cure."""
    for problem in check_driver():
        log.warning("psycopg runs in Python: %s", problem.hint)


def resolve(names: list[str]) -> None:
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


class FoundDatabase(NamedTuple):
    """A database that can be served, and the names its rows wait with that this code does not know yet."""

    identity: Identity
    names: list[str]


class Databases:
    """The databases that the aliases of a worker lead to; none is served twice. Any thread may call."""

    def __init__(self, stopped: threading.Event) -> None:
        self.stopped = stopped
        self.changed = threading.Condition()
        self._taken: dict[identity.TableIdentity, str] = {}

    def take(self, alias: str, found: Identity) -> str:
        """Return which alias has this database: this one, unless another had it before."""
        with self.changed:
            return self._taken.setdefault(found.table_identity, alias)

    def wait(self, openers: Sequence[Opener]) -> list[FoundDatabase]:
        """Return what was found when the first can be served, and the others have had a moment too; start with it."""
        for opener in openers:
            opener.start()
        until = None
        with self.changed:
            while not self.stopped.is_set():
                found = [opener.found for opener in openers if opener.found is not None]
                until = clock.monotonic() + TOGETHER_SECONDS if found and until is None else until
                if len(found) == len(openers) or (until is not None and clock.monotonic() >= until):
                    return found
                self.changed.wait(0.1)
        return []


class Opener(threading.Thread):
    """Reads one database until it can be served; tells ``inbox`` then, and ends."""

    def __init__(self, worker: Worker, inbox: Inbox, databases: Databases) -> None:
        super().__init__(name=f"pgjobs-open-{worker.alias}", daemon=True)
        self.worker = worker
        self.inbox = inbox
        self.databases = databases
        self.found: FoundDatabase | None = None
        self.leaving = threading.Event()

    def run(self) -> None:
        """Read, and wait, and read again."""
        speaks_of.set(self.worker.alias)
        said, tries = "", 0
        while not (self.leaving.is_set() or self.databases.stopped.is_set()):
            level = logging.ERROR
            try:
                found = identity.answered_within(ANSWER_SECONDS, self._read)
            except NotAdopted as error:
                found = str(error)
            except (*TROUBLE, TimeoutError) as error:
                found, level = f"it cannot be reached: {one_line(error)}", logging.WARNING
            except Exception as error:
                found = f"it cannot be used: {one_line(error)}"
            if isinstance(found, FoundDatabase):
                self._open(found)
                return
            if found.partition(":")[0] != said:
                log.log(level, "database is not served yet, tried again: %s", found)
                said = found.partition(":")[0]
            tries += 1
            self.leaving.wait(pause_after(tries))

    def _read(self) -> FoundDatabase | str:
        """Return the database, or why it cannot be served."""
        db = self.worker.connect("start")
        try:
            if (lack := lack_of(db)) is not None:
                return f"{NOT_MIGRATED}{lack}, run manage.py migrate --database {self.worker.alias}"
            if is_read_only(db):
                return "its server takes no writes"
            owner = self.databases.take(self.worker.alias, db.identity)
            if owner != self.worker.alias:
                return f"it is the same database as {owner!r}, whose jobs it has"
            installation.settle(db, self.worker.conf.environment)
            log_distributed(db)
            return FoundDatabase(db.identity, missing_names(db))
        finally:
            db.close()

    def _open(self, found: FoundDatabase) -> None:
        log.info("database is served")
        self.inbox.post(HomeOpened(list(found.identity.table_identity)))
        with self.databases.changed:
            self.found = found
            self.databases.changed.notify_all()
