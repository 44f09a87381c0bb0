"""Ends of atomic jobs that are in doubt: the job's own transaction may have written another one, and committed it.

An executor died while such a job ran, or the connection was lost at its COMMIT. What the worker decided about the
attempt holds only if nothing was committed. The row is therefore read first, and locked: while the transaction may
still commit it has the row locked, and the end is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from django_pgjobs import decisions as decide
from django_pgjobs.ends import finalise
from django_pgjobs.ends.kinds import EndKind
from django_pgjobs.logs import safe_logger
from django_pgjobs.store import atomic, finalising
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import End
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.threads.busy_ends import RunEnd
from django_pgjobs.worker.threads.inbox_messages import RefusedEnd

log = safe_logger("django_pgjobs")


@dataclass
class Doubts:
    """Entries by what their rows show. ``committed``: kind → ends that the jobs wrote; ``open``: they wrote none."""

    committed: dict[EndKind, list[tuple[HeldRun, End, None]]] = field(default_factory=dict)
    open: list[RunEnd] = field(default_factory=list)
    locked: list[RunEnd] = field(default_factory=list)
    lost: list[RefusedEnd] = field(default_factory=list)


def settle(db: Database, action: str, entries: list[RunEnd]) -> Doubts:
    """Read what became of these jobs. Those found out are in doubt no more; ``action``: what was to be written."""
    fences = [run.fence for run, _ in entries]
    found = atomic.settle_doubts(db, fences)
    locked = [fence for fence in fences if fence[0] not in found]
    readings = finalising.read_fences(db, locked) if locked else {}
    doubts = Doubts()
    for run, end in entries:
        now = found.get(end.id)
        if now is None:
            reading = readings.get(end.id)
            if reading is not None and reading.ours:
                doubts.locked.append((run, end))
                continue
            doubts.lost.append((run, action, finalise.refusal(reading)))
        elif now.committed:
            log.info("end in doubt was committed by the job's own transaction %s", run.job.facts)
            kind, own = finalise.atomic_end_of(decide.Committed(now.marked, now.stepped), *run.fence, end.seconds)
            doubts.committed.setdefault(kind, []).append((run, own, None))
        else:
            doubts.open.append((run, end))
        run.in_doubt = False
    return doubts
