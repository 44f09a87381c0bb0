"""The admin asks workers: who may, who is asked, and what the pages say of it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from django.test import Client

from django_pgjobs.inspection import liveness
from django_pgjobs.models import Action, Heartbeat
from django_pgjobs.steering import workers as steering
from tests.plugins.fix_admin import client_with, html

pytestmark = pytest.mark.django_db

WORKERS = "/admin/pgjobs/heartbeat/"
BOTH = {"view_heartbeat", "steer_worker"}
QUESTIONS = {verb: {"confirmed": "yes"} for verb in ("drain", "recycle")}


def beating(name: str, *, heard: float = 1.0, **fields: Any) -> Heartbeat:
    common: dict[str, Any] = {"host": "h", "pid": 1, "processes": 1, "threads": 4, "async_slots": 0, "version": "1"}
    beat = Heartbeat.objects.create(name=name, **{**common, **fields})
    Heartbeat.objects.filter(pk=beat.pk).update(last_beat_at=Now() - timedelta(seconds=heard))
    return beat


def act(client: Client, action: str, *beats: Heartbeat, **answers: str) -> Any:
    given = {"action": action, "_selected_action": [str(beat.pk) for beat in beats], **answers}
    return client.post(WORKERS, given, follow=True)


@pytest.mark.parametrize("verb", ["quiet", "resume", "drain", "recycle"])
def test_workers_are_asked_in_the_name_of_the_user_and_those_that_are_gone_are_named(verb: str) -> None:
    there, gone = beating("there"), beating("gone", heard=3600)
    page = act(client_with(*BOTH), verb, there, gone, **QUESTIONS.get(verb, {}))
    text = html(page)
    assert "Asked: there. Each takes it up at its next heartbeat." in text
    assert "Not asked, as they drain or are gone: gone (lost)." in text
    there.refresh_from_db()
    assert (there.control, there.control_number, there.is_asked) == (verb, 1, True)
    [action] = Action.objects.all()
    assert (action.kind, action.verb, action.subject, action.via) == ("worker", verb, "there", "admin")
    assert action.acted_by == there.control_by != ""
    assert LogEntry.objects.get().object_repr == "there"


@pytest.mark.parametrize("verb", QUESTIONS)
def test_what_ends_processes_asks_before(verb: str) -> None:
    """The question names the workers and how many jobs they run; the answer keeps a reason."""
    beat, client = beating("<there>", running=3), client_with(*BOTH)
    text = html(act(client, verb, beat))
    assert "&lt;there&gt;" in text
    assert "3 running" in text
    assert ("pgjobs-danger" in text) == (verb == "drain")
    beat.refresh_from_db()
    assert (beat.control_number, Action.objects.count()) == (0, 0)
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]+)">', text))
    assert hidden.items() >= {"action": verb, "_selected_action": str(beat.pk), "confirmed": "yes"}.items()
    assert "reason" in html(act(client, verb, beat, confirmed="yes", reason="x" * 501))
    assert Action.objects.count() == 0
    client.post(WORKERS, {**hidden, "reason": "its disk is full"})
    beat.refresh_from_db()
    assert (beat.control, beat.control_reason, Action.objects.get().reason) == (verb, *["its disk is full"] * 2)


def test_who_may_steer_is_offered_each_request() -> None:
    beating("w")
    page = html(client_with(*BOTH).get(WORKERS))
    assert all(f'value="{verb}"' in page for verb in ("quiet", "resume", "drain", "recycle"))


def test_who_may_not_steer_is_offered_nothing() -> None:
    beat = beating("w")
    client = client_with("view_heartbeat")
    assert 'value="quiet"' not in html(client.get(WORKERS))
    act(client, "quiet", beat)
    beat.refresh_from_db()
    assert (beat.control_number, Action.objects.count()) == (0, 0)


def test_a_page_says_what_was_asked_and_whether_it_was_taken_up() -> None:
    client = client_with(*BOTH)
    beat = beating(
        "w", control="quiet", control_number=1, control_by="anna", control_reason="<disk>", controlled_at=Now()
    )
    page = f"{WORKERS}{beat.pk}/change/"
    text = html(client.get(page))
    assert "anna" in text
    assert "&lt;disk&gt;" in text
    assert "at its next heartbeat" in text
    assert "asked: quiet" in html(client.get(WORKERS))
    Heartbeat.objects.filter(pk=beat.pk).update(last_beat_at=Now() - timedelta(hours=1))
    assert "no, it has not been heard from since" in html(client.get(page))
    Heartbeat.objects.filter(pk=beat.pk).update(state="stopped")
    assert "no, it has left" in html(client.get(page))
    Heartbeat.objects.filter(pk=beat.pk).update(last_beat_at=Now(), state="draining")
    assert "no, it drains" in html(client.get(page))
    Heartbeat.objects.filter(pk=beat.pk).update(control="drain")
    assert "at its next heartbeat" in html(client.get(page)), "a drain that began otherwise takes that up"
    Heartbeat.objects.filter(pk=beat.pk).update(last_beat_at=Now(), control_taken=1, taken_at=Now(), state="quiet")
    text = html(client.get(page))
    assert "at its next heartbeat" not in text
    assert "pgjobs-quiet" in text
    Heartbeat.objects.filter(pk=beat.pk).update(control="forged", controlled_at=None)
    assert client.get(page).status_code == 200


def test_the_trail_shows_requests_and_offers_no_undo() -> None:
    steering.ask("default", [beating("web-1").pk], "resume", by="anna")
    [action] = Action.objects.all()
    viewer = client_with("view_action", "pause_queue")
    text = html(viewer.get(f"/admin/pgjobs/action/{action.pk}/change/"))
    assert "worker web-1" in text
    assert f"{action.pk}/undo/" not in text


def test_every_state_of_a_worker_has_a_word() -> None:
    assert {*Heartbeat.Stage.values, liveness.SILENT} == set(liveness.STATUS_LABELS)
