"""A database of jobs, as the main thread of a worker sees it: its threads, what is held of it, what it asks for.

Every database has its own clock, tables, leader and notifications, so it has its own threads here. Executors are
shared. A worker for one database has one home, without an alias: nothing of it needs to be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django_pgjobs import clock
from django_pgjobs.worker.shared.controls import Controls
from django_pgjobs.worker.shared.runs import RunTable
from django_pgjobs.worker.shared.tallies import Tallies
from django_pgjobs.worker.supervisor.dispatcher import Dispatcher, RunNumbers, free
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from django_pgjobs.worker.supervisor.held_jobs import HeldJobs
from django_pgjobs.worker.supervisor.inbox import Inbox
from django_pgjobs.worker.supervisor.queue_slots import QueueSlots
from django_pgjobs.worker.supervisor.run_events import EventSender, at_home
from django_pgjobs.worker.supervisor.sharing import Demand, offers
from django_pgjobs.worker.threads.admitter import Admitter
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.loop import Loop

LINES = (False, True)
"""Jobs for threads, and for loops."""


@dataclass(slots=True, eq=False)
class Home:
    """The threads of one database, and what the main thread knows of it. It receives them before they are started.

    ``alias``: the name by which its jobs call it, empty without others. ``identity``: which database it is; empty until
    it has been reached.
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
        self.notify = at_home(self.alias, notify) if self.alias else notify
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
        """Start its threads."""
        for loop in self.loops:
            loop.start()

    @property
    def takes_jobs(self) -> bool:
        """True while it may claim some."""
        return self.knows_pauses and not self.finaliser.full and not self.controls.quiet

    def executors(self, children: list[ExecutorProcess]) -> list[ExecutorProcess]:
        """Return those that may get its jobs."""
        return [child for child in children if self.alias in child.reached] if self.alias else children

    def claims_next(self, is_async: bool, children: list[ExecutorProcess], now: float) -> bool:
        """Return whether it surely would claim more, had it the room that its executors have."""
        hungry = self.takes_jobs and self.claimer.is_hungry(is_async, now)
        return hungry and free(self.executors(children), is_async) > 0

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


def shared(
    homes: Sequence[Home], threads: int, loops: int, children: list[ExecutorProcess], now: float
) -> Iterator[tuple[Home, int, int]]:
    """Share the room between homes; each gets no more than the executors have that reach its database."""
    if homes and not homes[0].alias:
        yield homes[0], threads, loops
        return
    shares = [
        offers(room, [home.demand(is_async, now) for home in homes])
        for is_async, room in zip(LINES, (threads, loops), strict=True)
    ]
    for home, *share in zip(homes, *shares, strict=True):
        most_threads, most_loops = home.dispatcher.room(home.executors(children))
        yield home, min(share[0], most_threads), min(share[1], most_loops)


def most_to_start(
    home: Home, homes: Sequence[Home], children: list[ExecutorProcess], now: float
) -> dict[bool, int] | None:
    """Return how many jobs that wait in a home may start, so that others can claim as many; None for all.

    Callbacks wait in any number, without a claim of their own: they take no more places than claims would.
    """
    if not any(home.dispatcher.waiting.values()):
        return None
    most = {}
    for is_async in LINES:
        rivals = [each for each in homes if each is not home and each.claims_next(is_async, children, now)]
        demands = [Demand(each.dispatcher.outstanding[is_async], True, each.claimed_at) for each in (home, *rivals)]
        most[is_async] = offers(free(home.executors(children), is_async), demands)[0]
    return most
