"""Gates that stay closed though nothing keeps them so: open those that are due, and count again what waits.

A gate opens in the transaction of the end that decides it. If another session has its job locked just then, it stays
*due*: every worker opens such gates, each second. The leader counts all closed gates again, now and then: a row that
was deleted by hand, or an end that an older worker has written, would leave a job waiting forever.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.store import gates, notifying, turns
from django_pgjobs.store.database import LOCKED, Enclosing
from django_pgjobs.store.gates import Opened

BATCH = 1000
RECOUNTED = 100
"""Gates that are counted in one transaction: each may have a million members."""

LOCK_SECONDS = 0.5
"""Time that a recount waits for a sequence: half of the time after which servers look for deadlocks by default, so that
it gives up before a server ends the transaction of a project because of it."""

REST_SECONDS = 3600.0
"""The pause between two recounts of everything."""


def open_due_gates(db: Enclosing) -> int:
    """Open gates that are due, and return how many jobs that unblocked. Repeatable, by any number of workers.

    It waits for no gate, and sees its job as it is once the gate is locked.
    """
    due = gates.list_due_gates(db, limit=BATCH)
    if not due:
        return 0
    with db.transaction():
        opened = gates.open_gates(db, gates.lock_gates(db, due), locked=True)
    if opened:
        notifying.notify(db, gates.notices_of(opened))
    return len(opened)


def _pass_turns(db: Enclosing, ids: Sequence[int]) -> list[Opened]:
    """Let sequences of these jobs continue that stand still; one that is held for long is looked at in an hour."""
    try:
        with db.transaction():
            return turns.pass_turns(db, set(turns.lock_turns(db, ids, lock_seconds=LOCK_SECONDS).values()))
    except LOCKED:
        return []


class Recount:
    """Counts closed gates again, some at each turn, and remembers where it is. A duty of the leader."""

    def __init__(self) -> None:
        self.after = 0
        self.rest_until = 0.0

    def __call__(self, db: Enclosing) -> int:
        """Recount the next gates; return how many were wrong. Repeatable, also by several at once."""
        now = clock.monotonic()
        if now < self.rest_until:
            return 0
        waiting = gates.list_waiting_gates(db, after=self.after, limit=RECOUNTED)
        ids = list(waiting)
        self.after = ids[-1] if ids else 0
        if len(ids) < RECOUNTED:
            self.after, self.rest_until = 0, now + REST_SECONDS
        if not ids:
            return 0
        with db.transaction():
            wrong = gates.recount_gates(db, gates.lock_gates(db, ids))
            opened = gates.open_gates(db, [gate.id for gate in wrong], locked=True) if wrong else []
        passed = _pass_turns(db, in_turn) if (in_turn := [job_id for job_id in ids if waiting[job_id]]) else []
        for gate in wrong:
            log.error("gate was wrong and is corrected job=%d pending=%d was=%d", gate.id, gate.pending, gate.was)
        for job in passed:
            log.error("sequence stood still and continues job=%d queue=%s", job.id, job.queue)
        opened += passed
        if opened:
            notifying.notify(db, gates.notices_of(opened))
        return len(wrong) + len(passed)
