"""Reports of a worker about executors that died by themselves, and about the suspects that run apart since.

The supervisor's main thread writes; the keep thread reads it for the heartbeat, and a duty stores the notes.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple
from uuid import uuid4

from django_pgjobs import clock
from django_pgjobs.decisions import Failure
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import Author
from django_pgjobs.store.keeping import Crash, record_crashes

MOST_NAMED = 5
MOST_SUSPECTS = 100
MOST_NOTES = 1000


class Suspects(NamedTuple):
    """The ids of the suspects that run now, and of those that wait for it."""

    running: list[int]
    pending: list[int]


class Deaths:
    """The deaths so far, and the suspects now."""

    def __init__(self) -> None:
        self.count = 0
        self.words = ""
        self.died_at = 0.0
        self.suspects: Suspects | None = None
        self.notes: deque[tuple[Crash, float]] = deque(maxlen=MOST_NOTES)

    def add(self, words: str, jobs: Sequence[ClaimedJob]) -> None:
        """Take note of a death, and of the jobs that ran in the executor."""
        named = [f"#{job.id} {job.name[:200]}" for job in jobs[:MOST_NAMED]]
        more = [f"{len(jobs) - MOST_NAMED} more"] if len(jobs) > MOST_NAMED else []
        ran = f" It ran {', '.join([*named, *more])}." if jobs else ""
        self.words, self.died_at = one_line(f"{words}{ran}"), clock.monotonic()
        self.count += 1

    def note(self, job: ClaimedJob, failure: Failure, seconds: float | None) -> None:
        """Take note of a job that was in a dead executor, and runs again under the same claim, uncharged."""
        words = f"{failure.message} This attempt is not charged: it runs again, apart from other jobs."
        crash = Crash(job.id, str(uuid4()), job.attempt, seconds, failure.kind, words)
        self.notes.append((crash, clock.monotonic()))

    def facts(self) -> dict[str, object]:
        """Return what the heartbeat says of it."""
        suspects = self.suspects
        return {
            "deaths": self.count,
            "death": self.words,
            "died_seconds": clock.monotonic() - self.died_at if self.count else None,
            "suspects": None if suspects is None else json.dumps(suspects._asdict()),
        }


class CrashWriter:
    """Stores the notes in the retry histories of their jobs. A duty of every worker; repeatable."""

    def __init__(self, deaths: Deaths, author: Author) -> None:
        self.deaths = deaths
        self.author = author

    @property
    def urgent(self) -> bool:
        """True if there is something to write."""
        return bool(self.deaths.notes)

    def __call__(self, db: Database) -> None:
        """Write what there is; notes leave only when they have been written."""
        notes = self.deaths.notes
        if not notes:
            return
        now, some = clock.monotonic(), list(notes)
        record_crashes(db, [(crash, now - noted_at) for crash, noted_at in some], self.author)
        for _ in some:
            notes.popleft()
