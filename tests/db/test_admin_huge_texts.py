"""Texts of ten megabytes in every column that can have one: pages show their beginnings, and stay small."""

from __future__ import annotations

from contextlib import suppress
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.test import Client

from django_pgjobs.models import Action, Attempt, CronEntry, EventState, Heartbeat, Job, LimitOverride, QueueState
from django_pgjobs.models.numbers import Minute
from django_pgjobs.states import TREND
from tests.db.test_overview import beginning, lead
from tests.plugins.fix_admin import CLAIM, WORKER, html, make, make_one_of_each, now_plus

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]

HUGE = "\u202e<b>\x1b[31m" + "x" * 10_000_000
MOST = 500_000
"""Characters of a page; one of our pages without such texts has about 20,000."""


@pytest.fixture
def rows() -> dict[str, Job]:
    made = make_one_of_each()
    shown = {state: made[state].pk for state in ("running", "cancelled", "parked")}
    Job.objects.filter(pk=shown["running"]).update(
        description=HUGE, progress={"n": 1, "message": HUGE}, headers={"a": HUGE}, error=HUGE
    )
    Job.objects.filter(pk=shown["cancelled"]).update(cancel_by=HUGE, cancel_reason=HUGE, result={"a": HUGE})
    Job.objects.filter(pk=shown["parked"]).update(hold_reason=HUGE)
    made["failed"] = make(
        payload={"args": [HUGE], "kwargs": {HUGE: HUGE}}, outcome="abandoned", finished_at=now_plus(-5), error=HUGE,
        error_class="shop." + "E" * 2000, attempt=1,
    )  # fmt: skip
    texts = {"worker_name": HUGE, "release": HUGE, "exception": HUGE, "message": HUGE, "traceback": HUGE}
    Attempt.objects.create(job=made["failed"], claim_id=CLAIM, number=1, cause="failed", chain=[[HUGE, HUGE]], **texts)
    Heartbeat.objects.filter(pk=WORKER).update(name=HUGE, host=HUGE, release=HUGE, queues=[HUGE], running=1)
    Heartbeat.objects.create(
        id=UUID(int=5), name=HUGE, host=HUGE, pid=1, processes=1, threads=1, async_slots=1, version=HUGE,
        last_beat_at=now_plus(-30),
    )  # fmt: skip
    QueueState.objects.create(kind="queue", name="mail", paused_by=HUGE, reason=HUGE)
    LimitOverride.objects.create(kind="queue", name="mail", concurrency=2, set_by=HUGE, reason=HUGE)
    cron = CronEntry(
        name="nightly", job_name="shop.charge", declared_expression="0 7 * * 1", declared_zone="UTC", broken=HUGE,
        declared_payload={"args": [HUGE], "kwargs": {}}, declared_options={},
    )  # fmt: skip
    CronEntry.objects.bulk_create([cron])
    EventState.objects.create(name="approval", payload={"a": HUGE})
    Action.objects.create(verb="retry", acted_by=HUGE, reason=HUGE, asked=HUGE, changed=1)
    Minute.objects.create(
        worker=TREND, minute=beginning(60), queue="", name="", outcome="succeeded", release="r" * 2000, jobs=1,
        run_seconds=1, wait_seconds=1, run_histogram=[1], wait_histogram=[1],
    )  # fmt: skip
    lead()
    return made


def test_pages_stay_small_and_show_no_mark_raw(root: Client, rows: dict[str, Job]) -> None:
    models: Any = (Heartbeat, QueueState, LimitOverride, CronEntry, Action, EventState)
    paths = [f"{model._meta.model_name}/" for model in (*models, Job)]
    paths += ["overview/", "job/?state=running", "job/?state=cancelled", "job/?state=abandoned", "job/?state=retrying"]
    paths += [f"{model._meta.model_name}/{model._base_manager.first().pk}/change/" for model in models]
    paths += [f"job/{row.pk}/change/" for row in rows.values()]
    sizes: dict[str, int] = {}
    raw: dict[str, list[str]] = {}
    for path in paths:
        answer = root.get(f"/admin/pgjobs/{path}")
        assert answer.status_code == 200, path
        page = html(answer)
        sizes[path] = len(page)
        raw[path] = [mark for mark in ("<b>", "\u202e", "\x1b") if mark in page]
    assert {path: size for path, size in sizes.items() if size > MOST} == {}
    assert {path: marks for path, marks in raw.items() if marks} == {}


def test_the_shell_cuts_them_too(rows: dict[str, Job]) -> None:
    for line in ("list", "list --state abandoned", "workers", "top --once", "check", "stats", "stats --sizes"):
        out = StringIO()
        with suppress(SystemExit):  # check has found problems
            call_command("pgjobs", *line.split(), stdout=out, stderr=out)
        assert 0 < len(out.getvalue()) < MOST, line
        assert not {"\u202e", "\x1b"} & set(out.getvalue()), line
