"""Pruning: the leader deletes ended jobs, with their history, when their retention is over.

For each outcome, and for each group of queues with the same retention, a walk follows the index of ends, oldest first,
and remembers how far it has come. Otherwise every batch would read again the deleted rows, which stay in the index
until a VACUUM, and the jobs of queues that are kept for longer or forever. If a walk had to leave jobs behind, locked
or undeletable, it returns to the oldest of them now and then. Once a day it starts from the very beginning, for jobs
whose ends are older than its position: the clock was set back, or their transaction was open for longer than the
retention. If the beginning has become too long to read within one statement's time, the walk skips these jobs.

Each retention of an outcome has a walk of its own. A single walk would have to read all jobs between the shortest
retention and the longest, again and again.

Each batch is a statement and a transaction of its own and waits for no lock; a turn is bounded in time and in jobs. If
a batch fails on a row, because another table references it, the walk halves the batch until that row is alone. The row
is logged once an hour and left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import Outcome
from django_pgjobs.store import pruning
from django_pgjobs.store.database import ROWS_DATA, TRIGGERS, Database, Enclosing, class_of
from django_pgjobs.store.pruning import Prunable
from django_pgjobs.values.retention import Retention

BATCH = 1000
TURN_SECONDS = 0.5
TURN_JOBS = 50_000
REST_SECONDS = 10.0
"""The pause of a walk that has reached jobs whose retention is not over."""

IDLE_SECONDS = 30.0
"""The pause if there were none before them either."""

BUSY_SECONDS = 0.1
"""The pause while a retry or another prune is under way."""

TROUBLE_SECONDS = 30.0
"""The pause after a database error that no row causes."""

ANEW_SECONDS = 600.0
"""Interval at which a complete walk returns to the oldest job that it has left behind."""

WHOLE_SECONDS = 86400.0
"""Interval at which a walk starts from the oldest end of all."""

LEAST_SECONDS = 60.0
"""No job is pruned sooner: a worker whose answer was lost must find the job's end, and waiters its result."""

WINDOWS = tuple(64 * 86400.0 / 4**n for n in range(10))
"""Time before the retention's limit at which a walk begins if reading from the oldest end takes too long."""

STUCK_SECONDS = 3600.0
STUCK_NAMED = 20
STUCK_MOST = 200
STUCK_WHOLE = 50
"""Number of undeletable jobs that are singled out in an hour; then failing batches are halved to a few jobs and
left."""

ROWS_FAULT = (*ROWS_DATA, *TRIGGERS)
"""SQLSTATE classes that a row can cause, or other tables and triggers when the row is deleted."""

