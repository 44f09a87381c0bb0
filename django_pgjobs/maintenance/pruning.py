"""Pruning: the leader deletes ended jobs, with their history, when their retention is over.

For each outcome, and for each group of queues that keep it equally long, a walk goes along the index of ends, oldest
first, and remembers how far it has come: what it has deleted behind it stays in the index until a VACUUM can take it
out, and would be read again by every batch; so would the jobs of queues that are kept for longer, or for ever. A walk
that had to leave a job behind, as it was locked or could not be deleted, goes back to the oldest of those now and then.
From the very beginning it goes once a day, for what has got an end before its place: by a clock that was set back, or
in a transaction that was open for longer than the retention. If the beginning has become too long to be read in one
statement's time, it skips them.

There is a walk for each retention of an outcome, not one for all of them. Each has jobs of its own that become too old
now; one walk would have to read all that is kept between the shortest retention and the longest, again and again.

Each batch is a statement and a transaction of its own and waits for no lock; a turn is bounded in time and in jobs. A
batch that fails on a row, as another table points to it, is halved until that row stands alone; it is named once an
hour and left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import Outcome
from django_pgjobs.store import statements as store
from django_pgjobs.store.sqlstates import ROWS_DATA, TRIGGERS, class_of
from django_pgjobs.values.retention import Retention

log = safe_logger("django_pgjobs")

BATCH = 1000
TURN_SECONDS = 0.5
TURN_JOBS = 50_000
REST_SECONDS = 10.0
"""The pause of a walk that has come to jobs that may stay."""

TROUBLE_SECONDS = 30.0
"""The pause after trouble with the database that is no row's fault."""

ANEW_SECONDS = 600.0
"""How often a walk that has come to its end goes back to the oldest job that it has left behind."""

WHOLE_SECONDS = 86400.0
"""How often it begins at the oldest end of all."""

LEAST_SECONDS = 60.0
"""No job is pruned sooner: a worker whose answer was lost must find its end, and who waited for a job its result."""

WINDOWS = tuple(64 * 86400.0 / 4**n for n in range(10))
"""How far behind the retention a walk begins that cannot read from the oldest end on in time."""

STUCK_SECONDS = 3600.0
STUCK_NAMED = 20
STUCK_MOST = 200
STUCK_WHOLE = 50
"""So many jobs that cannot be deleted are found an hour; then what fails is halved to a few and left whole."""

ROWS_FAULT = (*ROWS_DATA, *TRIGGERS)
"""SQLSTATE classes that a row, or what other tables and triggers make of its deletion, can cause."""

