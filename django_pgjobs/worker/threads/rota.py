"""The rota: it listens for all schemas of a worker, and looks round those that sleep, on one connection.

A sleeping schema has no thread and no connection. It is woken by a notification that names it, when its next job is
due, by a duty that a look finds, or so that one worker leads there now and then. ``names`` says which schemas there
are, in a thread of its own, as it is code of the project. One that cannot be looked at is set aside, said once, and
tried again after growing pauses.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from django.db import connections

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import database, schemas
from django_pgjobs.store.notifying import STACKS
from django_pgjobs.store.schemas import UNLED_SECONDS, Found, SchemaScan
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.inbox_messages import SchemasFound, SchemasNamed
from django_pgjobs.worker.threads.listener import DEAF_SECONDS, LIMITED, PAUSES, Ear, Hearer
from django_pgjobs.worker.threads.loop import Connect, Posts

ROUND_SECONDS = 1.0
ROUND_FACTOR = 5.0
"""A round begins so long after the one before, or so many times what that took."""

HURRIED_FACTOR = 2.0
"""The same after a notification that names no schema."""

AHEAD_SECONDS = 2.0
"""Time ahead for which a duty counts as due: until the next round, and a home has its threads."""

LEAD_SECONDS = 0.05
"""A schema is woken so long before its next job is due."""

TOGETHER = 16
"""Number of schemas in one statement: it locks a dozen tables and indexes of each, and the server has room for some
thousand such locks."""

MOST_STRANGERS = 1000
"""Number of unknown schemas that are remembered: anyone may send a notification, of any name."""

OTHERS_PREPARED = 50
"""Number of statements that the server keeps beside one for each look: those of a look that failed, one by one."""

LONGEST_UNSERVED_SECONDS = 60.0

NAMES_SECONDS = 15.0
LEAST_SECONDS = 1.0
"""Interval at which the project's code is asked, and the least however many notifications of unknown schemas come."""


class SchemaNames(threading.Thread):
    """Asks ``names`` every ``NAMES_SECONDS``, and hands what it says to ``named``."""

    def __init__(self, names: Callable[[], Sequence[str]], named: Callable[[Sequence[str]], None]) -> None:
        super().__init__(name="pgjobs-schemas", daemon=True)
        self.names = names
        self.named = named
        self.stopping = threading.Event()
        self.wanted = threading.Event()
        self._said = ""

    def run(self) -> None:
        """Ask, wait, ask again; what was said last holds while asking fails."""
        while not self.stopping.is_set():
            self.wanted.clear()
            try:
                names = self.names()
                self._said = ""
                self.named(names)
            except Exception as error:
                words = one_line(error)
                if words != self._said:
                    log.error("schemas cannot be asked for, those known before are served: %s", words)
                self._said = words
            finally:
                connections.close_all()
            self.stopping.wait(LEAST_SECONDS)
            self.wanted.wait(NAMES_SECONDS - LEAST_SECONDS)

    def stop(self) -> None:
        """End it after its present call."""
        self.stopping.set()
        self.wanted.set()


