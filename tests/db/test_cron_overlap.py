"""Keys of cron entries, and fires while a job of the entry is not finished."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.models import Job
from django_pgjobs.store import firing
from tests.db.cron_ground import MINUTE, ago, declare, entry, fires, latest, put, statements, tick
from tests.plugins.fix_db import RawDatabase, claim

pytestmark = pytest.mark.usefixtures("no_other_entries", "steady")


def end(raw: RawDatabase, *, seconds_ago: float = 0.0) -> None:
    """Let every job have ended so long ago."""
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = statement_timestamp() - make_interval(secs => %s) "
        "WHERE finished_at IS NULL",
        [seconds_ago],
    )


# Keys and overlap


def test_a_fire_whose_key_is_taken_is_dealt_with(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    declare(raw, options={"key": "k", "key_scope": "until_finished"})
    put(raw, created_at=ago(raw, hours=1))
    tick(raw)
    first = entry()
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    with caplog.at_level(logging.INFO):
        tick(raw)
    assert Job.objects.get().unique_key == "k"
    assert "an unfinished one has its key cron=clean" in caplog.text
    assert (entry().last_fire_at, entry().last_job_id) == (first.last_fire_at, first.last_job_id)
    end(raw)
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    tick(raw)
    assert Job.objects.count() == 2


def test_a_key_that_is_not_committed_keeps_no_other_entry_from_its_turn(
    raw: RawDatabase, other: RawDatabase, time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever registers a job of that key in a long transaction would stop all schedules, and rescue with them."""
    raw.query("SET statement_timeout = '20s'")
    declare(raw, options={"key": "k", "key_scope": "until_finished"})
    declare(raw, "second")
    for name in ("clean", "second"):
        put(raw, name, created_at=ago(raw, minutes=11))
    other.query("BEGIN")
    other.query(
        "INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload, run_at, key, key_scope, unique_key)"
        " VALUES ('test.clean', 'night', 0, 1, '{}', statement_timestamp(), 'k', 'until_finished', 'k')"
    )
    firer = Firer()
    firer(raw)
    assert [job.cron_entry for job in Job.objects.all()] == ["second"]
    assert "fire waits, a job that has its job's key is not committed yet" in caplog.text
    with statements(raw) as asked:
        firer(raw)
    assert "fire_cron" not in asked, "for some seconds nobody waits for it"
    other.rollback()
    time(10)
    firer(raw)
    assert {job.cron_entry for job in Job.objects.all()} == {"clean", "second"}


def test_jobs_overlap_where_they_may(raw: RawDatabase) -> None:
    """X6: ``allow``."""
    declare(raw)
    for _ in range(2):
        put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
        tick(raw)
    assert Job.objects.count() == 2


def test_a_fire_is_skipped_while_the_last_job_runs(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """X6: ``skip``, also while it only waits, and although the leader read it before that job was there."""
    declare(raw, overlap="skip")
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE)
    [read] = firing.list_crons(raw, everything=False)
    tick(raw)
    assert firing.fire_cron(raw, read, [latest(raw)], None, notify=False) == []
    for _ in range(2):
        put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
        with caplog.at_level(logging.INFO):
            tick(raw)
        assert Job.objects.count() == 1
        assert (entry().last_fire_at, entry().next_fire_at) == (latest(raw), latest(raw) + 10 * MINUTE)
        assert "fire skipped, the last job is not finished cron=clean" in caplog.text
        claim(raw)
    end(raw)
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    tick(raw)
    assert Job.objects.count() == 2


@pytest.mark.parametrize("outcome", ["succeeded", "abandoned", "cancelled"])
def test_the_next_fire_comes_after_the_end_of_the_last_job(raw: RawDatabase, outcome: str) -> None:
    """A24 A25 A27: every ten minutes with a job of fifteen is every twenty; a failed job keeps all attempts."""
    declare(raw, overlap="after_completion")
    begin = latest(raw) - 20 * MINUTE
    put(raw, last_fire_at=begin - 10 * MINUTE, next_fire_at=begin)
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, cron_entry, attempt, claim_id, claimed_at) "
        "VALUES ('test.clean', '{}', 'clean', 4, gen_random_uuid(), statement_timestamp())"
    )
    put(raw, last_job_id=Job.objects.get().pk)
    tick(raw)
    assert entry().next_fire_at is None, "nobody knows before the job has ended"
    tick(raw)
    assert Job.objects.count() == 1
    raw.query("UPDATE pgjobs_job SET outcome = %s, finished_at = %s", [outcome, begin + 15 * MINUTE])
    tick(raw)
    assert fires()[1:] == [begin + 20 * MINUTE]
    made = Job.objects.latest("pk")
    assert (made.attempt, made.max_attempts) == (0, 4)


def test_what_passed_while_the_last_job_ran_makes_no_fire(raw: RawDatabase) -> None:
    """A25: the schedule continues from the end of that job, not from its fire."""
    declare(raw, overlap="after_completion")
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, cron_entry, attempt, outcome, finished_at) "
        "VALUES ('test.clean', '{}', 'clean', 1, 'succeeded', statement_timestamp())"
    )
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None, last_job_id=Job.objects.get().pk)
    tick(raw)
    assert (Job.objects.count(), entry().next_fire_at) == (1, latest(raw) + 10 * MINUTE)


def test_the_next_fire_after_a_job_that_has_just_ended_is_the_next_to_come(raw: RawDatabase) -> None:
    """A25: what passed while it ran is not made up for."""
    declare(raw, overlap="after_completion")
    put(raw, last_fire_at=latest(raw) - 30 * MINUTE, next_fire_at=latest(raw) - 20 * MINUTE)
    tick(raw)
    assert Job.objects.count() == 1
    end(raw)
    tick(raw)
    tick(raw)
    assert (Job.objects.count(), entry().next_fire_at) == (1, latest(raw) + 10 * MINUTE)


def test_a_last_job_that_is_gone_counts_as_ended_when_it_is_missed(raw: RawDatabase) -> None:
    """A25: pruned, or kept with a retention of 0."""
    declare(raw, overlap="after_completion")
    put(raw, last_fire_at=latest(raw) - 30 * MINUTE, last_job_id=1_000_000)
    tick(raw)
    assert (Job.objects.count(), entry().next_fire_at) == (0, latest(raw) + 10 * MINUTE)
    put(raw, next_fire_at=latest(raw))
    tick(raw)
    assert fires() == [latest(raw)]


def test_a_hundred_fires_in_a_row(raw: RawDatabase) -> None:
    """A26: it repeats forever, each with the end of the one before."""
    declare(raw, expression="* * * * *", overlap="after_completion")
    for _ in range(100):
        put(raw, next_fire_at=latest(raw, "* * * * *"), last_fire_at=ago(raw, hours=1))
        tick(raw)
        end(raw)
    assert Job.objects.count() == 100
