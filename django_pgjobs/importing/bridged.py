"""The broker of an app behind the bridge for Celery, told by the bridge, which no import knows.

Imports nothing: apps are made before Django is set up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from django_pgjobs.importing.sources import Waiting


class CeleryProject(NamedTuple):
    """An app of Celery: its broker, how its transport begins and divides keys, its queues, and a reader of messages.

    ``waiting`` returns the job of a message's headers, properties, body and queue; None if the app has no such task.
    """

    url: str
    prefix: str
    sep: str
    queues: list[str]
    default_queue: str
    waiting: Callable[[dict[str, Any], dict[str, Any], list[Any], str], Waiting | None]


NO_PROJECT = CeleryProject("", "", "\x06\x16", ["celery"], "celery", lambda headers, properties, body, queue: None)

known: dict[str, Callable[[], CeleryProject | None]] = {}


def celery_project() -> CeleryProject:
    """Return the app of Celery as far as it matters here; without one, the defaults of Celery."""
    return next((found for ask in known.values() if (found := ask()) is not None), NO_PROJECT)
