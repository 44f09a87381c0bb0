"""Wakes schemas of many: who is awake has a home with threads of its own, all others only the rota's look.

Main thread only. A home is made when its schema has something to do, and *leaves* once it has had nothing for a moment:
its threads end, and the rota looks round the schema again. At most ``MOST_CLAIMING`` homes claim at a time. While
others wait, the home that has claimed for longest claims no more; it stays until the jobs that it holds have ended, and
then waits in its turn. There are thus never more homes than these and the jobs that executors run.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.store.schemas import UNLED_SECONDS
from django_pgjobs.worker.shared.lines import SharedLine
from django_pgjobs.worker.shared.runs import ENDING
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.threads.inbox_messages import HomeLeft, SchemasFound, SchemasNamed
from django_pgjobs.worker.threads.maintainer import FirstTurns

if TYPE_CHECKING:
    from django_pgjobs.worker.supervisor.home import Home
    from django_pgjobs.worker.threads.listener import Hearer
    from django_pgjobs.worker.threads.rota import Rota, SchemaNames

MOST_CLAIMING = 16
MOST_UNLED = 8
"""Number of homes awake at a time for nothing but to be led for a moment."""

AWAKE_SECONDS = 0.3
"""Time without a job after which a home leaves, sooner if others wait. One that stays polls, and the main thread looks
at it at each event of any other: after so long that costs as much as to wake it once more."""

DUTIES_SECONDS = 2.0
"""Time after which a home that was woken for a job has its first look at duties: most leave before that."""

LED_SECONDS = 4.0
"""Time without a job for which a home stays at most until the leader's slow duties have each had a turn."""

REST_SECONDS = 1.0
"""Time for which it wakes no schema after the system had no thread for one."""

TURN_SECONDS = 2.0
"""Time that a home claims for before it lets others claim, if they wait."""


class Visited(Protocol):
    """A schema while it is awake: its home, what its notifications wake, and its last steps."""

    home: Home
    hearer: Hearer

    @property
    def is_kept_up(self) -> bool:
        """True once the leader's slow duties have each had a turn."""
        ...

    @property
    def has_duties(self) -> bool:
        """True while its threads have found something that keeps it awake."""
        ...

    def leave(self) -> None:
        """End its threads, wait for that, and write that it is gone."""
        ...


V = TypeVar("V", bound=Visited)


class AwakeSchema(Generic[V]):
    """One schema awake: since when it claims, when it last had a job, and how long it stays without one.

    ``keeps_up``: it stays until the leader's slow duties have each had a turn.
    """

    def __init__(self, visited: V, stay: float, now: float, *, keeps_up: bool) -> None:
        self.visited = visited
        self.home = visited.home
        self.stay = stay
        self.keeps_up = keeps_up
        self.claims_since = self.busy_at = now
        self.leaving: threading.Thread | None = None

    @property
    def claims(self) -> bool:
        """True while it may claim."""
        return not self.home.claimer.halted

    @property
    def is_lost(self) -> bool:
        """True if its tables are gone: ends of its jobs cannot be written any more."""
        return any(loop.lost for loop in self.home.loops)

    def is_done(self, now: float) -> bool:
        """Return whether one that is not busy has been so for long enough."""
        if self.is_lost:
            return True
        kept_up = not self.keeps_up or self.visited.is_kept_up or now > self.busy_at + LED_SECONDS
        return kept_up and now > self.busy_at + self.stay and not self.visited.has_duties

    def is_busy(self, now: float) -> bool:
        """Return whether it has jobs, or surely will."""
        home = self.home
        if self.is_lost:
            return any(run.state != ENDING for run in home.table.held.values())
        # While the worker is quiet, it is resumed where an operator asked for that.
        more = home.controls.taken > 0 if home.controls.quiet else self.claims and self._may_have_more(now)
        return bool(home.table.held or home.claimer.busy or home.finaliser.has_any or self._has_doubts or more)

    @property
    def _has_doubts(self) -> bool:
        """True if a claim whose answer was lost may have taken jobs that nothing has released yet."""
        claimer = self.home.claimer
        return claimer.unconfirmed is not None or bool(claimer.in_doubt.doubts)

    def _may_have_more(self, now: float) -> bool:
        """Return whether there surely are more jobs, or it has not looked through all since it claims."""
        claimer = self.home.claimer
        first = self.home.idle_at <= self.claims_since and claimer.reachable
        return first or any(claimer.is_hungry(is_async, now) for is_async in (False, True))


