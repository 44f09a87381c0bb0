"""The admin's page of pauses, the notices on the pages of jobs, and the leader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.test import Client
from django.utils import timezone

from django_pgjobs import job
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Action, Heartbeat, Job, LeaderTerm, QueueState
from django_pgjobs.queues import Queue, pauses
from tests.plugins.fix_admin import client_with, html, make, said, user_with

pytestmark = pytest.mark.django_db

PAUSES = "/admin/pgjobs/queuestate/"
ADD = f"{PAUSES}add/"


def charge(*given: object) -> None: ...


def remind(*given: object) -> None: ...


@pytest.fixture(autouse=True)
def jobs_known() -> Iterator[None]:
    with registry.isolated():
        job(name="shop.charge", aliases=("shop.pay",))(charge)
        job(name="shop.remind", queue="mail")(remind)
        yield


@pytest.fixture
def operator() -> Client:
    return client_with("view_queuestate", "pause_queue", "view_job")


def asked(**changes: str) -> dict[str, str]:
    return {"kind": "queue", "name": "mail", "reason": "", "until_0": "", "until_1": "", **changes}


def test_the_list_says_what_who_why_and_until_when(operator: Client) -> None:
    Queue("mail").pause(by="anna", reason="server <moves>", until=timedelta(hours=1))
    pauses.pause("job", "shop.charge")
    text = html(operator.get(PAUSES))
    for words in ("mail", "anna", "server &lt;moves&gt;", "shop.charge", "shop.pay", "no end"):
        assert words in text


def test_a_pause_that_is_over_is_not_listed(operator: Client) -> None:
    Queue("mail").pause(until=60)
    QueueState.objects.update(until=timezone.now() - timedelta(hours=1))
    assert "0 paused queues and jobs" in html(operator.get(PAUSES))


def test_a_queue_is_paused_in_the_name_of_the_user(operator: Client) -> None:
    page = operator.post(ADD, asked(reason="server moves"), follow=True)
    assert said(page) == ["Queue mail is paused."]
    [state] = QueueState.objects.current()
    assert (state.kind, state.name, state.reason, state.until) == ("queue", "mail", "server moves", None)
    assert "anna" in state.paused_by
    assert LogEntry.objects.get().object_id == str(state.pk)


def test_a_queue_that_nobody_knows_is_asked_about_with_the_one_that_was_meant(operator: Client) -> None:
    """A typo must not earn a green *paused* while the intended queue keeps running."""
    page = operator.post(ADD, asked(name="mial"))
    assert "knows a queue &#x27;mial&#x27; (did you mean &#x27;mail&#x27;?)" in html(page)
    assert '<input type="checkbox" name="anyway"' in html(page)
    assert not QueueState.objects.exists()


def test_a_queue_that_nobody_knows_is_paused_when_that_is_meant_and_the_message_warns(operator: Client) -> None:
    page = operator.post(ADD, asked(name="night", anyway="on"), follow=True)
    assert said(page) == ["Queue night is paused. No job or setting knows this queue."]
    assert [message.level_tag for message in get_messages(page.wsgi_request)] == ["warning"]
    assert [state.name for state in QueueState.objects.current()] == ["night"]


@pytest.mark.parametrize("known_by", ["job", "setting", "pause"])
def test_a_queue_is_known_by_jobs_settings_and_pauses(operator: Client, settings: Any, known_by: str) -> None:
    if known_by == "job":
        make(queue="night", payload={"args": [], "kwargs": {}})
    elif known_by == "setting":
        settings.PGJOBS = {"QUEUES": ["night"]}
    else:
        Queue("night").pause()
    assert 'name="anyway" type="checkbox"' not in html(operator.get(ADD))
    page = operator.post(ADD, asked(name="night"), follow=True)
    assert said(page) == ["Queue night is paused."]
    assert [message.level_tag for message in get_messages(page.wsgi_request)] == ["success"]


def test_pauses_in_the_admin_leave_their_traces(operator: Client) -> None:
    operator.post(ADD, asked(reason="server moves"))
    [state] = QueueState.objects.current()
    operator.post(PAUSES, {"action": "resume", "_selected_action": [str(state.pk)]})
    found = Action.objects.order_by("pk").values_list("verb", "kind", "subject", "via", "reason")
    assert list(found) == [
        ("pause", "queue", "mail", "admin", "server moves"), ("resume", "queue", "mail", "admin", ""),
    ]  # fmt: skip


def test_a_job_is_paused_with_its_former_names_until_an_instant(operator: Client) -> None:
    operator.post(ADD, asked(kind="job", name="shop.charge", until_0="2070-01-31", until_1="08:00"))
    found = list(QueueState.objects.current())
    assert [state.name for state in found] == ["shop.charge", "shop.pay"]
    assert all(state.until and timezone.localtime(state.until).hour == 8 for state in found)


def test_pausing_again_replaces_the_words(operator: Client) -> None:
    Queue("mail").pause(by="bob", reason="before")
    operator.post(ADD, asked(reason="after"))
    assert [state.reason for state in QueueState.objects.current()] == ["after"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "no good"}, "There is no queue"),
        ({"kind": "job", "name": "shop.charg"}, "did you mean"),
        ({"kind": "else"}, "Select a valid choice"),
        ({"name": ""}, "This field is required"),
        ({"reason": "x" * 501}, "at most 500"),
        ({"until_0": "2001-01-01", "until_1": "00:00"}, "This time is in the past"),
        ({"until_0": "tomorrow", "until_1": "00:00"}, "valid date"),
    ],
)
def test_what_is_wrong_is_told_and_pauses_nothing(operator: Client, wrong: dict[str, str], words: str) -> None:
    page = operator.post(ADD, asked(**wrong))
    assert words in html(page)
    assert not QueueState.objects.exists()


def test_a_name_that_somebody_types_imports_nothing(operator: Client) -> None:
    """Who may pause may not run code: of all modules on the server, one would be executed by its name."""
    asked_for: list[str] = []
    registry.add_resolver(lambda name: asked_for.append(name))
    page = operator.post(ADD, asked(kind="job", name="antigravity.fly"))
    assert "No job named &#x27;antigravity.fly&#x27; is known" in html(page)
    assert not asked_for
    assert not QueueState.objects.exists()


def test_what_only_the_databases_clock_refuses_is_told(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server whose clock is slow."""
    monkeypatch.setattr("django_pgjobs.admin.pauses.PauseForm.clean_until", lambda form: form.cleaned_data["until"])
    page = operator.post(ADD, asked(until_0="2001-01-01", until_1="00:00"), follow=True)
    assert "is in the past by the database" in said(page)[0]
    assert not QueueState.objects.exists()


