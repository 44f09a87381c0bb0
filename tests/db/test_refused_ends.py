"""An end that was refused is told as lost, whatever the row says: the finaliser and the server, without a worker.

A rescue for a deadline writes into the history what the owner of the job was about to write itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from django_pgjobs.ends import kinds
from django_pgjobs.ends.kinds import DELETE, END, RETRY, EndKind
from django_pgjobs.models import Attempt
from django_pgjobs.store import finalising
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldClaim, HeldRun
from django_pgjobs.worker.threads.finaliser import Finaliser
from tests.db.test_rescue_rows import pass_deadlines, rescue
from tests.plugins.fix_db import AUTHOR, FAILURE, Claimed, RawDatabase, claim, register
from tests.plugins.sabotage import line_id, lines_of, sabotage
from tests.unit.worker_fakes import Heard


@pytest.fixture
def link(committed: None) -> Iterator[WorkerConnection]:
    connection = WorkerConnection("default", "pgjobs test finalise", statement_seconds=20)
    yield connection
    connection.close()


TIMED_OUT: dict[str, Any] = {"cause": "timeout", "failure": FAILURE, "seconds": 1.0}
KINDS = {"retried": (RETRY, 5), "abandoned": (END, 1)}
"""What comes of an attempt that was too long: the kind of its end, and how many attempts such a job has."""


def overdue(raw: RawDatabase, max_attempts: int) -> Claimed:
    register(3, max_attempts=max_attempts)
    claimed = claim(raw, 3)
    pass_deadlines(raw, 60)
    return claimed


def put(claimed: Claimed, kind: EndKind) -> tuple[Finaliser, Heard]:
    heard = Heard()
    finaliser = Finaliser(lambda: pytest.fail("connected"), heard, AUTHOR)
    held = HeldClaim(str(claimed.claim_id), 0.0, len(claimed.jobs), 1e12)
    runs = [HeldRun(each, held, fresh_until=1e12) for each in claimed.jobs]
    ends = claimed.ends(outcome="abandoned" if kind == END else "", **TIMED_OUT)
    finaliser.put_many(kind, list(zip(runs, ends, strict=True)))
    return finaliser, heard


def lose_the_answer(monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
    """Break the connection at the next write: before the server has got it, or after it has committed."""
    write = kinds.write

    def broken(*args: Any, **options: Any) -> dict[int, Any]:
        monkeypatch.setattr(kinds, "write", write)
        if committed:
            write(*args, **options)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(kinds, "write", broken)


@pytest.mark.parametrize(("kind", "most"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("lost", ["no answer", "an answer"])
def test_what_a_rescue_wrote_is_not_told_as_our_own_end(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, link: WorkerConnection, kind: EndKind, most: int, lost: str
) -> None:
    """C39 C58: the same job, claim and cause; and the connection broke meanwhile, or it did not."""
    claimed = overdue(raw, most)
    finaliser, heard = put(claimed, kind)
    if lost == "an answer":
        lose_the_answer(monkeypatch, committed=False)
        with pytest.raises(psycopg.OperationalError):
            finaliser._flush(link)
    assert len(rescue(raw, overdue=claimed.fences())) == 3
    finaliser._flush(link)
    assert (heard.told("stored"), sorted(heard.told("lost"))) == ([], claimed.ids)
    assert {(attempt.cause, attempt.exception) for attempt in Attempt.objects.all()} == {("timeout", "")}


@pytest.mark.parametrize(("name", "line"), lines_of("a.exception = ''", ["read_fences"]), ids=line_id)
def test_without_that_line_it_would_be(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, link: WorkerConnection, name: str, line: str
) -> None:
    """The sabotaged twin of the test above."""
    sabotage(monkeypatch, name, line, "a.cause")
    claimed = overdue(raw, 5)
    finaliser, heard = put(claimed, RETRY)
    lose_the_answer(monkeypatch, committed=False)
    with pytest.raises(psycopg.OperationalError):
        finaliser._flush(link)
    rescue(raw, overdue=claimed.fences())
    finaliser._flush(link)
    assert sorted(heard.told("stored")) == claimed.ids


@pytest.mark.parametrize(("kind", "most"), KINDS.values(), ids=KINDS)
def test_our_own_end_whose_answer_was_lost_is_told_once(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, link: WorkerConnection, kind: EndKind, most: int
) -> None:
    claimed = overdue(raw, most)
    finaliser, heard = put(claimed, kind)
    lose_the_answer(monkeypatch, committed=True)
    with pytest.raises(psycopg.OperationalError):
        finaliser._flush(link)
    finaliser._flush(link)
    assert (sorted(heard.told("stored")), heard.told("lost")) == (claimed.ids, [])
    assert finaliser.writer.unanswered == set()


@pytest.mark.parametrize("kind", [RETRY, END, DELETE])
def test_an_end_that_was_never_sent_before_cannot_have_been_stored(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, link: WorkerConnection, kind: EndKind
) -> None:
    """Whatever the row says: here somebody has written just what we would have."""
    claimed = overdue(raw, 5)
    finaliser, heard = put(claimed, kind)
    ends = claimed.ends(outcome="abandoned", **TIMED_OUT)
    finalising.finalise_end(raw, ends, AUTHOR)
    finaliser._flush(link)
    assert (heard.told("stored"), sorted(heard.told("lost"))) == ([], claimed.ids)
