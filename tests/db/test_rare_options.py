"""The column ``options``: what few jobs have, as it is registered, claimed and shown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import call_command

from django_pgjobs import Cron, job, register_many
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing
from django_pgjobs.store.database import on
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import RawDatabase, claim

pytestmark = pytest.mark.usefixtures("own_registry", "raw")

ONCE = {"on_crash": "abandon"}


def test_most_jobs_have_none() -> None:
    """A job that asks for what it has by default has none either."""

    @job
    def body() -> None: ...

    @job(on_crash="abandon")
    def once() -> None: ...

    body.using(on_crash="retry").register()
    once.using(on_crash="retry").register()
    register_many([body.bind()])
    assert set(Job.objects.values_list("options", flat=True)) == {None}


def test_every_way_to_register_stores_them() -> None:
    """One, many, with a key, again, and those of a schedule; ``using`` may change what ``@job`` says."""

    @job(on_crash="abandon", cron=Cron("@hourly"))
    def once() -> None: ...

    @job
    def body() -> None: ...

    found: list[Any] = [once.register(), once.using(unique="k").register(), body.using(on_crash="abandon").register()]
    found += [found[0].register_again()]
    assert [one.options for one in found] == [ONCE] * 4
    register_many([once.bind(), body.using(on_crash="abandon").bind()])
    (entry,) = registry.crons()
    firing.declare_cron(on("default"), entry.declared(), overwrite=True, fresh_seconds=0.0)
    CronEntry.objects.get().run_now()
    assert list(Job.objects.values_list("options", flat=True)) == [ONCE] * 7
    assert len(run_jobs().succeeded) == 7


def test_a_limit_of_memory_is_one_of_them(raw: RawDatabase) -> None:
    """``using`` changes it or takes it away; a job that is registered again has it, not what the job before it took."""

    @job(memory=512)
    def body() -> None: ...

    found: list[Any] = [body.register(), body.using(memory=2048).register(), body.using(memory=None).register()]
    raw.query('UPDATE pgjobs_job SET options = options || \'{"peaks": "1:80-90"}\' WHERE id = %s', [found[0].pk])
    found.append(Job.objects.get(pk=found[0].pk).register_again())
    own = {"memory": 512}
    assert [Job.objects.get(pk=one.pk).options for one in found[1:]] == [{"memory": 2048}, None, own]
    assert [each.memory_limit for each in claim(raw, 4).jobs] == [512, 2048, None, 512]
    with pytest.raises(InvalidJob, match="memory and bypass exclude each other"):
        body.using(bypass=True)


@pytest.mark.parametrize("written", ['"512"', "-1", "[1]", "1.5", "null", "0", "true"])
def test_a_limit_of_memory_that_nobody_can_read_is_none(raw: RawDatabase, written: str) -> None:
    @job(memory=512)
    def body() -> None: ...

    body.register()
    raw.query("UPDATE pgjobs_job SET options = jsonb_build_object('memory', %s::jsonb)", [written])
    assert claim(raw).jobs[0].memory_limit is None


def test_the_claim_returns_them(raw: RawDatabase) -> None:
    @job(on_crash="abandon")
    def once() -> None: ...

    once.register()
    assert claim(raw).jobs[0].extras == {"options": ONCE}


def test_people_see_them(capsys: pytest.CaptureFixture[str]) -> None:
    @job(on_crash="abandon")
    def once() -> None: ...

    registered = once.register()
    call_command("pgjobs", "show", str(registered.pk), "--format", "json")
    assert '"on_crash": "abandon"' in capsys.readouterr().out
    call_command("pgjobs", "show", str(registered.pk))
    assert 'options: {"on_crash": "abandon"}' in " ".join(capsys.readouterr().out.split())


def test_a_soft_limit_is_one_of_them_and_the_hard_one_is_the_timeout(raw: RawDatabase) -> None:
    """Each ``timeout`` sets both; the hard one alone is bounded by the ceiling, and gives the backstop."""

    @job(timeout=(timedelta(seconds=5), 60))
    def body() -> None: ...

    found = [body.register(), body.using(timeout=(7, None)).register(), body.using(timeout=9).register()]
    found += [body.using(timeout=None).register(), body.using(on_crash="abandon").register()]
    rows = Job.objects.order_by("id").values_list("timeout_seconds", "options")
    assert list(rows) == [
        (60.0, {"soft_timeout": 5.0}),
        (None, {"soft_timeout": 7.0}),
        (9.0, None),
        (None, None),
        (60.0, {"on_crash": "abandon", "soft_timeout": 5.0}),
    ]
    assert body.timeout == 60
    with pytest.raises(InvalidJob, match="timeout must be at most 86400 seconds, not 90000"):
        body.using(timeout=(5, 90_000))
    with pytest.raises(InvalidJob, match="a soft limit and bypass exclude each other"):
        body.using(bypass=True)
    assert len(run_jobs().succeeded) == len(found)


@pytest.mark.parametrize(
    "written",
    ["[" * 2000 + "]" * 2000, "9" * 5000, '{"soft_timeout": ' + "9" * 400 + "}", '{"x": "' + "y" * 10**6 + '"}'],
)
def test_options_that_nobody_can_read_stop_no_claim(raw: RawDatabase, written: str) -> None:
    """Python refuses JSON that is too deep or has too long a number: the claims of every worker would fail on it."""

    @job
    def body() -> None: ...

    bad, good = body.register(), body.register()
    raw.query("UPDATE pgjobs_job SET options = %(text)s::jsonb WHERE id = %(id)s", {"text": written, "id": bad.pk})
    claimed = claim(raw, 10).jobs
    assert [one.id for one in claimed] == [bad.pk, good.pk]
    extras = claimed[0].extras
    assert extras is not None
    assert len(str(extras)) < 1500
    assert claimed[0].soft_limit is None


@pytest.mark.parametrize("instant", ["infinity", "-infinity"])
def test_endless_instants_arrive_as_numbers(raw: RawDatabase, instant: str) -> None:
    @job
    def body() -> None: ...

    body.register()
    raw.query("UPDATE pgjobs_job SET expires_at = %(at)s::timestamptz, deadline = %(at)s::timestamptz", {"at": instant})
    if raw.value("SELECT current_setting('server_version_num')::int") < 170000:
        with pytest.raises(psycopg.DataError):  # the claimer parks the job
            claim(raw)
        return
    [claimed] = claim(raw).jobs
    assert (claimed.until, claimed.expires) == (float(instant), float(instant))
