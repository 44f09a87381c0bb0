"""Tags: put on jobs where they are declared and where they are registered, and found by an index."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from django_pgjobs import Cron, job, register_many
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import RawDatabase

pytestmark = pytest.mark.usefixtures("own_registry", "raw")


def test_tags_of_the_definition_and_of_the_registration_are_stored_together() -> None:
    """W51: once each, in their order; a job without tags has none for every reader."""

    @job(tags=["billing"])
    def bill(n: int) -> None: ...

    @job
    def plain() -> None: ...

    registered = bill.using(tags=["vip", "billing"]).register(1)
    assert registered.tags == ("billing", "vip")
    assert Job.objects.get(pk=registered.pk).tags == ("billing", "vip")
    assert bill.register(2).tags == ("billing",)
    assert plain.register().tags == Job.objects.get(name=plain.name).tags == ()
    assert Job.objects.filter(tags__isnull=True).count() == 1


def test_tagged_jobs_are_found_and_steered_together() -> None:
    @job(tags=["billing"])
    def bill(n: int) -> None: ...

    ids = register_many([bill.using(tags=["acme"]).bind(1), bill.bind(2), bill.using(unique="k").bind(3)])
    assert set(Job.objects.tagged("billing").values_list("pk", flat=True)) == set(ids)
    assert list(Job.objects.tagged("billing", "acme").values_list("pk", flat=True)) == ids[:1]
    assert Job.objects.tagged("acm").count() == 0
    assert Job.objects.tagged("acme").cancel().changed == 1
    again = Job.objects.get(pk=ids[0]).register_again()
    assert again.tags == ("billing", "acme")
    assert sorted(run_jobs().succeeded) == sorted([*ids[1:], again.pk])


def test_jobs_of_a_cron_entry_have_the_tags_of_their_job() -> None:
    @job(tags=["nightly"], cron=Cron("@daily", name="nightly run"))
    def night() -> None: ...

    from django_pgjobs.maintenance.cron_declaring import declared_for
    from django_pgjobs.store import firing
    from django_pgjobs.store.database import on

    for declared in declared_for("default").values():
        firing.declare_cron(on("default"), declared, overwrite=True, fresh_seconds=0.0)
    CronEntry.objects.get(name="nightly run").run_now()
    assert Job.objects.get(cron_entry="nightly run").tags == ("nightly",)


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ("vip", "tags must be a list of texts, not 'vip'"),
        ([7], "a tag must be 1 to 50 printable characters"),
        ([""], "a tag must be 1 to 50 printable characters"),
        (["x" * 51], "a tag must be 1 to 50 printable characters"),
        ([" vip"], "no space around them, not ' vip'"),
        (["a\0b"], "printable characters"),
        ([f"t{n}" for n in range(21)], "tags must be at most 20, not 21"),
    ],
)
def test_wrong_tags_are_refused_where_they_are_given(tags: Any, words: str) -> None:
    @job
    def plain() -> None: ...

    with transaction.atomic():
        with pytest.raises(InvalidJob, match=words):
            plain.using(tags=tags)
        with pytest.raises(InvalidJob, match=words):
            job(name="other", tags=tags)(plain.func)
        plain.register()
    assert Job.objects.count() == 1


def test_an_index_finds_a_rare_tag_in_code_and_in_lists(raw: RawDatabase) -> None:
    @job
    def plain(n: int) -> None: ...

    plain.using(tags=["rare"]).register(0)
    plain.register_many([(n,) for n in range(3000)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pgjobs_job")
    from django_pgjobs.presentation.job_search import JobSearch

    for jobs in (Job.objects.tagged("rare"), Job.objects.filter(JobSearch(tag="rare").where()).order_by("-pk")[:50]):
        plan = jobs.explain()
        assert "pgjobs_job_tags" in plan, plan
        assert len(jobs) == 1


def test_the_shell_lists_and_shows_tagged_jobs() -> None:
    @job(tags=["billing"])
    def bill() -> None: ...

    @job
    def plain() -> None: ...

    registered = bill.register()
    plain.register()
    out = StringIO()
    call_command("pgjobs", "list", "--tag", "billing", "--format", "json", stdout=out)
    assert [found["id"] for found in json.loads(out.getvalue())] == [registered.pk]
    out = StringIO()
    call_command("pgjobs", "show", str(registered.pk), stdout=out)
    assert "billing" in out.getvalue()


def test_what_sql_has_written_as_tags_makes_no_reader_fail() -> None:
    @job(tags=["a"])
    def tagged() -> None: ...

    registered = tagged.register()
    for forged, read in (('"text"', ()), ("{}", ()), ('["b", 7, null]', ("b",)), (f"[{'7' * 5000}]", ())):
        with connection.cursor() as cursor:
            cursor.execute("UPDATE pgjobs_job SET tags = %s::jsonb", [forged])
        assert Job.objects.get(pk=registered.pk).tags == read
