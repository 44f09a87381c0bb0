"""Lines of jobs that a lock holds up: they wait, ends do not, and a worker that leaves tries them once more."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from django_pgjobs.ends import kinds
from django_pgjobs.models import Job
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldClaim
from django_pgjobs.worker.threads import line_writer
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.line_writer import LineWriter
from tests.db.test_log_lines import held, kept, line, put
from tests.plugins.fix_db import AUTHOR, Claimed, RawDatabase, wait_until
from tests.unit.worker_fakes import Heard, run_of

pytestmark = pytest.mark.usefixtures("committed")


def test_what_a_lock_holds_up_is_written_later_and_before_what_came_behind_it(
    raw: RawDatabase, other: RawDatabase
) -> None:
    writer, locked, free = LineWriter(), held(raw), held(raw)
    put(writer, locked, line(1))
    put(writer, free, line(5))
    other.query("SELECT FROM pgjobs_job WHERE id = %s FOR UPDATE", locked.ids)
    taken = writer.take()
    line_writer.write(raw, taken)
    writer.put_back(taken, fresh=False)
    assert (kept(), writer.fresh) == (["line 5"], False)
    put(writer, locked, line(2))
    assert writer.chars == sum(len(text) for *_, text in writer.queued)
    [(_, _, _, text)] = taken = writer.take()
    assert [row["number"] for row in json.loads(text)] == [1, 2], "one lock, one answer for both"
    other.rollback()
    line_writer.write(raw, taken)
    assert taken == []
    assert kept(locked.ids[0]) == ["line 1", "line 2"]


@pytest.mark.parametrize("bound", ["lock_timeout", "statement_timeout"])
def test_lines_wait_for_a_table_that_is_locked(raw: RawDatabase, other: RawDatabase, bound: str) -> None:
    """Whichever bound ends the statement that met the lock."""
    writer, one, two = LineWriter(), held(raw), held(raw)
    put(writer, one, line(1))
    put(writer, two, line(2))
    taken = writer.take()
    raw.query(f"SET {bound} = '10ms'")
    other.query("LOCK TABLE pgjobs_log_line")
    line_writer.write(raw, taken)
    assert len(taken) == 2
    other.rollback()
    raw.query(f"RESET {bound}")
    line_writer.write(raw, taken)
    assert (taken, kept()) == ([], ["line 1", "line 2"])


@pytest.fixture
def finaliser() -> Iterator[Finaliser]:
    """The thread of a worker, started by its first lines."""
    new = Finaliser(lambda: WorkerConnection("default", "pgjobs test", statement_seconds=60), Heard(), AUTHOR)
    yield new
    new.stop()
    new.join(60)


ROW, TABLE = "SELECT FROM pgjobs_job FOR UPDATE", "LOCK TABLE pgjobs_log_line"


def held_up(finaliser: Finaliser, claimed: Claimed, *rows: list[object]) -> None:
    """Let it log lines of a job, and wait until a lock has held them up."""
    finaliser.log(claimed.ids[0], str(claimed.claim_id), list(rows), first=True)
    finaliser.start()
    wait_until(lambda: finaliser.lines.queued and not finaliser.lines.fresh, 20, "they are locked out")


@pytest.mark.parametrize("lock", [ROW, TABLE], ids=["row", "table"])
def test_lines_that_a_lock_held_up_are_tried_again_though_nothing_else_comes(
    raw: RawDatabase, other: RawDatabase, finaliser: Finaliser, lock: str
) -> None:
    claimed = held(raw)
    other.query(lock)
    held_up(finaliser, claimed, line(1))
    other.rollback()
    wait_until(lambda: kept() == ["line 1"], 20, "it tries again")
    assert finaliser.connections == 1


def test_ends_wait_for_no_lock_of_the_table_of_lines(
    raw: RawDatabase, other: RawDatabase, finaliser: Finaliser
) -> None:
    """Such as that of a VACUUM FULL: only the lines wait, and those that come in the meantime."""
    claimed = held(raw)
    other.query(TABLE)
    held_up(finaliser, claimed, line(1))
    for number, each in enumerate([held(raw) for _ in range(5)], 5):
        [(job_id, claim_id)], [end] = each.fences(), each.ends(result="1")
        finaliser.log(job_id, claim_id, [line(number)], first=True)
        finaliser.put(kinds.SUCCESS, run_of(job_id, claim=HeldClaim(claim_id, 0.0, 1), logged=True), end)
        wait_until(lambda: not finaliser.count, 20, "it ends")
    assert Job.objects.filter(outcome="succeeded").count() == 5
    other.rollback()
    wait_until(lambda: len(kept()) == 6, 20, "all are written")
    assert kept(claimed.ids[0]) == ["line 1"]


@pytest.mark.parametrize("lock", [ROW, TABLE], ids=["row", "table"])
def test_a_worker_that_leaves_tries_lines_that_were_held_up_once_more(
    raw: RawDatabase, other: RawDatabase, finaliser: Finaliser, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr(line_writer, "PAUSE_SECONDS", 3600.0)
    claimed = held(raw)
    other.query(lock)
    held_up(finaliser, claimed, line(1))
    other.rollback()
    finaliser.stop()
    finaliser.join(60)
    assert kept() == ["line 1"]


@pytest.mark.parametrize("lock", [ROW, TABLE], ids=["row", "table"])
def test_a_worker_that_leaves_says_which_lines_it_could_not_write(
    raw: RawDatabase, other: RawDatabase, finaliser: Finaliser, caplog: pytest.LogCaptureFixture, lock: str
) -> None:
    claimed = held(raw)
    other.query(lock)
    held_up(finaliser, claimed, line(1), line(2))
    finaliser.stop()
    finaliser.join(60)
    [said] = [record.getMessage() for record in caplog.records if "lines of jobs" in record.msg and record.levelno > 10]
    assert said == "lines of jobs could not be written before the worker left, dropped jobs=1 lines=2"
