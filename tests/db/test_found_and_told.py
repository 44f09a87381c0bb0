"""What pages and the shell let people find and read: jobs of an action, what has not ended, arguments, instants."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from django_pgjobs import Batch, job
from django_pgjobs.admin.display import when
from django_pgjobs.definition.registry import registry
from django_pgjobs.inspection.words import clock_time
from django_pgjobs.management import output
from django_pgjobs.models import Action, EventState, Job
from django_pgjobs.presentation.job_search import JobSearch
from tests.plugins.fix_admin import LIST, act, html, ids_on, make, now_plus
from tests.plugins.shell import pgjobs

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]


def member(number: int) -> None: ...


def ended(**facts: Any) -> Job:
    return make(outcome="abandoned", finished_at=Now(), **facts)


def test_the_jobs_of_an_action_are_a_list_of_their_own(root: Client) -> None:
    rows, other = [ended() for _ in range(130)], ended()
    Job.objects.filter(pk__in=[row.pk for row in rows]).retry(by="bob", reason="the API is back")
    [action] = Action.objects.all()
    page = html(root.get(f"/admin/pgjobs/action/{action.pk}/change/"))
    assert f"{LIST}?q=action%3A{action.pk}" in page
    assert "130 jobs" in html(root.get(f"{LIST}?q=action:{action.pk}"))
    Job.objects.filter(pk=rows[0].pk).update(outcome="succeeded", finished_at=Now())
    assert ids_on(root.get(f"{LIST}?q=action:{action.pk}&state=succeeded")) == [rows[0].pk]
    listed = json.loads(pgjobs("list", "--action", action.pk, "--all", "--format", "json")[1])
    assert {each["id"] for each in listed} == {row.pk for row in rows}
    assert other.pk not in {each["id"] for each in listed}
    assert "not “x”" in html(root.get(f"{LIST}?q=action:x"))
    assert "129 changed" in pgjobs("cancel", "--action", action.pk, "--state", "ready", "--yes")[1]


def test_what_has_not_ended_of_a_batch_is_a_link(root: Client) -> None:
    with registry.isolated(), Batch("three") as batch:
        defined = job(name="found.member")(member)
        for number in range(3):
            batch.add(defined.bind(number))
    first = Job.objects.filter(parent_id=batch.job.pk).earliest("pk")
    Job.objects.filter(pk=first.pk).update(outcome="succeeded", finished_at=Now())
    page = html(root.get(f"{LIST}{batch.job.pk}/change/"))
    assert f"?batch={batch.job.pk}&amp;q=ended%3Ano" in page
    left = ids_on(root.get(f"{LIST}?batch={batch.job.pk}&q=ended:no"))
    assert sorted(left) == sorted(Job.objects.filter(parent_id=batch.job.pk, outcome=None).values_list("pk", flat=True))


def test_the_words_of_a_filter_have_the_value_unless_it_is_secret() -> None:
    assert JobSearch.of({"state": "limited"}, "arg.tenant:loop").words == "state limited, argument tenant: loop"
    assert JobSearch.of({}, "arg.card:4111").words == "argument card"
    assert JobSearch.of({}, "action:10 ended:no").words == "action 10, not ended"


def test_a_reason_is_asked_where_many_jobs_change(root: Client) -> None:
    rows = [ended(), ended()]
    question = html(act(root, "retry", rows))
    assert "Reason" in question
    assert Job.objects.filter(outcome="abandoned").count() == 2
    act(root, "retry", rows, confirmed="yes", reason="the API is back")
    assert Action.objects.get().reason == "the API is back"


def test_an_event_is_sent_only_after_a_question(root: Client) -> None:
    EventState.objects.create(name="approval")
    url = "/admin/pgjobs/eventstate/approval/send/"
    question = html(root.post(url, {"payload": '{"ok": true}'}))
    assert "The first one counts, and can be withdrawn only until a job has read it" in question
    assert EventState.objects.get().sent_at is None
    root.post(url, {"payload": '{"ok": true}', "confirmed": "yes"})
    assert EventState.objects.get().payload == {"ok": True}


def test_two_instants_of_a_night_with_an_hour_twice_differ_in_text() -> None:
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    with timezone.override("Europe/Paris"):
        for shown in (clock_time, output.instant, lambda instant: str(when(instant))):
            assert shown(first) != shown(first + timedelta(hours=1))
        assert clock_time(first) == "2026-10-25 02:30:00 +02:00"
        assert clock_time(first + timedelta(hours=2)) == "2026-10-25 03:30:00"


def test_the_json_of_a_list_has_arguments_without_secrets() -> None:
    row = make(payload={"args": ["4111 1111", 1990], "kwargs": {}})
    [found] = json.loads(pgjobs("list", "--format", "json")[1])
    assert found["id"] == row.pk
    assert "1990" in json.dumps(found["arguments"])
    assert "4111" not in json.dumps(found)
    Job.objects.update(payload={"args": ["x" * 200_000], "kwargs": {"noise": [str(each) for each in range(20_000)]}})
    assert json.loads(pgjobs("list", "--format", "json")[1])[0]["arguments"] is None


def test_pruning_by_name() -> None:
    kept, gone = ended(name="shop.keep"), ended(name="shop.big")
    Job.objects.update(finished_at=Now() - timedelta(days=3))
    assert "1 would be pruned" in pgjobs("prune", "--older-than", "1d", "--name", "shop.big", "--dry-run")[1]
    assert "1 pruned" in pgjobs("prune", "--older-than", "1d", "--name", "shop.big", "--yes")[1]
    assert list(Job.objects.values_list("pk", flat=True)) == [kept.pk], gone


def test_a_search_for_an_error_leads_to_jobs_that_are_tried_again(root: Client) -> None:
    """Without a state it lists abandoned jobs, and says so."""
    words = {"error": "PaymentApiDown: no answer", "attempt": 1, "run_at": now_plus(60)}
    row = make(**words, hold="limited", limit_key="eu")
    page = html(root.get(f"{LIST}?q=error:PaymentApiDown"))
    [url] = re.findall(r'id="pgjobs-retrying">These were abandoned. <a href="([^"]*)"', page)
    assert ids_on(root.get(f"{LIST}{unescape(url)}")) == [row.pk]
    assert "pgjobs-retrying" not in html(root.get(f"{LIST}?q=error:PaymentApiDown&state=abandoned"))
