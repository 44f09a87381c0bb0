"""One bad job among many: it is found by halves on one executor, while the worker goes on."""

from __future__ import annotations

from django_pgjobs import register_many
from django_pgjobs.models import Attempt, Job
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, history, read

MOST_STARTS = 8
"""One beside all the others, then by halves of 46: 23, 12, 6, 3, 2, 1; and once more where a half held two places."""


def test_one_bad_job_among_forty_six_costs_few_reruns_while_the_worker_goes_on(worker: Workers, stage: Stage) -> None:
    """D18: nobody but the guilty one is charged, though each has one attempt only."""
    process = worker(processes=2, threads=2, conf={"POLL_SECONDS": 60})
    wait_until(lambda: len(process.ready_executors()) == 2, 30, "both executors are ready")
    # Spread over both executors: 46 on each.
    ids = register_many(jobs.anaps.bind("dies" if n == 60 else n, 2.0) for n in range(92))
    guilty = Job.objects.get(pk=ids[60])
    wait_until(lambda: "in company" in process.log, 20, "their executor has died")
    beside = 0
    while not read(guilty).finished_at:
        ended(jobs.effect.register(f"beside {beside}"), jobs.anaps.register("beside", 0.0))
        beside += 1
    assert beside > 3, "others were claimed and ran meanwhile"
    ended(*Job.objects.filter(pk__in=ids), timeout=60)
    assert history(guilty) == [(1, "crashed")]
    others = Job.objects.filter(pk__in=ids).exclude(pk=guilty.pk)
    assert others.filter(outcome="succeeded", attempt=1).count() == 91
    assert Attempt.objects.count() == 1
    starts = [stage.count("start", pk) for pk in ids]
    assert max(starts) <= MOST_STARTS, starts
    assert sum(starts) <= 46 + 46 * 4, "each half, not each job, cost a start of those in it"
