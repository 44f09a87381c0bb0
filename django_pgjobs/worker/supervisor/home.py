"""A database of jobs, as the main thread of a worker sees it: its threads, what is held of it, what it asks for.

Every database has its own clock, tables, leader and notifications, so it has its own threads here. Executors are
shared. A worker for one database has one home, without an alias: nothing of it needs to be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django_pgjobs import clock
from django_pgjobs.worker.shared.controls import Controls
from django_pgjobs.worker.shared.runs import RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.dispatcher import Dispatcher, RunNumbers
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from django_pgjobs.worker.supervisor.held_jobs import HeldJobs
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.supervisor.queue_slots import Demand, QueueSlots
from django_pgjobs.worker.supervisor.run_events import EventSender, at_home, in_schema
from django_pgjobs.worker.threads.admitter import Admitter
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.loop import Loop


@dataclass(slots=True, eq=False)
class Home:
    """The threads of one database, and what the main thread knows of it. It receives them before they are started.

    ``alias``: the name by which its jobs call it, empty without others; with ``is_schema`` that of a schema, one of
    many in a database that all executors reach. ``identity``: which database it is; empty until it has been reached.
    """

    alias: str
    inbox: Inbox
    table: RunTable
    claimer: Claimer
    finaliser: Finaliser
    identity: list[object]
    admitter: Admitter
    loops: Sequence[Loop]
    tallies: Tallies
    is_schema: bool = False
    controls: Controls = field(default_factory=Controls)
    dispatcher: Dispatcher = field(init=False)
    held_jobs: HeldJobs = field(init=False)
    notify: EventSender = field(init=False)
    knows_pauses: bool = False
    idle_at: float = 0.0
    asked_at: float = 0.0
    claimed_at: float = 0.0

    def join(self, numbers: RunNumbers, notify: EventSender, slots: QueueSlots | None = None) -> None:
        """Take its place in a worker whose runs have ``numbers`` and take ``slots``."""
        say_where = in_schema if self.is_schema else at_home
        self.notify = say_where(self.alias, notify) if self.alias else notify
        self.dispatcher = Dispatcher(self.alias, numbers, slots)
        self.held_jobs = HeldJobs(
            self.table,
            self.dispatcher,
            self.finaliser,
            wake_for=self.claimer.wake_for,
            notify=self.notify,
            tallies=self.tallies,
        )

    def start(self) -> None:
        """Start its threads. Raises ``RuntimeError`` if the system has none left; then it keeps those that it got."""
        for at, loop in enumerate(self.loops):
            try:
                loop.start()
            except RuntimeError:
                self.loops = self.loops[:at]
                raise

    @property
    def takes_jobs(self) -> bool:
        """True while it may claim some."""
        return self.knows_pauses and not (self.finaliser.full or self.controls.quiet or self.claimer.halted)

    def executors(self, children: list[ExecutorProcess]) -> list[ExecutorProcess]:
        """Return those that may get its jobs."""
        distinct = self.alias and not self.is_schema
        return [child for child in children if self.alias in child.reached] if distinct else children

    def demand(self, is_async: bool, now: float) -> Demand:
        """Return what it has, and whether it wants more."""
        held = self.dispatcher.outstanding[is_async] + len(self.dispatcher.waiting[is_async])
        return Demand(held, self.claimer.is_hungry(is_async, now), self.claimed_at)

    def is_idle(self, changed: float) -> bool:
        """Return whether nothing has been due since ``changed``; if that is not known, ask."""
        if self.table.held:
            return False
        if self.idle_at > changed and self.admitter.idle_since(changed):
            return True
        if self.asked_at <= changed:
            # Only another query shows whether a job became due since the last one left.
            self.asked_at = clock.monotonic()
            self.admitter.wake_up()
            self.claimer.poll_now()
        return False
