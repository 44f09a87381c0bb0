"""Lists of due jobs of very many (queue, priority) pairs: which ones, in which order, and what that reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from django_pgjobs.models import Job
from django_pgjobs.presentation import job_list
from django_pgjobs.presentation.job_list import MOST_RANGES
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.store import claiming, counting
from django_pgjobs.store.database import on
from tests.plugins.explaining import Explained

pytestmark = pytest.mark.django_db

PAIRS = MOST_RANGES + 10
LIMIT = 500

AGES: dict[str, str] = {
    "evenly": "g",
    "one pair has all of the oldest": f"g + CASE WHEN mod(g, {PAIRS}) = 7 THEN 1000000 ELSE 0 END",
    "the larger the pair, the older": "g * (10 - mod(g, 10)) * 100",
    "half of them before the other half": f"g + CASE WHEN mod(g, {PAIRS}) < {PAIRS // 2} THEN 1000000 ELSE 0 END",
    "all at one instant": "60",
}
"""How the jobs are spread → the age of job number g in seconds."""


def put(age: str, count: int, pair: str = f"mod(g, {PAIRS})") -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgjobs_job (name, payload, queue, priority, run_at) "
            f"SELECT 'm', '{{}}', 'q' || {pair} / 5, mod({pair}, 5), "
            f"statement_timestamp() - make_interval(secs => {age}) FROM generate_series(1, {count}) AS g"
        )


def pairs() -> list[tuple[str, int]]:
    return claiming.list_pairs(on("default"))


def first_due(limit: int, *, later: bool = False) -> list[int]:
    return counting.first_due(on("default"), pairs(), later=later, limit=limit)


def in_order(**conditions: Any) -> list[int]:
    return list(Job.objects.filter(**conditions).order_by("run_at", "pk").values_list("pk", flat=True))


@pytest.mark.parametrize("spread", AGES)
@pytest.mark.parametrize("limit", [1, PAIRS, LIMIT, 5000])
def test_the_first_due_jobs_come_in_order_however_they_are_spread(spread: str, limit: int) -> None:
    put(AGES[spread], 3000)
    put("-100 - g", 100)
    assert first_due(limit) == in_order(run_at__lt=Now())[:limit]
    assert first_due(limit, later=True) == in_order(run_at__gt=Now())[:limit]


def test_a_job_that_somebody_runs_is_none_of_them() -> None:
    put("g", 500)
    running = in_order()[:300:2]
    Job.objects.filter(pk__in=running).update(claim_id="00000000-0000-4000-8000-00000000000c")
    assert first_due(LIMIT) == in_order(claim_id=None)


@pytest.mark.parametrize("spread", AGES)
def test_what_they_cost_does_not_grow_with_the_backlog(spread: str) -> None:
    """The jobs are forty times as many as are asked for."""
    put(AGES[spread], 40 * LIMIT)
    known, watch = pairs(), Explained(LIMIT)
    with transaction.atomic(), connection.execute_wrapper(watch):
        found = counting.first_due(on("default"), known, later=False, limit=LIMIT)
    assert len(found) == LIMIT
    assert watch.faults == []
    assert watch.seen <= 3, "rounds"


def test_the_check_above_finds_a_sort_of_all_of_them() -> None:
    put("g", 40 * LIMIT)
    watch = Explained(LIMIT)
    with transaction.atomic(), connection.execute_wrapper(watch):
        list(Job.objects.filter(state="ready").order_by("run_at", "pk").values_list("pk", flat=True)[:LIMIT])
    assert watch.faults != []


def found_by(asked: JobSearch, jobs: Any, most: int) -> tuple[list[int], bool]:
    """The ids of a list, and whether it says that it has searched only a part."""
    ranges = job_list.ranges_of(asked, pairs())
    cut = job_list.bounded(asked, Job.objects.all(), ranges) if asked.bounded else []
    return job_list.find_ids(jobs.filter(asked.where()), cut or ranges, most), bool(cut)


def test_a_list_looks_further_where_other_conditions_leave_too_few() -> None:
    """A project's own queryset in the admin, for one: of what it shows nothing is missing."""
    put("g", 3000)
    rare = in_order()[5::500]
    Job.objects.filter(pk__in=rare).update(description="rare")
    assert found_by(JobSearch(state="ready"), Job.objects.filter(description="rare"), 4) == (rare[:4], False)
    assert found_by(JobSearch(state="ready"), Job.objects.filter(description="rare"), 50) == (rare, False)


@pytest.mark.parametrize(("state", "age"), [("ready", "g"), ("retrying", "-100 - g")])
def test_a_search_looks_at_the_first_ones_of_all_pairs_and_says_so(state: str, age: str) -> None:
    put(age, 3000)
    Job.objects.update(attempt=1)
    ids = in_order()
    Job.objects.filter(pk__in=[ids[10], ids[999], ids[1000], ids[2999]]).update(name="rare")
    search: Callable[[int], JobSearch] = lambda reach: JobSearch(state=state, name="rare", reach=reach)  # noqa: E731
    assert found_by(search(1000), Job.objects.all(), 50) == ([ids[10], ids[999]], True)
    assert found_by(search(3000), Job.objects.all(), 50) == ([ids[10], ids[999], ids[1000], ids[2999]], False)