def test_chosen_ones_are_resumed(operator: Client) -> None:
    states = [Queue("mail").pause(), pauses.pause("job", "shop.charge")]
    chosen = {"action": "resume", "_selected_action": [str(state.pk) for state in states]}
    page = operator.post(PAUSES, chosen, follow=True)
    assert said(page) == ["Resumed: queue mail, job shop.charge."]
    assert list(QueueState.objects.current()) == []
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize(("lasts", "seconds"), [("900", 900), ("3600", 3600), ("28800", 28_800)])
def test_a_pause_may_last_for_a_while_by_the_clock_of_the_database(operator: Client, lasts: str, seconds: int) -> None:
    before = timezone.now()
    operator.post(ADD, asked(lasts=lasts))
    [state] = QueueState.objects.current()
    assert state.until is not None
    assert abs((state.until - before).total_seconds() - seconds) < 60


def test_how_long_and_until_when_are_not_both_taken(operator: Client) -> None:
    page = operator.post(ADD, asked(lasts="900", until_0="2070-01-31", until_1="08:00"))
    assert "Choose how long, or name a time, not both." in html(page)
    assert not QueueState.objects.exists()


def test_a_row_is_resumed_by_its_own_button_and_by_no_link(operator: Client) -> None:
    state = Queue("mail").pause()
    pauses.pause("job", "shop.charge")
    [url] = re.findall(rf'formaction="([^"]+/{state.pk}/resume/)"', html(operator.get(PAUSES)))
    assert operator.get(url).status_code == 405
    assert said(operator.post(url, follow=True)) == ["Resumed: queue mail."]
    assert said(operator.post(url, follow=True)) == ["Nothing was paused anymore."]
    assert [each.name for each in QueueState.objects.current()] == ["shop.charge", "shop.pay"]
    assert Action.objects.filter(verb="resume", via="admin").count() == 1
    viewer = client_of_viewer()
    assert "formaction" not in html(viewer.get(PAUSES))
    assert viewer.post(url).status_code == 403


