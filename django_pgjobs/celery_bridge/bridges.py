"""The apps of Celery that are bridged, and which of their tasks are jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

INNER = ("celery.map", "celery.starmap")
"""Tasks of Celery's own that call another one."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """An app of Celery, and which of its tasks are jobs. ``beat``: its ``beat_schedule`` is fired here."""

    app: Any
    tasks: tuple[str, ...]
    queues: tuple[str, ...]
    beat: bool

    @property
    def takes_all(self) -> bool:
        """True if no task is left to Celery's broker."""
        return "*" in self.tasks

    @property
    def takes_none(self) -> bool:
        """True if each call goes to Celery's broker."""
        return not self.tasks and not self.queues

    def takes(self, name: str, kwargs: Any = None, queue: str | None = None) -> bool:
        """Return whether a call of this task is stored as a job."""
        if name in INNER and kwargs:
            name = kwargs["task"]["task"]
        elif name == "celery.chord_unlock" and kwargs is not None:
            return not self.takes_none  # it asks this room for the results of the header
        named = any(fnmatchcase(name, pattern) for pattern in self.tasks)
        return named or (queue is not None and any(fnmatchcase(queue, pattern) for pattern in self.queues))


_bridges: dict[int, Bridge] = {}


def add(bridge: Bridge) -> None:
    """Bridge an app from now on, as this says."""
    _bridges[id(bridge.app)] = bridge


def bridge_of(app: Any) -> Bridge:
    """Return how this app is bridged."""
    return _bridges[id(app)]


def bridges() -> Iterator[Bridge]:
    """Yield the bridge of each app."""
    yield from list(_bridges.values())