LOG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Ended jobs to prune: of this outcome, outside these queues (``only``: in them), after so many seconds.

    ``names``: of these only; None for all.
    """

    outcome: str
    seconds: float
    queues: tuple[str, ...] = ()
    only: bool = False
    names: tuple[str, ...] | None = None


def rules_of(retention: Retention) -> list[PruneRule]:
    """Return the rules of a retention; jobs that are kept forever have none."""
    return [rule for outcome in Outcome for rule in _rules(retention, outcome)]


def _rules(retention: Retention, outcome: str) -> Iterator[PruneRule]:
    usual = retention.seconds(outcome)
    others = {queue: own.seconds(outcome) for queue, own in retention.queues if own.seconds(outcome) != usual}
    if usual is not None:
        yield PruneRule(outcome, max(usual, LEAST_SECONDS), tuple(others))
    for seconds in dict.fromkeys(others.values()):
        if seconds is not None:
            named = tuple(queue for queue in others if others[queue] == seconds)
            yield PruneRule(outcome, max(seconds, LEAST_SECONDS), named, only=True)


@dataclass(slots=True)
class PruneWalk:
    """The progress of pruning by one rule. ``chunks`` are listed jobs that are still to be deleted.

    ``begun`` is the beginning of their slice, ``left`` the beginning of the oldest slice that left a job behind.
    """

    rule: PruneRule
    after: str = pruning.OLDEST
    begun: str = pruning.OLDEST
    left_behind: str | None = None
    known: str | None = None
    window: int = -1
    size: int = BATCH
    anew_at: float = 0.0
    whole_at: float = 0.0
    complete: bool = True
    rest_until: float = 0.0
    chunks: list[list[int]] = field(default_factory=list)

    def list(self, db: Database) -> bool:
        """Put the next slice into ``chunks``; return whether there may be more after it."""
        now = clock.monotonic()
        # A walk that restarts before it is complete may never get past the jobs of a queue that is kept.
        if self.complete and now >= self.anew_at:
            self._begin_anew(now)
        self.begun = self.after
        try:
            found = self._slice(db)
        except psycopg.errors.QueryCanceled:
            self._begin_later()
            return False
        if found is None:
            self.complete = True
            return False
        self.chunks = [found.ids[start : start + BATCH] for start in range(0, len(found.ids), BATCH)]
        full = found.walked >= self.size
        # More jobs than a slice holds may have ended at one instant: then enlarge the next slice, or it never gets on.
        self.size = self.size * 2 if full and found.until == self.after else BATCH
        self.after = self.known = found.until
        self.complete = not full
        return full

    def leave(self) -> None:
        """Remember the slice: a job in it stays although its retention is over."""
        self.left_behind = self.begun if self.left_behind is None else self.left_behind

    def _begin_anew(self, now: float) -> None:
        if now >= self.whole_at:
            self.left_behind, self.whole_at = pruning.OLDEST, now + WHOLE_SECONDS
        if self.left_behind is not None:
            self.after, self.window = self.left_behind, -1
        self.left_behind, self.anew_at, self.complete = None, now + ANEW_SECONDS, False

    def _slice(self, db: Database) -> Prunable | None:
        rule = self.rule
        window = None if self.window < 0 else rule.seconds + WINDOWS[self.window]
        return pruning.list_prunable(
            db,
            rule.outcome,
            seconds=rule.seconds,
            queues=rule.queues,
            only=rule.only,
            names=rule.names,
            after=self.after,
            window_seconds=window,
            limit=self.size,
        )

    def _begin_later(self) -> None:
        """Begin later: too many deleted rows are still in the index."""
        self.leave()
        self.complete = True
        if self.known is not None and self.after != self.known and self.window < 0:
            self.after = self.known
        else:
            self.window = min(self.window + 1, len(WINDOWS) - 1)


class Pruner:
    """Prunes in turns; calls ``may`` before every statement to ask whether to continue."""

    def __init__(self, may: Callable[[], bool] = lambda: True, rules: list[PruneRule] | None = None) -> None:
        self.may = may
        self.fixed = rules
        self.retention: Retention | None = None
        self.walks = [PruneWalk(rule) for rule in rules or ()]
        self.stuck: dict[int, float] = {}
        self.overflow_until = 0.0
        self.skipped = 0
        self.unlogged = 0
        self.log_at = 0.0

    def __call__(self, db: Enclosing) -> int:
        """Take a turn; return how many jobs were deleted. Repeatable, also by several at once."""
        self._read_settings()
        now = clock.monotonic()
        self.stuck = {job: until for job, until in self.stuck.items() if until > now}
        total = 0
        due = [walk for walk in self.walks if now >= walk.rest_until]
        try:
            while due and total < TURN_JOBS and clock.monotonic() < now + TURN_SECONDS and self.may():
                walk = due.pop(0)
                if not walk.chunks and not walk.list(db):
                    walk.rest_until = now + (REST_SECONDS if walk.chunks else IDLE_SECONDS)
                else:
                    due.append(walk)
                total += self._delete(db, walk, now + TURN_SECONDS)
                due = [each for each in due if clock.monotonic() >= each.rest_until]
        except psycopg.Error:
            for walk in self.walks:
                walk.rest_until = now + TROUBLE_SECONDS
            raise
        finally:
            self._log(total, now, done=not due)
        return total

    @property
    def done(self) -> bool:
        """True if every walk has reached jobs whose retention is not over."""
        now = clock.monotonic()
        return all(now < walk.rest_until and not walk.chunks for walk in self.walks)

    @property
    def rest_until(self) -> float:
        """The instant before which no walk has anything to do."""
        return min((0.0 if walk.chunks else walk.rest_until for walk in self.walks), default=0.0)

    def _read_settings(self) -> None:
        retention = get_conf().retention
        if self.fixed is None and retention != self.retention:
            self.retention = retention
            self.walks = [PruneWalk(rule) for rule in rules_of(retention)]

    def _delete(self, db: Enclosing, walk: PruneWalk, until: float) -> int:
        """Delete the listed jobs until the turn ends; halve failing chunks, which stay listed in the meantime."""
        total = 0
        while walk.chunks and self.may():
            listed = walk.chunks[-1]
            ids = [job for job in listed if job not in self.stuck]
            try:
                gone = pruning.prune_jobs(db, ids, until=walk.after) if ids else []
            except psycopg.Error as error:
                if not _is_rows_fault(error):
                    raise
                walk.leave()
                walk.chunks[-1:] = self._halves(ids, error)
            else:
                if gone is None:
                    walk.rest_until = clock.monotonic() + BUSY_SECONDS
                    break
                walk.chunks.pop()
                total += len(gone)
                self.skipped += len(ids) - len(gone)
                if len(gone) < len(listed):
                    walk.leave()
            if clock.monotonic() >= until:
                break
        return total

    def _halves(self, ids: list[int], error: psycopg.Error) -> list[list[int]]:
        now = clock.monotonic()
        if len(self.stuck) >= STUCK_MOST and len(ids) <= STUCK_WHOLE:
            if now >= self.overflow_until:
                self.overflow_until = now + STUCK_SECONDS
                log.error("too many jobs cannot be pruned, batches that fail are left for an hour: %s", one_line(error))
            self.skipped += len(ids)
            return []
        if len(ids) > 1:
            half = len(ids) // 2
            return [ids[half:], ids[:half]]
        if len(self.stuck) < STUCK_NAMED:
            log.error("job cannot be pruned and is left for an hour job=%d: %s", ids[0], one_line(error))
        self.stuck[ids[0]] = now + STUCK_SECONDS
        self.skipped += 1
        return []

    def _log(self, total: int, now: float, *, done: bool) -> None:
        self.unlogged += total
        if self.unlogged and (done or now >= self.log_at):
            log.info("ended jobs were pruned jobs=%d", self.unlogged)
            self.unlogged, self.log_at = 0, now + LOG_SECONDS


def _is_rows_fault(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.errors.QueryCanceled) or class_of(error) in ROWS_FAULT