def client_of_viewer() -> Client:
    client = Client()
    client.force_login(user_with("view_queuestate", "view_job", name="viewer"))
    return client


def test_who_may_only_look_pauses_and_resumes_nothing() -> None:
    state = Queue("mail").pause()
    client = client_with("view_queuestate")
    assert client.get(PAUSES).status_code == 200
    assert client.get(ADD).status_code == 403
    assert client.post(ADD, asked(name="other")).status_code == 403
    client.post(PAUSES, {"action": "resume", "_selected_action": str(state.pk)})
    assert client.post(f"{PAUSES}{state.pk}/change/", asked(reason="x")).status_code == 403
    assert client.post(f"{PAUSES}{state.pk}/delete/", {"post": "yes"}).status_code == 403
    assert [(found.name, found.reason) for found in QueueState.objects.current()] == [("mail", "")]
    assert client.get(f"{PAUSES}{state.pk}/change/").status_code == 200


def test_who_may_not_look_sees_nothing() -> None:
    assert client_with("view_job").get(PAUSES).status_code == 403


def test_lists_of_jobs_say_what_is_paused(operator: Client) -> None:
    Queue("mail").pause(by="anna", reason="server moves.")
    pauses.pause("job", "shop.charge")
    everything = html(operator.get("/admin/pgjobs/job/"))
    assert "Queue <strong>mail</strong> is paused by anna: server moves." in everything
    assert "Job <strong>shop.charge</strong> is paused." in everything
    assert PAUSES in everything
    assert "is paused" not in html(operator.get("/admin/pgjobs/job/?queue=other"))
    named = html(operator.get("/admin/pgjobs/job/?name=shop.charge"))
    assert "Job <strong>shop.charge</strong> is paused" in named
    assert "<strong>mail</strong>" not in named


def test_many_pauses_do_not_fill_the_page(operator: Client) -> None:
    for n in range(8):
        Queue(f"q{n}").pause()
    text = html(operator.get("/admin/pgjobs/job/"))
    assert text.count("is paused") == 5
    assert "3 more are paused." in text


def test_the_page_of_a_job_says_that_its_queue_or_name_is_paused() -> None:
    row = make(queue="mail", payload={"args": [], "kwargs": {}})
    ended = make(queue="mail", outcome="succeeded", finished_at=timezone.now(), payload={"args": [], "kwargs": {}})
    Queue("mail").pause(reason="<b>moves</b>")
    pauses.pause("job", "shop.charge")
    client = client_with("view_job")
    text = html(client.get(f"/admin/pgjobs/job/{row.pk}/change/"))
    assert "Queue <strong>mail</strong> is paused: &lt;b&gt;moves&lt;/b&gt;." in text
    assert "Job <strong>shop.charge</strong> is paused." in text
    assert "All pauses" not in text, "who may not look is not sent there"
    assert "pgjobs-pause" not in html(client.get(f"/admin/pgjobs/job/{ended.pk}/change/"))
    assert Job.objects.count() == 2


def test_the_leader_is_marked_among_the_workers() -> None:
    """W3: by its term, and only while that runs."""
    facts: dict[str, Any] = {"host": "h", "pid": 1, "processes": 1, "threads": 1, "async_slots": 1, "version": "1"}
    leader = Heartbeat.objects.create(id=UUID(int=1), name="one", **facts)
    Heartbeat.objects.create(id=UUID(int=2), name="two", **facts)
    now = timezone.now()
    LeaderTerm.objects.create(term=7, worker=leader.pk, worker_name="one", taken_at=now, expires_at=now + timedelta(1))
    client = client_with("view_heartbeat")
    marks = html(client.get("/admin/pgjobs/heartbeat/"))
    assert marks.count(">leader<") == 1
    term = LeaderTerm.current()
    assert term is not None
    assert (term.worker, term.term, LeaderTerm.current("default")) == (leader.pk, 7, term)
    LeaderTerm.objects.update(expires_at=now - timedelta(1))
    assert LeaderTerm.current() is None
    assert "icon-yes" not in html(client.get("/admin/pgjobs/heartbeat/"))
