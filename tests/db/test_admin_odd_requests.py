"""Requests to the admin that no page of it makes: the answer is a page, a redirect or a refusal, never an error."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from django.contrib import admin
from django.test import Client
from django.utils import timezone

from django_pgjobs import job
from django_pgjobs.models import CronEntry, Heartbeat, Job, QueueState
from django_pgjobs.queues import Queue
from tests.plugins.fix_admin import html, make, now_plus

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]

MODELS = ("job", "heartbeat", "queuestate", "limitoverride", "cronentry", "action", "eventstate")
PAGES = {"overview"}
"""Registered without rows."""
NO_IDS = ("\0", "a\0b", "-1", "abc", "9" * 40, "0" * 5000, "٣", "1 OR 1=1")
ODD = ("\0", "a\0b", "-1", "9" * 40, "2026-13-45T99:99", "%'\"\\")
OURS = {"job": ("state", "suspended", "queue", "name", "tag", "reach"), "eventstate": ("sent",)}
"""The filters of each list."""

EVERYWHERE = ("q", "p", "_to_field", "_changelist_filters")
TIMES = ("until_0", "until_1")


def report(day: int = 1) -> None: ...


@pytest.fixture(autouse=True)
def a_row_of_every_kind(charge_known: None) -> None:
    job(name="shop.report", schedulable=True)(report)
    row = make(outcome="abandoned", finished_at=now_plus(-1))
    Job.objects.filter(pk=row.pk).retry(by="anna")
    Queue("default").pause()
    Queue("default").limit(2)
    Heartbeat.objects.create(name="web-1", host="h", pid=1, processes=1, threads=1, async_slots=1, version="1")
    CronEntry.objects.bulk_create([
        CronEntry(
            name="nightly", job_name="shop.charge", declared_expression="0 7 * * 1", declared_zone="UTC",
            declared_payload={"args": ["4111", 7], "kwargs": {}}, declared_options={}, missing_since=timezone.now(),
        )
    ])  # fmt: skip


def url(model: str, object_id: str = "", page: str = "") -> str:
    return f"/admin/pgjobs/{model}/" + (f"{quote(object_id)}/{page}" if object_id else "")


def test_all_our_pages_are_tried() -> None:
    registered = [model._meta for model in admin.site._registry]
    assert {meta.model_name for meta in registered if meta.app_label == "pgjobs"} == set(MODELS) | PAGES


@pytest.mark.parametrize("model", MODELS)
def test_what_cannot_be_an_id_is_an_unknown_id(root: Client, model: str) -> None:
    """With a NUL or too many digits, too: Django goes to the index and says that there is no such row."""
    for object_id in NO_IDS:
        page = root.get(url(model, object_id, "change/"), follow=True)
        assert (page.status_code, "exist. Perhaps it was deleted?" in html(page)) == (200, True), object_id
        for other in ("history/", "delete/", "schedule/" if model == "cronentry" else ""):
            assert root.get(url(model, object_id, other)).status_code in (302, 403), (object_id, other)


@pytest.mark.parametrize("verb", ["pause", "resume", "run_now", "stop", "remove"])
def test_buttons_of_an_entry_that_cannot_be(root: Client, verb: str) -> None:
    for object_id in ("\0", "a\0b"):
        page = root.post(url("cronentry", object_id, f"steer/{verb}/"), {"reason": "x"}, follow=True)
        assert "There is no such cron entry." in html(page)


@pytest.mark.parametrize("model", MODELS)
def test_no_value_in_a_query_spoils_a_list(root: Client, model: str) -> None:
    for parameter in (*EVERYWHERE, *OURS.get(model, ("name__startswith", "until", "acted_at__gte"))):
        for value in ODD:
            answer = root.get(url(model), {parameter: value}, follow=True)
            assert answer.status_code in (200, 400), (parameter, value)


@pytest.mark.parametrize("action", ["resume", "pause", "run_now", "cancel", "retry", "a\0b"])
@pytest.mark.parametrize("model", ["job", "queuestate", "cronentry"])
def test_what_cannot_be_an_id_cannot_be_chosen(root: Client, model: str, action: str) -> None:
    for chosen in NO_IDS:
        posted = {"action": action, "_selected_action": [chosen], "index": "0"}
        page = root.post(url(model), posted, follow=True)
        assert page.status_code == 200
        refused = "The selection has invalid" in html(page)
        assert refused == (model != "cronentry" or "\0" in chosen), "any other text may be the name of an entry"
    assert [pause.name for pause in QueueState.objects.current()] == ["default"]


def test_odd_reasons_modes_and_dates_change_a_form_or_nothing(root: Client) -> None:
    row = Job.objects.get()
    for value in ODD:
        for verb in ("pause", "resume"):
            page = root.post(url("cronentry", "nightly", f"steer/{verb}/"), {"reason": value}, follow=True)
            assert page.status_code == 200, (verb, value)
        for field in ("reason", "mode"):
            given = {"mode": "ask", field: value}
            page = root.post(url("job", str(row.pk), "steer/abandon/"), given, follow=True)
            assert page.status_code == 200, (field, value)
        for field in ("name", "reason", "kind", *TIMES):
            given = {"kind": "queue", "name": "mail", "anyway": "on", field: value}
            assert root.post(url("queuestate") + "add/", given, follow=True).status_code == 200, (field, value)
        for field in ("expression", "zone", "payload"):
            page = root.post(url("cronentry", "nightly", "change/"), {field: value}, follow=True)
            assert page.status_code == 200, (field, value)


SCHEDULE = {
    "name": "n", "expression": "0 7 * * 1", "tz": "UTC", "misfire": "once", "overlap": "allow", "enabled": "on",
    "argument_day": "1", "start": "", "end": "", "max_fires": "", "priority": "", "queue": "", "reason": "",
}  # fmt: skip


@pytest.mark.parametrize("field", [*SCHEDULE])
def test_odd_fields_of_a_schedule_are_told_in_its_form(root: Client, field: str) -> None:
    for value in ODD:
        posted = {**SCHEDULE, field: value, "_save": "1"}
        answer = root.post(url("cronentry") + "add/?job=shop.report", posted)
        assert answer.status_code in (200, 302), value
