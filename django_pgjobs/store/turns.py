"""Sequences: whose turn it is. At most one job of a sequence has it, the first of those that have not ended.

A job that waits for its turn has a hand in its own gate. A transaction that may change whose turn it is, by a
registration, an end or a retry, locks the sequence first, and looks by *a later statement*: it sees all that was
committed before the lock, and what comes after sees it. Locks are taken in one order: jobs, sequences, the gates in
which ends count by ids, and then those of the jobs whose turn comes, by ids. The last ones are safe behind the others:
who waits for one of them has locked its sequence, and who locks one without that waits for nothing. A registration
that replaces or postpones a job locks that behind the sequence: it lets go of both if that is a deadlock.

The locks are a thousand for all sequences together: each takes a place in the server's table of locks until the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.store import gates
from django_pgjobs.store.database import Database
from django_pgjobs.store.gates import SEQUENCE_LOCKS, Opened

STALE_LEVELS = ("repeatable read", "serializable")
"""Isolation levels at which statements do not see what others committed since the transaction began."""


def lock_sequences(db: Database, sequences: Iterable[str]) -> str:
    """Lock these sequences until the transaction ends; return its isolation level.

    Blocks while another transaction that has registered into one of them, or ended one of its jobs, is open.
    """
    return str(db.fetch("lock_sequences", {"class": SEQUENCE_LOCKS, "sequences": sorted(set(sequences))})[0][1])


def lock_turns(db: Database, ids: Iterable[int], *, lock_seconds: float | None = None) -> dict[int, str]:
    """Lock the sequences of these jobs until the transaction ends; return the sequence of each that has one.

    ``lock_seconds``: how long to wait, by default as long as the transaction waits for locks; then it raises
    ``LockNotAvailable``. Raises ``InvalidJob`` in a transaction that does not see what others have committed.
    """
    timeout = None if lock_seconds is None else f"{round(lock_seconds * 1000)}ms"
    rows = db.fetch("lock_turns", {"class": SEQUENCE_LOCKS, "ids": list(ids), "lock_timeout": timeout})
    if rows and rows[0][2] in STALE_LEVELS:
        raise InvalidJob(
            f"job {rows[0][0]} is in sequence {rows[0][1]!r}: a transaction at {rows[0][2].upper()} cannot see whose "
            "turn is next; end and steer such jobs at READ COMMITTED."
        )
    return {job_id: sequence for job_id, sequence, _ in rows}


def list_standing(db: Database, sequences: Collection[str]) -> set[str]:
    """Return those of these locked sequences in which a new job has to wait."""
    return {row[0] for row in db.fetch("list_standing", {"sequences": list(sequences)})}


def next_in_turn(db: Database, sequences: Collection[str], *, despite: bool = False) -> list[int]:
    """Return the jobs whose turn it is in these locked sequences, and that wait for it.

    ``despite``: also those before which one was abandoned.
    """
    return [row[0] for row in db.fetch("next_in_turn", {"sequences": list(sequences), "despite": despite})]


def pass_turns(db: Database, sequences: Collection[str]) -> list[Opened]:
    """Give the turn in these locked sequences to the next, if none has it; return the jobs that this releases."""
    heads = next_in_turn(db, sequences) if sequences else []
    # The hand that a batch's producer has in its gate, a job of a sequence has until its turn comes.
    return gates.open_gates(db, heads, close=True) if heads else []


def settle_ends(
    db: Database, ids: Collection[int], *, members: Mapping[int, int] | None = None, lock_seconds: float | None = None
) -> list[Opened]:
    """Count ends that this transaction has just written, pass the turns on, and return the jobs that this releases.

    See ``gates.settle_ends``; ``lock_seconds`` bounds the wait for a sequence, too.
    """
    found = lock_turns(db, ids, lock_seconds=lock_seconds) if ids else {}
    opened = gates.settle_ends(db, ids, members=members, lock_seconds=lock_seconds)
    return [*opened, *pass_turns(db, set(found.values()))] if found else opened


def wait_again(db: Database, ids: Collection[int]) -> None:
    """Let these retried jobs, which are locked as their sequences are, wait for their turn again."""
    db.fetch("wait_again", {"ids": list(ids)})


def unblock(db: Database, waiting: Mapping[int, str]) -> list[Opened]:
    """Give the turn to those of these jobs (id → locked sequence) that only wait for abandoned ones; return them.

    Those are passed over, and hold up no other job any more. A job behind one that has not ended waits on.
    """
    heads = set(next_in_turn(db, set(waiting.values()), despite=True)).intersection(waiting)
    if not heads:
        return []
    db.fetch("pass_over", {"ids": sorted(heads)})
    return pass_turns(db, {waiting[job_id] for job_id in heads})


MOST_COUNTED = 1000


class OutOfTurn(NamedTuple):
    """The jobs before one of a sequence: how many wait, counted up to ``MOST_COUNTED``, the ``first`` of these, those
    that have the turn or were abandoned, and which of these were."""

    sequence: str
    waiting: int
    first: int | None
    front: list[int]
    abandoned: list[bool]


def read_turn(db: Database, job_id: int) -> OutOfTurn | None:
    """Return what stands before a job in its sequence; None if it does not wait for its turn."""
    rows = db.fetch("read_turn", {"id": job_id, "most": MOST_COUNTED})
    return OutOfTurn._make(rows[0]) if rows else None
