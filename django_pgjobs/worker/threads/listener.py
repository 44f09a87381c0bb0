"""The listen thread: receives notifications and wakes the claim thread or the admitter. It only improves latency."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.store.notifying import STACKS
from django_pgjobs.values.setting_rules import QUEUE_NAME
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

WAIT_SECONDS = 5.0
MOST_RECEIVED = 100_000
"""Number of notifications in ``FLOOD_SECONDS`` beyond which it listens to none for ``DEAF_SECONDS``: a process sends
500 a second of one queue."""

FLOOD_SECONDS = 5.0
DEAF_SECONDS = 60.0
ASK_SECONDS = 30.0
PAUSES = "pauses"
PRIORITY = re.compile(r"-?[0-9]{1,3}")
LIMITED = "limited"
BEHIND = "behind"
BUSY = "busy"


class Hearer:
    """The parts of one home that notifications wake: its claimer, its admitter, the reading of pauses and of stacks."""

    def __init__(
        self,
        claimer: Claimer,
        read_pauses: Callable[[], None],
        wake_up: Callable[[], None],
        read_stacks: Callable[[], None] = lambda: None,
    ) -> None:
        self.claimer = claimer
        self.read_pauses = read_pauses
        self.wake_up = wake_up
        self.read_stacks = read_stacks

    def begin(self) -> None:
        """Notifications arrive from now on."""
        self.claimer.listening.set()
        self.claimer.poll_now()  # for jobs registered while none did

    def end(self) -> None:
        """No notification arrives any more."""
        self.claimer.listening.clear()

    def on_notify(self, payload: str) -> None:
        """Ignore payloads that none of our statements sends: every role of the database may notify."""
        if payload == PAUSES:
            self.read_pauses()
            return
        if payload == STACKS.payload:
            self.read_stacks()
            return
        word, _, queue = payload.partition(":")
        if not QUEUE_NAME.fullmatch(queue) or not self.claimer.serves(queue):
            return
        if PRIORITY.fullmatch(word):
            self.claimer.wake_for((queue, int(word)))
        elif word == BEHIND:
            self.claimer.wake_for_released(queue)
        elif word == BUSY:
            self.claimer.keep_polling()
        elif word == LIMITED:
            self.wake_up()


class Ear(Loop):
    """Listens; ends behind a transaction pooler, where no notification arrives."""

    def __init__(self, connect: Connect, inbox: Posts) -> None:
        super().__init__(connect, inbox)
        self._rings: socket.socket | None = None

    def poke(self) -> None:
        """Wake it while it waits for the server."""
        super().poke()
        with suppress(OSError, AttributeError):
            self._rings.send(b"!")  # type: ignore[union-attr]

    def serve(self, db: WorkerConnection) -> None:
        """Pass on notifications until stopped."""
        if db.pooled:
            self.stopping.set()
            return
        bell, self._rings = socket.socketpair()
        with bell, self._rings:
            bell.setblocking(False)
            self._rings.setblocking(False)  # who rings never waits: one that is not heard yet is enough
            self._serve(db, bell)

    def _serve(self, db: WorkerConnection, bell: socket.socket) -> None:
        try:
            self._ask(db)
            self._begin()
            received_at = counted_at = clock.monotonic()
            received = 0
            while not self.stopping.is_set() and received <= MOST_RECEIVED:
                arrived = [each.payload for each in db.connection.notifies(timeout=0, stop_after=1)]
                for payload in set(arrived):
                    self._hand_on(payload)
                now = clock.monotonic()
                if arrived:
                    received_at = now
                if now > counted_at + FLOOD_SECONDS:
                    received, counted_at = 0, now
                received += len(arrived)
                if now > received_at + ASK_SECONDS:
                    # Silence may mean a quiet queue or a lost connection: only an answer tells. But never ask amid
                    # notifications: the server sends all that it has, perhaps a gigabyte, before it answers.
                    self._ask(db)
                    received_at = now
                else:
                    asked, seconds = db.statements, self._do_more(db)
                    # An answer may have brought notifications with it, and then none are left to wait for.
                    db.wait_for_news(0.0 if db.statements > asked else seconds, bell)
        finally:
            self._end()
        if received > MOST_RECEIVED:
            self._be_deaf(db)

    def _be_deaf(self, db: WorkerConnection) -> None:
        """Leave the notifications alone for a while: unread ones fill the server's queue, and then commits fail."""
        db.close()
        log.warning(
            "more than %d notifications on the channel pgjobs in %g s, so it polls for %g s instead of listening: find "
            "the role that sends them",
            MOST_RECEIVED, FLOOD_SECONDS, DEAF_SECONDS,
        )  # fmt: skip
        self._stay_deaf()

    def _stay_deaf(self) -> None:
        self.stopping.wait(DEAF_SECONDS)

    def _ask(self, db: WorkerConnection) -> None:
        db.fetch("listen", {})

    def _begin(self) -> None:
        """Hear from now on."""
        raise NotImplementedError

    def _end(self) -> None:
        """Hear no more."""
        raise NotImplementedError

    def _hand_on(self, payload: str) -> None:
        """Take a notification."""
        raise NotImplementedError

    def _do_more(self, db: WorkerConnection) -> float:
        """Do what else there is; return for how many seconds to wait at most."""
        return WAIT_SECONDS


class Listener(Ear):
    """Listens for one home."""

    role = "listen"

    def __init__(
        self,
        connect: Connect,
        inbox: Posts,
        claimer: Claimer,
        read_pauses: Callable[[], None],
        wake_up: Callable[[], None],
        read_stacks: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(connect, inbox)
        self.hearer = Hearer(claimer, read_pauses, wake_up, read_stacks)

    def _begin(self) -> None:
        self.hearer.begin()
        self.hearer.claimer.keep_polling()  # an executor may be busy

    def _end(self) -> None:
        self.hearer.end()

    def _hand_on(self, payload: str) -> None:
        self.hearer.on_notify(payload)
