"""The rota beside a real server: whoever rings for it never waits, and it does not run round for one ring."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.rota import Rota
from tests.plugins.fix_db import wait_until

RINGS = 5_000
REST_SECONDS = 60.0


class Posted:
    def post(self, message: Any) -> None:
        """Nothing reads it."""


class Slow(Rota):
    """A rota that is held up at its first look."""

    def __init__(self) -> None:
        connect = lambda: WorkerConnection("default", "pgjobs test rota", statement_seconds=5)  # noqa: E731
        frontier = Frontier(None, frozenset())
        super().__init__(connect, Posted(), frontier=frontier, listens=True, judge=lambda db: "")
        self.looks = 0
        self.goes = threading.Event()

    def _do_more(self, db: WorkerConnection) -> float:
        self.looks += 1
        self.goes.wait()
        return super()._do_more(db)


class Told(Slow):
    """A rota that is told of a job while the server answers its look."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def _do_more(self, db: WorkerConnection) -> float:
        self.looks += 1
        if self.looks == 1:
            self.goes.wait()
            assert select.select([db.connection.fileno()], [], [], 10)[0], "the notification has come"
            db.fetch("listen", {})
        return REST_SECONDS

    def _hand_on(self, payload: str) -> None:
        self.heard.append(payload)


def test_a_notification_that_comes_with_the_answer_to_a_look_is_heard_at_once(committed: None) -> None:
    """It was left until the next one, or the next round: a tenth of a second and more, once in a hundred jobs."""
    rota = Told()
    rota.start()
    wait_until(lambda: rota.looks == 1, 10, "it looks")
    with connection.cursor() as cursor:
        cursor.execute("NOTIFY pgjobs, '0:default@tenant'")
    rota.goes.set()
    wait_until(lambda: rota.heard == ["0:default@tenant"], 10, "it has heard that")
    rota.stop()
    rota.join(10)
    assert not rota.is_alive()


@pytest.fixture
def rota(committed: None) -> Iterator[Slow]:
    rota = Slow()
    rota.start()
    yield rota
    rota.goes.set()
    rota.stop()
    rota.join(10)
    assert not rota.is_alive()


def test_who_rings_never_waits_for_the_rota(rota: Slow) -> None:
    """The main thread rings, and renews trust: it stood still once some hundred rings were not heard."""
    wait_until(lambda: rota.looks == 1, 10, "it looks")

    def ring() -> None:
        for _ in range(RINGS):
            rota.poke()

    ringer = threading.Thread(target=ring, daemon=True)
    ringer.start()
    ringer.join(10)
    assert not ringer.is_alive()
    rota.goes.set()
    wait_until(lambda: rota.looks > 1, 10, "it has heard that")


def test_a_ring_is_heard_once(committed: None) -> None:
    """One that stays made it look round without a pause, on a whole core."""
    db = WorkerConnection("default", "pgjobs test rota", statement_seconds=5)
    bell, rings = socket.socketpair()
    with bell, rings:
        bell.setblocking(False)
        for _ in range(3):
            rings.send(b"!" * 5_000)
            db.wait_for_news(60, bell)
            with pytest.raises(BlockingIOError):
                bell.recv(1)
        db.wait_for_news(0, bell)
    db.close()
