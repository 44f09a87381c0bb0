"""What tests of the claimer share: a server that answers as a test says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from django_pgjobs.store import claiming, finalising, notifying
from django_pgjobs.store.claiming import ClaimedJob, ClaimReply, Line, Pair
from django_pgjobs.store.finalising import ReleasedJob

DB: Any = SimpleNamespace(sent_at=0.0)


def taking(monkeypatch: pytest.MonkeyPatch, take: Any) -> None:
    """Of the line of threads, as all have that know no ``async def`` job."""

    def claim_lines(db: Any, lines: dict[bool, Line], names: Any, **_: Any) -> ClaimReply:
        return ClaimReply(take(list(lines[False].pairs), lines[False].limit), None)

    monkeypatch.setattr(claiming, "claim_lines", claim_lines)


def taking_one(monkeypatch: pytest.MonkeyPatch, take: Any) -> None:
    monkeypatch.setattr(claiming, "claim_one", lambda db, job_id, **_: ClaimReply(take(job_id), None))


TOO_LARGE = psycopg.errors.NumericValueOutOfRange("interval out of range")


def refusing(plan: list[Pair], limit: int) -> list[ClaimedJob]:
    raise TOO_LARGE


class Ledger:
    """What was claimed, as the store tells it; a test lets a claim appear late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[int] = []
        self.locked: set[int] = set()
        self.reads = 0
        monkeypatch.setattr(claiming, "read_claim", self.read)
        monkeypatch.setattr(finalising, "release_jobs", self.release)
        self.told: list[tuple[set[tuple[str, int]], bool]] = []
        self.deleted: list[str] = []
        monkeypatch.setattr(finalising, "delete_claims", lambda db, claims: self.deleted.extend(claims))
        monkeypatch.setattr(notifying, "notify_queues", lambda db, pairs, behind: self.told.append((pairs, behind)))

    def read(self, db: Any, claim_id: UUID) -> list[int]:
        self.reads += 1
        return list(self.jobs)

    def release(self, db: Any, ends: Any, author: Any) -> list[ReleasedJob]:
        free = [end.id for end in ends if end.id not in self.locked]
        self.jobs = [id for id in self.jobs if id in self.locked]
        return [ReleasedJob(id, "a", 0) for id in free]
