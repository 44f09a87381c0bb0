"""Atomic jobs whose worker or executor dies, and workers that are configured for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.failpoints import armed
from tests.e2e import atomic
from tests.e2e.atomic import effects, one_transaction
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, read


@pytest.fixture(autouse=True)
def table(committed: None) -> Iterator[None]:
    with atomic.laid_out():
        yield


def test_jobs_of_which_nothing_is_kept_end_with_their_rows(worker: Workers) -> None:
    """A23: the row proves the commit; the leader prunes it later, as any that has outlived its retention."""
    job = atomic.does.register("succeeds")
    worker(conf={"RETENTION": {"succeeded": 0}})
    (after,) = ended(job)
    assert (after.outcome, after.result) == ("succeeded", "done")
    assert one_transaction(after)


def test_a_worker_in_one_process_ends_it_alike(worker: Workers, stage: Stage) -> None:
    jobs = [atomic.does.register(deed) for deed in ("succeeds", "swallows", "hooks")]
    called = atomic.tells.register("succeeds")
    process = worker("--inline", "--until-idle", ready=False)
    assert process.wait(60) == 0, process.log
    found = [(read(job).outcome, len(effects(job.pk))) for job in (*jobs, called)]
    assert found == [("succeeded", 1), ("abandoned", 0), ("succeeded", 1), ("succeeded", 1)]
    assert one_transaction(jobs[0])
    assert stage.count("on_success", called.pk, True) == 1


def dies(point: str, how: str) -> dict[str, str]:
    return {"DJANGO_SETTINGS_MODULE": "tests.chaos.settings", **armed(**{point: {"do": how}})}


@pytest.mark.parametrize("point", ["body", "closing", "committing", "finished"])
def test_an_executor_that_is_killed_leaves_one_effect_and_one_end(worker: Workers, point: str) -> None:
    """P36 X8: before the body, before the end, before the COMMIT, behind it; two in company."""
    registered = atomic.survives_crashes.register(), atomic.tells.register("succeeds")
    process = worker(env=dies(point, "kill"), conf={"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 1.0})
    job, called = ended(*registered, timeout=40)
    assert (job.outcome, len(effects(job.pk))) == ("succeeded", 1)
    assert (called.outcome, len(effects(called.pk))) == ("succeeded", 1)
    process.wait_for_log("executor ended, replaced")
    if point == "finished":
        process.wait_for_log("end in doubt was committed by the job's own transaction")


@pytest.mark.parametrize("point", ["stepping", "stepped", "finished"])
@pytest.mark.parametrize("how", ["kill", "kill_both"])
def test_a_step_whose_process_is_killed_is_made_once(worker: Workers, point: str, how: str) -> None:
    """P32 X8: before its end, before the COMMIT, behind it; the executor, or the supervisor too."""
    registered = atomic.steps_despite_crashes.register()
    lease = {"LEASE_SECONDS": 1.5, "RENEW_SECONDS": 0.5}
    first = worker(env=dies(point, how), conf=lease, ready=how == "kill")
    if how == "kill_both":
        wait_until(lambda: first.process.poll() is not None, 60, "the worker is dead")
        worker.started.remove(first)
        first.kill()
        worker(conf=lease)
    (job,) = ended(registered, timeout=40)
    assert (job.outcome, [note for _, note in effects(job.pk)]) == ("succeeded", ["one", "two"])
    assert job.steps.count() == 1


@pytest.mark.parametrize("point", ["closing", "committing", "finished"])
def test_a_worker_that_is_killed_leaves_one_effect_and_one_end(worker: Workers, point: str) -> None:
    """X8: the supervisor first, then the executor; another worker rescues what was not committed."""
    registered = atomic.survives_crashes.register(), atomic.tells.register("succeeds")
    lease = {"LEASE_SECONDS": 1.5, "RENEW_SECONDS": 0.5}
    first = worker(env=dies(point, "kill_both"), conf=lease, ready=False)
    wait_until(lambda: first.process.poll() is not None, 60, "the worker is dead")
    worker.started.remove(first)
    first.kill()
    worker(conf=lease)
    job, called = ended(*registered, timeout=40)
    assert (job.outcome, len(effects(job.pk))) == ("succeeded", 1)
    assert (called.outcome, len(effects(called.pk))) == ("succeeded", 1)
