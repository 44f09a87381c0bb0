"""Real workers and the shell: the leader keeps figures, a probe is content, and a job says why it does not run."""

from __future__ import annotations

from django_pgjobs.models.workers import Statistic
from tests.db.test_health import problems
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import Workers
from tests.plugins.shell import pgjobs


def test_a_worker_makes_a_probe_content_and_keeps_figures(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """W1 P28: it leads, so the figures are there soon; a job that runs is told of with the name of its worker."""
    waiting = jobs.waits.register("w")
    assert waiting.why().code == "no_worker"
    assert ("no_worker", "default") in problems()
    process = worker("--name", "web-1")
    wait_until(lambda: stage.count("start", "w"), 30, "the job runs")
    counted = Statistic.objects.filter(figures__workers__live=1)
    wait_until(counted.exists, 60, "the leader has counted itself")
    assert problems() == [], process.log
    assert waiting.why().code == "running"
    assert "Worker web-1 claimed it " in pgjobs("why", waiting.pk)[1]
    assert counted.get().worker_name == "web-1"
    stage.open("w")
    wait_until(lambda: waiting.why().code == "succeeded", 30, "the job has ended")
