"""The plans of lists: each filter of the admin's list pages and of ``pgjobs list``, under whatever statistics.

As in ``test_plans_by_shape``, each statement is explained as it is run, on Django's connection, which pins no plan.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import StringIO
from itertools import product
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client

from django_pgjobs.admin import events as event_pages
from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.presentation import job_list, reach
from django_pgjobs.presentation.filters import STATES, SUSPENDED
from django_pgjobs.presentation.job_conditions import search_condition
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.store import claiming
from django_pgjobs.store.database import on
from tests.db.test_plans_by_shape import IDS, statistics  # noqa: F401 (a fixture)
from tests.plugins.explaining import Explained
from tests.plugins.fix_db import WORKER

REACH = 1000
"""Ids that a list reads at most, and jobs that a bounded search looks at. A scan of the table is seventy times that."""

BATCH, MEMBERS = 4_000_000_000, 30_000
"""A batch, and how many members it has: more than a list may touch."""

ANY_STATE = ("", *map(str, STATES))
PLACES: list[dict[str, str]] = [{}, {"queue": "default"}, {"queue": "q7"}, {"queue": "nobody-has-it"}]
REST: list[dict[str, str]] = [{"name": "shapes.plain"}, {"q": "nothing has this"}, {"tag": "vip"}, {"tag": "many"}]
SEARCHED = (
    'error:"shapes.Odd"', "error:Odd", "arg.order:595", "worker:web-1", "key:k77", "queue:default tag:vip",
    "since:2026-01-01T10:00Z older:2026-01-01T10:01Z", "older:2026-01-01T10:01Z",
    "front:task", "front:job", "alias:mail",
)  # fmt: skip
FILTERS = [
    *({"state": state, **place} for state, place in product(ANY_STATE, PLACES)),
    *({"state": state, **rest} for state, rest in product(ANY_STATE, REST)),
    *({"state": state, **place, **rest} for state, place, rest in product(("ready", "retrying"), PLACES[1:], REST)),
    *({"batch": str(BATCH), "state": state} for state in ANY_STATE),
    *({"batch": str(BATCH), **rest} for rest in (*PLACES[1:], *REST)),
    *({"batch": str(BATCH), "state": "abandoned", **rest} for rest in (*PLACES[1:], *REST)),
    *({"suspended": suspended, **place} for suspended in SUSPENDED for place in (*PLACES, *REST)),
    {"suspended": "sleeping", "state": "scheduled"},
    {"batch": str(BATCH), "suspended": "sleeping"},
    {"batch": "open"},
    *({"q": words, **state} for words in SEARCHED for state in ({}, {"state": "abandoned"}, {"state": "ready"})),
    {"state": "succeeded", "q": "since:2026-01-01T10:00Z older:2026-01-01T10:01Z"},
    {"state": "succeeded", "q": "worker:web-1"},
    {"batch": "open", "queue": "default"},
]
PAGES = [
    "pgjobs/job/", "pgjobs/job/?state=ready&p=4", "pgjobs/job/?tag=vip", "pgjobs/action/", "pgjobs/heartbeat/",
    f"pgjobs/job/?batch={BATCH}", f"pgjobs/job/?batch={BATCH}&state=abandoned", "pgjobs/job/?batch=open",
    "pgjobs/job/?suspended=sleeping", "pgjobs/eventstate/", "pgjobs/eventstate/?sent=nobody_waits",
    "pgjobs/eventstate/?q=nothing-has-this",
]  # fmt: skip

ASKED: list[list[str]] = [[], ["--queue", "default"], ["--since", "30m"], ["--older-than", "30m"]]
OPTIONS: list[list[str]] = [
    [],
    *(["--state", state, *rest] for state in ("ready", "succeeded", "parked") for rest in ASKED),
    ["--queue", "limited"],
    ["--name", "shapes.plain"],
    ["--tag", "vip"],
    ["--key", "k77"],
    ["--state", "ready", "--key", "k77"],
    ["--description", "nothing has this"],
    ["--since", "30m"],
    ["--older-than", "30m"],
    ["--worker", "web-1"],
    ["--error", "shapes.Odd"],
    ["--error", "Odd"],
    ["--arg", "order=595"],
    ["--front", "task"],
    ["--front", "job", "--state", "parked"],
    ["--alias", "mail", "--state", "ready"],
    ["--batch", str(BATCH)],
    ["--batch", str(BATCH), "--state", "abandoned"],
    ["--batch", str(BATCH), "--state", "ready", "--queue", "default"],
    ["--batch", str(BATCH), "--since", "30m"],
    ["--sleeping"],
    ["--waiting-for-event", "--queue", "default"],
]


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (
        "NEAR",
        "NEAR_TEXT",
        "NEAR_ENDED",
        "NEAR_TAGGED",
        "NEAR_COMMON",
        "NEAR_HELD",
        "NEAR_SUSPENDED",
        "NEAR_ARGUMENTS",
    )
    for name in (*kinds, "NEAR_RETRYING"):
        monkeypatch.setattr(reach, name, REACH)
    monkeypatch.setattr(job_list, "MOST", REACH)
    monkeypatch.setattr(event_pages, "MOST", REACH)


def fill_batch() -> None:
    """Members of a batch in all states, few of which failed; batches that wait, and many gates, few of them open."""
    insert = (
        "INSERT INTO pgjobs_job (id, name, payload, queue, outcome, finished_at, hold, parent_id, flow)"
        " SELECT %s + g, %s, '{}', 'default', o, CASE WHEN o IS NOT NULL THEN now() - (86400 + g) * interval '1 s' END,"
        " h, %s, %s"
        " FROM (SELECT g, %s AS o, %s AS h FROM generate_series(%s, %s) AS g) AS rows"
    )
    sorts: list[tuple[str | None, str | None, int]] = [
        ("abandoned", None, 3), ("cancelled", None, 3), (None, "parked", 3), (None, "blocked", 3),
        ("succeeded", None, 2000), (None, None, MEMBERS),
    ]  # fmt: skip
    with connection.cursor() as cursor:
        first = 1
        for outcome, hold, count in sorts:
            rows = [first, first + count - 1]
            cursor.execute(insert, [BATCH, "shapes.plain", BATCH, 1, outcome, hold, *rows])
            first += count
        cursor.execute(insert, [2 * BATCH, "pgjobs.batch", None, 16, None, "blocked", 1, 500])
        cursor.execute(
            "INSERT INTO pgjobs_gate (job_id, pending, hands) SELECT %s + g, 1, (mod(g, 10) = 0 AND g < 500)::int"
            " FROM generate_series(1, %s) AS g",
            [2 * BATCH, MEMBERS],
        )


def fill_memos() -> None:
    """Many jobs that sleep, all with one tag, few that wait for an event, as many that have slept; and many events."""
    first = 3 * BATCH
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgjobs_job (id, name, payload, queue, run_at, flow, tags)"
            " SELECT %s + g, 'shapes.plain', '{}', 'default', now() + interval '1 day', 32, '[\"many\"]'"
            " FROM generate_series(1, %s) AS g",
            [first, MEMBERS],
        )
        cursor.execute(
            "INSERT INTO pgjobs_memo (job_id, name, kind, event, wake_at, finished_at)"
            " SELECT %s + g, 'm' || n, CASE WHEN mod(g, 3000) = 0 THEN 'event' ELSE 'sleep' END,"
            " CASE WHEN mod(g, 3000) = 0 THEN 'e' || g END, now() + interval '1 day', CASE WHEN n < 3 THEN now() END"
            " FROM generate_series(1, %s) AS g, generate_series(1, 3) AS n",
            [first, MEMBERS],
        )
        cursor.execute(
            "INSERT INTO pgjobs_event (name, sent_at, waits, created_at)"
            " SELECT 'e' || g, now(), mod(g, 2), now() - g * interval '1 s' FROM generate_series(1, %s) AS g",
            [MEMBERS],
        )
        # What is in question are the statistics of jobs.
        cursor.execute("ANALYZE pgjobs_memo, pgjobs_event")


def faults_of(run: Callable[[], object]) -> list[str]:
    watch = Explained(REACH)
    with connection.execute_wrapper(watch):
        run()
    assert watch.seen
    return watch.faults


def read_page(pairs: job_list.Pairs, params: dict[str, str]) -> None:
    """Read a page of the admin's list as ``JobChangeList`` does, the pairs of the queue filter given."""
    asked = job_list.settled(JobSearch.of(params, params.get("q", "")), "default")
    ranges = job_list.ranges_of(asked, pairs)
    jobs = Job.objects.filter(asked.listed(), search_condition(asked.text, asked.job_id))
    cut = job_list.bounded(asked, Job.objects.all(), ranges) if asked.bounded else []
    ids = job_list.find_ids(jobs, cut or ranges, job_list.MOST + 1)
    admin: Any = site._registry[Job]
    admin.read_rows(Job.objects.all(), ids[:50])


