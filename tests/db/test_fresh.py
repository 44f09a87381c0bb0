"""``job.fresh``: whether the call that returned a job made it, or another job had the key (paper O4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.db.models.signals import post_init

from django_pgjobs import Flow, Unique, job
from django_pgjobs.models import Job
from django_pgjobs.signals import job_registered
from tests.db.keys_ground import latest, plain, reindex
from tests.db.registering_ground import on_disk, pay

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fresh_throttle")]


@job(name="fresh.postponed", unique=Unique("p", on_conflict="postpone"))
def postponed() -> None: ...


@job(name="fresh.windowed", unique=Unique("w", window=3600))
def windowed() -> None: ...


@pytest.fixture
def _listened() -> Iterator[None]:
    """Some project looks at each instance of a job: then Django makes them."""

    def look(**_: Any) -> None: ...

    post_init.connect(look, sender=Job)
    yield
    post_init.disconnect(look, sender=Job)


def test_a_job_is_fresh_for_the_call_that_stored_it() -> None:
    first, again = reindex.register("a"), reindex.register("a")
    assert (first.pk == again.pk, first.fresh, again.fresh) == (True, True, False)
    assert pay.register(1).fresh
    assert pay.using(delay=60, tags=["a"]).register(1).fresh
    assert reindex.bind("b").register().fresh


def test_what_is_read_from_the_database_is_not_fresh() -> None:
    first = pay.register(1)
    assert Job.objects.get(pk=first.pk).fresh is False
    first.refresh_from_db()
    assert first.fresh, "it says what the call did, not what the row is"


@pytest.mark.usefixtures("_listened")
def test_it_is_so_where_django_makes_the_instances() -> None:
    assert (reindex.register("a").fresh, reindex.register("a").fresh) == (True, False)


def test_a_job_that_was_moved_is_not_fresh_and_one_that_replaces_another_is() -> None:
    assert (postponed.register().fresh, postponed.using(delay=60).register().fresh) == (True, False)
    assert (latest.register(1).fresh, latest.register(2).fresh) == (True, True)


def test_a_key_of_a_window_whose_job_is_gone_is_taken_all_the_same() -> None:
    first = windowed.register()
    assert first.fresh
    Job.objects.filter(pk=first.pk)._raw_delete("default")
    assert windowed.register().fresh is False


def test_a_job_that_needs_others_is_fresh() -> None:
    first = pay.register(1)
    behind = plain.using(after=first, unique="behind")
    assert (behind.register().fresh, behind.register().fresh) == (True, False)


def test_a_job_that_bypasses_the_queue_is_fresh() -> None:
    assert pay.using(bypass=True).register(1).fresh


def test_a_flow_is_fresh_unless_its_key_is_taken() -> None:
    first, again = Flow(key="f"), Flow(key="f")
    for flow in (first, again):
        flow.add(pay.bind(1))
    assert (first.register().fresh, again.register().fresh) == (True, False)


def test_a_job_that_was_registered_again_is_fresh() -> None:
    first = pay.register(1)
    first.cancel()
    assert first.register_again().fresh


def test_receivers_see_fresh_jobs() -> None:
    seen: list[Any] = []

    def note(job: Job, **_: Any) -> None:
        seen.append(job.fresh)

    job_registered.connect(note)
    try:
        reindex.register("a")
        reindex.register("a")
        plain.register_many([(1,), (2,)])
        plain.using(after=pay.register(1)).register()
    finally:
        job_registered.disconnect(note)
    assert seen == [True, True, True, True, True]


@on_disk
def test_asynchronous_callers_learn_it_too() -> None:
    async def twice() -> list[bool]:
        return [(await reindex.aregister("a")).fresh, (await reindex.aregister("a")).fresh]

    assert asyncio.run(twice()) == [True, False]


def test_a_job_that_was_rolled_back_was_fresh_and_leaves_its_key() -> None:
    with transaction.atomic():
        assert reindex.register("a").fresh
        transaction.set_rollback(True)
    assert reindex.register("a").fresh
