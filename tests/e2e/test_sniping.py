"""Exceptions from outside, in the threads of a real worker, while they run no job's code."""

from __future__ import annotations

import random
import re

import pytest

from django_pgjobs.models import Job
from tests.e2e import jobs, sniping
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, history

STRIKES, THREADS = 300, 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exceptions_between_jobs_cost_no_record_and_no_thread(worker: Workers, stage: Stage) -> None:
    """Each attempt is recorded, each thread serves on, no process dies, and a neighbour notices nothing."""
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed={seed}")  # noqa: T201 (shown when it fails)
    working = worker(processes=2, threads=THREADS, env={"PGJOBS_TEST_SNIPING": str(seed)})
    working_beside = [jobs.waits.register("beside") for _ in range(2)]
    wait_until(lambda: stage.count("start", "beside") == 2, 30, "the neighbours run")
    worker.expect("executor failed around", "cannot tidy up")
    registered: list[Job] = []
    while stage.count("strike") < STRIKES:
        batch = [kind.register(number) for number in range(20) for kind in (sniping.returns, sniping.reads)]
        ended(*batch, timeout=60)
        registered += batch
    stage.open("peace")
    numbers = {job.pk: index % 40 // 2 for index, job in enumerate(registered)}
    for after in ended(*registered):
        assert (after.outcome, after.result) == ("succeeded", numbers[after.pk])
        attempts = history(after)
        assert [attempt for attempt, _ in attempts] == list(range(1, after.attempt))
        assert {outcome for _, outcome in attempts} <= {"failed"}
    stage.open("beside")
    assert [(after.outcome, after.attempt) for after in ended(*working_beside)] == [("succeeded", 1)] * 2
    words = "executor killed|executor ended|does not leave|does not answer"
    assert [line for line in working.log.splitlines() if re.search(words, line)] == []
    wait_until(lambda: len(working.ready_executors()) == 2, 60, "no executor is being recycled")
    crowd = [jobs.waits.register("crowd") for _ in range(2 * THREADS)]
    wait_until(lambda: stage.count("start", "crowd") == len(crowd), 60, "each thread runs a job")
    stage.open("crowd")
    ended(*crowd)
    charged = sum(job.attempt - 1 for job in ended(*registered))
    print(  # noqa: T201 (the figures)
        f"strikes={stage.count('strike')} jobs={len(registered)} charged={charged}"
        f" struck={working.log.count('exception from outside')} recycled={working.log.count('has been recycled')}"
    )
