"""Many jobs, end to end: everything is done once, in order, and what cannot be stored spoils nothing else."""

from __future__ import annotations

import random
import re
import string
from datetime import datetime
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgjobs import Unique, register_many
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.models import Job
from django_pgjobs.models.attempts import Claim
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import Background, RawDatabase, patience, wait_until
from tests.plugins.fix_worker import Workers, ended, history, read


def test_a_mixed_batch_is_done_and_leaves_nothing_but_its_rows(worker: Workers, stage: Stage) -> None:
    """A2 A13 A23 C31 C33 W33: every kind of end once, then a worker that has nothing left."""
    good = [jobs.effect.register(n) for n in range(20)] + [jobs.aeffect.register(n) for n in range(20, 40)]
    failing, snoozing = jobs.doomed.register(), jobs.steers.register("snooze long")
    cancelled, abandoned = jobs.steers.register("cancel"), jobs.steers.register("abandon")
    process = worker("--until-idle", ready=False)
    assert process.wait() == 0, process.log
    assert stage.count("effect") == 40
    assert [job.result for job in ended(*good)] == list(range(40))
    assert all(job.outcome == "succeeded" and job.duration_seconds is not None for job in ended(*good))
    assert (read(failing).outcome, history(failing)) == ("abandoned", [(1, "failed"), (2, "failed")])
    assert read(cancelled).outcome == "cancelled"
    assert read(abandoned).outcome == "abandoned"
    assert read(snoozing).state == "ready", "a later start does not count for --until-idle"
    assert not Claim.objects.exists()


def test_two_thousand_jobs_over_two_processes_have_every_effect_exactly_once(worker: Workers, stage: Stage) -> None:
    """A66 A67 A68: counted outside of the database, by lines the jobs appended."""
    keys = [f"k{n}" for n in range(2000)]
    worker(processes=2)
    register_many(jobs.effect.bind(key) if n % 4 else jobs.aeffect.bind(key) for n, key in enumerate(keys))
    wait_until(lambda: not Job.objects.filter(finished_at=None).exists(), 60, "all have ended")
    assert sorted(trace.words[1] for trace in stage.traces("effect")) == sorted(keys)
    assert Job.objects.filter(outcome="succeeded", attempt=1).count() == 2000
    assert len({trace.pid for trace in stage.traces("effect")}) == 2
    wait_until(lambda: not Claim.objects.exists(), 5, "no ledger row is left")


def test_larger_priority_first_then_the_earlier_instant(worker: Workers, stage: Stage) -> None:
    """P5: one thread, so the order of the starts is the order of the claim."""
    rows = [(priority, minutes) for priority in (-5, 0, 7, 100) for minutes in (3, 2, 1)]
    random.shuffle(rows)
    for priority, minutes in rows:
        job = jobs.effect.using(priority=priority).register(f"{priority}/{minutes}")
        Job.objects.filter(pk=job.pk).update(run_at=job.run_at.replace(minute=0, second=minutes, year=2020))
    process = worker("--until-idle", threads=1, ready=False)
    assert process.wait() == 0, process.log
    expected = [f"{priority}/{minutes}" for priority in (100, 7, 0, -5) for minutes in (1, 2, 3)]
    assert [trace.words[1] for trace in stage.traces("effect")] == expected


def test_a_worker_needs_few_statements_a_job(worker: Workers) -> None:
    """§6 of the design: batches, not statements a job; the worker counts them itself."""
    register_many(jobs.no_op.bind() for _ in range(5000))
    process = worker("--until-idle", ready=False)
    assert process.wait(60) == 0, process.log
    found = re.search(r"jobs=(\d+) refused=0 statements=(\d+)", process.log)
    assert found is not None, process.log
    assert int(found[1]) == 5000
    assert int(found[2]) / 5000 <= 0.05, process.log


