"""Several registered at once, and registering from asynchronous code."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgjobs import Limit, job, register_many
from django_pgjobs.jobs import BoundJob, JobDefinition, aregister_many
from django_pgjobs.models import Job
from tests.db.registering_ground import anything, as_django_reads, on_disk, pay, send, total

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh_throttle")]


@job
async def fetch(url: str) -> None: ...


@job(limits=Limit(5))
def limited(user_id: int) -> None: ...


# Several at once


@pytest.mark.parametrize("count", [1, 5, 1000])
def test_a_row_is_positional_or_keyword_arguments(count: int) -> None:
    rows = [(n,) if n % 2 else {"user_id": n, "note": "x"} for n in range(count)]
    ids = pay.using(priority=3, delay=60).register_many(rows)
    found = list(Job.objects.filter(pk__in=ids).order_by("pk"))
    assert [job_.pk for job_ in found] == ids
    expected = [{"args": list(r), "kwargs": {}} if isinstance(r, tuple) else {"args": [], "kwargs": r} for r in rows]
    assert [job_.payload for job_ in found] == expected
    assert {(job_.priority, job_.queue, job_.max_attempts) for job_ in found} == {(3, "default", 5)}
    assert all(timedelta(seconds=59) < job_.run_at - job_.created_at < timedelta(seconds=61) for job_ in found)


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(("declared", "count"), [(pay, 2), (pay, 1000), (limited, 2)])
def test_both_passes_of_a_repeated_hour_are_kept(declared: JobDefinition[..., Any], count: int) -> None:
    """Row A22: an instant is the same by every way of registering."""
    first = datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN)
    starts = [first, first.replace(fold=1)] * (count // 2)
    ids = register_many([declared.using(run_at=when).bind(1) for when in starts])
    found = Job.objects.in_bulk(ids)
    hours = [as_django_reads(datetime(2030, 10, 27, hour, 30, tzinfo=UTC)) for hour in (0, 1)]
    assert [found[pk].run_at for pk in ids] == hours * (count // 2)


@pytest.mark.parametrize(("declared", "count"), [(pay, 12), (pay, 1200), (limited, 12)])
@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_a_delay_over_a_change_of_clocks_is_as_long_as_it_was_said(
    declared: JobDefinition[..., Any], count: int
) -> None:
    """Row A22. Of twelve months ahead some have another offset than today."""
    delays = [float(timedelta(days=30 * month).total_seconds()) for month in range(1, 13)] * (count // 12)
    ids = register_many([declared.using(delay=delay).bind(1) for delay in delays])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM run_at)::float8 - extract(epoch FROM created_at)::float8"
            " FROM pgjobs_job WHERE id = ANY (%s) ORDER BY id",
            [ids],
        )
        found = [row[0] for row in cursor.fetchall()]
    assert found == [pytest.approx(delay, abs=60) for delay in delays]


@pytest.mark.parametrize("count", [2, 600])
def test_calls_of_different_kinds_are_stored_in_their_order(count: int) -> None:
    calls = [pay.bind(n) if n % 2 else send.using(queue="bulk").bind(str(n)) for n in range(count)]
    ids = register_many(calls)
    found = Job.objects.in_bulk(ids)
    assert [(found[pk].name, found[pk].queue) for pk in ids] == [
        (pay.name, "default") if n % 2 else (send.name, "bulk") for n in range(count)
    ]


def test_nothing_to_register_asks_no_database() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert pay.register_many([]) == []
        assert register_many(iter([])) == []
    assert len(queries) == 0


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("count", [3, 700])
def test_a_list_that_is_used_again_for_the_next_row_is_stored_as_it_was(count: int, named: bool) -> None:
    """Who makes the rows from a stream fills one list again and again."""

    def rows() -> Iterator[Any]:
        ids: list[int] = []
        for number in range(count):
            ids[:] = [number, number + 1]
            yield {"ids": ids} if named else (ids, 2)

    stored = total.register_many(rows())
    found = Job.objects.in_bulk(stored)
    lists = [
        payload["kwargs"]["ids"] if named else payload["args"][0] for payload in (found[pk].payload for pk in stored)
    ]
    assert lists == [[n, n + 1] for n in range(count)]


def test_a_bound_call_registers_as_often_as_one_likes() -> None:
    call = pay.using(queue="bulk").bind(7, note="x")
    one, other = call.register(), call.using(priority=5).register()
    assert one.pk != other.pk
    assert (one.payload, one.queue, one.priority) == (other.payload, "bulk", 0)
    assert other.priority == 5


def test_a_bound_call_is_encoded_when_it_is_registered() -> None:
    basket: list[int] = []
    call = anything.bind(basket)
    basket.append(1)
    assert call.register().payload == {"args": [[1]], "kwargs": {}}


# Async callers


@on_disk
def test_async_twins_do_the_same() -> None:
    async def register_all_ways() -> list[int]:
        one = await fetch.aregister("https://example.org")
        two = await fetch.using(queue="net").aregister(url="https://example.org")
        three = await fetch.bind("x").aregister()
        many = await fetch.aregister_many([("y",), {"url": "z"}])
        calls: list[BoundJob] = [fetch.bind("a"), pay.bind(1)]
        more = await aregister_many(calls)
        bulk = await fetch.using(queue="net").aregister_many([("b",)])
        return [one.pk, two.pk, three.pk, *many, *more, *bulk]

    ids = async_to_sync(register_all_ways)()
    assert sorted(ids) == list(Job.objects.order_by("pk").values_list("pk", flat=True))
    assert len(set(ids)) == 8


def test_an_async_caller_hears_of_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'url'"):
        async_to_sync(fetch.aregister)()  # type: ignore[call-arg]
