"""Moves waiting jobs to another database: each is in exactly one of the two where a worker may claim it.

There is no transaction over two databases, so a job takes four commits; ``docs/adr/0048`` has the reasons. *There* is
the database that it moves to.

1. **Mark**, here: an unclaimed job is held as *moving*. Nothing but a mover changes such a row.
2. **Arrive**, there: its row is inserted with all that goes with it, held as *moving* too. It names its former id.
3. **Give away**, here: the row is deleted.
4. **Land**, there: the hold ends, and workers may claim it.

What holds at each instant, whatever dies:

* An arrival exists only while its row here is marked, or after that was given away.
* A row is given away only when its arrival is committed, and an arrival lands only when its row is gone.
* A row is unmarked, since its key is taken there, only if it has no arrival.

Therefore a row that is gone was given away, and looking is enough to finish a former move: marked rows that have not
arrived arrive, those that have are given away, those that are gone land.

Two fences keep a mover that was suspended, or whose statements come late, from breaking that. It inserts only in a
transaction there that holds ``lock_moving`` since before it read the rows: no other mover has had them in between. It
deletes or unmarks only rows with its token, and a mover that takes rows over writes a new one. Each commit waits for
the disk.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.db import connections, models

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.states import BUILT_IN, JobState
from django_pgjobs.steering.batching import BUSY, CHANGED, LOCK_SECONDS, KeyedWrite, Steered, logged, steer, who
from django_pgjobs.steering.jobs import UNCLAIMED, UNFINISHED
from django_pgjobs.steering.trail import Trail
from django_pgjobs.store import keeping, moving, waking
from django_pgjobs.store.database import (
    NOT_MIGRATED,
    Database,
    at_read_committed,
    is_read_only,
    on,
    opens_transaction,
    set_lock_timeout,
)
from django_pgjobs.store.steering import Moved
from django_pgjobs.values.built_in import Act

TABLES = ("pgjobs_job", "pgjobs_attempt", "pgjobs_step", "pgjobs_memo", "pgjobs_key_window")

TURN_SECONDS = 60
"""Time that a mover waits for another one that moves jobs to the same database."""

POLL_SECONDS = 0.5
"""Time between two polls for running jobs that have become ready again."""

Report = Callable[[Sequence[tuple[int, int]]], None]
"""Reports jobs that have moved: the id of each here, which is gone, and there."""


def move(
    jobs: models.QuerySet[models.Model],
    here: str,
    *,
    to: str,
    wait: float | timedelta = 0,
    dry_run: bool = False,
    report: Report = lambda pairs: None,
    by: object = None,
    reason: str = "",
) -> Steered:
    """Move those of ``jobs``, of the database ``here``, that wait and are no part of a flow to the database ``to``.

    At first it finishes what a former move to that database has left half-way. ``wait``: how long to wait for running
    jobs to become ready again, in seconds. ``dry_run``: only count. Raises ``InvalidJob`` if it cannot move jobs to
    that database. Repeatable: after an error, the same call takes up what is half-way.
    """
    words = (who(by), reason)
    mover = _Mover(here, to, report, Trail("move", *words, mode=f"to {to}"), Trail("move", *words, mode=f"from {here}"))
    if dry_run:
        return mover.mark(jobs, dry_run=True)
    until = time.monotonic() + (wait.total_seconds() if isinstance(wait, timedelta) else wait)
    if wait:
        jobs = mover.awaited(jobs)
    mover.finish()
    done = mover.mark(jobs)
    while JobState.RUNNING in done.skipped and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, POLL_SECONDS))
        for read_again in (JobState.RUNNING, BUSY, CHANGED):
            done.skipped.pop(read_again, None)
        done += mover.mark_more()
    skipped = (Steered(0, done.skipped) + Steered(0, dict(Counter(mover.refused.values())))).skipped
    mover.left.skip(on(here), skipped)
    return logged(mover.left, Steered(mover.moved, skipped))


@dataclass(slots=True)
class _Mover:
    """Moves jobs from ``here`` to ``there``. ``refused``: why some did not go, once marked (id → reason); ``stayed``:
    the jobs that have to stay; ``waiting``: those that may be here still.
    """

    here: str
    there: str
    report: Report
    left: Trail
    arrived: Trail
    token: str = field(default_factory=lambda: str(uuid4()))
    moved: int = 0
    stayed: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    source: str = ""
    target: str = ""
    rows: Any = None

    def __post_init__(self) -> None:
        self.source, self.target = _identity(self.here), _identity(self.there)
        if self.source == self.target:
            raise InvalidJob(f"{self.here!r} and {self.there!r} are the same database.")
        if keeping.list_columns(on(self.here), TABLES) != keeping.list_columns(on(self.there), TABLES):
            raise InvalidJob(
                f"The tables of django-pgjobs in {self.here!r} and {self.there!r} are of different versions: run "
                "manage.py migrate for both."
            )

    def mark(self, jobs: models.QuerySet[models.Model], *, dry_run: bool = False) -> Steered:
        """Hold those of ``jobs`` that may move, and move them batch by batch."""

        def write(db: Database, held: Sequence[int]) -> Moved:
            moving.commit_durably(db)
            token, words = None if dry_run else self.token, f"It moves to database {self.there}."
            judged = moving.mark_moving(db, held, target=self.target, token=token, words=words)
            keyed.refused.update({job_id: stays for job_id, stays in judged.items() if stays})
            self._stay(keyed.refused)
            return Moved([job_id for job_id, stays in judged.items() if not stays], [], [])

        keyed = KeyedWrite(self.here, write)
        trail = _Unrecorded("move")
        return steer(jobs, self.here, Act.MOVE, UNCLAIMED, keyed, trail, None if dry_run else self.finish)

    def awaited(self, jobs: models.QuerySet[models.Model]) -> models.QuerySet[models.Model]:
        """Return these jobs by their ids: a slice, or a filter of states, would have others later."""
        self.rows = jobs.model._base_manager.using(self.here)
        self.waiting = set(self.rows.filter(pk__in=jobs.using(self.here).values("pk")).values_list("pk", flat=True))
        found: models.QuerySet[models.Model] = self.rows.filter(pk__in=self.waiting)
        return found

    def mark_more(self) -> Steered:
        """Move those of the jobs that are here still and wait by now, but for those that have to stay."""
        left = self.rows.filter(UNFINISHED, pk__in=self.waiting - self.stayed).exclude(name__startswith=BUILT_IN)
        self.waiting = set(left.values_list("pk", flat=True))
        return self.mark(self.rows.filter(pk__in=self.waiting))

    def _stay(self, refused: dict[int, str]) -> None:
        """Leave these jobs alone from now on, but for those whose row, or key, was only locked."""
        self.stayed.update(job_id for job_id, why in refused.items() if why != BUSY)

    def finish(self) -> None:
        """Move what is marked, and land what has arrived: of this move, and of former ones."""
        while self._copy():
            self._land()
        self._land()

    def _copy(self) -> bool:
        """Let some marked jobs arrive, and unmark those that may not; return whether any were marked."""
        with self._turn() as there:
            with _committing(self.here) as here:
                jobs = moving.take_moving(here, target=self.target, token=self.token)
            if not jobs:
                return False
            refused = self._arrive(there, jobs)
            if refused:  # a lock that stays refuses the rest of a batch, whatever has arrived of it before
                arrived = moving.list_arrivals(there, self.source)
                refused = {job_id: why for job_id, why in refused.items() if job_id not in arrived}
            if refused:
                with _committing(self.here) as here:
                    waking.notify(self.here, moving.keep_jobs(here, list(refused), self.token))
            self.refused = {job_id: why for job_id, why in self.refused.items() if job_id not in jobs} | refused
            self._stay(refused)
        return True

    def _arrive(self, there: Database, jobs: dict[int, str]) -> dict[int, str]:
        words = f"It moves here from database {self.here}, where its number is "

        def write(db: Database, ids: Sequence[int]) -> Moved:
            taken = moving.arrive_jobs(db, [jobs[job_id] for job_id in ids], source=self.source, words=words)
            return Moved([], taken, [])

        keyed = KeyedWrite(self.there, write)
        keyed(there, list(jobs))
        return keyed.refused

    def _land(self) -> None:
        """Give away what has arrived, and let run there what is gone here."""
        with self._turn() as there:
            arrivals = moving.list_arrivals(there, self.source)
            if not arrivals:
                return
            with _committing(self.here) as here:
                gone = moving.give_away(here, list(arrivals), self.token)
                self.left.add(here, len(gone), gone)
                still = moving.list_existing(here, list(arrivals))
            ids = [job_id for former, job_id in arrivals.items() if former not in still]
            landed, notices = moving.land_jobs(there, ids, source=self.source, alias=self.here)
            self.arrived.add(there, len(landed), [job_id for _, job_id in landed])
            waking.notify(self.there, notices)
        self.moved += len(landed)
        self.report(landed)

    @contextmanager
    def _turn(self) -> Iterator[Database]:
        """Open a transaction there, in which no other mover moves jobs to that database."""
        with _committing(self.there, TURN_SECONDS) as db:
            moving.lock_moving(db)
            set_lock_timeout(db, f"{LOCK_SECONDS}s")
            yield db


class _Unrecorded(Trail):
    """The trail of marking, which moves nothing yet."""

    def add(self, db: Database, changed: int, job_ids: Sequence[int] = (), former: str | None = None) -> None:
        """Record nothing."""


@contextmanager
def _committing(using: str, seconds: int = LOCK_SECONDS) -> Iterator[Database]:
    """Open a transaction whose commit waits for the disk; ``seconds`` bounds its waits for locks."""
    with at_read_committed(using):
        db = on(using)
        set_lock_timeout(db, f"{seconds}s")
        moving.commit_durably(db)
        yield db


def _identity(using: str) -> str:
    """Return what tells this database, and the tables in it, from others. Raises ``InvalidJob`` if it is of no use."""
    if using not in list(connections):
        raise InvalidJob(f"There is no database alias {using!r}.")
    if connections[using].vendor != "postgresql":
        raise InvalidJob(f"Database {using!r} is not PostgreSQL.")
    if not opens_transaction(using):
        raise InvalidJob("Jobs move between databases by several commits: not inside a transaction.")
    found = keeping.read_identity(on(using))
    if found.table is None:
        raise InvalidJob(f"{NOT_MIGRATED} --database {using}.")
    if is_read_only(on(using)):
        raise InvalidJob(f"Database {using!r} takes no writes: it is a replica, or its role may not write.")
    return ":".join(map(str, found.table_identity))
