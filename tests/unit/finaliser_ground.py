"""A finaliser whose server answers as a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from django_pgjobs.decisions import Failure
from django_pgjobs.ends import kinds
from django_pgjobs.ends.kinds import RELEASE, EndKind, EndTerms, RowsLocked
from django_pgjobs.store import finalising, notifying
from django_pgjobs.store.finalising import Author, End, FenceReading, ReleasedJob
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.threads.finaliser import (
    Finaliser,
)
from tests.unit.worker_fakes import Heard, run_of

FAILURE = Failure("ValueError", "no", (), "traceback")


class Server:
    """Answers for the statements of a flush: ``locked`` rows are busy, others are recorded unless a test says more."""

    def __init__(self) -> None:
        self.locked: set[int] = set()
        self.readings: dict[int, FenceReading] = {}
        self.writes: list[tuple[EndKind, list[int]]] = []
        self.fails: Callable[[EndKind, Sequence[End]], None] = lambda kind, ends: None
        self.away = False
        self.gone: set[int] = set()
        self.remembered: list[bool] = []

    def write(
        self,
        db: Any,
        kind: EndKind,
        ends: Sequence[End],
        terms: EndTerms,
    ) -> dict[int, Any]:
        if kind.fast and terms.fast and any(end.id in self.locked for end in ends):
            raise RowsLocked(psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"))
        self.writes.append((kind, [end.id for end in ends]))
        self.remembered.append(terms.remember)
        self.fails(kind, ends)
        not_now = self.locked | set(self.readings) | self.gone
        row = ReleasedJob(0, "a", 0) if kind == RELEASE else None
        return {end.id: row for end in ends if end.id not in not_now}

    def read_fences(self, db: Any, fences: Sequence[tuple[int, str]]) -> dict[int, FenceReading]:
        if self.away:
            raise psycopg.OperationalError("server closed the connection")
        busy = {
            id: FenceReading(id, True, False, None, False, False, True, False) for id, _ in fences if id in self.locked
        }
        return busy | {id: self.readings[id] for id, _ in fences if id in self.readings}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(kinds, "write", server.write)
    monkeypatch.setattr(finalising, "read_fences", server.read_fences)
    monkeypatch.setattr(finalising, "delete_claims", lambda db, claims: 0)
    monkeypatch.setattr(notifying, "notify_queues", lambda db, pairs, **behind: None)
    return server


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def finaliser(server: Server, heard: Heard) -> Finaliser:
    def refuses() -> Any:
        raise AssertionError("no connection is made here")

    return Finaliser(refuses, heard, Author(UUID(int=1)))


def put(finaliser: Finaliser, kind: EndKind, *ids: int, ending: str | None = None, **facts: Any) -> list[HeldRun]:
    runs = [run_of(id, ending=ending) for id in ids]
    finaliser.put_many(kind, [(run, End(run.job.id, run.claim.claim_id, 0.1, **facts)) for run in runs])
    return runs


def flush(finaliser: Finaliser, link: object = None) -> None:
    finaliser._flush(link)  # type: ignore[arg-type]


class Link:
    """A connection that may break."""

    def __init__(self) -> None:
        self.gone = False


def break_at(link: Link, kind_broken: EndKind) -> Callable[[EndKind, Sequence[End]], None]:
    def fails(kind: EndKind, ends: Sequence[End]) -> None:
        if kind == kind_broken and not link.gone:
            link.gone = True
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    return fails
