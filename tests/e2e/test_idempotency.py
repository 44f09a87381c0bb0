"""Idempotency keys with real workers: a hit runs nothing; who dies before the end is written stores nothing."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs.models import Job, StoredResult
from tests.chaos import guests
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, blocked_by, wait_until
from tests.plugins.fix_worker import Workers, ended, history

QUICK = {"LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.5, "BEAT_SECONDS": 0.5, "STALE_SECONDS": 2.0}
NOTHING = {"RETENTION": {"succeeded": 0, "cancelled": 0, "abandoned": 0}}


def kept() -> dict[str, Any]:
    return dict(StoredResult.objects.values_list("key", "result"))


@pytest.mark.parametrize("job", [jobs.effect, jobs.aeffect], ids=["sync", "async"])
def test_a_hit_is_told_between_start_and_end_and_runs_nothing(worker: Workers, stage: Stage, job: Any) -> None:
    """C19 C20 C21 C65: one effect, equal results; jobs without a key all run."""
    process = worker("-v2", env={"PGJOBS_TEST_RECEIVERS": "1"})
    [first] = ended(job.using(idempotency_key="k").register("once"))
    hits = [job.using(idempotency_key="k").register("once") for _ in range(20)]
    others = [job.register("each") for _ in range(5)]
    after = ended(*hits, *others)
    assert (stage.count("effect", "once"), stage.count("effect", "each")) == (1, 5)
    assert {each.result for each in after[:20]} == {first.result} == {"once"}
    wait_until(lambda: stage.count("signal", hits[0].pk) == 4, 20, "all is told")
    assert [trace.words[2:] for trace in stage.traces("signal", hits[0].pk)] == [
        ("started", "1"),
        ("hit", "k", str(first.pk)),
        ("ended", "Succeeded", "NoneType"),
        ("finished", "succeeded", "succeeded"),
    ]
    process.wait_for_log(f"HIT result of job {first.pk} key=k name={job.name} job={hits[0].pk} attempt=1/")
    assert kept() == {"k": "once"}


@pytest.mark.parametrize("setting", ["search_path", "role"])
def test_settings_that_a_job_left_on_the_connection_are_not_charged_to_the_next(
    worker: Workers, stage: Stage, setting: str
) -> None:
    """Its key is looked up on the same connection, as new."""
    process = worker(threads=1)
    [first] = ended(jobs.effect.using(idempotency_key="k").register("once"))
    ended(guests.behaves_badly.register(setting))
    [hit] = ended(jobs.effect.using(idempotency_key="k").register("once"))
    assert (hit.outcome, hit.attempt, hit.result, history(hit)) == ("succeeded", 1, first.result, []), hit.error
    assert stage.count("effect", "once") == 1
    assert not process.said("kept connection cannot read of the next job"), "it has been reset before"


def test_large_arguments_are_read_beside_what_a_job_left_on_the_connection(worker: Workers) -> None:
    """The same connection, the other statement that precedes the body."""
    process = worker(threads=1)
    ended(guests.behaves_badly.register("search_path"))
    large = "x" * 300_000
    [whole] = ended(jobs.swallows.register(large))
    assert (whole.outcome, whole.attempt, whole.result) == ("succeeded", 1, [len(large), 0]), whole.error
    assert not process.said("kept connection cannot read of the next job"), "it has been reset before"


def test_a_worker_killed_between_body_and_end_stores_nothing(
    worker: Workers, stage: Stage, raw: RawDatabase, other: RawDatabase
) -> None:
    """C23: the body has returned, and its end cannot be written as somebody holds the row; so it runs again."""
    lost = worker(conf=QUICK)
    one = jobs.waits.using(idempotency_key="k").register("w")
    wait_until(lambda: stage.count("start", "w"), 20, "the body runs")
    other.lock(one.pk)
    stage.open("w")
    wait_until(lambda: stage.count("end", "w"), 20, "the body has returned")
    lost.kill()
    # A statement that waits for the row goes on without its worker, for as long as its lock_timeout.
    wait_until(lambda: not blocked_by(raw, other.pid), 10, "no end waits for the row any more")
    assert kept() == {}
    other.rollback()
    worker(conf=QUICK)
    [after] = ended(one, timeout=40)
    assert (after.outcome, after.attempt, stage.count("end", "w")) == ("succeeded", 2, 2)
    assert kept() == {"k": "w"}


def test_what_is_deleted_at_its_end_is_remembered(worker: Workers, stage: Stage) -> None:
    """C21 C23 at retention 0."""
    for _ in range(2):
        jobs.effect.using(idempotency_key="k").register("once")
        process = worker("--until-idle", conf=NOTHING, ready=False)
        assert process.wait(60) == 0, process.log
        assert not Job.objects.exists()
    assert stage.count("effect", "once") == 1
    assert kept() == {"k": "once"}


def test_inline_too(worker: Workers, stage: Stage) -> None:
    """C20 C21."""
    one, two = (jobs.effect.using(idempotency_key="k").register("once") for _ in range(2))
    three = jobs.aeffect.using(idempotency_key="k").register("other")
    process = worker("--inline", "--until-idle", ready=False)
    assert process.wait(60) == 0, process.log
    assert [each.result for each in ended(one, two, three)] == ["once", "once", "other"]
    assert (stage.count("effect", "once"), stage.count("effect", "other")) == (1, 1)


def test_keys_that_are_over_are_forgotten_by_the_leader(worker: Workers, raw: RawDatabase) -> None:
    """W27 to W30: a duty of its own."""
    raw.query("INSERT INTO pgjobs_key_window VALUES ('q', 'k', '2001-01-01', '2001-01-02', 1)")
    raw.query("INSERT INTO pgjobs_stored_result (name, key, job_id, stored_at) VALUES ('n', 'k', 1, '2001-01-01')")
    process = worker()
    process.wait_for_log("keys and results expired windows=1 results=1", 60)
