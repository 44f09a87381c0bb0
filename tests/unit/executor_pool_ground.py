"""A pool of executors that are played."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from django_pgjobs import __version__
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.build import build
from django_pgjobs.worker.shared.channel_messages import (
    Hello,
    Ready,
)
from django_pgjobs.worker.supervisor import executor_process as children
from django_pgjobs.worker.supervisor.executor_pool import (
    ExecutorPool,
)
from django_pgjobs.worker.supervisor.executor_process import (
    STARTING,
    ExecutorProcess,
    Recipe,
)
from django_pgjobs.worker.supervisor.recycling import Recycling
from django_pgjobs.worker.supervisor.run_events import EVERY_KIND
from django_pgjobs.worker.supervisor.signal_relay import SignalRelay
from tests.unit.worker_fakes import child_of

HELLO: Hello = {
    "protocol": channel.PROTOCOL,
    "version": __version__,
    "build": build(),
    "pid": 0,
    "identity": ["it"],
    "listens": list(EVERY_KIND),
    "jobs": 1,
    "rss": 0,
}


RECIPE = Recipe(("/bin/sh",), (), threads=1, async_slots=1, database="default", name="here", worker=UUID(int=1))


class Selector:
    def register(self, *_: Any) -> None: ...
    def unregister(self, *_: Any) -> None: ...


class HeldJobs:
    """Takes outcomes; one named "bad" cannot be taken."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []
        self.successes: list[Any] = []
        self.holds_any = False

    def done(self, child: ExecutorProcess, items: list[Any]) -> None:
        if items == [["bad"]]:
            raise ValueError("not a decision")
        self.outcomes += items

    def succeeded(self, child: ExecutorProcess, *columns: list[Any]) -> None:
        self.successes += zip(*columns, strict=True)

    def settle(self, death: Any, *, by_itself: bool) -> None: ...

    def keep_peak(self, run: Any, peaks: str) -> None: ...


class LeaseGuard:
    """Keeps whom it is to watch over."""

    def __init__(self) -> None:
        self.watched: list[ExecutorProcess] = []

    def add(self, child: ExecutorProcess) -> None:
        self.watched.append(child)

    def remove(self, child: ExecutorProcess) -> None: ...
    def ended(self, child: ExecutorProcess) -> bool:
        return False


@pytest.fixture
def failed() -> list[str]:
    return []


@pytest.fixture
def pool(failed: list[str], monkeypatch: pytest.MonkeyPatch) -> ExecutorPool:
    monkeypatch.setattr(children, "spawn", lambda recipe, number: child_of(number=number, state=STARTING, pidfd=None))
    own: list[ExecutorProcess] = []
    parts: Any = {
        "children": own,
        "relay": SignalRelay(own),
        "selector": Selector(),
        "held_jobs": HeldJobs(),
        "end_backends": lambda name: None,
        "guard": LeaseGuard(),
        "recycling": Recycling(),
    }
    return ExecutorPool(RECIPE, 3, ["it"], failed=failed.append, **parts)


def ready(pool: ExecutorPool, **changes: Any) -> ExecutorProcess:
    child = child_of(**changes)
    pool.children.append(child)
    pool.booted = True
    return child


def booted(pool: ExecutorPool, count: int = 3) -> list[ExecutorProcess]:
    """So many executors that are ready, as ``pool`` has started them."""
    pool.tick(0.0)
    for child in pool.children:
        pool._on_message(child, Ready(HELLO))
    for _ in range(count - len(pool.children)):
        pool.spawn()
    for child in pool.children:
        pool._on_message(child, Ready(HELLO))
    return list(pool.children)


statuses: dict[int, int] = {}


def exits(child: ExecutorProcess, status: int) -> None:
    """Let it have ended."""
    statuses[child.number] = status


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children whose end can be said."""
    statuses.clear()
    monkeypatch.setattr(ExecutorProcess, "exit_status", lambda child, ended: statuses.get(child.number))
