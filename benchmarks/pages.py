"""How long the admin's pages take in SQL beside millions of jobs: ``python -m benchmarks.pages 10000000``.

It fills a database of its own, most of it with finished jobs, and opens each page a few times. The times are those of
the statements as Django measures them, the median of the warm ones; a table goes to standard output.
"""

from __future__ import annotations

import argparse
import os
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

FILL = """
INSERT INTO pgjobs_job (name, queue, payload, outcome, error, error_class, finished_at, created_at, run_at, attempt,
    claimed_at, duration_seconds, hold, tags, priority)
SELECT
    'shop.jobs.' || (g %% 40), 'q' || (g %% 8), jsonb_build_object('args', jsonb_build_array(g), 'kwargs', '{}'::jsonb),
    CASE WHEN g %% 100 < 92 THEN 'succeeded' WHEN g %% 100 < 94 THEN 'abandoned'
        WHEN g %% 100 < 95 THEN 'cancelled' END,
    CASE WHEN g %% 100 IN (92, 93) THEN 'Declined: card refused' ELSE '' END,
    CASE WHEN g %% 100 IN (92, 93) THEN 'shop.errors.E' || (g %% 30) END,
    CASE WHEN g %% 100 < 95 THEN now() - (%(jobs)s - g) * interval '0.26 s' END,
    now() - (%(jobs)s - g) * interval '0.26 s',
    now() + CASE WHEN g %% 100 = 98 THEN interval '1 day' ELSE interval '0' END,
    CASE WHEN g %% 1000 = 998 THEN 2 WHEN g %% 100 < 95 THEN 1 ELSE 0 END, now(), 0.5,
    CASE WHEN g %% 100 = 99 THEN (ARRAY['parked', 'limited', 'blocked', 'paused'])[1 + g %% 4] END,
    CASE WHEN g %% 50 = 0 THEN '["vip"]'::jsonb END, 0
FROM generate_series(1, %(jobs)s) AS g
"""

CHARTS = """
INSERT INTO pgjobs_minute (worker, minute, queue, name, outcome, release, jobs, run_seconds, wait_seconds,
    run_histogram, wait_histogram)
SELECT
    %(worker)s, minute, %(queue)s, CASE WHEN %(names)s > 1 THEN 'shop.jobs.' || n ELSE '' END, outcome, 'r1', 100,
    50, 9, '{1,2,3,4,5,6,7,8,9,10,11,12,13}', '{9,8,7,6,5,4}'
FROM generate_series(date_trunc('minute', now()) - interval '1 day', now(), interval '1 min') AS minute,
    generate_series(1, %(names)s) AS n, (VALUES ('succeeded'), ('abandoned'), ('retried')) AS known (outcome)
"""

DEPTHS = """
INSERT INTO pgjobs_depth (minute, queue, ready, scheduled, running, held, oldest_seconds)
SELECT minute, 'q' || q, 10, 1, 1, 1, 3
FROM generate_series(date_trunc('minute', now()) - interval '1 day', now(), interval '1 min') AS minute,
    generate_series(0, 7) AS q
"""

PAGES = (
    "overview/", "overview/?span=day", "overview/?span=month", "job/", "job/?state=ready", "job/?state=scheduled",
    "job/?state=retrying", "job/?state=running", "job/?state=succeeded", "job/?state=abandoned", "job/?state=parked",
    "job/?state=abandoned&q=error:shop.errors.E2", 'job/?q=error:"shop.errors.E2" since:24h', "job/?q=error:E2",
    "job/?q=arg.order:595", "job/?tag=vip", "job/?queue=q3", "job/?name=shop.jobs.7&state=abandoned", "job/?q=nothing",
    "job/?front=task", "job/?front=task&state=succeeded", "job/?alias=default&state=abandoned",
    "heartbeat/", "queuestate/", "action/", "cronentry/",
)  # fmt: skip


def main() -> None:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from django.db import connection
    from django.test.utils import get_runner, setup_test_environment, teardown_test_environment

    setup_test_environment()
    runner: Any = get_runner(django.conf.settings)(verbosity=0, interactive=False)
    databases = runner.setup_databases()
    try:
        fill(connection, options.jobs)
        measure(options.rounds)
    finally:
        runner.teardown_databases(databases)
        teardown_test_environment()


def fill(connection: Any, jobs: int) -> None:
    """Store the rows with the indexes taken off, as a restore does."""
    from django_pgjobs.states import FLEET, TREND

    began = perf_counter()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'pgjobs_job'"
            " AND indexname LIKE 'pgjobs_job_%%' AND indexname NOT LIKE '%%pkey' AND indexname NOT LIKE '%%unique_key'"
        )
        indexes = cursor.fetchall()
        for name, _definition in indexes:
            cursor.execute(f'DROP INDEX "{name}"')
        cursor.execute(FILL, {"jobs": jobs})
        cursor.execute("SET maintenance_work_mem = '1GB'")
        for _name, definition in indexes:
            cursor.execute(definition)
        for worker, names in ((FLEET, 40), (TREND, 1)):
            cursor.execute(CHARTS, {"worker": worker, "queue": "q1" if names > 1 else "", "names": names})
        cursor.execute(DEPTHS)
        cursor.execute("VACUUM (ANALYZE)")
    print(f"{jobs:,} jobs filled in {perf_counter() - began:.0f} s\n")


def measure(rounds: int) -> None:
    """Open each page and print its SQL."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from django_pgjobs.maintenance.statistics import Measurer, problems_of
    from django_pgjobs.models import LeaderTerm
    from django_pgjobs.store.database import on
    from django_pgjobs.store.finalising import Author

    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    print("| page | statements | SQL, ms | all, ms |\n| --- | --: | --: | --: |")
    for led in (False, True):
        if led:
            author = Author(uuid4(), "bench", "")
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO pgjobs_leader_term (id, term, worker, worker_name, taken_at, expires_at)"
                    " VALUES (1, 1, %s, 'bench', now(), now() + interval '1 hour')",
                    [author.worker],
                )
            began = perf_counter()
            Measurer(author, problems_of)(on("default"))
            print(f"| *the leader counts* | | | {1000 * (perf_counter() - began):.0f} |")
        for page in PAGES if led else PAGES[:1]:
            times = []
            for _ in range(rounds + 1):
                began = perf_counter()
                with CaptureQueriesContext(connection) as queries:
                    answer = client.get(f"/admin/pgjobs/{page}")
                assert answer.status_code == 200, page
                times.append((sum(float(each["time"]) for each in queries), perf_counter() - began, len(queries)))
            sql, whole = (1000 * median(each[at] for each in times[1:]) for at in (0, 1))
            print(f"| `{page}`{'' if led else ', no leader'} | {times[-1][2]} | {sql:.0f} | {whole:.0f} |", flush=True)
    assert LeaderTerm.objects.exists()


if __name__ == "__main__":
    main()
