"""Real workers: jobs of which nothing is kept leave nothing, the leader prunes the others, and it vacuums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_pgjobs.exceptions import JobDoesNotExist
from django_pgjobs.models import Attempt, Job, LeaderTerm, StoredResult
from django_pgjobs.models.attempts import Claim
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import Background, RawDatabase, wait_until
from tests.plugins.fix_worker import Workers, ended

NOTHING = {"RETENTION": {"succeeded": 0, "cancelled": 0, "abandoned": 0}}


def rows() -> dict[str, int]:
    return {model.__name__: model.objects.count() for model in (Job, Attempt, Claim)}


def test_jobs_of_which_nothing_is_kept_run_once_and_leave_nothing(worker: Workers, stage: Stage) -> None:
    """A23 P28 X7: success, failure after retries, callbacks, and a result that could not even be stored."""
    for key in range(300):
        jobs.effect.register(key)
    doomed = jobs.doomed.register()
    process = worker("--until-idle", processes=2, conf=NOTHING, ready=False)
    assert process.wait(60) == 0, process.log
    assert (stage.count("effect"), stage.count("on_abandon", doomed.pk)) == (300, 1)
    assert rows() == {"Job": 0, "Attempt": 0, "Claim": 0}
    assert process.said("worker stopped jobs=301 refused=0"), process.log


def test_the_signal_of_the_end_is_sent_all_the_same(worker: Workers, stage: Stage) -> None:
    """With its outcome, once for each job."""
    told, doomed = jobs.effect.register("told"), jobs.doomed.register()
    calls = jobs.tells.using(idempotency_key="kept").register("")
    process = worker("--until-idle", conf=NOTHING, env={"PGJOBS_TEST_RECEIVERS": "1"}, ready=False)
    assert process.wait(60) == 0, process.log
    heard = {
        job.pk: [trace.words[3:] for trace in stage.traces("signal", job.pk, "finished")]
        for job in (told, doomed, calls)
    }
    gone = ("succeeded", "gone")
    assert heard == {told.pk: [gone], doomed.pk: [("abandoned", "gone")], calls.pk: [gone]}
    assert stage.count("on_success", calls.pk) == 1, "its row was there for the callback"
    assert StoredResult.objects.get(key="kept").result == "told "


def test_who_waits_for_a_job_has_its_result(worker: Workers, stage: Stage, background: Background) -> None:
    """Its row is kept for the leader to prune; whoever comes when it is gone is told so."""
    job = jobs.waits.register("w")
    late = jobs.effect.register("late")
    worker(conf=NOTHING)
    waiter = background(job.wait, 60)
    wait_until(lambda: Job.objects.filter(pk=job.pk, waited=True).exists(), 20, "the waiter has marked the row")
    stage.open("w")
    assert waiter.result(60).outcome == "succeeded"
    assert Job.objects.filter(pk=job.pk, outcome="succeeded").exists()
    wait_until(lambda: not Job.objects.filter(pk=late.pk).exists(), 20, "the other is gone")
    with pytest.raises(JobDoesNotExist, match="has ended and is not kept"):
        late.wait(10)


def test_a_running_job_that_is_cancelled_leaves_nothing_either(worker: Workers, stage: Stage) -> None:
    """A54: by its worker, when it has stopped."""
    job = jobs.waits.register("c")
    worker(conf=NOTHING)
    wait_until(lambda: stage.count("start", "c"), 20, "it runs")
    job.cancel(mode="kill")
    wait_until(lambda: not Job.objects.filter(pk=job.pk).exists(), 20, "it is gone")
    wait_until(lambda: rows() == {"Job": 0, "Attempt": 0, "Claim": 0}, 20, "and all of it")


def test_what_a_row_of_the_project_points_to_ends_as_it_would_and_stays(worker: Workers, raw: RawDatabase) -> None:
    """A success is not made a failure by a foreign key; the others of its batch end too."""
    all_jobs = [jobs.effect.register(key) for key in range(20)]
    raw.query("CREATE TABLE shop_note (job_id bigint REFERENCES pgjobs_job DEFERRABLE INITIALLY DEFERRED)")
    try:
        raw.query("INSERT INTO shop_note VALUES (%s)", [all_jobs[7].pk])
        assert worker("--until-idle", conf=NOTHING, ready=False).wait(60) == 0
        assert Job.objects.get(pk=all_jobs[7].pk).outcome == "succeeded"
        assert not Job.objects.exclude(outcome="succeeded").exists()
    finally:
        raw.query("DROP TABLE shop_note")


def test_the_leader_prunes_and_a_standby_does_not(worker: Workers, raw: RawDatabase) -> None:
    """W1 W8 W33 W35: the other takes over when the leader has left."""

    def put() -> None:
        raw.query(
            "INSERT INTO pgjobs_job (name, payload, outcome, finished_at)"
            " SELECT 'gone', '{}', 'succeeded', statement_timestamp() - interval '25 h' FROM generate_series(1, 2500)"
        )

    def pruned() -> bool:
        return not Job.objects.filter(name="gone").exists()

    put()
    first = worker()
    first.wait_for_log("ended jobs were pruned jobs=2500")
    assert pruned()
    second = worker()
    wait_until(lambda: leads(second.name) is False, 10, "the second stands by")
    assert not second.said("were pruned")
    assert upkeep(raw, first.name) == 1
    assert upkeep(raw, second.name) == 0, "a standby has no connection for it"
    put()
    assert first.stop() == 0
    second.wait_for_log("worker leads now")
    second.wait_for_log("ended jobs were pruned")
    wait_until(pruned, 30, "the second has pruned the rest")


def leads(name: str) -> bool:
    return LeaderTerm.objects.filter(worker_name=name).exists()


def upkeep(raw: RawDatabase, name: str) -> int:
    found = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    return int(raw.value(found, [f"pgjobs {name} upkeep"]))


@pytest.fixture
def dead_rows(raw: RawDatabase) -> Callable[[], None]:
    """Return what makes 300,000 rows of the job table die."""

    def die() -> None:
        raw.query("ALTER TABLE pgjobs_job SET (autovacuum_enabled = off)")
        raw.query(
            "INSERT INTO pgjobs_job (name, payload, outcome, finished_at)"
            " SELECT 'dead', '{}', 'succeeded', statement_timestamp() FROM generate_series(1, 300000)"
        )
        raw.query("DELETE FROM pgjobs_job")

    return die


def vacuums(raw: RawDatabase) -> int:
    return int(raw.value("SELECT pg_stat_get_vacuum_count('pgjobs_job'::regclass)"))


@pytest.mark.slow
def test_the_leader_vacuums_what_has_died(worker: Workers, raw: RawDatabase, dead_rows: Callable[[], None]) -> None:
    """And not again while an old snapshot keeps the same rows from being cleaned up."""
    before = vacuums(raw)
    try:
        dead_rows()
        process = worker("--name=v", conf={"DRAIN_SECONDS": 1})
        process.wait_for_log("table was vacuumed table=pgjobs_job", 60)
        wait_until(lambda: vacuums(raw) == before + 1, 20, "the server has counted it")
        job = jobs.effect.register("after")
        assert ended(job)[0].outcome == "succeeded"
    finally:
        raw.query("ALTER TABLE pgjobs_job RESET (autovacuum_enabled)")


@pytest.mark.slow
def test_switched_off_it_does_not(worker: Workers, raw: RawDatabase, dead_rows: Callable[[], None]) -> None:
    before = vacuums(raw)
    try:
        dead_rows()
        process = worker(conf={"VACUUM": False})
        process.wait_for_log("worker leads now")
        wait_until(lambda: upkeep(raw, process.name) == 1, 20, "upkeep is on")
        looks = "SELECT state_change FROM pg_stat_activity WHERE application_name = %s"
        name = [f"pgjobs {process.name} upkeep"]
        first: Any = raw.value(looks, name)
        wait_until(lambda: raw.value(looks, name) > first, 30, "it has pruned since")
        assert process.stop() == 0
        assert vacuums(raw) == before
    finally:
        raw.query("ALTER TABLE pgjobs_job RESET (autovacuum_enabled)")


def test_the_stage_is_on_the_test_database(django_db_setup: None) -> None:
    assert connection.settings_dict["NAME"].startswith("test")
