"""``next_step``: the row of a job becomes its next step, and the finished one is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_pgjobs import job as define
from django_pgjobs.ends.kinds import NEXT
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job, Step
from django_pgjobs.store import admitting, finalising, pruning
from django_pgjobs.store.database import Database, on
from django_pgjobs.store.finalising import SteppedJob
from django_pgjobs.testing import isolated_registry, run_jobs
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldClaim, HeldRun
from django_pgjobs.worker.threads.finaliser import Finaliser
from django_pgjobs.worker.threads.inbox_messages import RefusedEnds
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    Background,
    Claimed,
    RawDatabase,
    blocked_by,
    claim,
    from_the_beginning,
    job,
    patience,
    register,
    wait_until,
)  # fmt: skip
from tests.unit.worker_fakes import Heard

NAME = "test.next"
COLUMNS = {"name": NAME, "queue": "default", "max_attempts": 7, "payload": {"args": [2], "kwargs": {}}}


def columns(**changed: Any) -> str:
    return json.dumps({**COLUMNS, **changed})


def steps(db: Database, claimed: Claimed, **changed: Any) -> list[SteppedJob]:
    return finalising.next_step(db, claimed.ends(columns=columns(**changed), seconds=1.5), AUTHOR)


def now(db: RawDatabase) -> datetime:
    found: datetime = db.value("SELECT statement_timestamp()")
    return found


# The row


def test_the_row_becomes_the_next_step_and_the_finished_one_is_kept(raw: RawDatabase) -> None:
    """P29, P34: due at once, nobody's, with its own attempts; what the job had from its registration stays."""
    [one] = register(priority=3, headers='{"trace": 1}', description="report of May", timeout_seconds=9.0)
    claimed = claim(raw, 1, from_the_beginning(("default", 3)))
    raw.query("UPDATE pgjobs_job SET key = 'k', tags = '[\"a\"]', error = 'old', suspect_attempt = 1, progress = '1'")
    before, at = raw.row(one), now(raw)
    [row] = steps(raw, claimed)
    after = raw.row(one)
    assert (row.id, row.queue, row.priority, row.due, row.refused) == (one, "default", 3, True, False)
    assert at <= row.run_at <= now(raw)
    changed = {column for column in after if after[column] != before[column]}
    assert changed == {
        "name", "payload", "max_attempts", "timeout_seconds", "attempt", "claim_id", "overdue_at", "run_at", "error",
        "suspect_attempt", "progress", "worker", "flow", "state",
    }  # fmt: skip
    assert (after["name"], after["payload"], after["max_attempts"]) == (NAME, COLUMNS["payload"], 7)
    assert (after["state"], after["attempt"], after["timeout_seconds"], after["flow"]) == ("ready", 0, None, 8)
    kept = Step.objects.get()
    assert (kept.job_id, kept.name, kept.queue, kept.attempt) == (one, "test.job", "default", 1)
    assert (kept.payload, kept.claim_id, kept.duration_seconds) == (before["payload"], claimed.claim_id, 1.5)
    assert (kept.worker, kept.worker_name, str(kept)) == (AUTHOR.worker, AUTHOR.name, f"test.job of job {one}")
    [again] = claim(raw, 1, from_the_beginning(("default", 3))).jobs
    assert (again.id, again.name, again.attempt, again.max_attempts) == (one, NAME, 1, 7)


def test_a_delay_is_counted_by_the_servers_clock(raw: RawDatabase) -> None:
    """P30."""
    register(2)
    first, second = claim(raw), claim(raw)
    [row] = steps(raw, first, delay=60.0)
    assert not row.due
    assert raw.value("SELECT run_at - statement_timestamp() BETWEEN '59 s' AND '60 s' FROM pgjobs_job WHERE id = %s", [
        row.id
    ])  # fmt: skip
    [row] = steps(raw, second, run_at="2127-01-01T00:00:00+00:00")
    assert not row.due
    assert raw.value("SELECT run_at = '2127-01-01 00:00Z' FROM pgjobs_job WHERE id = %s", [row.id])


def test_a_limited_step_waits_to_be_admitted_and_takes_the_priority_that_it_asks_for(raw: RawDatabase) -> None:
    """P29: the limits are those of the step, and a slot of the step before is free."""
    [one] = register(limit_key="old")
    admitting.admit_one(raw, one)
    claimed = claim(raw)
    [row] = steps(raw, claimed, limit_key="new", priority=5, queue="web", options={"on_crash": "abandon"})
    assert (row.queue, row.priority) == ("web", None)
    after = raw.row(one)
    assert (after["hold"], after["limit_key"], after["priority"]) == ("limited", "new", 5)
    assert after["options"] == {"on_crash": "abandon"}
    admitting.admit_one(raw, one)
    steps(raw, claim(raw, 1, from_the_beginning(("web", 5))))
    assert (raw.row(one)["hold"], raw.row(one)["limit_key"], raw.row(one)["options"]) == (None, None, None)


