"""The fires of a schedule, one by one or many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice


class Fires(ABC):
    """Instants in UTC, in order."""

    @abstractmethod
    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire after ``instant``; None if none can be computed."""

    @abstractmethod
    def latest(self, instant: datetime) -> datetime | None:
        """Return the last fire at or before ``instant``; None if none can be computed."""

    def fires(self, after: datetime) -> Iterator[datetime]:
        """Yield the fires after an instant."""
        fire = self.after(after)
        while fire is not None:
            yield fire
            fire = self.after(fire)

    def next_fires(self, after: datetime, count: int, until: datetime | None = None) -> list[datetime]:
        """Return the next ``count`` fires after an instant; with ``until``, the first one and those until then."""
        found: list[datetime] = []
        for fire in islice(self.fires(after), count):
            if found and until is not None and fire > until:
                break
            found.append(fire)
            if until is not None and fire > until:
                break
        return found


class Bounded(Fires):
    """The fires of another schedule from ``starts`` to ``ends``, both included; None sets no bound."""

    def __init__(self, schedule: Fires, starts: datetime | None, ends: datetime | None) -> None:
        self.schedule = schedule
        self.starts = starts
        self.ends = ends

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire after ``instant``; None if there is none before the end."""
        if self.starts is not None and instant < self.starts:
            instant = self.starts - timedelta(microseconds=1)
        found = self.schedule.after(instant)
        return None if found is None or (self.ends is not None and found > self.ends) else found

    def latest(self, instant: datetime) -> datetime | None:
        """Return the last fire at or before ``instant``; None if there is none since the start."""
        found = self.schedule.latest(instant if self.ends is None else min(instant, self.ends))
        return None if found is None or (self.starts is not None and found < self.starts) else found
