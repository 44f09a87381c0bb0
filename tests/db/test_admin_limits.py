"""The admin's page of limits that operators set: form, list, buttons, permissions, and the overview."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_pgjobs import Limit, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Action, LimitOverride
from django_pgjobs.queues import Queue, limits
from django_pgjobs.store.admitting import Bounds
from django_pgjobs.store.database import on
from django_pgjobs.store.limiting import override_limit
from tests.plugins.fix_admin import client_with, html, make, said, user_with

pytestmark = pytest.mark.django_db

LIMITS = "/admin/pgjobs/limitoverride/"
ADD = f"{LIMITS}add/"


def charge(tenant: str = "") -> None: ...


def remind() -> None: ...


@pytest.fixture(autouse=True)
def jobs_known(settings: Any) -> Iterator[None]:
    settings.PGJOBS = {"QUEUE_LIMITS": {"mail": {"concurrency": 9, "rate": 100, "per": 60}}}
    with registry.isolated():
        job(name="shop.charge", aliases=("shop.pay",), queue="mail", limits=Limit(4, key="{tenant}"))(charge)
        yield


@pytest.fixture
def operator() -> Client:
    return client_with("view_limitoverride", "limit_queue", "view_job")


def asked(**changes: str) -> dict[str, str]:
    given = {"kind": "queue", "name": "mail", "concurrency": "2", "rate": "", "per": "", "reason": ""}
    return {**given, "until_0": "", "until_1": "", **changes}


def test_a_limit_is_set_in_the_name_of_the_user_beside_the_codes(operator: Client) -> None:
    page = operator.post(ADD, asked(rate="5", per="2", reason="slow <API>", lasts="3600"), follow=True)
    assert said(page) == ["The limit of queue mail is set."]
    [found] = LimitOverride.objects.current()
    assert (found.concurrency, found.rate, found.per, found.reason) == (2, 5, 2.0, "slow <API>")
    assert found.until is not None
    assert abs((found.until - timezone.now()).total_seconds() - 3600) < 60
    assert "anna" in found.set_by
    text = html(page)
    for words in ("2 at once, 5 starts in 2 s", "9 at once, 100 starts in 60 s", "slow &lt;API&gt;"):
        assert words in text
    assert list(Action.objects.values_list("verb", "kind", "subject", "via")) == [("limit", "queue", "mail", "admin")]


def test_the_limit_of_each_key_of_a_job_is_set(operator: Client) -> None:
    operator.post(ADD, asked(kind="key", name="shop.charge"))
    assert [(each.kind, each.name) for each in limits.current()] == [("key", "shop.charge"), ("key", "shop.pay")]


def test_setting_it_again_replaces_all(operator: Client) -> None:
    Queue("mail").limit(7, rate=3)
    operator.post(ADD, asked())
    assert [(each.concurrency, each.rate) for each in limits.current()] == [(2, None)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"concurrency": ""}, "give concurrency, rate or both"),
        ({"concurrency": "0"}, "pause the queue"),
        ({"concurrency": "-2"}, "whole number from 1"),
        ({"per": "5"}, "give rate, too"),
        ({"rate": "1", "per": "0.01"}, "per must be from"),
        ({"name": "no good"}, "There is no queue"),
        ({"name": "mial"}, "To limit it anyway"),
        ({"kind": "job", "name": "shop.charg"}, "did you mean"),
        ({"kind": "else"}, "Select a valid choice"),
        ({"name": ""}, "This field is required"),
        ({"until_0": "2001-01-01", "until_1": "00:00"}, "This time is in the past"),
    ],
)
def test_what_is_wrong_is_told_and_sets_nothing(operator: Client, wrong: dict[str, str], words: str) -> None:
    assert words in html(operator.post(ADD, asked(**wrong)))
    assert not LimitOverride.objects.exists()


def test_a_job_without_keys_gets_no_limit_of_them(operator: Client) -> None:
    job(name="shop.remind")(remind)
    assert "This job has no limit with a key." in html(operator.post(ADD, asked(kind="key", name="shop.remind")))
    assert not LimitOverride.objects.exists()


def test_a_row_is_restored_by_its_button_and_by_the_action(operator: Client) -> None:
    limit = Queue("mail").limit(2)
    [url] = re.findall(rf'formaction="([^"]+/{limit.pk}/restore/)"', html(operator.get(LIMITS)))
    assert operator.get(url).status_code == 405
    assert said(operator.post(url, follow=True)) == ["Restored: queue mail."]
    assert said(operator.post(url, follow=True)) == ["No limit was set anymore."]
    again = Queue("mail").limit(3)
    chosen = {"action": "restore", "_selected_action": [str(again.pk)]}
    assert said(operator.post(LIMITS, chosen, follow=True)) == ["Restored: queue mail."]
    assert list(limits.current()) == []
    assert Action.objects.filter(verb="restore limit", via="admin").count() == 2


def test_who_may_only_look_sets_and_restores_nothing() -> None:
    limit = Queue("mail").limit(2)
    client = client_with("view_limitoverride", "pause_queue")
    assert client.get(LIMITS).status_code == 200
    assert client.get(f"{LIMITS}{limit.pk}/change/").status_code == 200
    assert "formaction" not in html(client.get(LIMITS))
    assert client.get(ADD).status_code == 403
    assert client.post(ADD, asked()).status_code == 403
    assert client.post(f"{LIMITS}{limit.pk}/restore/").status_code == 403
    client.post(LIMITS, {"action": "restore", "_selected_action": str(limit.pk)})
    assert client.post(f"{LIMITS}{limit.pk}/change/", asked()).status_code == 403
    assert client.post(f"{LIMITS}{limit.pk}/delete/", {"post": "yes"}).status_code == 403
    assert [each.concurrency for each in limits.current()] == [2]


def test_who_may_not_look_sees_nothing() -> None:
    assert client_with("view_job").get(LIMITS).status_code == 403


def test_what_the_code_has_no_more_is_idle(operator: Client) -> None:
    override_limit(on("default"), "key", ["shop.gone"], Bounds(1), by="", reason="")
    Queue("bulk").limit(1)
    text = html(operator.get(LIMITS))
    assert "idle: the code has nothing that it could count" in text
    assert "no limit" in text


def test_the_overview_shows_what_is_set(operator: Client) -> None:
    make(queue="mail", payload={"args": [], "kwargs": {}})
    assert "in the code 9 at once" not in html(operator.get("/admin/pgjobs/overview/"))
    Queue("mail").limit(2, by="bob")
    text = html(operator.get("/admin/pgjobs/overview/"))
    assert "The limit of queue mail is 2 at once, set by bob" in text
    assert "in the code 9 at once and 100 starts in 60 s" in text
    assert 'pgjobs-limited">limit: 2 at once</span>' in text
    assert f"{LIMITS}?q=mail" in text
    assert "Limit…" in text
    viewer = Client()
    viewer.force_login(user_with("view_job", "view_limitoverride", name="viewer"))
    assert "Limit…" not in html(viewer.get("/admin/pgjobs/overview/"))


def test_the_trail_says_what_was_set(root: Client) -> None:
    Queue("mail").limit(2, by="bob")
    limits.override("key", "shop.charge", concurrency=1)
    text = html(root.get("/admin/pgjobs/action/"))
    assert "Set the limit (concurrency=2)" in text
    assert "each key of a job shop.charge" in text
