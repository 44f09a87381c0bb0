"""The gates of blocked jobs: how ends count in them, what opens them, and which jobs that unblocks.

Locks are taken in one order: jobs, then gates by their ids, then, without waiting, the jobs that a gate unblocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from django_pgjobs.states import FAIL_FAST, UNDO, Outcome, Rule
from django_pgjobs.store.database import Database
from django_pgjobs.store.notifying import Notification, scan_behind, wake_up
from django_pgjobs.store.servants import cancel_of, register_servants, undo_of

KNOWS_UNDO = 2
"""The ``protocol`` in the heartbeat of a worker whose version undoes what has failed; that is this one."""

KNOWS_GATES = 1
"""The ``protocol`` in the heartbeat of a worker whose version settles ends."""

SEQUENCE_LOCKS = 0x706A73
"""The first half of the numbers of our advisory locks on sequences ("pjs"), so that they collide with no other lock."""

SETTLE_SECONDS = 0.1
"""Time that a worker waits for a gate that another session has locked: less than the second after which servers look
for deadlocks by default."""


class Opened(NamedTuple):
    """A job that its gate has unblocked: whom to wake (no priority: admitters), and whether only a scan behind the
    frontier finds it."""

    id: int
    queue: str
    priority: int | None
    old: bool


def _opened(rows: Iterable[tuple[object, ...]]) -> list[Opened]:
    return [Opened._make(row) for row in rows]


def notices_of(opened: Iterable[Opened]) -> set[Notification]:
    """Return the notifications to send after the commit that unblocks these jobs."""
    notices: set[Notification] = set()
    for job in opened:
        notices.add(wake_up(job.queue, job.priority))
        if job.old:
            notices.add(scan_behind(job.queue))
    return notices


def settle_ends(
    db: Database, ids: Iterable[int], *, members: Mapping[int, int] | None = None, lock_seconds: float | None = None
) -> list[Opened]:
    """Count ends that this transaction has just written, and return the jobs that this releases.

    ``members``: how many members of each batch have succeeded beside ``ids``, as ``finalise_members`` returns it.

    It also registers what cancels the other members of a batch that fails fast, and what undoes a job that has failed.

    Call it once for each end, behind the statement that wrote it. ``lock_seconds``: how long to wait for a gate, by
    default as long as the transaction waits for locks; then it raises ``LockNotAvailable``.
    """
    timeout = None if lock_seconds is None else f"{round(lock_seconds * 1000)}ms"
    members = members or {}
    params = {"ids": list(ids), "gates": list(members), "jobs": list(members.values()), "lock_timeout": timeout}
    rows = db.fetch("settle_ends", params)
    opened, wanted = _opened(row[:4] for row in rows if row[4] is None), [row for row in rows if row[4] is not None]
    served = register_servants(
        db,
        [
            undo_of(job_id) if name == UNDO else cancel_of(job_id, by=FAIL_FAST, reason=reason)
            for job_id, _, _, _, name, reason in wanted
        ],
    )
    return [*opened, *(Opened(*one, old=False) for one in served)]


def list_locked_gates(db: Database, ids: Sequence[int]) -> dict[int, set[int]]:
    """Return the jobs whose ends count in gates that another transaction has locked, with these. Waits for none.

    A negative number stands for a locked sequence.
    """
    found: dict[int, set[int]] = {}
    for job_id, gate in db.fetch("list_locked_gates", {"ids": list(ids), "class": SEQUENCE_LOCKS}):
        found.setdefault(job_id, set()).add(gate)
    return found


def open_gates(
    db: Database, ids: Sequence[int], *, close: bool = False, locked: bool = False, force: bool = False
) -> list[Opened]:
    """Open those gates of these jobs that nothing keeps closed, and return the jobs that this releases.

    ``close``: batches that are open for members take no more from outside. ``locked``: this transaction has locked the
    gates by an earlier statement, so that what this one sees of their jobs is final; without that, a gate whose job
    cannot be unblocked stays due. ``force``: open them regardless of what keeps them closed; ends that come later
    count, and unblock nothing. Repeatable. Waits for locked gates.
    """
    return _opened(db.fetch("open_gates", {"ids": list(ids), "close": close, "locked": locked, "force": force}))


def list_running_members(db: Database, ids: Sequence[int]) -> list[int]:
    """Return the members of these batches that workers have claimed."""
    return [row[0] for row in db.fetch("list_running_members", {"ids": list(ids)})]


def cancel_members(db: Database, batches: Sequence[int], *, mode: str, by: str, reason: str) -> set[Notification]:
    """Register the cancel of the members of these batches, in the transaction that has asked the batches to end.

    Their gates let no more members in, and a job of ours cancels those that have not ended. Return the notifications
    to send after the commit.
    """
    if not batches:
        return set()
    opened = open_gates(db, batches, close=True)
    served = register_servants(db, [cancel_of(batch, mode=mode, by=by, reason=reason) for batch in batches])
    return notices_of([*opened, *(Opened(*one, old=False) for one in served)])


def lock_open_batches(db: Database, ids: Sequence[int]) -> list[int]:
    """Lock the gates of those of these batches that are open for members; return their jobs. Waits for locked gates."""
    return [row[0] for row in db.fetch("lock_open_batches", {"ids": list(ids)})]


def lock_gates(db: Database, ids: Sequence[int]) -> list[int]:
    """Lock those of these gates that no other session has locked; return their jobs."""
    return [row[0] for row in db.fetch("lock_gates", {"ids": list(ids)})]


def list_due_gates(db: Database, *, limit: int) -> list[int]:
    """Return jobs whose gates were to open while another session had the job locked."""
    return [row[0] for row in db.fetch("list_due_gates", {"limit": limit})]


class Recounted(NamedTuple):
    """A gate whose figures were wrong: what was pending by them, and what is."""

    id: int
    was: int
    pending: int


def list_waiting_gates(db: Database, *, after: int, limit: int) -> dict[int, bool]:
    """Return jobs whose gates have not opened, ascending, from behind ``after`` on, and which wait for their turn."""
    return dict(db.fetch("list_waiting_gates", {"after": after, "limit": limit}))


def recount_gates(db: Database, ids: Sequence[int]) -> list[Recounted]:
    """Correct those of these gates whose figures differ from the rows they count; opens none.

    ``lock_gates`` must have locked them, in this transaction: no end can come between.
    """
    return [Recounted._make(row) for row in db.fetch("recount_gates", {"ids": list(ids)})]


@dataclass(slots=True)
class NewGate:
    """The gate of a new job. ``needs``: the jobs it waits for, and which end of each it needs."""

    job_id: int
    pending: int = 0
    total: int = 0
    succeeded: int = 0
    abandoned: int = 0
    cancelled: int = 0
    unmet: int = 0
    hands: int = 0
    eager: bool = True
    fail_fast: bool = False
    needs: Mapping[int, Rule] = field(default_factory=dict)

    @classmethod
    def behind(cls, job_id: int, needs: Mapping[int, Rule], outcomes: Mapping[int, str | None]) -> NewGate:
        """Return the gate of a job that needs others, some of which may have ended: ``outcomes``, None if not."""
        gate = cls(job_id, total=len(needs), needs=needs)
        for needed, rule in needs.items():
            outcome = outcomes[needed]
            if outcome is None:
                gate.pending += 1
                continue
            setattr(gate, outcome, getattr(gate, outcome) + 1)
            gate.unmet += not is_met(rule, outcome)
        return gate


def is_met(rule: Rule, outcome: str) -> bool:
    """Return whether an end is what the rule asks for. ``settle_ends`` says the same."""
    return rule == Rule.SETTLED or (outcome == Outcome.SUCCEEDED) == (rule == Rule.SUCCEEDED)


def add_gates(db: Database, gates: Sequence[NewGate]) -> set[Notification]:
    """Insert the gates of new jobs, and the links to them. Open those that wait for nothing: what they need has ended.

    Return the notifications to send after the commit.
    """
    fields = [asdict(gate) for gate in gates]
    links = [(needed, gate.job_id, str(rule)) for gate in gates for needed, rule in gate.needs.items()]
    for each in fields:
        del each["needs"]
    params = {
        "gates": json.dumps(fields),
        "parents": [parent for parent, _, _ in links],
        "jobs": [job for _, job, _ in links],
        "rules": [rule for _, _, rule in links],
    }
    db.fetch("add_gates", params)
    decided = [gate.job_id for gate in gates if not gate.pending or gate.unmet]
    opened = open_gates(db, decided) if decided else ()
    return notices_of(opened)


def lock_gate(db: Database, job_id: int) -> None:
    """Lock the gate of a batch: the next statement sees what the transactions before have done to the batch."""
    db.fetch("lock_gate", {"id": job_id})


def add_members(db: Database, job_id: int, n: int, *, most: int) -> bool:
    """Count ``n`` new members of a batch, whose rows this transaction has inserted; False if it takes no more.

    ``most``: how many it may have. Waits while another transaction counts in the same gate.
    """
    # One statement would judge the batch by a snapshot older than the lock that it has waited for, beside a cancel.
    lock_gate(db, job_id)
    return bool(db.fetch("add_members", {"id": job_id, "n": n, "most": most}))


def list_old_workers(db: Database, *, protocol: int, silent_seconds: float) -> list[str]:
    """Return the names of living workers that know no gates: those of an older ``protocol``."""
    return [row[0] for row in db.fetch("list_old_workers", {"protocol": protocol, "silent": silent_seconds})]


def need_jobs(db: Database, ids: Sequence[int]) -> dict[int, str | None]:
    """Lock these jobs until the commit, so that their ends count for a new job; return id → outcome, None if unended.

    The result leaves out jobs that are gone. Waits for locked rows.
    """
    return dict(db.fetch("need_jobs", {"ids": sorted(ids)}))
