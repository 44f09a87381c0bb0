"""What every worker does now and then, always, whoever leads: each duty with its period."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from django_pgjobs import clock
from django_pgjobs.maintenance.parking import unpark
from django_pgjobs.maintenance.rescue import rescue

UNPARK_SECONDS = 30.0
RESCUE_SECONDS = 1.0


class Duty:
    """A duty, its period in seconds (jittered, so that workers do not march in step), and when it is due."""

    def __init__(self, name: str, perform: Callable[[Any], object], seconds: float) -> None:
        self.name = name
        self.perform = perform
        self.seconds = seconds
        self.due = 0.0

    def tick(self, db: Any) -> None:
        """Perform the duty on this connection if it is due."""
        now = clock.monotonic()
        if now >= self.due:
            self.due = now + self.seconds * random.uniform(0.8, 1.0)  # noqa: S311 (jitter)
            self.perform(db)


def duties() -> list[Duty]:
    """Return the duties of every worker."""
    return [Duty("rescue", rescue, RESCUE_SECONDS), Duty("unpark", unpark, UNPARK_SECONDS)]
