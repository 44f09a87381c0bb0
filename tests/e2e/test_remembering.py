"""Durable functions in real workers, whose executor is killed behind a statement of theirs: each effect once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from django_pgjobs.models import Job, Memo
from tests.chaos.failpoints import armed
from tests.e2e import remembering
from tests.e2e.remembering import EVERYTHING, approval, everything
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, read

CONF = {"LEASE_SECONDS": 5.0, "RENEW_SECONDS": 1.0, "POLL_SECONDS": 0.5}

WORKERS = 4
"""Each waits up to 15 s before it starts an executor again whose predecessors died soon."""

NEVER = 0


@pytest.fixture(autouse=True)
def table(committed: None) -> Iterator[None]:
    with remembering.laid_out():
        yield


def send(*ids: int) -> None:
    """Send to each job its event if it waits for it."""
    for job_id in Memo.objects.filter(job__in=ids, kind="event", finished_at=None).values_list("job_id", flat=True):
        approval.send(job_id, payload="approved")


def finished(jobs: Sequence[Job], seconds: float) -> None:
    """Send to each job its event once it waits for it, until all have ended."""
    ids = [job.pk for job in jobs]

    def all_ended() -> bool:
        send(*ids)
        return not Job.objects.filter(pk__in=ids, finished_at=None).exists()

    wait_until(all_ended, seconds, f"{len(ids)} durable functions have ended")


def wrong(job: Job) -> list[object]:
    """Return what a job has come to, unless that is what it must: once each, whatever died."""
    after = read(job)
    batches = Job.objects.filter(description=f"gather of job {job.pk}")
    found = [
        after.outcome, after.result, remembering.effects(job.pk), batches.count(),
        Job.objects.filter(parent__in=batches, name="remembering.member").count(),
    ]  # fmt: skip
    return (
        [] if found == ["succeeded", EVERYTHING, ["first", "second", "third"], 1, 2] else [job.pk, *found, after.error]
    )


def test_a_durable_function_in_a_worker(worker: Workers, stage: Stage) -> None:
    """It is suspended three times, and none of its attempts counts."""
    job = everything.register(NEVER)
    worker(conf=CONF)
    finished([job], 30)
    assert wrong(job) == []
    assert (read(job).attempt, stage.count("plain", job.pk)) == (1, 1)
    assert [memo.name for memo in Memo.objects.filter(job=job).order_by("id")] == [
        "plain", "effect", "sleep", "effect[2]", f"remembering.approval:{job.pk}", "fork", "gather", "effect[3]",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [2, 5, 9])
def test_an_executor_that_is_killed_behind_a_statement(worker: Workers, stage: Stage, number: int) -> None:
    """Behind the memo of its first step, in a transaction, and at the sleep, or thereabouts."""
    job = everything.register(number)
    process = worker(conf=CONF)
    finished([job], 60)
    assert stage.count("dies", job.pk, number) == 1
    assert wrong(job) == []
    process.wait_for_log("executor ended, replaced")


@pytest.mark.chaos
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("point", ["suspending", "suspended"])
def test_a_supervisor_that_is_killed_as_it_suspends_a_job(
    worker: Workers, stage: Stage, point: str, after: int
) -> None:
    """Before the sleep, the wait or the gather is written, or before anybody knows that it is: another goes on."""
    deadly = {"DJANGO_SETTINGS_MODULE": "tests.chaos.settings", **armed(**{point: {"do": "kill", "after": after}})}
    first = worker(conf=CONF, env=deadly)
    job = everything.register(NEVER)

    def has_died() -> bool:
        send(job.pk)
        return first.process.poll() is not None

    wait_until(has_died, 30, "the first worker has died")
    worker(conf=CONF)
    finished([job], 60)
    assert wrong(job) == []


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_executors_that_are_killed_behind_every_statement(worker: Workers, stage: Stage, record_property: Any) -> None:
    """As many jobs as one of them sends statements and COMMITs; each dies behind another, and has each effect once."""
    one = everything.register(NEVER)
    for _ in range(WORKERS):
        worker(conf=CONF, threads=1)
    finished([one], 30)
    count = remembering.sent(stage, one.pk)
    assert count > 20
    jobs = [everything.register(number) for number in range(1, count + 1)]
    finished(jobs, 900)
    assert [found for job in jobs if (found := wrong(job))] == []
    record_property("durable_kills", count)
    died = {int(trace.words[1]): trace.words[3] for trace in stage.traces("dies")}
    # One whose event was sent while it came to wait sends fewer statements than the one that counted them.
    assert [
        job.pk
        for job, number in zip(jobs, range(1, count + 1), strict=True)
        if job.pk not in died and remembering.sent(stage, job.pk) >= number
    ] == []
    assert len(died) == stage.count("dies") > 0.8 * count
    assert {"COMMIT", "write_memo", "read_memos", "finish_wait", "begin_gather"} <= set(died.values())
