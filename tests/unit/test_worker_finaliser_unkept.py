"""Ends of which nothing is kept, and those whose results are kept under a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from django_pgjobs.ends.kinds import DELETE, END, SUCCESS, EndKind
from django_pgjobs.store.finalising import Author, End
from django_pgjobs.worker.threads.finaliser import (
    Finaliser,
)
from django_pgjobs.worker.threads.inbox_messages import Stored
from tests.unit.finaliser_ground import FAILURE, Link, Server, break_at, flush, put
from tests.unit.worker_fakes import Heard, run_of


@pytest.fixture
def unkept(settings: Any, server: Server, heard: Heard) -> Finaliser:
    """A finaliser that deletes successes, and of the queue bulk whatever ends."""
    nothing = {"succeeded": 0, "cancelled": 0, "abandoned": 0}
    settings.PGJOBS = {"RETENTION": {"succeeded": 0, "queues": {"bulk": nothing, "bill": {"succeeded": 9}}}}
    return Finaliser(lambda: pytest.fail("connected"), heard, Author(UUID(int=1)))


def put_both(finaliser: Finaliser, queue: str) -> None:
    finaliser.put(SUCCESS, run_of(1, queue=queue), End(1, "claim-1", 1.0, result="1"))
    finaliser.put(END, run_of(2, queue=queue), End(2, "claim-2", 1.0, outcome="abandoned", failure=FAILURE))


@pytest.mark.parametrize(
    ("queue", "written"),
    [
        ("default", [(END, [2]), (DELETE, [1])]),
        ("bulk", [(DELETE, [1, 2])]),
        ("bill", [(SUCCESS, [1]), (END, [2])]),
    ],
)
def test_what_is_not_kept_is_deleted(
    unkept: Finaliser, server: Server, heard: Heard, queue: str, written: list[tuple[EndKind, list[int]]]
) -> None:
    """P28 X7: by outcome and queue; told as what it was."""
    put_both(unkept, queue)
    flush(unkept)
    assert server.writes == written
    assert {(stored.kind, entry[0].job.id) for stored in heard.of(Stored) for entry in stored.entries} == {
        (SUCCESS, 1), (END, 2),
    }  # fmt: skip
    assert unkept.count == 0


def test_what_cannot_be_deleted_at_once_is_ended_and_kept(unkept: Finaliser, server: Server, heard: Heard) -> None:
    """Somebody waits for it, or has it locked: no second try at deleting."""
    server.locked = {1}

    def unlock(kind: EndKind, ends: Sequence[End]) -> None:
        if kind == SUCCESS:
            server.locked = set()

    server.fails = unlock
    put_both(unkept, "bulk")
    flush(unkept)
    assert server.writes == [(DELETE, [1, 2]), (SUCCESS, [1])]
    assert sorted(heard.told("stored")) == [1, 2]


@pytest.mark.parametrize(
    "objection", [psycopg.errors.ForeignKeyViolation("still"), psycopg.errors.RaiseException("no")]
)
def test_what_another_table_or_a_trigger_holds_is_ended_and_kept(
    unkept: Finaliser, server: Server, heard: Heard, objection: Exception
) -> None:
    """A success is no failure because its row cannot go."""

    def refuse(kind: EndKind, ends: Sequence[End]) -> None:
        if kind == DELETE:
            raise objection

    server.fails = refuse
    put_both(unkept, "bulk")
    flush(unkept)
    assert server.writes == [(DELETE, [1, 2]), (SUCCESS, [1]), (END, [2])]
    assert sorted(heard.told("stored")) == [1, 2]


def test_a_row_that_is_gone_after_an_answer_was_lost_was_deleted_by_that_try(
    unkept: Finaliser, server: Server, heard: Heard
) -> None:
    """C39 C58: done before, never lost."""
    link = Link()
    server.fails = break_at(link, DELETE)
    put_both(unkept, "bulk")
    with pytest.raises(psycopg.OperationalError):
        flush(unkept, link)
    server.gone = {1, 2}
    flush(unkept, Link())
    assert (sorted(heard.told("stored")), heard.told("lost"), unkept.writer.unanswered) == ([1, 2], [], set())


def test_so_it_is_when_its_end_has_gone_over_to_the_other_statement_meanwhile(
    unkept: Finaliser, server: Server, heard: Heard
) -> None:
    """The first try may still be at it, and commits after the second has found its row locked."""
    link = Link()
    server.fails = break_at(link, DELETE)
    put_both(unkept, "bulk")
    with pytest.raises(psycopg.OperationalError):
        flush(unkept, link)
    server.locked = {1, 2}
    flush(unkept, Link())
    assert heard.posts == []
    server.locked, server.gone = set(), {1, 2}
    unkept.busy.until = 0.0
    flush(unkept, Link())
    assert server.writes[-2:] == [(SUCCESS, [1]), (END, [2])]
    assert (sorted(heard.told("stored")), heard.told("lost")) == ([1, 2], [])


def test_a_row_that_is_gone_though_no_answer_was_lost_is_another_ones_doing(
    unkept: Finaliser, server: Server, heard: Heard
) -> None:
    """C2 C39: rescued, run and deleted by another worker; a statement that the server gave up deletes nothing."""
    link = Link()

    def give_up(kind: EndKind, ends: Sequence[End]) -> None:
        server.fails = lambda kind, ends: None
        raise psycopg.errors.QueryCanceled("statement timeout")

    server.fails = give_up
    put_both(unkept, "bulk")
    with pytest.raises(psycopg.errors.QueryCanceled):
        flush(unkept, link)
    server.gone = {1, 2}
    flush(unkept, link)
    assert (heard.told("stored"), sorted(heard.told("lost"))) == ([], [1, 2])


def test_results_are_remembered_by_the_batches_that_have_some(
    server: Server, heard: Heard, finaliser: Finaliser
) -> None:
    """The others go by the statement that knows nothing of keys, and nobody looks, until the first key is met."""
    put(finaliser, SUCCESS, 1, 2)
    flush(finaliser)
    finaliser.writer.remembers = True
    put(finaliser, SUCCESS, 3, 4)
    flush(finaliser)
    runs = put(finaliser, SUCCESS, 5, 6, 7)
    runs[1].remembers = True
    flush(finaliser)
    assert server.remembered == [False, False, False, True]
    assert [ids for _, ids in server.writes] == [[1, 2], [3, 4], [5, 7], [6]]
    assert sorted(heard.told("stored")) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", [SUCCESS, DELETE], ids=str)
def test_only_the_ends_beside_those_with_a_key_are_fast(server: Server, finaliser: Finaliser, kind: EndKind) -> None:
    """A locked row among those with a key is skipped, and makes no batch wait."""
    finaliser.writer.remembers = True
    for run in put(finaliser, kind, 1, 2, 3)[1:]:
        run.remembers = True
    server.locked = {2}
    flush(finaliser)
    assert server.writes[:2] == [(kind, [1]), (kind, [2, 3])]
    assert not finaliser.writer.skips_locked


def test_where_the_ends_with_a_key_fail_the_others_are_written_once(
    server: Server, heard: Heard, finaliser: Finaliser
) -> None:
    def fails(kind: EndKind, ends: Sequence[End]) -> None:
        if ends[0].id == 2:
            server.fails = lambda kind, ends: None
            raise psycopg.errors.QueryCanceled("statement timeout")

    server.fails, finaliser.writer.remembers = fails, True
    put(finaliser, SUCCESS, 1, 2)[1].remembers = True
    with pytest.raises(psycopg.errors.QueryCanceled):
        flush(finaliser)
    flush(finaliser)
    assert [ids for _, ids in server.writes] == [[1], [2], [2]]
    assert heard.told("stored") == [1, 2]