def test_many_go_on_at_once_beside_a_locked_row(raw: RawDatabase, other: RawDatabase) -> None:
    """C46, P35: the locked one is busy, and goes on when its row is free."""
    ids = register(20)
    claimed = claim(raw, 20)
    other.lock(ids[7])
    assert {row.id for row in steps(raw, claimed)} == {*ids} - {ids[7]}
    other.commit()
    assert [row.id for row in steps(raw, claimed)] == [ids[7]]
    assert sorted(Step.objects.values_list("job_id", flat=True)) == ids
    assert steps(raw, claimed) == []


def test_an_answer_that_was_lost_is_told_from_a_lost_claim(raw: RawDatabase) -> None:
    """C58: the kept step proves that the write came through."""
    [one] = register()
    claimed = claim(raw)
    steps(raw, claimed)
    assert finalising.read_fences(raw, claimed.fences())[one].recorded == "next"
    finalising.release_jobs(raw, claim(raw).ends(), AUTHOR)
    lost = claim(raw)
    finalising.release_jobs(raw, lost.ends(), AUTHOR)
    assert finalising.read_fences(raw, lost.fences())[one].recorded is None


def test_the_first_step_and_the_latest_hundred_are_kept(raw: RawDatabase) -> None:
    register(2)
    claim(raw)
    other_one = claim(raw)
    steps(raw, other_one)
    raw.query("UPDATE pgjobs_job SET run_at = 'infinity' WHERE id = %s", other_one.ids)
    raw.query("UPDATE pgjobs_job SET claim_id = NULL WHERE id <> %s", other_one.ids)
    for number in range(104):
        steps(raw, claim(raw), name=f"step {number + 1}")
    kept = list(Step.objects.exclude(job_id=other_one.ids[0]).order_by("pk").values_list("name", flat=True))
    assert kept == ["test.job", *(f"step {number}" for number in range(4, 104))]
    assert Step.objects.filter(job_id=other_one.ids[0]).count() == 1


# Keys


def with_key(raw: RawDatabase, *ids: int) -> None:
    raw.query("UPDATE pgjobs_job SET unique_key = 'k', key = 'k', key_scope = 'until_finished' WHERE id = ANY (%s)", [
        list(ids)
    ])  # fmt: skip


def test_the_key_goes_on_with_the_job(raw: RawDatabase) -> None:
    [one] = register()
    with_key(raw, one)
    [row] = steps(raw, claim(raw), queue="web")
    assert (row.refused, raw.row(one)["unique_key"]) == (False, "k")


def test_a_job_whose_key_is_taken_in_the_queue_of_its_step_is_abandoned(raw: RawDatabase) -> None:
    """No other job of a queue may have the key; its neighbours go on, and its row says why."""
    one, two, rival = register(3)
    with_key(raw, one)
    claimed = claim(raw, 2)
    raw.query("UPDATE pgjobs_job SET queue = 'web' WHERE id = %s", [rival])
    with_key(raw, rival)
    assert {row.id: row.refused for row in steps(raw, claimed, queue="web")} == {one: True, two: False}
    after = raw.row(one)
    assert (after["name"], after["ending"], after["state"], after["queue"]) == (
        "test.job", "abandoned", "ready", "default",
    )  # fmt: skip
    assert after["error"] == (
        "DuplicateJob: The next step, test.next, cannot enter queue web: another job there has the key k."
    )
    assert set(Step.objects.values_list("job_id", flat=True)) == {two}


@pytest.fixture
def link(committed: None) -> Iterator[WorkerConnection]:
    db = WorkerConnection("default", "pgjobs test finalise", statement_seconds=20)
    yield db
    db.close()


def flushed(finaliser: Finaliser, link: WorkerConnection, heard: Heard) -> list[int]:
    heard.posts.clear()
    finaliser.busy.until = 0.0
    finaliser._flush(link)
    assert not heard.of(RefusedEnds)
    return sorted(heard.told("stored"))


def test_a_key_that_another_session_is_about_to_take_makes_nobody_else_wait(
    raw: RawDatabase, other: RawDatabase, link: WorkerConnection
) -> None:
    """The job is busy until that session has ended, and then the row decides."""
    one, *others = register(8)
    with_key(raw, one)
    claimed = claim(raw, 8)
    other.query("INSERT INTO pgjobs_job (name, payload, queue, key, unique_key) VALUES ('x', '{}', 'web', 'k', 'k')")
    heard = Heard()
    finaliser = Finaliser(lambda: pytest.fail("connected"), heard, AUTHOR)
    held = HeldClaim(str(claimed.claim_id), 0.0, len(claimed.jobs), 1e12)
    runs = [HeldRun(one, held, fresh_until=1e12) for one in claimed.jobs]
    ends = claimed.ends(columns=columns(queue="web"), seconds=1.0, cause=NEXT)
    finaliser.put_many(NEXT, list(zip(runs, ends, strict=True)))
    assert flushed(finaliser, link, heard) == others
    assert flushed(finaliser, link, heard) == []
    other.rollback()
    assert flushed(finaliser, link, heard) == [one]
    assert (raw.row(one)["queue"], raw.row(one)["name"]) == ("web", NAME)
    with pytest.raises(psycopg.errors.UniqueViolation):
        other.query("INSERT INTO pgjobs_job (name, payload, queue, unique_key) VALUES ('x', '{}', 'web', 'k')")


