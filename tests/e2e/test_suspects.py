"""One bad job among many: it is found by halves on one executor, while the worker goes on."""

from __future__ import annotations

from django_pgjobs import register_many
from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.problem import Limits
from django_pgjobs.inspection import why
from django_pgjobs.models import Attempt, Heartbeat, Job
from django_pgjobs.store.database import on
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import UNCHARGED, Workers, ended, history, read

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
    assert Attempt.objects.filter(job=guilty, message__contains=UNCHARGED).count() >= 1
    others = Job.objects.filter(pk__in=ids).exclude(pk=guilty.pk)
    assert others.filter(outcome="succeeded", attempt=1).count() == 91
    told = Attempt.objects.exclude(job=guilty)
    assert set(told.values_list("number", "cause")) == {(1, "crashed")}
    assert told.values("job").distinct().count() >= 45, "who was in it keeps a trace"
    assert all(UNCHARGED in each.message for each in told)
    starts = [stage.count("start", pk) for pk in ids]
    assert max(starts) <= MOST_STARTS, starts
    assert sum(starts) <= 46 + 46 * 4, "each half, not each job, cost a start of those in it"


def test_a_death_and_its_suspects_are_told_and_block_the_only_executor_for_a_while_only(
    worker: Workers, stage: Stage
) -> None:
    """One executor, and a suspect that runs for as long as it likes: pages and commands say so, and others go on."""
    process = worker(processes=1, threads=4, conf={"POLL_SECONDS": 1, "BEAT_SECONDS": 1})
    first, second = jobs.waits.register("first"), jobs.waits.register("second")
    dying = jobs.dies.using(max_attempts=1).register("kill", "now")
    wait_until(lambda: stage.count("dies", dying.pk) == 1 and stage.count("start", "second") == 1, 20, "all run")
    stage.open("now")
    wait_until(lambda: bool(Heartbeat.objects.get(name=process.name).suspects), 20, "its heartbeat names suspects")
    beat = Heartbeat.objects.get(name=process.name)
    assert "SIGKILL" in beat.death
    # On a slow machine the guilty one may have run alone before this beat.
    assert beat.deaths == 2 or (beat.deaths, f"#{first.pk} " in beat.death) == (1, True)
    codes = {each.code: each.text for each in health.problems(on("default"), "default", Limits())}
    assert f"#{dying.pk} " in codes["crashed"]
    assert f"#{second.pk}" in codes["suspects"]
    behind = jobs.anaps.register("behind", 0.0)
    wait_until(lambda: read(second).attempts.exists(), 10, "its history tells of the death")
    said = {each.pk: why.of(each.pk, "default").code for each in (first, second, behind)}
    assert said[first.pk] == said[second.pk] == "suspect", said
    wait_until(lambda: why.of(behind.pk, "default").code in ("bench", "succeeded"), 15, "why tells what it waits for")
    wait_until(lambda: read(behind).outcome == "succeeded", 120, "it runs beside the suspects after a while")
    assert not read(first).outcome
    stage.open("first")
    stage.open("second")
    assert [job.outcome for job in ended(first, second, dying, timeout=90)] == ["succeeded", "succeeded", "abandoned"]
    wait_until(lambda: Heartbeat.objects.get(name=process.name).suspects is None, 20, "no suspects are left")