def test_no_postponed_call_is_lost_beside_a_worker(worker: Workers, background: Background) -> None:
    """After the last call of each key its job starts once more: waiting jobs move, started ones get a follower."""
    worker(processes=1, threads=2)
    keys = [f"k{n}" for n in range(4)]

    def calls() -> dict[str, datetime]:
        called: dict[str, datetime] = {}
        for n in range(120):
            key = keys[n % len(keys)]
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT statement_timestamp()")
                called[key] = cursor.fetchone()[0]
                jobs.effect.using(unique=Unique(key, on_conflict="postpone"), delay=(n % 7) / 100).register(key)
        return called

    both = [background(calls), background(calls)]
    last = [call.result(patience(60)) for call in both]
    wait_until(lambda: not Job.objects.filter(finished_at=None).exists(), 60, "all have ended")
    for key in keys:
        newest = Job.objects.filter(key=key).order_by("-claimed_at")[0]
        assert newest.outcome == "succeeded"
        assert newest.claimed_at is not None
        assert newest.claimed_at >= max(each[key] for each in last)
    assert Job.objects.count() < 240, "some calls moved a waiting job"


UNSTORABLE = ["object", "recursive", "huge", "surrogate", "nul", "nan", "deep", "integer"]


def test_results_that_cannot_be_stored_end_their_strict_job_and_no_other(worker: Workers, stage: Stage) -> None:
    """A46 C31 P31: abandoned without a retry, for the work was done; the rest of the batch goes on."""
    poison = {what: jobs.returns_strictly.register(what) for what in UNSTORABLE}
    good = [jobs.returns.register("good") for _ in range(50)]
    large = jobs.returns.register("large")
    process = worker("--until-idle", ready=False)
    assert process.wait() == 0, process.log
    ends = {what: (read(job).outcome, read(job).attempt) for what, job in poison.items()}
    stored = {what for what, end in ends.items() if end == ("succeeded", 1)}
    assert stored <= {"integer"}, ends
    assert all(end == ("abandoned", 1) for what, end in ends.items() if what not in stored), ends
    assert all("UnstorableResult" in read(job).error for what, job in poison.items() if what not in stored)
    assert all(stage.count("returns", what) == 1 for what in UNSTORABLE)
    assert {read(job).outcome for job in good} == {"succeeded"}
    assert read(good[0]).result == {"rows": [1, 2.5, None, "ü"], "ok": True}
    assert read(large).result == "ü" * 500_000


def test_results_that_cannot_be_stored_say_why_instead(worker: Workers, stage: Stage) -> None:
    """Whoever finds out, the encoder or PostgreSQL: the job succeeds, once, and the log names the job."""
    poison = {what: jobs.returns.register(what) for what in UNSTORABLE}
    good = jobs.returns.register("good")
    process = worker("--until-idle", ready=False)
    assert process.wait() == 0, process.log
    rows = {what: read(job) for what, job in poison.items()}
    assert {(row.outcome, row.attempt, row.error) for row in rows.values()} == {("succeeded", 1, "")}
    assert {what for what, row in rows.items() if "$unstored" not in (row.result or ())} <= {"integer"}
    assert {job.value() for what, job in poison.items() if what != "integer"} == {None}
    assert all(stage.count("returns", what) == 1 for what in UNSTORABLE)
    assert read(good).result == {"rows": [1, 2.5, None, "ü"], "ok": True}
    assert "result dropped, the job succeeds without one name=tests.e2e.jobs.returns job=" in process.log


def test_a_result_with_its_own_opinions_about_leaving_ends_its_job_only(worker: Workers) -> None:
    """C28: ``SystemExit`` out of the value's own method while it is encoded."""
    broken, good = jobs.returns.register("broken"), jobs.effect.register(1)
    process = worker("--until-idle", ready=False)
    assert process.wait() == 0, process.log
    assert read(broken).finished_at is not None or read(broken).attempt >= 1
    assert read(good).outcome == "succeeded"