class Rota(Ear):
    """Finds sleeping schemas with something to do; posts ``SchemasFound`` and ``SchemasNamed``.

    ``frontier``: the queues of the worker; without ``listens`` it only scans. ``judge`` returns why the schema on the
    path cannot be served.
    """

    role = "rota"

    def __init__(
        self,
        connect: Connect,
        inbox: Posts,
        frontier: Frontier,
        listens: bool,
        judge: Callable[[WorkerConnection], str],
    ) -> None:
        super().__init__(connect, inbox)
        self.serves = frontier.serves
        self.params: dict[str, object] = {
            "queues": None if frontier.queues is None else list(frontier.queues),
            "excluded": list(frontier.excluded),
            "ahead": AHEAD_SECONDS,
            "unled": UNLED_SECONDS,
        }
        self.judge = judge
        self.listens = False
        self.named: frozenset[str] = frozenset()
        self.awake: dict[str, Hearer] = {}
        self.left: set[str] = set()
        """Schemas that have gone to sleep and were not looked at since."""

        self.ask_names: Callable[[], object] = lambda: None
        self.arranged: frozenset[str] = frozenset()
        self.scans: list[SchemaScan] = []
        self.to_scan: list[SchemaScan] = []
        """The rest of a round, behind the looks at schemas that have gone to sleep."""

        self.due_at: dict[str, float] = {}
        self.duties: set[str] = set()
        """Schemas of ``due_at`` with more to do than a job."""

        self.judged: set[str] = set()
        self.unserved: dict[str, tuple[float, int]] = {}
        """Schemas that cannot be looked at: until when, and how often it was tried."""

        self.said: dict[str, str] = {}
        self.strangers: set[str] = set()
        """Schemas of notifications that were not among those named."""

        self.next_round = self.round_at = self.took = 0.0
        self.hurries = self.quiet = self.was_quiet = False
        self.deaf_until = 0.0 if listens else math.inf

    # Called by other threads

    def are(self, names: Iterable[str]) -> None:
        """Serve these schemas from now on, and no others."""
        with self.wake:
            before, self.named = self.named, frozenset(names)
        if before != self.named or len(self.strangers) > MOST_STRANGERS:
            self.strangers = set()
        if before != self.named:
            log.info("schemas are served schemas=%d", len(self.named))
            self.inbox.post(SchemasNamed(self.named))
            self.poke()

    def wakes(self, schema: str, hearer: Hearer) -> None:
        """Hand the notifications of this schema to ``hearer``."""
        with self.wake:
            self.awake[schema] = hearer
            if self.listens:
                hearer.begin()

    def sleeps(self, schema: str) -> None:
        """Scan this schema now: a notification may have come to threads that were ending."""
        with self.wake:
            hearer = self.awake.pop(schema, None)
            self.left.add(schema)
        if hearer is not None:
            hearer.end()
        self.poke()

    def doubts(self, schema: str) -> None:
        """Judge this schema again before it is woken: it has lost its tables, or is a copy of another now."""
        self.judged.discard(schema)

    def be_quiet(self, quiet: bool) -> None:
        """Wake no schema for its jobs while the worker claims none, only for duties."""
        self.quiet = quiet
        self.poke()

    # The thread

    def _ask(self, db: WorkerConnection) -> None:
        if clock.monotonic() >= self.deaf_until:
            super()._ask(db)
            if not self.listens:
                self._begin()

    def _begin(self) -> None:
        self.next_round = 0.0
        with self.wake:
            self.listens = clock.monotonic() >= self.deaf_until
            for hearer in self.awake.values() if self.listens else ():
                hearer.begin()

    def _end(self) -> None:
        with self.wake:
            self.listens = False
            for hearer in self.awake.values():
                hearer.end()

    def _stay_deaf(self) -> None:
        self.deaf_until = clock.monotonic() + DEAF_SECONDS

    def _hand_on(self, payload: str) -> None:
        notice, names, schema = payload.partition("@")  # a notice has none, the name of a schema perhaps more
        with self.wake:
            hearers = [self.awake[schema]] if schema in self.awake else [] if names else list(self.awake.values())
        for hearer in hearers:
            hearer.on_notify(notice)
        if hearers and names:
            return
        if schema in self.named and names:
            if notice == STACKS.payload:
                return  # nothing runs there
            word, _, queue = notice.partition(":")
            if not self.quiet and (notice == PAUSES or self.serves(queue)):
                self.due_at[schema] = 0.0
                if word in (PAUSES, LIMITED):
                    self.duties.add(schema)
        elif names:
            if schema not in self.strangers:  # made just now, perhaps
                self.strangers.add(schema)
                self.ask_names()
        else:  # a statement of the server's does not say of which schema it is
            self.hurries = True
            if self.next_round < math.inf:
                self.next_round = min(self.next_round, self.round_at + HURRIED_FACTOR * self.took)

    def _do_more(self, db: WorkerConnection) -> float:
        if self.quiet is not self.was_quiet:
            self.was_quiet, self.next_round = self.quiet, 0.0
            self.due_at.clear()
        self._report(db, [], clock.monotonic())  # those of notifications wait for no look
        self._arrange(db)
        with self.wake:
            left, self.left = self.left, set()
        began = clock.monotonic()
        if began >= self.next_round:
            self.to_scan, self.took, self.next_round, self.hurries = list(self.scans), 0.0, math.inf, False
        first = [scan for scan in self.scans if not left.isdisjoint(scan.schemas)]
        self.to_scan = first + [scan for scan in self.to_scan if scan in self.scans and scan not in first]
        if self.to_scan:
            found = self._scan(db, self.to_scan.pop(0))  # one at a time, as no notification waits for a round
            now = clock.monotonic()
            self.took += now - began
            for each in found:
                if each.schema in self.unserved:
                    self._is_served(db, each.schema)  # else it would be looked at by itself until it has a job
                self._note(each, now)
            self._report(db, [each.schema for each in found if each.unled], now)
        if self.to_scan:
            return 0.0
        now = clock.monotonic()
        if self.next_round == math.inf:
            pause = HURRIED_FACTOR * self.took if self.hurries else max(ROUND_SECONDS, ROUND_FACTOR * self.took)
            self.round_at, self.next_round = now, now + pause
        return max(0.0, min([self.next_round, *self.due_at.values()]) - now)

    def _arrange(self, db: WorkerConnection) -> None:
        """Put each schema into one look; change only those looks whose schemas come or go."""
        if self.named is self.arranged and not self.unserved:
            return
        before, self.arranged, now = self.arranged, self.named, clock.monotonic()
        if before is not self.arranged:
            self._forget()
        wanted = {name for name in self.named if self.unserved.get(name, (0.0, 0))[0] <= now}
        tried = sorted(wanted & self.unserved.keys())  # by themselves, as they may fail again
        wanted -= self.unserved.keys()
        kept = [tuple(name for name in scan.schemas if name in wanted) for scan in self.scans if scan.schemas[1:]]
        new = sorted(wanted.difference(*kept))
        groups = []
        for group in kept:
            room = TOGETHER - len(group)
            groups.append(group + tuple(new[:room]) if group else ())
            new = new[room:] if group else new
        groups += [tuple(new[at : at + TOGETHER]) for at in range(0, len(new), TOGETHER)]
        groups += [(name,) for name in tried]
        known = {scan.schemas: scan for scan in self.scans}
        self.scans = [known.get(group) or schemas.scan_of(group) for group in groups if group]
        self._bound(db)

    def _forget(self) -> None:
        """Forget schemas that are named no more: one of such a name may be made again."""
        known: list[dict[str, Any]] = [self.due_at, self.unserved, self.said]
        for of in known:
            for name in of.keys() - self.named:
                del of[name]
        for names in (self.judged, self.duties):
            names.intersection_update(self.named)

    def _bound(self, db: WorkerConnection) -> None:
        """Let the server forget looks that are made no more: each comes and goes with a schema."""
        db.connection.prepared_max = len(self.scans) + OTHERS_PREPARED

    def _scan(self, db: WorkerConnection, scan: SchemaScan) -> list[Found]:
        """Return what these schemas have; set aside those that cannot be looked at."""
        try:
            return scan.ask(db, self.params, self.awake)
        except psycopg.Error as error:
            if not schemas.is_unusable(error):
                raise
            if len(scan.schemas) == 1:
                self._mark_unserved(scan.schemas[0], one_line(error))
                return []
        return [found for schema in scan.schemas for found in self._scan(db, schemas.scan_of([schema]))]

    def _mark_unserved(self, schema: str, why: str) -> None:
        tries = self.unserved.get(schema, (0.0, 0))[1] + 1
        self.unserved[schema] = clock.monotonic() + min(LONGEST_UNSERVED_SECONDS, 2.0**tries), tries
        self.due_at.pop(schema, None)
        self.judged.discard(schema)
        if self.said.get(schema) != why:
            log.error("schema is not served yet, tried again schema=%s: %s", schema, why)
            self.said[schema] = why

    def _note(self, found: Found, now: float) -> None:
        if found.duty:
            self.duties.add(found.schema)
            self.due_at[found.schema] = 0.0
        elif found.due is not None and not self.quiet:
            self.due_at[found.schema] = now + found.due - LEAD_SECONDS
        else:
            self.due_at.pop(found.schema, None)

    def _report(self, db: WorkerConnection, unled: list[str], now: float) -> None:
        """Tell main which schemas to wake; a due one is told of again in each round until it is awake."""
        with self.wake:
            for schema in self.due_at.keys() & self.awake.keys():
                del self.due_at[schema]
            due = [schema for schema, at in self.due_at.items() if at <= now]
            unled = [schema for schema in unled if schema not in self.awake and schema not in due]
        for schema in due:
            del self.due_at[schema]
        due, unled = [[each for each in some if self._is_served(db, each)] for some in (due, unled)]
        if due or unled:
            self.inbox.post(SchemasFound(due, unled, [schema for schema in due if schema in self.duties]))
        self.duties.difference_update(due)

    def _is_served(self, db: WorkerConnection, schema: str) -> bool:
        """Return whether this schema has all columns of this code; asked once, and after it could not be looked at."""
        if schema in self.judged:
            return True
        if self.unserved.get(schema, (0.0, 0))[0] > clock.monotonic():
            return False
        schemas.enter(db, schema)
        try:
            why = self.judge(db)
        except psycopg.Error as error:
            if not schemas.is_unusable(error):
                raise
            why = one_line(error)
        finally:
            _leave(db)
        if why:
            self._mark_unserved(schema, why)
            return False
        if self.said.pop(schema, None) is not None:
            log.info("schema is served schema=%s", schema)
        if self.unserved.pop(schema, None):
            self.arranged = frozenset()  # it is looked at with others from now on
        self.judged.add(schema)
        return True

    def serve(self, db: WorkerConnection) -> None:
        """Listen and look until stopped."""
        self._bound(db)
        _leave(db)
        super().serve(db)


def _leave(db: WorkerConnection) -> None:
    """Let the session have one path whenever it scans: with another, the server would plan every scan again."""
    database.configure(db, {"search_path": "pg_catalog"}, local=False)
