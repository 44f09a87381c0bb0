"""The admitter: admits limited jobs, while the code of this worker or an operator sets limits, or a limit holds jobs.

It has a connection only then. It sleeps until something wakes it (a registration that a limit holds, a limited job that
ended here), until the next held job is due, or for a second. While limits hold due jobs it polls more often, since jobs
that end elsewhere do not wake it. Nothing depends on one admitter: every worker's does the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from django_pgjobs import clock
from django_pgjobs.execution.admission import AdmissionScan, Turn
from django_pgjobs.store.database import Database
from django_pgjobs.store.pausing import LimitInForce
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.inbox_messages import NothingHeld
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

LONGEST_SECONDS = 1.0
SHORTEST_SECONDS = 0.05
"""Time that it sleeps while limits hold due jobs; a turn that admits nothing doubles it, up to ``HELD_SECONDS``."""

HELD_SECONDS = 0.5
"""With rates in the code it never sleeps longer: each turn redates admitted jobs that are not claimed yet. Nor while
operators have set limits: jobs that these must count come without a notification."""

BUSY_SECONDS = 0.01
"""Time that it sleeps while another admitter works, doubled each time, up to ``HELD_SECONDS`` too."""

SETTLE_SECONDS = 0.01
"""A producer notifies at most every few milliseconds: no notification announces a registration right after."""


class Admitter(Loop):
    """Takes turns at admitting jobs. ``wake_for`` wakes the claim thread for what may be claimed now."""

    role = "admit"

    def __init__(
        self, connect: Connect, inbox: Posts, admission: AdmissionScan, wake_for: Callable[[tuple[str, int]], None]
    ) -> None:
        super().__init__(connect, inbox)
        self.admission = admission
        self.wake_for = wake_for
        self.declares = admission.declares()
        self.called = threading.Event()
        self.wake_ups = 0
        self.settled = True
        self.pause = SHORTEST_SECONDS
        self.busy_pause = BUSY_SECONDS
        self.admitted_at = 0.0
        self.clear_at = 0.0

    # Called by other threads

    def wake_up(self) -> None:
        """Take a turn at once: a limit holds a new registration, or a limited job has ended."""
        with self.wake:
            self.wake_ups += 1
            self.wake.notify_all()

    def learn(self, limits: frozenset[LimitInForce]) -> None:
        """Learn which limits operators have set, from the main thread; if they have changed, take a turn at once."""
        if self.admission.learn(limits):
            self.declares = self.admission.declares()
            self.called.set()
            self.poke()
            self.wake_up()

    def inspect(self, db: Database) -> None:
        """Check for limited jobs; called by the maintenance thread of a worker whose code has no limits."""
        if not self.declares and not self.called.is_set() and self.admission.list_groups(db):
            self.called.set()
            self.poke()

    def idle_since(self, instant: float) -> bool:
        """Return whether limits held no due job since ``instant``. Without limits this is true at once."""
        return not self.declares or self.clear_at > instant

    # The thread

    def goes_on(self) -> bool:
        """Return whether there is anything to do for it."""
        return super().goes_on() and (self.declares or self.called.is_set())

    def run(self) -> None:
        """Serve whenever there is something to do."""
        while not self.stopping.is_set():
            super().run()
            with self.wake:
                self.wake.wait_for(lambda: self.stopping.is_set() or self.called.is_set())

    def serve(self, db: WorkerConnection) -> None:
        """Take turns until there is nothing to do."""
        wake_ups = self.wake_ups
        self.admission.begin_anew()
        while self.goes_on():
            turn = self._turn(db)
            if not (self.declares or turn.blocked):
                self.called.clear()
            wake_ups = self._sleep(self._pause_after(turn), wake_ups)

    def _turn(self, db: WorkerConnection) -> Turn:
        turn = self.admission.turn(db)
        if turn.jobs:
            self.admitted_at = clock.monotonic()
            for pair in turn.pairs:
                self.wake_for(pair)
        elif not turn.due:
            self.clear_at = turn.since
            self.inbox.post(NothingHeld())
        return turn

    def _pause_after(self, turn: Turn) -> float:
        if turn.busy:
            pause, self.busy_pause = self.busy_pause, min(2 * self.busy_pause, HELD_SECONDS)
            return pause
        self.busy_pause = BUSY_SECONDS
        if turn.jobs or not turn.due:
            self.pause = SHORTEST_SECONDS
        if turn.jobs:
            return 0.0
        if not self.settled:
            return SETTLE_SECONDS
        if turn.again or turn.due:
            pause, self.pause = self.pause, min(2 * self.pause, HELD_SECONDS)
            return SHORTEST_SECONDS if turn.again else pause
        longest = HELD_SECONDS if self.admission.rates or self.admission.overrides else LONGEST_SECONDS
        return longest if turn.seconds is None else min(max(turn.seconds, 0.0), longest)

    def _sleep(self, seconds: float, wake_ups: int) -> int:
        """Sleep this long or until woken; one more turn follows soon after. Return the number of known wake-ups."""
        with self.wake:
            self.wake.wait_for(lambda: self.stopping.is_set() or self.wake_ups != wake_ups, timeout=seconds)
            known = self.wake_ups
        self.settled = known == wake_ups
        if not self.settled:
            self.pause, self.busy_pause = SHORTEST_SECONDS, BUSY_SECONDS
            self.admission.begin_anew()
        return known