def test_payloads_of_any_size_arrive_whole(worker: Workers) -> None:
    """A45: a small one in the frame, one over 64 KiB and one of nearly 1 MiB read by the executor."""
    noise = "".join(random.choices(string.printable + "äöü€", k=1_000_000))[:780_000]
    texts = ["x" * 100, "x" * 60_000, noise[:70_000], "y" * 1_000_000, noise]
    registered = [
        jobs.swallows.register(text, blob=b"\x00\xff" * 10) for text in texts if len(text.encode()) < 1_048_000
    ]
    process = worker("--until-idle", ready=False)
    assert process.wait() == 0, process.log
    assert [read(job).result for job in registered] == [[len(text), 20] for text in texts][: len(registered)]


def test_three_hundred_async_jobs_at_once_on_one_loop(worker: Workers) -> None:
    """Async jobs hold slots, not threads: 300 that sleep a second take little more than one."""
    registered = [jobs.aeffect.bind(n, seconds=1) for n in range(300)]
    register_many(registered)
    process = worker("--until-idle", "--async-slots=300", ready=False)
    assert process.wait() == 0, process.log
    traces = process.stage.traces("effect")
    assert len(traces) == 300
    assert traces[-1].at - traces[0].at < patience(1.5)


COLOURS = [(jobs.awaits, jobs.effect), (jobs.waits, jobs.aeffect)]
"""What fills all places of one colour until its gate opens, and a job of the other colour."""


def starts_behind(
    worker: Workers, stage: Stage, count: int, waiting: JobDefinition[..., Any], short: JobDefinition[..., Any]
) -> None:
    """Behind so many jobs that wait for places, those of the other colour start at once; nothing is hoarded."""
    register_many(waiting.bind("gate") for _ in range(count))
    worker(threads=4, conf={"POLL_SECONDS": 60})
    wait_until(lambda: stage.count("start", "gate") >= 4, 30, "they take up all places of theirs")
    for turn in range(3):
        ended(*(short.register(f"{turn}/{n}") for n in range(5)), timeout=5)
    assert stage.count("end", "gate") == 0
    claimed = Job.objects.filter(finished_at=None).exclude(claim_id=None).count()
    assert claimed <= 60, "no more than there is room for"
    Job.objects.filter(claim_id=None, finished_at=None).cancel()
    stage.open("gate")


@pytest.mark.parametrize(("waiting", "short"), COLOURS, ids=["threads", "loop"])
def test_a_job_waits_for_nobody_of_the_other_colour(
    worker: Workers, stage: Stage, waiting: JobDefinition[..., Any], short: JobDefinition[..., Any]
) -> None:
    """D18, A67: 2,000 stand before it, and their places are full for as long as it takes."""
    starts_behind(worker, stage, 2000, waiting, short)


@pytest.mark.slow
@pytest.mark.parametrize(("waiting", "short"), COLOURS, ids=["threads", "loop"])
def test_a_job_waits_for_nobody_of_a_hundred_thousand_of_the_other_colour(
    worker: Workers, stage: Stage, waiting: JobDefinition[..., Any], short: JobDefinition[..., Any]
) -> None:
    starts_behind(worker, stage, 100_000, waiting, short)


def test_a_worker_ends_exactly_as_many_jobs_of_both_colours_as_it_was_told(worker: Workers, stage: Stage) -> None:
    """A33: though each colour has room for all of them."""
    register_many(definition.bind(n) for n in range(6) for definition in (jobs.effect, jobs.aeffect))
    process = worker("--max-jobs=7", ready=False)
    assert process.wait() == 0, process.log
    assert stage.count("effect") == 7
    assert Job.objects.filter(outcome="succeeded").count() == 7


def test_one_claim_fails_on_data_and_the_rest_goes_on(worker: Workers, raw: RawDatabase) -> None:
    """W10 D21: a row whose deadline cannot be computed is parked with the reason, the others run."""
    poison = jobs.effect.register("poison")
    raw.query("UPDATE pgjobs_job SET timeout_seconds = 1e300 WHERE id = %s", [poison.pk])
    good = [jobs.effect.register(n) for n in range(20)]
    process = worker("--until-idle", ready=False)
    assert process.wait() == 0, process.log
    assert {read(job).outcome for job in good} == {"succeeded"}
    assert read(poison).state == "parked", process.log
    assert "claim of this row fails" in read(poison).hold_reason
