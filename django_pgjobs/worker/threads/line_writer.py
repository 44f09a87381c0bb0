"""The lines that jobs log, on their way into the table: fenced, in batches, before the ends of their attempts.

A job's own connection never writes them, so what an atomic job logged stays when its transaction is rolled back. Lines
are worth less than ends: no end waits for them. While a row or a table is locked, or the server takes no writes, they
are tried again as long as their job has its claim and there is room; those that it refuses are dropped. Those of a run
are written in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from django_pgjobs.execution.log_lines import as_json
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import finalising
from django_pgjobs.store.database import LOCKED, Database, is_answer, is_data_trouble
from django_pgjobs.store.finalising import FenceReading, RunLines

MOST_CHARS = 32 * 1024 * 1024
"""Size of the lines that may wait, such as while the server is away."""

BATCH_CHARS = 4 * 1024 * 1024


class LineWriter:
    """Lines that are not written yet. All but ``write`` needs its caller's lock; ``fresh``: some are not tried."""

    def __init__(self) -> None:
        self.queued: list[RunLines] = []
        self.chars = 0
        self.fresh = False

    def put(self, job_id: int, claim_id: str, lines: Sequence[Sequence[object]], *, first: bool) -> None:
        """Queue lines of a run, its ``first`` ones or more."""
        text = as_json(lines)
        if self.chars + len(text) > MOST_CHARS:
            log.warning("too many lines of jobs wait to be written, dropped job=%d lines=%d", job_id, len(lines))
            return
        self.queued.append((job_id, claim_id, first, text))
        self.chars += len(text)
        self.fresh = True

    def put_back(self, left: list[RunLines], *, fresh: bool) -> None:
        """Queue what ``write`` has left, before what came in the meantime."""
        self.queued[:0] = left
        self.chars += sum(len(text) for *_, text in left)
        self.fresh = self.fresh or (fresh and bool(left))

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


def write(db: Database, taken: list[RunLines]) -> None:
    """Write them; leave in the list what another transaction keeps locked, and after an error what was not written."""
    left: list[RunLines] = []
    try:
        while taken:
            some = _some(taken)
            left += _write(db, some)
            del taken[: len(some)]
    except LOCKED as error:  # a table, which all of them need
        log.debug("lines of jobs wait for a lock jobs=%d: %s", len(taken), one_line(error))
    finally:
        taken[:0] = left


def _write(db: Database, some: list[RunLines]) -> list[RunLines]:
    """Write them in one statement; return what to try again."""
    try:
        written = set(finalising.write_lines(db, some))
    except (psycopg.Error, UnicodeError) as error:
        data = is_data_trouble(error)
        if not data and (not is_answer(error) or isinstance(error, (*LOCKED, psycopg.errors.ReadOnlySqlTransaction))):
            raise  # another connection, or another server, takes them, or the same one later
        if data and len(some) > 1:  # one job's lines are at fault; the others' are sound
            return [left for each in some for left in _write(db, [each])]
        log.warning("lines of a job cannot be stored job=%d jobs=%d: %s", some[0][0], len(some), one_line(error))
        return []
    return _held(db, [each for each in some if each[0] not in written])


def _some(queued: list[RunLines]) -> list[RunLines]:
    """Return the first ones, as many as fit a statement."""
    size = 0
    for count, (*_, text) in enumerate(queued, 1):
        size += len(text)
        if size >= BATCH_CHARS:
            return queued[:count]
    return queued[:]


def _held(db: Database, missing: list[RunLines]) -> list[RunLines]:
    """Return those whose jobs still have their claims; the others' were refused by the fence."""
    if not missing:
        return []
    readings = finalising.read_fences(db, [(job_id, claim_id) for job_id, claim_id, *_ in missing])
    # While we wrote, the job's own transaction has ended it, or entered its next step: the statement knows when.
    moved = [each for each in missing if each[0] in readings and _has_moved(readings[each[0]])]
    written = set(finalising.write_lines(db, moved)) if moved else set()
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
