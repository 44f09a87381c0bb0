"""The middleware of the docs, as printed, around jobs of real workers and what the package does on their behalf."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from django_pgjobs import Batch
from django_pgjobs.models import Attempt, Job
from django_pgjobs.models.numbers import Notice
from tests.e2e import tenants
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ROOT, WorkerProcess, Workers, ended

PAGE = ROOT / "docs/how-to/middleware.md"
LAYERS = ["shop.middleware.language", "shop.middleware.tenant", "shop.middleware.trace"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Any]:
    """The page's module, in a project here and in the worker; its layers are those that the page switches on."""
    text = PAGE.read_text()
    blocks = re.findall(r"```python\n# shop/middleware.py\n(.*?)```", text, re.DOTALL)
    assert f'"MIDDLEWARE": [{", ".join(f"{chr(34)}{layer}{chr(34)}" for layer in LAYERS)}]' in text
    package = tmp_path / "project" / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "middleware.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(str(package.parent))
    others = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "shop"}
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": LAYERS}
    yield importlib.import_module("shop.middleware")
    for name in ("shop", "shop.middleware"):
        sys.modules.pop(name, None)
    sys.modules.update(others)


@pytest.fixture
def tenant_worker(shop: Any, worker: Workers, tmp_path: Path) -> WorkerProcess:
    """A worker that notices failures, with the page's layers around its jobs."""
    conf = {"MIDDLEWARE": LAYERS, "NOTIFY_FAILURES": {"to": "tests.e2e.tenants.deliver"}}
    return worker(conf=conf, env={"PYTHONPATH": f"{tmp_path / 'project'}:{ROOT}"})


def as_tenant(shop: Any, name: str, call: Any, *args: Any) -> Any:
    """Call as the code of a tenant; without a name it is nobody's."""
    context = Context()
    if name:
        context.run(shop.current_tenant.set, name)
    return context.run(call, *args)


def noted(stage: Stage, *words: object) -> set[str]:
    """Whose the code was that noted these words."""
    return {trace.words[-1] for trace in stage.traces("tenant", *words)}


def nothing_failed(process: WorkerProcess) -> None:
    assert not Attempt.objects.exclude(job__name=tenants.fails.name).exclude(cause="released").exists()
    assert not process.said("middleware failed around|KeyError|LookupError")


def test_a_job_its_members_and_its_compensations_are_of_its_tenant(
    shop: Any, tenant_worker: WorkerProcess, stage: Stage
) -> None:
    """One batch of two tenants is undone: each compensation is of the tenant of what it undoes."""

    def fails_after_two() -> Batch:
        batch = Batch("b", undo=True)
        batch.add(tenants.member.bind(1))
        as_tenant(shop, "globex", batch.add, tenants.member.bind(2))
        return batch

    gatherer = as_tenant(shop, "acme", tenants.gathers.register)
    batch = as_tenant(shop, "acme", fails_after_two)
    wait_until(lambda: stage.count("tenant", "member", 1) and stage.count("tenant", "member", 2), 20, "both have run")
    as_tenant(shop, "acme", batch.add, tenants.fails.bind())
    as_tenant(shop, "acme", batch.close)
    (row,) = ended(gatherer)
    assert row.outcome == "succeeded", row.error
    assert (noted(stage, "member", 7), noted(stage, "amember", 8)) == ({"acme"}, {"acme"})
    wait_until(lambda: stage.count("tenant", "undo") == 2, 20, "both are undone")
    assert (noted(stage, "undo", 1), noted(stage, "undo", 2)) == ({"acme"}, {"globex"})
    (undo,) = ended(Job.objects.get(name="pgjobs.undo"))
    assert (undo.outcome, undo.headers["tenant"]) == ("succeeded", "acme")  # type: ignore[index]
    nothing_failed(tenant_worker)


def test_a_batch_that_an_operator_cancels_has_its_members_cancelled(
    shop: Any, tenant_worker: WorkerProcess, stage: Stage
) -> None:
    """The operator is of no tenant."""

    def waits() -> Batch:
        with Batch("b") as batch:
            batch.add_many(tenants.member.using(delay=3600).bind(n) for n in range(3))
        return batch

    batch = as_tenant(shop, "acme", waits)
    as_tenant(shop, "", batch.job.cancel)
    wait_until(lambda: Job.objects.filter(outcome="cancelled").count() == 4, 20, "it and its members are cancelled")
    (cancels,) = ended(Job.objects.get(name="pgjobs.cancel_members"))
    assert (cancels.outcome, cancels.headers["tenant"]) == ("succeeded", "acme")  # type: ignore[index]
    assert noted(stage, "member") == set()
    nothing_failed(tenant_worker)


def test_a_scheduled_job_and_a_notice_are_nobodys(shop: Any, tenant_worker: WorkerProcess, stage: Stage) -> None:
    """What the scheduled job registers for a tenant is that tenant's."""
    wait_until(Notice.objects.exists, 20, "a leader looks for failures")
    as_tenant(shop, "acme", tenants.fails.register)
    as_tenant(shop, "", tenants.scheduled.schedule("* * * * * *", name="tenancy", max_fires=1).register)
    wait_until(lambda: stage.count("tenant", "member", 9), 30, "it has fired, and what it registers has run")
    wait_until(lambda: stage.count("tenant", "notice"), 30, "the notice is delivered")
    assert noted(stage, "scheduled", False) == {"nobody"}
    assert noted(stage, "member", 9) == {"initech"}
    assert noted(stage, "notice", 1) == {"nobody"}
    nothing_failed(tenant_worker)