LOG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Which ended jobs may go: of this outcome, in all queues but these (``only``: in these), after so many seconds."""

    outcome: str
    seconds: float
    queues: tuple[str, ...] = ()
    only: bool = False


def rules_of(retention: Retention) -> list[PruneRule]:
    """Return the rules that a retention comes to; what is kept for ever has none."""
    return [rule for outcome in Outcome for rule in _rules(retention, outcome)]


def _rules(retention: Retention, outcome: str) -> Iterator[PruneRule]:
    usual = retention.hours(outcome)
    others = {queue: own.hours(outcome) for queue, own in retention.queues if own.hours(outcome) != usual}
    if usual is not None:
        yield PruneRule(outcome, _seconds(usual), tuple(others))
    for hours in dict.fromkeys(others.values()):
        if hours is not None:
            yield PruneRule(
                outcome, _seconds(hours), tuple(queue for queue in others if others[queue] == hours), only=True
            )


def _seconds(hours: float) -> float:
    return max(hours * 3600, LEAST_SECONDS)


@dataclass(slots=True)
class PruneWalk:
    """How far the pruning of one rule has come. ``chunks`` were listed and are still to be deleted.

    ``begun`` is where the slice begins that they are of, ``left`` where the oldest does of which something stays.
    """

    rule: PruneRule
    after: str = store.OLDEST
    begun: str = store.OLDEST
    left_behind: str | None = None
    known: str | None = None
    window: int = -1
    size: int = BATCH
    anew_at: float = 0.0
    whole_at: float = 0.0
    complete: bool = True
    rest_until: float = 0.0
    chunks: list[list[int]] = field(default_factory=list)

    def list(self, db: store.Database) -> bool:
        """Put the next slice into ``chunks``; return whether there may be more behind it."""
        now = clock.monotonic()
        # A walk that begins anew before it has come to the end may never come to what lies behind a queue that is kept.
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
        # Ends of one instant may be more than a slice: then the next must be larger, or it would not come further.
        self.size = self.size * 2 if full and found.until == self.after else BATCH
        self.after = self.known = found.until
        self.complete = not full
        return full

    def leave(self) -> None:
        """Something of the slice stays although it may go: remember where."""
        self.left_behind = self.begun if self.left_behind is None else self.left_behind

    def _begin_anew(self, now: float) -> None:
        if now >= self.whole_at:
            self.left_behind, self.whole_at = store.OLDEST, now + WHOLE_SECONDS
        if self.left_behind is not None:
            self.after, self.window = self.left_behind, -1
        self.left_behind, self.anew_at, self.complete = None, now + ANEW_SECONDS, False

    def _slice(self, db: store.Database) -> store.Prunable | None:
        rule = self.rule
        window = None if self.window < 0 else rule.seconds + WINDOWS[self.window]
        return store.list_prunable(
            db,
            rule.outcome,
            seconds=rule.seconds,
            queues=rule.queues,
            only=rule.only,
            after=self.after,
            window_seconds=window,
            limit=self.size,
        )

    def _begin_later(self) -> None:
        """Begin later: too much of what was pruned before is still in the index."""
        self.leave()
        self.complete = True
        if self.known is not None and self.after != self.known and self.window < 0:
            self.after = self.known
        else:
            self.window = min(self.window + 1, len(WINDOWS) - 1)


class Pruner:
    """Takes turns at pruning; ``may`` says whether to go on, and is asked before every statement."""

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

    def __call__(self, db: store.Database) -> int:
        """Take a turn; return how many jobs were deleted. May be repeated, and by several at once."""
        self._read_settings()
        now = clock.monotonic()
        self.stuck = {job: until for job, until in self.stuck.items() if until > now}
        total = 0
        due = [walk for walk in self.walks if now >= walk.rest_until]
        try:
            while due and total < TURN_JOBS and clock.monotonic() < now + TURN_SECONDS and self.may():
                walk = due.pop(0)
                if not walk.chunks and not walk.list(db):
                    walk.rest_until = now + REST_SECONDS
                else:
                    due.append(walk)
                total += self._delete(db, walk, now + TURN_SECONDS)
        except psycopg.Error:
            for walk in self.walks:
                walk.rest_until = now + TROUBLE_SECONDS
            raise
        finally:
            self._log(total, now, done=not due)
        return total

    @property
    def done(self) -> bool:
        """Whether every walk has come to jobs that may stay."""
        now = clock.monotonic()
        return all(now < walk.rest_until and not walk.chunks for walk in self.walks)

    def _read_settings(self) -> None:
        retention = get_conf().retention_hours
        if self.fixed is None and retention != self.retention:
            self.retention = retention
            self.walks = [PruneWalk(rule) for rule in rules_of(retention)]

    def _delete(self, db: store.Database, walk: PruneWalk, until: float) -> int:
        """Delete what was listed, as far as the turn goes; what fails is halved and stays listed meanwhile."""
        total = 0
        while walk.chunks and self.may():
            listed = walk.chunks[-1]
            ids = [job for job in listed if job not in self.stuck]
            try:
                gone = store.prune_jobs(db, ids, until=walk.after) if ids else []
            except psycopg.Error as error:
                if not _is_rows_fault(error):
                    raise
                walk.leave()
                walk.chunks[-1:] = self._halves(ids, error)
            else:
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