def test_a_key_that_another_session_has_just_committed_refuses_the_step_by_its_name(
    raw: RawDatabase,
    other: RawDatabase,
    link: WorkerConnection,
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key is not in the statement's snapshot, but in the index: the next statement sees it."""
    [one] = register()
    with_key(raw, one)
    claimed = claim(raw)
    other.query("INSERT INTO pgjobs_job (name, payload, queue, key, unique_key) VALUES ('x', '{}', 'web', 'k', 'k')")
    patient = finalising.next_step
    monkeypatch.setattr(
        finalising, "next_step", lambda *args, **_: patient(*args)
    )  # so that it surely waits for the commit
    heard = Heard()
    finaliser = Finaliser(lambda: pytest.fail("connected"), heard, AUTHOR)
    held = HeldClaim(str(claimed.claim_id), 0.0, 1, 1e12)
    [end] = claimed.ends(columns=columns(queue="web"), seconds=1.0, cause=NEXT)
    finaliser.put_many(NEXT, [(HeldRun(claimed.jobs[0], held, fresh_until=1e12), end)])
    written = background(finaliser._flush, link)
    wait_until(lambda: blocked_by(raw, other.pid), 10, "it waits for the key")
    other.commit()
    written.result(patience(20))
    assert (finaliser.count, raw.row(one)["queue"]) == (1, "default"), "busy"
    wait_until(lambda: flushed(finaliser, link, heard) == [] and not finaliser.count, 10, "it is written")
    after = raw.row(one)
    assert (after["outcome"] or after["ending"], "DuplicateJob: The next step" in after["error"]) == ("abandoned", True)


# With the job


def test_a_job_with_steps_is_not_deleted_at_its_end_but_pruned_with_them(raw: RawDatabase) -> None:
    """P28: without retention too: the leader deletes both."""
    one, two = register(2)
    steps(raw, claim(raw))
    claimed = claim(raw, 2)
    assert finalising.finalise_delete(raw, claimed.ends()) == [two]
    assert finalising.finalise_delete_fast(raw, claimed.ends()) == []
    assert finalising.finalise_delete(raw, claimed.ends(), remember=True) == []
    assert finalising.finalise_success(raw, claimed.ends(), AUTHOR) == [one]
    assert pruning.prune_jobs(raw, [one], until="infinity") == [one]
    assert (Job.objects.count(), Step.objects.count()) == (0, 0)


def test_a_retry_goes_on_at_the_failed_step(raw: RawDatabase) -> None:
    """P32: with as many attempts as the step has."""
    [one] = register()
    steps(raw, claim(raw))
    finalising.finalise_end(raw, claim(raw).ends(outcome="abandoned", cause="failed", failure=FAILURE), AUTHOR)
    assert Job.objects.filter(pk=one).retry().changed == 1
    again = job(one)
    assert (again.state, again.name, again.payload, again.steps.count()) == ("ready", NAME, COLUMNS["payload"], 1)


def test_without_its_kept_steps_a_job_is_its_latest_step(raw: RawDatabase) -> None:
    """Older code prunes without them, or somebody deletes them by hand."""
    [one] = register()
    steps(raw, claim(raw))
    Step.objects.all().delete()
    again = job(one).register_again()
    assert (again.name, again.payload) == (NAME, COLUMNS["payload"])


def first_step() -> None: ...


def test_a_job_whose_first_queue_is_gone_says_so(raw: RawDatabase, settings: Any) -> None:
    with isolated_registry():
        made = define(name="test.first")(first_step).using(queue="old").register()
        steps(raw, claim(raw, 1, from_the_beginning(("old", 0))))
        settings.PGJOBS = {**settings.PGJOBS, "QUEUES": ["default"]}
        with pytest.raises(InvalidJob, match=r"job 'test\.first': queue"):
            job(made.pk).register_again()


def test_a_test_case_keeps_its_lock_timeout(db: None, settings: Any) -> None:
    """The finaliser waits 50 ms for a key; a caller's transaction is left as it was."""
    [one] = register()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        claimed = claim(on("default"))
        assert [row.id for row in steps(on("default"), claimed)] == [one]
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("7s",)
    assert run_jobs().parked == [one]
