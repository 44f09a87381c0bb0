"""What the package registers on behalf of a job has its headers; what has no origin says so. Middleware as printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_pgjobs import Batch, JobContext, job
from django_pgjobs.admin import bulk
from django_pgjobs.models import Attempt, Job
from django_pgjobs.testing import run_jobs
from django_pgjobs.values.built_in import POLICY
from tests.docs.pages import DOCS, blocks
from tests.plugins.fix_admin import LIST, make

pytestmark = pytest.mark.django_db

PAGE = DOCS / "how-to/middleware.md"
NAME = "shop_as_printed"

said: list[tuple[str, str]] = []


def tenant_of_now() -> str:
    found: str = sys.modules[NAME].current_tenant.get("nobody")
    return found


@job(name="tenants.member")
def member(n: int) -> None:
    said.append((f"member {n}", tenant_of_now()))


@member.undo()
def unmember(context: JobContext, n: int) -> None:
    said.append((f"undo {n}", tenant_of_now()))


@job(name="tenants.fails", max_attempts=1)
def fails() -> None:
    raise ValueError("no")


@job(name="tenants.gatherer", takes_context=True)
def gatherer(context: JobContext) -> None:
    context.gather([member.bind(1)])


@job(name="tenants.scheduled", takes_context=True)
def scheduled(context: JobContext) -> None:
    assert not context.has_origin
    said.append(("scheduled", tenant_of_now()))


@pytest.fixture(autouse=True)
def tenant(settings: Any) -> Iterator[Any]:
    """The page's own module, its three layers switched on; this is acme's code."""
    said.clear()
    found = [block.text for block in blocks(PAGE) if block.file == "shop/middleware.py"]
    module = sys.modules[NAME] = ModuleType(NAME)
    exec("\n".join(found), module.__dict__)
    settings.PGJOBS = {
        **settings.PGJOBS,
        "MIDDLEWARE": [f"{NAME}.{layer}" for layer in ("language", "tenant", "trace")],
    }
    token = module.current_tenant.set("acme")
    yield module.current_tenant
    module.current_tenant.reset(token)
    del sys.modules[NAME]


def tenants_of(name: str) -> list[Any]:
    rows = Job.objects.filter(name=name).order_by("pk").values_list("headers", flat=True)
    return [(headers or {}).get("tenant") for headers in rows]


def nothing_failed() -> bool:
    return not Attempt.objects.filter(exception="KeyError").exists()


def outside(tenant: Any) -> Any:
    """Leave acme's code: whoever acts now belongs to nobody."""
    from contextvars import Context

    return Context()


def test_a_gather_is_of_the_tenant_of_its_function(tenant: Any) -> None:
    gatherer.register()
    outside(tenant).run(run_jobs)
    assert said == [("member 1", "acme")]
    assert (tenants_of("pgjobs.wake"), tenants_of("pgjobs.batch")) == (["acme"], ["acme"])
    assert nothing_failed()


def test_what_undoes_is_of_the_tenant_of_what_it_undoes(tenant: Any) -> None:
    """One batch over two tenants: each member's compensation is its own tenant's."""
    batch = Batch("b", undo=True)
    batch.add(member.bind(1))
    token = tenant.set("globex")
    batch.add(member.bind(2))
    tenant.reset(token)
    batch.add(fails.bind())
    batch.close()
    outside(tenant).run(run_jobs)
    assert tenants_of("pgjobs.undo") == ["acme"]
    assert sorted(one for one in said if one[0].startswith("undo")) == [("undo 1", "acme"), ("undo 2", "globex")]
    assert nothing_failed()


def test_the_cancel_of_members_is_of_the_tenant_of_its_batch_whoever_cancels_it(tenant: Any) -> None:
    with Batch("b") as batch:
        batch.add_many(member.bind(n) for n in range(3))
    outside(tenant).run(batch.job.cancel)
    assert tenants_of("pgjobs.cancel_members") == ["acme"]
    outside(tenant).run(run_jobs)
    assert (batch.job.outcome, said) == ("cancelled", [])
    assert nothing_failed()


def test_what_a_schedule_fires_says_that_it_has_no_origin(tenant: Any) -> None:
    make(name=scheduled.name, payload={"args": [], "kwargs": {}}, cron_entry="nightly")
    outside(tenant).run(run_jobs)
    assert said == [("scheduled", "nobody")]
    assert nothing_failed()


def test_an_action_on_many_jobs_is_nobodys(tenant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request of whoever asks belongs to no tenant, and registering the job asks for none."""
    monkeypatch.setattr(bulk, "AT_ONCE", 1)
    rows = [member.register(n) for n in range(3)]
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    asked = {"action": "cancel", "_selected_action": "0", "select_across": "1", "confirmed": "yes", "mode": "ask"}
    outside(tenant).run(root.post, f"{LIST}?state=ready", asked)
    outside(tenant).run(run_jobs)
    assert Job.objects.filter(pk__in=[row.pk for row in rows], outcome="cancelled").count() == 3
    assert nothing_failed()


# Middleware that fails around ours


def broken(run: Any) -> Any:
    def inner(context: Any) -> Any:
        if context.name in POLICY:
            raise KeyError("tenant")
        return run(context)

    return inner


def skips(run: Any) -> Any:
    return lambda context: None if context.name in POLICY else run(context)


def swallows(run: Any) -> Any:
    def inner(context: Any) -> Any:
        try:
            return run(context)
        except BaseException:
            if context.name not in POLICY:
                raise

    return inner


@pytest.mark.parametrize("layer", ["broken", "skips", "swallows"])
def test_no_job_of_ours_hangs_on_a_layer(settings: Any, layer: str, caplog: pytest.LogCaptureFixture) -> None:
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": [f"{__name__}.{layer}"]}
    row = gatherer.register()
    with Batch("b", undo=True) as batch:
        batch.add_many([member.bind(7), fails.bind()])
    with Batch("c") as other:
        other.add(member.bind(8))
    other.job.cancel()
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, batch.job.outcome, other.job.outcome) == ("succeeded", "abandoned", "cancelled")
    assert ("undo 7", "nobody") in [(words, "nobody") for words, _ in said]
    ours = Job.objects.filter(name__in=POLICY).exclude(name__in=["pgjobs.batch"])
    assert set(ours.values_list("outcome", "attempt")) <= {("succeeded", 1), ("succeeded", 2)}
    told = [record for record in caplog.records if "middleware failed around a job of ours" in record.getMessage()]
    assert bool(told) == (layer == "broken")
