"""The leader's statements, and its term: take it, renew it, resign it."""

from __future__ import annotations

from typing import NamedTuple

from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import Author


class Term(NamedTuple):
    """A term that has been taken: its number, and the seconds without a leader before; None if none ever led."""

    number: int
    unled_seconds: float | None


def take_term(db: Database, author: Author, *, seconds: float) -> Term | None:
    """Become the leader for ``seconds`` if no worker leads; return the term, None if another leads."""
    rows = db.fetch("take_term", {"worker": author.worker, "worker_name": author.name, "seconds": seconds})
    return Term._make(rows[0]) if rows else None


def renew_term(db: Database, author: Author, term: int, *, seconds: float) -> bool:
    """Extend this term to ``seconds`` from now (0 resigns); return whether it was still ours."""
    return bool(db.fetch("renew_term", {"worker": author.worker, "term": term, "seconds": seconds}))


class ClaimPosition(NamedTuple):
    """A position in the order of the claim index; the audit continues after it."""

    queue: str
    priority: int
    run_at: str
    """As a string: Python has no datetime for some instants that SQL can write."""
    id: int


BEGINNING = ClaimPosition("", -(2**15), "-infinity", 0)


class Audited(NamedTuple):
    """A slice of the audit: where it ended, how many jobs it scanned, and which of them had no ledger row."""

    position: ClaimPosition
    walked: int
    ids: list[int]


def audit_claims(db: Database, after: ClaimPosition, *, limit: int, lease_seconds: float) -> Audited | None:
    """Scan up to ``limit`` unfinished jobs after ``after``; None if there are no more.

    A running job without a ledger row gets a new one with a full lease. Its owner renews that lease, or it expires and
    the job is rescued. May be repeated, and several workers may do it at once.
    """
    params = {
        "queue": after.queue,
        "priority": after.priority,
        "run_at": after.run_at,
        "after_id": after.id,
        "limit": limit,
        "lease": lease_seconds,
    }
    rows = db.fetch("audit_claims", params)
    return Audited(ClaimPosition._make(rows[0][:4]), rows[0][4], list(rows[0][5])) if rows else None


def expire_heartbeats(db: Database, *, kept_seconds: float) -> int:
    """Delete the heartbeats of workers that last beat more than ``kept_seconds`` ago; return how many."""
    return len(db.fetch("expire_heartbeats", {"kept": kept_seconds}))
