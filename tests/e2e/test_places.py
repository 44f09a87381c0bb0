"""Places of queues with real workers: what is full waits, and nothing else does (I26)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_pgjobs import register_many
from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import Heartbeat, Job
from tests.e2e import jobs
from tests.e2e.elsewhere import ask, call, put
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended


def test_a_full_queue_keeps_no_other_waiting_and_why_says_so(worker: Workers, stage: Stage) -> None:
    slow = [jobs.waits.using(queue="slow").register("go") for _ in range(5)]
    process = worker("--places=slow=2, *=2", processes=1, threads=4)
    wait_until(lambda: stage.count("start") == 2, 20, "as many as have places have started")
    quick = [jobs.effect.using(queue=f"q{n % 3}").register(n) for n in range(30)]
    loop = [jobs.aeffect.using(queue="q0").register(n) for n in range(5)]
    ended(*quick, *loop)
    assert stage.count("start") == 2
    waiting = Job.objects.filter(pk__in=[job.pk for job in slow], claim_id=None).first()
    assert waiting is not None
    found = waiting.why()
    assert (found.code, "as its places allow: 2." in found.text) == ("places", True), str(found)
    assert Heartbeat.objects.get(name=process.name).places == {"slow": 2, "*": 2}
    stage.open("go")
    assert {(job.outcome, job.attempt) for job in ended(*slow)} == {("succeeded", 1)}
    assert process.said("at once queue=.*slow.*: slow: 2, .: 2")


@pytest.mark.parametrize("body", ["waits", "awaits"])
def test_places_count_threads_and_loops_together(worker: Workers, stage: Stage, body: str) -> None:
    rows = [getattr(jobs, body).using(queue="slow").register(f"g{n}") for n in range(3)]
    rows += [jobs.waits.using(queue="slow").register("g3"), jobs.awaits.using(queue="slow").register("g4")]
    worker(processes=1, threads=4, conf={"PLACES": {"slow": 2}})
    for done in range(0, 5):
        count(stage, "start", min(done + 2, 5))
        running = {trace.words[1] for trace in stage.traces("start")} - {t.words[1] for t in stage.traces("end")}
        assert len(running) <= 2
        stage.open(min(running))
        count(stage, "end", done + 1)
    ended(*rows)


def test_many_short_jobs_of_full_queues_run_once_and_never_more_at_a_time(worker: Workers, stage: Stage) -> None:
    """Two executors, executors that die, callbacks: the count holds over all of them."""
    load = register_many(jobs.effect.using(queue="a").bind(f"a-{n}", 0.01) for n in range(150))
    load += register_many(jobs.effect.using(queue="b").bind(f"b-{n}", 0.0) for n in range(400))
    hard = [jobs.dies_once.using(queue="a").register("kill") for _ in range(2)]
    worker("--places=a=2,b=1,*=1", processes=2, threads=3)
    ended(*Job.objects.filter(pk__in=load), *hard, timeout=60)
    assert stage.count("effect") >= 550
    ends = [trace.at for trace in stage.traces("effect") if trace.words[1].startswith("a-")]
    assert max(sum(end <= other < end + 0.01 for other in ends) for end in ends) <= 2, "each has slept for so long"


def test_the_places_are_of_the_worker_not_of_each_database(
    worker: Workers, server: EmbeddedServer, stage: Stage
) -> None:
    here = [jobs.waits.using(queue="slow").register(f"here-{n}") for n in range(3)]
    for n in range(3):
        put(server.url, "waits", call(f"there-{n}"))
    ask(server.url, "UPDATE pgjobs_job SET queue = 'slow', timeout_seconds = 60")
    worker(
        "--database=default,second", "--places=slow=2", processes=1, threads=4,
        env={"PGJOBS_TEST_SECOND_DATABASE_URL": server.url},
    )  # fmt: skip
    gone: set[str] = set()
    for _ in range(6):
        wait_until(lambda: len(running(stage)) == min(2, 6 - len(gone)), 30, "both places are taken")
        assert len(running(stage)) <= 2
        gate = min(running(stage))
        stage.open(gate)
        gone.add(gate)
        count(stage, "end", len(gone))
    ended(*here)
    done = "SELECT count(*) FROM pgjobs_job WHERE outcome = 'succeeded'"
    wait_until(lambda: ask(server.url, done) == [(3,)], 20, "those of the other database have ended, too")


def count(stage: Stage, word: str, most: int) -> None:
    wait_until(lambda: stage.count(word) >= most, 20, f"{word} was noted {most} times")
    assert stage.count(word) == most


def running(stage: Stage) -> set[str]:
    return {trace.words[1] for trace in stage.traces("start")} - {trace.words[1] for trace in stage.traces("end")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--places=a b=2"], "argument --places: there is no queue 'a b'"),
        (["--places=mail=0"], "argument --places: must be a whole number of at least 1, not '0'"),
        (["--places=mail"], "argument --places: write QUEUE=N, not 'mail'"),
        (["--places=*=2,*=3"], r"argument --places: name '\*' once"),
        (["--places=mail=2,mail=3"], "argument --places: name 'mail' once"),
        (["--places=pgjobs=1"], "argument --places: queue 'pgjobs' is of this package"),
        (["--places="], "argument --places: name at least one queue"),
        (["--places=a=1", "--places=b=1"], "argument --places: give it once"),
        (["--places=mail=2", "--queues=news"], "places to queue 'mail', but --queues does not name it"),
        (["--places=mail=2", "--exclude-queues=mail"], "places to queue 'mail', but --exclude-queues leaves it out"),
        (["--places=mail=2,*=1", "--queues=mail"], r"there are no others for \*"),
        (["--places=mail=9999"], "9999 places to queue 'mail', but the worker has [0-9]+ slots"),
        (["--places=mail=1", "--inline"], "With --inline one job runs at a time: leave out --places"),
    ],
)
def test_places_that_cannot_be_given_end_the_worker_with_one_reason(
    worker: Workers, arguments: list[str], said: str
) -> None:
    process = worker(*arguments, ready=False)
    assert process.wait() in (1, 2)
    assert process.said(said), process.log


def test_the_setting_binds_what_the_worker_serves(worker: Workers, stage: Stage) -> None:
    conf: dict[str, Any] = {"PLACES": {"slow": 1, "elsewhere": 1, "*": 99}}
    process = worker("--queues=slow", processes=1, threads=2, conf=conf)
    assert json.dumps(Heartbeat.objects.get(name=process.name).places, sort_keys=True) == '{"*": 99, "slow": 1}'


def test_an_inline_worker_keeps_no_places_and_says_none(worker: Workers) -> None:
    process = worker("--inline", conf={"PLACES": {"slow": 1}}, ready=False)
    wait_until(lambda: Heartbeat.objects.filter(name=process.name).exists(), 20, "its row is there")
    assert Heartbeat.objects.get(name=process.name).places is None
