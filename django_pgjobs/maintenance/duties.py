"""What every worker does now and then, always, whoever leads: each duty with its period."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from django_pgjobs import clock, store
from django_pgjobs.maintenance import parking

log = logging.getLogger("django_pgjobs")

UNPARK_SECONDS = 30.0


class Duty:
    """A duty, its period in seconds (jittered, so that workers do not march in step), and when it is due."""

    def __init__(self, name: str, perform: Callable[[store.Database], object], seconds: float) -> None:
        self.name = name
        self.perform = perform
        self.seconds = seconds
        self.due = 0.0

    def tick(self, db: store.Database) -> None:
        """Perform the duty if it is due."""
        if clock.monotonic() >= self.due:
            self.due = clock.monotonic() + self.seconds * random.uniform(0.9, 1.1)
            self.perform(db)


def duties() -> list[Duty]:
    """Return the duties of every worker."""
    return [Duty("unpark", parking.unpark, UNPARK_SECONDS)]