class Visits(Generic[V]):
    """The homes of a worker for many schemas, all of the database ``identity``.

    ``visit`` makes one; ``added`` and ``removed`` tell the supervisor, ``unnamed`` that a schema is named no more.
    """

    def __init__(
        self,
        rota: Rota,
        names: SchemaNames,
        lines: Iterable[SharedLine],
        visit: Callable[[str, FirstTurns], V],
        inbox: Inbox,
        identity: list[object],
    ) -> None:
        self.identity = identity
        self.rota = rota
        self.names = names
        self.lines = list(lines)
        self.visit = visit
        self.inbox = inbox
        self.awake: dict[str, AwakeSchema[V]] = {}
        self.waiting: dict[str, bool] = {}
        """Schemas with something to do, the first to wait first; True for more than a job."""

        self.unled: dict[str, None] = {}
        self.kept_up_at: dict[str, float] = {}
        """Instants at which the leader's slow duties had their last turn."""

        self.named: frozenset[str] = frozenset()
        self.rests_until = 0.0
        self.ended = 0
        self.stopping = False
        self.added: Callable[[Home], object] = lambda home: None
        self.removed: Callable[[Home], object] = lambda home: None
        self.unnamed: Callable[[str], object] = lambda schema: None

    def start(self) -> None:
        """Begin to look."""
        self.rota.start()
        self.names.start()

    def stop(self) -> None:
        """Look no more, and wake nothing; what is awake stays until the worker leaves."""
        self.stopping = True
        self.names.stop()
        self.rota.stop()
        self.waiting.clear()
        self.unled.clear()

    def receive(self) -> None:
        """Do what the rota has found, and forget homes that have left."""
        for message in self.inbox.take():
            match message:
                case SchemasFound():
                    self.found(message)
                case SchemasNamed():
                    self.are(message.names)
                case HomeLeft():
                    self.left(message.schema)
                case _:
                    raise AssertionError(message)

    def are(self, names: frozenset[str]) -> None:
        """Serve these schemas; those that are gone end what they run."""
        gone, self.named = self.named - names, names
        for schema in gone:
            self.unnamed(schema)
            self.kept_up_at.pop(schema, None)
            self.waiting.pop(schema, None)
            self.unled.pop(schema, None)
        for schema in self.awake.keys() - names:
            self._halt(schema, clock.monotonic())

    def found(self, found: SchemasFound) -> None:
        """Let these schemas wait for their turn."""
        if self.stopping:
            return
        for schema in found.due:
            if schema in self.named:
                self.waiting[schema] = schema in found.duties or self.waiting.get(schema, False)
        for schema in found.unled:
            if schema in self.named and schema not in self.awake:
                self.unled.setdefault(schema)
        self._wake_some(clock.monotonic())

    def tick(self, now: float) -> None:
        """Let homes leave that have nothing to do, and others take their turns."""
        for line in self.lines:
            line.watch(now)
        self.rota.watch(now)
        if self.stopping:
            return
        for schema, visit in list(self.awake.items()):
            if visit.leaving:
                continue
            if visit.is_busy(now):
                visit.busy_at = now
            elif not visit.claims:
                self._leave(schema)
            elif visit.is_done(now):
                if visit.keeps_up:
                    self.kept_up_at[schema] = now
                self._halt(schema, now)
        self._wake_some(now)

    def left(self, schema: str) -> None:
        """Forget a home whose threads have ended."""
        visit = self.awake.pop(schema)
        self.ended += visit.home.table.ended
        self.removed(visit.home)
        if visit.is_lost:
            self.rota.doubts(schema)
        self.rota.sleeps(schema)
        if not self.stopping:
            self._wake_some(clock.monotonic())

    def _wake_some(self, now: float) -> None:
        for schema in list(self.waiting):
            visit = self.awake.get(schema)
            if visit is not None and visit.leaving:
                continue  # it is woken once it has left
            if (visit is None or not visit.claims) and not self._has_room(now):
                return
            has_duty = self.waiting.pop(schema)
            if visit is None:
                self._wake(schema, now, AWAKE_SECONDS, 0.0 if has_duty else DUTIES_SECONDS)
            elif not visit.claims:
                visit.home.claimer.halted = False
                visit.claims_since = visit.busy_at = now
                self.rota.wakes(schema, visit.visited.hearer)
        for schema in list(self.unled):
            if sum(visit.keeps_up for visit in self.awake.values()) >= MOST_UNLED:
                return
            if now < self.rests_until or len(self._claiming()) >= MOST_CLAIMING:
                return
            del self.unled[schema]
            if schema not in self.awake:
                self._wake(schema, now, 0.0)

    def _claiming(self) -> list[AwakeSchema[V]]:
        return [visit for visit in self.awake.values() if visit.claims]

    def _has_room(self, now: float) -> bool:
        """Return whether one more may claim; a home without a job, or one that has had its turn, makes room."""
        claiming = self._claiming()
        leaving = sum(visit.leaving is not None for visit in self.awake.values())
        if leaving >= MOST_CLAIMING or now < self.rests_until:
            return False  # their threads have not ended, perhaps as the server is silent
        if len(claiming) < MOST_CLAIMING:
            return True
        idle = [visit for visit in claiming if not visit.is_busy(now)]
        if idle:
            self._halt(min(idle, key=lambda visit: visit.busy_at).home.alias, now)
            return True
        longest = min(claiming, key=lambda visit: visit.claims_since)
        if now <= longest.claims_since + TURN_SECONDS:
            return False
        self._halt(longest.home.alias, now)
        return True

    def _wake(self, schema: str, now: float, stay: float, duties_after: float = 0.0) -> None:
        keeps_up = not stay or now > self.kept_up_at.get(schema, -math.inf) + UNLED_SECONDS
        first = FirstTurns() if keeps_up else FirstTurns(duties_after, UNLED_SECONDS)
        visited = self.visit(schema, first)
        self.awake[schema] = AwakeSchema(visited, stay, now, keeps_up=keeps_up)
        self.unled.pop(schema, None)
        self.added(visited.home)
        self.rota.wakes(schema, visited.hearer)
        try:
            visited.home.start()
        except RuntimeError as error:
            log.error("no threads for a schema with something to do, tried again schema=%s: %s", schema, error)
            self.rests_until = now + REST_SECONDS
            self._halt(schema, now)

    def _halt(self, schema: str, now: float) -> None:
        """Let a home claim no more, and leave unless it has jobs, or a claim under way may still bring it some."""
        visit = self.awake[schema]
        if visit.claims:
            visit.home.claimer.halt()
            if visit.is_busy(now):
                self.rota.sleeps(schema)
            else:
                self._leave(schema)

    def _leave(self, schema: str) -> None:
        visit = self.awake[schema]

        def leave() -> None:
            try:
                visit.visited.leave()
            except Exception:  # the project's engine, perhaps
                log.exception("last steps of a schema have failed schema=%s", schema)
            finally:
                self.inbox.post(HomeLeft(schema))

        leaving = threading.Thread(target=leave, name=f"pgjobs-leave-{schema}", daemon=True)
        try:
            leaving.start()
        except RuntimeError:  # no thread is left: its own make room for this one, at a later tick
            for loop in visit.home.loops:
                loop.stop()
        else:
            visit.leaving = leaving
