"""Leaders that die while they make a fire: the mark and the job are both there, or neither, and it is made once."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
import pytest

from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing
from django_pgjobs.store.database import on
from django_pgjobs.store.firing import DeclaredCron
from tests.chaos.failpoints import armed
from tests.chaos.ground import Ground
from tests.e2e import jobs
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ended

pytestmark = pytest.mark.chaos

OPTIONS = {
    "queue": "default", "priority": 0, "max_attempts": 3, "timeout_seconds": 60.0, "description": "", "key": None,
    "key_scope": "", "idempotency_key": None, "limit_key": None,
}  # fmt: skip


def make_due(ground: Ground) -> None:
    """The same, as somebody makes it at run time."""
    bound = jobs.effect.schedule("0 0 1 1 *", name="due", tz="UTC", max_fires=1)
    assert bound.register("fired").written == "created"
    ground.server.ask("UPDATE pgjobs_cron_entry SET created_at = statement_timestamp() - interval '400 days'")


def declare_due(ground: Ground) -> None:
    """One entry with exactly one fire that is due, long missed."""
    declared = DeclaredCron(
        name="due",
        job_name="tests.e2e.jobs.effect",
        expression="0 0 1 1 *",
        zone="UTC",
        payload=json.dumps({"args": ["fired"], "kwargs": {}}),
        options=json.dumps(OPTIONS),
        misfire="once",
        overlap="allow",
    )
    firing.declare_cron(on("default"), declared, overwrite=True, fresh_seconds=0)
    ground.server.ask("UPDATE pgjobs_cron_entry SET created_at = statement_timestamp() - interval '400 days'")


def mark_and_job() -> tuple[bool, int]:
    return CronEntry.objects.get().last_fire_at is not None, Job.objects.filter(cron_entry="due").count()


def fired_once(ground: Ground) -> None:
    """Another worker makes it, or leaves it as made; its job runs once."""
    ground.workers()
    wait_until(lambda: Job.objects.filter(cron_entry="due").exists(), 40, "the fire is made")
    ended(*Job.objects.filter(cron_entry="due"), timeout=30)
    entry, made = CronEntry.objects.get(), Job.objects.get(cron_entry="due")
    assert (entry.last_fire_at, entry.last_job_id) == (made.fire_at, made.pk)
    assert ground.stage.count("effect", "fired") == 1


@pytest.mark.parametrize("due", [declare_due, make_due])
@pytest.mark.parametrize(("point", "there"), [("firing", (False, 0)), ("fired", (True, 1))])
def test_a_leader_dies_before_or_after_the_commit_of_a_fire(
    ground: Ground, point: str, there: tuple[bool, int], due: Callable[[Ground], None]
) -> None:
    """W46: before it neither the mark nor the job is there, after it both, though nobody heard of it."""
    first = ground.workers(env=armed(**{point: {"do": "kill"}}), ready=False)
    with ground.fault("kill", first.pid):
        due(ground)
        wait_until(lambda: first.process.poll() is not None, 40, f"the leader has died at {point}")
    ground.gone(first)
    assert mark_and_job() == there
    fired_once(ground)


@pytest.mark.parametrize("due", [declare_due, make_due])
def test_a_leader_dies_within_the_statement_of_a_fire(ground: Ground, due: Callable[[Ground], None]) -> None:
    """W46: its server process goes on alone and commits, or does not; mark and job agree whatever it does."""
    first = ground.workers()
    with psycopg.connect(ground.server.url) as locking, ground.fault("kill", first.pid):
        locking.execute("LOCK TABLE pgjobs_job IN SHARE MODE")
        due(ground)
        # The server shows the first 1024 characters of a statement.
        waiting = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%AS as_declared%'"
            " AND query LIKE '%last_fire_at IS NOT DISTINCT FROM%' AND pid <> pg_backend_pid()"
        )
        wait_until(lambda: ground.server.ask(waiting), 40, "the fire waits for the table")
        assert mark_and_job() == (False, 0)
        first.kill()
    ground.workers.started.remove(first)
    marked, jobs = mark_and_job()
    assert jobs == int(marked)
    fired_once(ground)
