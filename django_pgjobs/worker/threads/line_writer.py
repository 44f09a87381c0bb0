"""The lines that jobs log, on their way into the table: fenced, in batches, before the ends of their attempts.

A job's own connection never writes them, so what an atomic job logged stays when its transaction is rolled back. Lines
are worth less than ends: no end waits for them. While a row or a table is locked, or the server takes no writes, they
are tried again as long as their job has its claim and there is room; those that it refuses are dropped. Those of a run
are written in their order.

A locked row is passed over. A locked table is waited for: 50 ms, and then no line is tried before a pause of ten times
what that took, so that ends have the thread for nearly all of the time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import psycopg

from django_pgjobs import clock
from django_pgjobs.execution.log_lines import as_json
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import finalising
from django_pgjobs.store.database import LOCKED, Enclosing, is_answer, is_data_trouble, set_lock_timeout
from django_pgjobs.store.finalising import FenceReading, RunLines

MOST_CHARS = 32 * 1024 * 1024
"""Size of the lines that may wait, such as while the server is away."""

BATCH_CHARS = 4 * 1024 * 1024

LOCK_TIMEOUT = "50ms"

PAUSE_SECONDS = 0.5
"""Time after which lines that a lock held up are tried again, if nothing else comes."""

PAUSE_FACTOR = 10.0
"""The same for lines that a locked table held up: so many times what the try took, if that is more."""

HELD_UP = (*LOCKED, psycopg.errors.QueryCanceled)


class LineWriter:
    """Lines that are not written yet. All but ``write`` needs its caller's lock; ``fresh``: some are not tried."""

    def __init__(self) -> None:
        self.queued: list[RunLines] = []
        self.chars = 0
        self.fresh = False
        self.until = 0.0
        """Instant at which lines that were held up are tried again."""
        self.blocked = False
        """True if a table was locked, which all of them need: none is tried before."""

    @property
    def may_try(self) -> bool:
        """True unless a table was locked a moment ago."""
        return not self.blocked or clock.monotonic() >= self.until

    def put(self, job_id: int, claim_id: str, lines: Sequence[Sequence[object]], *, first: bool) -> None:
        """Queue lines of a run, its ``first`` ones or more."""
        text = as_json(lines)
        if self.chars + len(text) > MOST_CHARS:
            log.warning("too many lines of jobs wait to be written, dropped job=%d lines=%d", job_id, len(lines))
            return
        self.queued.append((job_id, claim_id, first, text))
        self.chars += len(text)
        self.fresh = self.fresh or self.may_try

    def put_back(self, left: list[RunLines], *, fresh: bool, pause: float = 0.0) -> None:
        """Queue what ``write`` has left, before what came in the meantime; ``pause``: as it said."""
        self.queued[:0] = left
        self.chars += sum(len(text) for *_, text in left)
        self.blocked, self.until = pause > 0, clock.monotonic() + max(pause, PAUSE_SECONDS)
        self.fresh = (self.fresh or (fresh and bool(left))) and not self.blocked

    def drop(self) -> None:
        """Forget all of them, and say how many there were."""
        if left := self.take():
            lines = sum(len(json.loads(text)) for *_, text in left)
            log.warning(
                "lines of jobs could not be written before the worker left, dropped jobs=%d lines=%d", len(left), lines
            )

    def take(self) -> list[RunLines]:
        """Remove and return all of them, those of a run together: half of them would pass a lock that ends."""
        taken, self.queued, self.chars, self.fresh = self.queued, [], 0, False
        runs: dict[tuple[int, str], RunLines] = {}
        for job_id, claim_id, first, text in taken:
            before = runs.get((job_id, claim_id))
            if before is not None:
                first, text = before[2], f"{before[3][:-1]},{text[1:]}"
            runs[job_id, claim_id] = (job_id, claim_id, first, text)
        return list(runs.values())


def write(db: Enclosing, taken: list[RunLines]) -> float:
    """Write them; leave in the list what another transaction keeps locked, and after an error what was not written.

    Return the seconds for which to try none if a table was locked, else 0.
    """
    left: list[RunLines] = []
    began = clock.monotonic()
    try:
        while taken:
            some = _some(taken)
            left += _write(db, some)
            del taken[: len(some)]
    except HELD_UP as error:  # by a table, which all of them need, or by a server that is too slow for them
        log.debug("lines of jobs wait for a lock jobs=%d: %s", len(taken), one_line(error))
        return max(PAUSE_SECONDS, PAUSE_FACTOR * (clock.monotonic() - began))
    finally:
        taken[:0] = left
    return 0.0


def _write(db: Enclosing, some: list[RunLines]) -> list[RunLines]:
    """Write them in one statement; return what to try again."""
    try:
        written = set(_store(db, some))
    except (psycopg.Error, UnicodeError) as error:
        data = is_data_trouble(error)
        if not data and (not is_answer(error) or isinstance(error, (*HELD_UP, psycopg.errors.ReadOnlySqlTransaction))):
            raise  # another connection, or another server, takes them, or the same one later
        if data and len(some) > 1:  # one job's lines are at fault; the others' are sound
            return [left for each in some for left in _write(db, [each])]
        log.warning("lines of a job cannot be stored job=%d jobs=%d: %s", some[0][0], len(some), one_line(error))
        return []
    return _held(db, [each for each in some if each[0] not in written])


def _store(db: Enclosing, some: list[RunLines]) -> list[int]:
    with db.transaction():
        set_lock_timeout(db, LOCK_TIMEOUT)
        return finalising.write_lines(db, some)


def _some(queued: list[RunLines]) -> list[RunLines]:
    """Return the first ones, as many as fit a statement."""
    size = 0
    for count, (*_, text) in enumerate(queued, 1):
        size += len(text)
        if size >= BATCH_CHARS:
            return queued[:count]
    return queued[:]


def _held(db: Enclosing, missing: list[RunLines]) -> list[RunLines]:
    """Return those whose jobs still have their claims; the others' were refused by the fence."""
    if not missing:
        return []
    readings = finalising.read_fences(db, [(job_id, claim_id) for job_id, claim_id, *_ in missing])
    # While we wrote, the job's own transaction has ended it, or entered its next step: the statement knows when.
    moved = [each for each in missing if each[0] in readings and _has_moved(readings[each[0]])]
    written = set(_store(db, moved)) if moved else set()
    held = []
    for each in missing:
        now = readings.get(each[0])
        if now is not None and now.ours and not now.ended:
            held.append(each)
        elif each[0] not in written:
            log.debug("lease lost, could not store lines job=%d claim=%s", each[0], each[1])
    return held


def _has_moved(now: FenceReading) -> bool:
    return now.recorded == "next" or (now.ours and now.ended)