def list_jobs(options: list[str]) -> None:
    with suppress(SystemExit):  # an alias that TASKS does not have
        call_command("pgjobs", "list", *options, stdout=StringIO(), stderr=StringIO())


def see(root: Client, page: str) -> None:
    assert root.get(f"/admin/{page}").status_code == 200


@pytest.mark.usefixtures("near")
def test_a_list_costs_what_it_looks_at_and_not_the_table(
    statistics: str,  # noqa: F811
    django_db_blocker: Any,
) -> None:
    """Whatever filters are chosen in the admin, or typed in the shell."""
    with django_db_blocker.unblock(), transaction.atomic():
        root = Client()
        root.force_login(User.objects.create_superuser("root"))
        beat = {"host": "h", "pid": 1, "processes": 1, "threads": 1, "async_slots": 1, "version": "1"}
        Heartbeat.objects.create(id=WORKER, name="web-1", **beat)
        fill_batch()
        fill_memos()
        pairs = claiming.list_pairs(on("default"))
        runs: list[tuple[object, Callable[[], object]]] = [
            *((asked, partial(read_page, pairs, asked)) for asked in FILTERS),
            *((options, partial(list_jobs, options)) for options in OPTIONS),
            *((page, partial(see, root, page)) for page in PAGES),
            *((kind, partial(see, root, f"pgjobs/job/{IDS[kind][0]}/change/")) for kind in ("ended", "running")),
        ]
        wrong = {str(what): found for what, run in runs if (found := faults_of(run))}
        # An index of tags finds all rows of a tag at once, however few are asked for; but it does not read them.
        wrong = {
            what: found
            for what, found in wrong.items()
            if "'tag': 'many'" not in what or not all(fault.startswith("Bitmap Index Scan") for fault in found)
        }
        if statistics == "emptied":
            # Where all indexes look alike, the planner takes the primary key for the jobs that are tried again at one
            # instant. That list, and no other, waits for autovacuum.
            retrying = "{'state': 'retrying', 'queue': 'default'"
            wrong = {what: found for what, found in wrong.items() if not what.startswith(retrying)}
        transaction.set_rollback(True)
    assert not wrong, "\n".join(f"{what}: {found}" for what, found in wrong.items())
