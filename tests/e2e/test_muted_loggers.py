"""Settings that import the package and configure logging the way most pages show."""

from __future__ import annotations

from tests.e2e import jobs
from tests.plugins.fix_worker import Workers, ended


def test_a_worker_speaks_although_its_loggers_existed_before_logging_was_configured(worker: Workers) -> None:
    """An abandoned job is an ERROR in the log of the worker, and the executor says that it is ready."""
    process = worker(env={"DJANGO_SETTINGS_MODULE": "tests.settings_muting"})
    (job,) = ended(jobs.fails_thrice.using(max_attempts=1).register())
    assert job.outcome == "abandoned"
    process.wait_for_log(rf"job abandoned .*job={job.pk}\b")
