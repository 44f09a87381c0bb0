"""The listen thread: receives notifications and wakes the claim thread or the admitter. It only improves latency."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg

from django_pgjobs import clock
from django_pgjobs.values.setting_rules import QUEUE_NAME
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

WAIT_SECONDS = 1.0
ASK_SECONDS = 30.0
PAUSES = "pauses"
PRIORITY = re.compile(r"-?[0-9]{1,3}")
LIMITED = "limited"
BEHIND = "behind"
BUSY = "busy"


class Listener(Loop):
    """Listens; ends behind a transaction pooler, where no notification arrives."""

    role = "listen"

    def __init__(
        self,
        connect: Connect,
        inbox: Posts,
        claimer: Claimer,
        read_pauses: Callable[[], None],
        wake_up: Callable[[], None],
    ) -> None:
        super().__init__(connect, inbox)
        self.claimer = claimer
        self.read_pauses = read_pauses
        self.wake_up = wake_up

    def serve(self, db: WorkerConnection) -> None:
        """Pass on notifications until stopped."""
        if db.pooled:
            self.stopping.set()
            return
        try:
            self._ask(db)
            self.claimer.listening.set()
            self.claimer.poll_now()  # for jobs registered while nobody listened
            self.claimer.keep_polling()  # somebody may be busy
            asked_at = clock.monotonic()
            while not self.stopping.is_set():
                if clock.monotonic() > asked_at + ASK_SECONDS:
                    # Silence may mean a quiet queue or a lost connection: only an answer tells.
                    self._ask(db)
                    asked_at = clock.monotonic()
                for notification in db.connection.notifies(timeout=WAIT_SECONDS, stop_after=1):
                    self._hand_on(notification)
        finally:
            self.claimer.listening.clear()

    def _ask(self, db: WorkerConnection) -> None:
        db.fetch("listen", {})

    def _hand_on(self, notification: psycopg.Notify) -> None:
        """Ignore payloads that none of our statements sends: every role of the database may notify."""
        if notification.payload == PAUSES:
            self.read_pauses()
            return
        word, _, queue = notification.payload.partition(":")
        if not QUEUE_NAME.fullmatch(queue) or not self.claimer.frontier.serves(queue):
            return
        if PRIORITY.fullmatch(word):
            self.claimer.wake_for((queue, int(word)))
        elif word == BEHIND:
            self.claimer.wake_for_released(queue)
        elif word == BUSY:
            self.claimer.keep_polling()
        elif word == LIMITED:
            self.wake_up()
