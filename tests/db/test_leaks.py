"""Who may not see something does not see it anywhere: a matrix of permissions, pages and secrets."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_pgjobs.models import Action, CronEntry, EventState, Heartbeat, Job, LimitOverride, QueueState
from django_pgjobs.queues import limits, pauses
from tests.plugins.fix_admin import WORKER, html, make, make_one_of_each, now_plus, user_with

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]

ROOT = "/admin/pgjobs/"
CARD, UNKNOWN, ERROR, NAME = "4111-secret", "kwarg-secret", "error-secret", "shop.name-secret"

NEEDED = {
    "job/": "view_job", "overview/": "view_job", "heartbeat/": "view_heartbeat", "queuestate/": "view_queuestate",
    "limitoverride/": "view_limitoverride",
    "cronentry/": "view_cronentry", "action/": "view_action", "eventstate/": "view_eventstate",
}  # fmt: skip
"""Page → the permission that it needs."""

USERS: dict[str, tuple[str, ...]] = {
    "nothing": (), **{permission: (permission,) for permission in NEEDED.values()},
    "operator": ("view_job", "retry_job", "cancel_job", "view_heartbeat", "view_queuestate", "view_action"),
}  # fmt: skip


@pytest.fixture
def filled() -> dict[str, Job]:
    """Rows of every kind with secrets in them."""
    rows = make_one_of_each()
    secret = {"args": [CARD, 7], "kwargs": {}}
    rows["secret"] = make(name="shop.charge", payload=secret, description="order 7")
    rows["unknown"] = make(name=NAME, payload={"args": [], "kwargs": {"x": UNKNOWN}})
    ended = {"outcome": "abandoned", "finished_at": now_plus(-5), "error": ERROR, "error_class": "shop.Declined"}
    rows["failed"] = make(payload=secret, **ended)
    EventState.objects.create(name="approval", payload={"card": CARD})
    pauses.pause("job", "shop.charge", by="anna", reason="bank")
    limits.override("job", "shop.charge", concurrency=2, by="anna", reason="bank")
    rows["failed"].retry(by="anna", reason="again")
    Heartbeat.objects.filter(pk=WORKER).update(running=1)
    CronEntry.objects.bulk_create([
        CronEntry(
            name="nightly", job_name="shop.charge", declared_expression="0 7 * * 1", declared_zone="UTC",
            declared_payload={"args": [CARD, 7], "kwargs": {}}, declared_options={},
        )
    ])  # fmt: skip
    return rows


def pages(rows: dict[str, Job]) -> list[str]:
    """Every page of ours, and every way to ask a list."""
    models: Any = (Heartbeat, QueueState, LimitOverride, CronEntry, Action, EventState)
    found = [*NEEDED, "overview/?span=day", ""]
    found += [f"job/{row.pk}/{page}/" for row in rows.values() for page in ("change", "history")]
    found += [f"{model._meta.model_name}/{model._base_manager.first().pk}/change/" for model in models]
    asked = (
        f"arg.card:{CARD}", f"arg.x:{UNKNOWN}", f'arg.card:"{CARD}"', "error:Declined", "worker:web-1", "since:1h",
        CARD, UNKNOWN,
    )  # fmt: skip
    found += [f"job/?q={words}" for words in asked]
    odd = (
        "payload__contains=4",
        "result__x=1",
        "o=1.2.3",
        "_popup=1",
        "_to_field=payload",
        "all=",
        "e=1",
        "facets=True",
    )
    return [*found, *(f"job/?{each}" for each in odd)]


@pytest.mark.parametrize("name", USERS)
def test_nobody_sees_what_they_may_not(filled: dict[str, Job], name: str) -> None:
    """Secrets: sensitive arguments, those of unknown jobs, and without ``view_job`` any name and error of a job."""
    client, permissions = Client(), USERS[name]
    client.force_login(user_with(*permissions, name=name))
    hidden = [CARD, UNKNOWN] if "view_job" in permissions else [CARD, UNKNOWN, ERROR, NAME]
    for path in pages(filled):
        answer = client.get(ROOT + path, follow=True)
        assert answer.status_code in (200, 400, 403, 404), path
        text = html(answer).replace(path.partition("?q=")[2] or "\0", "")
        searched = path.partition("?q=")[2]
        found = [secret for secret in hidden if secret in text and secret not in searched]
        assert found == [], path
        needed = NEEDED.get(path)
        if needed:
            assert (answer.status_code == 200) == (needed in permissions), path


def test_no_search_is_an_oracle(filled: dict[str, Job]) -> None:
    """A right guess and a wrong one look alike."""
    client = Client()
    client.force_login(user_with("view_job", name="viewer"))
    for right, wrong in ((f"arg.card:{CARD}", "arg.card:4000"), (f"arg.x:{UNKNOWN}", "arg.x:4000")):
        seen = [html(client.get(f"{ROOT}job/", {"q": term})).replace(term, "") for term in (right, wrong)]
        assert ["field-shown_name" in text for text in seen] == [False, False]


def test_who_is_not_logged_in_sees_the_login(filled: dict[str, Job], client: Client) -> None:
    for path in pages(filled):
        assert client.get(ROOT + path).status_code == 302, path


@pytest.mark.parametrize("path", ["overview/", "job/", "heartbeat/", "queuestate/", "action/"])
def test_a_get_changes_nothing_and_a_post_needs_its_token(filled: dict[str, Job], path: str) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(user_with("view_job", "retry_job", "pause_queue", "view_queuestate", "view_action", name="bo"))
    before = list(Job.objects.order_by("pk").values_list("pk", "state")), QueueState.objects.count()
    data = {"action": "retry", "_selected_action": "0", "select_across": "1", "confirmed": "yes"}
    strict.get(ROOT + path, data)
    assert strict.post(ROOT + path, data).status_code == 403
    assert before == (list(Job.objects.order_by("pk").values_list("pk", "state")), QueueState.objects.count())


def test_an_unknown_job_reveals_its_arguments_to_those_who_may(filled: dict[str, Job]) -> None:
    """So the matrix can fail."""
    client = Client()
    client.force_login(user_with("view_job", "view_payload", name="trusted"))
    assert CARD in html(client.get(f"{ROOT}job/{filled['secret'].pk}/change/"))
    assert UNKNOWN in html(client.get(f"{ROOT}job/{filled['unknown'].pk}/change/"))
