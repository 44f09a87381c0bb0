"""A worker's own numbers over time: every few seconds it writes what it has ended in this minute.

It writes whole figures, not increments, and a minute stays open until the answer to a statement says that the next has
begun. A statement whose answer was lost is thus repeated without counting anything twice. A worker that is killed loses
what it has ended since its last turn.

At each visit of one of many schemas a worker counts from zero, and its rows are those of that visit: else a second one
in the same minute would replace what the first has written.
"""

from __future__ import annotations

from uuid import uuid4

from django_pgjobs import clock
from django_pgjobs.store import numbers
from django_pgjobs.store.database import Database
from django_pgjobs.store.numbers import AttemptFigures
from django_pgjobs.values.histogram import trimmed
from django_pgjobs.worker.shared.tallies import Tallies, Tally, TallyKey

GIVEN_UP_SECONDS = 300.0
"""Time for which a statement whose answer was lost is repeated: the leader takes what it wrote after ten minutes."""


class MinuteWriter:
    """Writes the tallies of a worker by the minute. ``seconds``: how often it has its turn."""

    def __init__(self, tallies: Tallies, release: str, seconds: float) -> None:
        self.tallies = tallies
        self.release = release
        self.whose = uuid4()
        self.stale_seconds = 2 * seconds
        self.minute: str | None = None
        self.asked_at = 0.0
        self.in_doubt = False
        """True if the answer to the latest statement is not known."""

        self.begun: dict[TallyKey, Tally] = {}
        """The tallies when the minute began."""

        self.written: dict[TallyKey, Tally] = {}
        """The tallies as they were written last."""

    def __call__(self, db: Database) -> None:
        """Write what was added in this minute. Costs no statement if nothing was."""
        now = self.tallies.read()
        changed = [key for key, tally in now.items() if tally.jobs != _jobs(self.written.get(key))]
        if not changed:
            return
        if self._is_stale():
            self._turn(self._write(db, []), self.written)
        minute = self._write(db, [_figures(key, now[key].since(self.begun.get(key))) for key in changed])
        self.written = now
        self._turn(minute, now)

    def _is_stale(self) -> bool:
        """Return whether there was nothing to write lately, so that new ends belong to another minute."""
        unknown = GIVEN_UP_SECONDS if self.in_doubt else self.stale_seconds
        return self.minute is None or clock.monotonic() > self.asked_at + unknown

    def _write(self, db: Database, figures: list[AttemptFigures]) -> str:
        asked_at, self.in_doubt = clock.monotonic(), bool(figures)
        minute = numbers.write_minutes(db, figures, worker=self.whose, release=self.release, minute=self.minute)
        self.asked_at, self.in_doubt = asked_at, False
        return minute

    def _turn(self, minute: str, tallies: dict[TallyKey, Tally]) -> None:
        if minute != self.minute:
            self.minute, self.begun = minute, tallies


def _jobs(tally: Tally | None) -> int:
    return 0 if tally is None else tally.jobs


def _figures(key: TallyKey, tally: Tally) -> AttemptFigures:
    return AttemptFigures(
        *key, tally.jobs, tally.run_seconds, tally.wait_seconds, trimmed(tally.run_histogram),
        trimmed(tally.wait_histogram),
    )  # fmt: skip
