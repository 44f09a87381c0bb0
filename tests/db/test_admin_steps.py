"""Durable functions in the admin: what they remember and wait for, events that people send, and what undoes them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_pgjobs import Backoff, Batch, Event, JobContext, job
from django_pgjobs.admin import events as event_pages
from django_pgjobs.models import Action, EventState, Job, Memo
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.presentation import flow as presentation
from django_pgjobs.presentation import memos, reach
from django_pgjobs.testing import run_job, run_jobs
from tests.plugins.fix_admin import LIST, act, client_with, html, ids_on, make, said, steer_url, user_with

pytestmark = pytest.mark.django_db

EVENTS = "/admin/pgjobs/eventstate/"

approval: Event[Any] = Event("asteps.approval")

MARKUP = "<script>alert(1)</script>"

broken: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_is_broken() -> None:
    broken.clear()


def charge(amount: int) -> dict[str, Any]:
    return {"charged": amount, "note": MARKUP}


@job(name="asteps.refund", takes_context=True, max_attempts=1)
def refund(context: JobContext, amount: int) -> None:
    if "refund" in broken:
        raise ValueError("the bank is closed")


@job(name="asteps.order", takes_context=True, max_attempts=1)
def order(context: JobContext, number: int = 7) -> Any:
    context.step.using(undo=refund)(charge, number)
    verdict = context.wait_for(approval, number, timeout=timedelta(days=14))
    if verdict == "no":
        raise ValueError("refused")
    return verdict


@job(name="asteps.secret", takes_context=True, sensitive=("card",))
def secret(context: JobContext, card: str = "4111-1111") -> Any:
    context.step.using(name="charged")(lambda: card)
    return context.wait_for("signed", timeout=timedelta(days=14))


@job(name="asteps.nap", takes_context=True)
def nap(context: JobContext) -> None:
    context.sleep(timedelta(days=3))


def fail() -> None:
    raise ValueError(f"no {MARKUP}")


@job(name="asteps.flaky", takes_context=True)
def flaky(context: JobContext) -> None:
    context.step.using(attempts=3, backoff=Backoff(60))(fail)


@job(name="asteps.member")
def member(n: int) -> int:
    return n


@job(name="asteps.gathers", takes_context=True)
def gathers(context: JobContext) -> list[int]:
    return context.gather([member.using(queue="later").bind(n) for n in range(3)])


def another(*permissions: str) -> Client:
    """A client of somebody else, with these permissions alone."""
    client = Client()
    client.force_login(user_with(*permissions, name="bert"))
    return client


def started(definition: Any, *args: Any) -> Job:
    """A job of this definition that has come to where it waits."""
    row: Job = definition.register(*args)
    run_jobs(queues=["default"])
    row.refresh_from_db()
    return row


def page(client: Client, row: Job) -> str:
    answer = client.get(f"{LIST}{row.pk}/change/")
    assert answer.status_code == 200
    return html(answer)


def section(text: str, heading: str) -> str:
    """The part of a page below a heading."""
    found = re.search(rf"<h2>{heading}</h2>(.*?)</section>", text, re.DOTALL)
    return found[1] if found else ""


def words(markup: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def offered(client: Client, row: Job) -> set[str]:
    return set(re.findall(r"/steer/(\w+)/", page(client, row)))


def send_url(row: Job) -> str:
    return reverse("admin:pgjobs_job_send", args=[row.pk])


def send(client: Client, row: Job, payload: str = "", event: str | None = None) -> Any:
    name = approval.name_of(7) if event is None else event
    return client.post(send_url(row), {"event": name, "payload": payload, "confirmed": "yes"}, follow=True)


def event_page(name: str) -> str:
    return reverse("admin:pgjobs_eventstate_change", args=[name.replace("_", "_5F").replace(":", "_3A")])


# Steps


def test_the_steps_of_a_job_are_on_its_page(root: Client) -> None:
    row = started(order)
    steps = section(page(root, row), "Steps")
    assert "asteps.approval:7 event waits" in words(steps)
    assert "charge undone by asteps.refund step done" in words(steps)
    assert "&lt;script&gt;alert(1)" in steps
    assert "<script" not in steps


def test_a_step_that_is_tried_again_shows_its_failures_and_when(root: Client) -> None:
    row = started(flaky)
    text = page(root, row)
    steps = words(section(text, "Steps"))
    assert re.search(r"fail step is tried again [0-9-]{10} [0-9:]{8} 1 ", steps)
    assert "no &lt;script&gt;" in steps
    waits = words(section(text, "Waits for"))
    assert waits.startswith("Step fail Tried again at")
    assert "Run now tries the step again." in text
    assert {"run_now", "cancel", "abandon"} == offered(root, row)


def test_a_step_that_failed_for_good_and_a_wait_that_timed_out(root: Client) -> None:
    row = started(flaky)
    for _ in range(2):
        run_job(row)
    assert "fail step failed 3" in words(section(page(root, row), "Steps"))
    late = started(order, 8)
    Memo.objects.filter(job=late, kind="event").update(wake_at=late.created_at)
    run_job(late)
    assert "asteps.approval:8 event timed out" in words(section(page(root, late), "Steps"))


def test_a_wait_of_a_job_that_was_cancelled_is_not_finished(root: Client) -> None:
    row = started(nap)
    row.cancel()
    run_jobs()
    text = page(root, row)
    assert "sleep sleep not finished" in words(section(text, "Steps"))
    assert not section(text, "Waits for")


def test_a_gather_shows_how_its_jobs_ended_and_leads_to_them(root: Client) -> None:
    row = started(gathers)
    text = page(root, row)
    waits = section(text, "Waits for")
    batch = Job.objects.get(name="pgjobs.batch")
    assert f"/pgjobs/job/?batch={batch.pk}" in waits
    assert "3 of 3 have not ended" in words(waits)
    assert "Below is a link to them." in text
    assert "unblock" not in offered(root, row), "its jobs have results that it needs"
    run_jobs()
    assert "gather done" in words(section(page(root, row), "Steps"))
    assert "3 succeeded" in words(section(page(root, row), "Steps"))


@pytest.mark.parametrize("permissions", [(), ("view_payload",)])
def test_results_are_hidden_where_arguments_are_sensitive(permissions: tuple[str, ...]) -> None:
    client = client_with(*permissions)
    row = started(secret)
    steps = section(page(client, row), "Steps")
    assert ("4111-1111" in steps) is bool(permissions)
    assert ("hidden" in steps) is not bool(permissions)
    plain = started(order)
    assert "charged" in section(page(client, plain), "Steps"), "nothing of it is sensitive"


def test_results_of_an_unknown_job_are_hidden() -> None:
    row = make(name="nobody.knows", flow=32)
    Memo.objects.create(job=row, name="s", kind="step", result={"card": "4111-1111"}, finished_at=timezone.now())
    assert "4111-1111" not in page(client_with(), row)
    assert "4111-1111" in page(another("view_job", "view_payload"), row)


def test_the_latest_memos_are_shown_and_how_many_there_are_before_them(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memos, "MOST", 3)
    row = make(name="asteps.order", flow=32)
    done = timezone.now()
    Memo.objects.bulk_create(Memo(job=row, name=f"step-{n}", kind="step", finished_at=done) for n in range(8))
    text = page(root, row)
    assert re.findall(r"step-\d", text) == ["step-7", "step-6", "step-5"]
    assert "and 5 before them" in text


def test_long_results_are_cut_before_they_leave_the_database(root: Client) -> None:
    row = make(name="asteps.order", flow=32)
    Memo.objects.create(job=row, name="s", kind="step", result="x" * 100_000, finished_at=timezone.now())
    assert page(root, row).count("x" * 100) <= memos.RESULT_CHARS / 100
    assert len(memos.remembered(row).memos[0].result_text or "") == memos.RESULT_CHARS + 1


def test_a_job_that_remembers_nothing_asks_for_no_memos(root: Client) -> None:
    row = make(name="asteps.member")
    with CaptureQueriesContext(connection) as queries:
        assert not section(page(root, row), "Steps")
    assert not [query for query in queries if "pgjobs_memo" in query["sql"] and "pgjobs_why" not in query["sql"]][1:]


HOSTILE = ["\u202e\x1b[31m" + MARKUP, '"><img src=x onerror=alert(1)>', "%s %(x)s {} {0}", "a" * 50_000]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("kind", ["step", "sleep", "event", "gather", "version", "<b>kind"])
@pytest.mark.parametrize("finished", [True, False])
def test_hostile_memos_break_no_page(root: Client, text: str, kind: str, finished: bool) -> None:
    """Whoever can write the table can write anything into it."""
    row = make(name="asteps.order", flow=32 | 4, run_at=timezone.now() + timedelta(days=1))
    for n, value in enumerate([text, {"batch": text}, {"members": text}, {"members": [text]}, {"batch": -1}, None]):
        Memo.objects.create(
            job=row, name=f"{text}{n}", kind=kind, event=text, result=value, undo={"name": value}, error=text,
            wake_at=timezone.now() + timedelta(days=1), finished_at=timezone.now() if finished else None,
        )  # fmt: skip
    shown = page(root, row)
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown
    assert "\u202e" not in shown
    assert root.get(LIST, {"suspended": "waiting_for_event"}).status_code == 200


# Waiting, and sending


def test_the_event_is_sent_from_the_page_of_the_job_that_waits_for_it() -> None:
    row = started(order)
    client = client_with("send_event")
    text = page(client, row)
    assert "Send the event below" in text
    waits = section(text, "Waits for")
    assert "asteps.approval:7" in waits
    assert send_url(row) in waits
    answer = send(client, row, '{"by": "Änne", "ok": true}')
    assert said(answer) == ["Sent asteps.approval:7."]
    assert run_jobs().succeeded == [row.pk]
    row.refresh_from_db()
    assert row.result == {"by": "Änne", "ok": True}
    sent = EventState.objects.get()
    assert sent.sent_by.endswith(" anna")
    action = Action.objects.get()
    assert (action.verb, action.via, action.kind, action.subject) == ("send", "admin", "event", "asteps.approval:7")
    assert (action.changed, action.acted_by, ActionPart.objects.get().job_ids) == (1, sent.sent_by, [row.pk])
    assert "Sent asteps.approval:7." in str(LogEntry.objects.get(object_id=str(row.pk)))
    assert "Send (asteps.approval:7)" in words(section(page(client, row), "Operator actions"))


def test_an_event_without_a_payload_is_null() -> None:
    row = started(order)
    send(client_with("send_event"), row)
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, row.result) == ("succeeded", None)


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ('{"by": }', "This is not valid JSON: Expecting value, in line 1, column 8."),
        ("approved", "This is not valid JSON: Expecting value, in line 1, column 1."),
        ("NaN", "This is not valid JSON: NaN is no JSON."),
        ("[1e999]", "the payload cannot be sent"),
        ('"\\ud800"', "the payload cannot be sent"),
        ('"\\u0000"', "the payload cannot be sent"),
        ("[" * 100_000, "This is not valid JSON: it is nested too deeply."),
        ("9" * 5000, "This is not valid JSON: Exceeds the limit"),
        ('"' + "x" * 1_200_000 + '"', "BOUNDS['event_bytes']"),
        ("<script>alert(1)</script>", "This is not valid JSON"),
    ],
)
def test_a_payload_that_cannot_be_sent_is_shown_again_with_the_reason(typed: str, problem: str) -> None:
    row = started(order)
    answer = send(client_with("send_event"), row, typed)
    text = html(answer)
    assert problem in words(text).replace("&#x27;", "'").replace("&quot;", '"')
    assert "asteps.approval:7" in text
    assert "<script>alert(1)" not in text
    if len(typed) < 100:
        assert answer.context["form"]["payload"].value() == typed
    assert not EventState.objects.filter(sent_at__isnull=False).exists()
    assert not Action.objects.exists()


def test_an_event_is_sent_once_and_only_to_who_waits() -> None:
    client = client_with("send_event")
    row = started(order)
    text = page(client, row)
    assert approval.send(7, payload=1)
    assert said(send(client, row, "2")) == ["The job does not wait for asteps.approval:7 any more."]
    assert EventState.objects.get().payload == 1
    assert send_url(row) in text
    assert send_url(row) not in page(client, row)
    other = started(order, 8)
    for event in ("asteps.approval:7", "other", "", "a\0b", "\u202ex"):
        assert "does not wait for" in said(send(client, other, "2", event))[0]
    assert not EventState.objects.filter(name="other").exists()
    assert said(send(client, Job(pk=999_999_999), "2")) == ["There is no job 999999999."]


@pytest.mark.parametrize("permissions", [(), ("cancel_job", "view_payload", "view_eventstate")])
def test_without_the_permission_no_event_is_sent(permissions: tuple[str, ...]) -> None:
    row = started(order)
    client = client_with(*permissions)
    assert send_url(row) not in page(client, row)
    assert client.post(send_url(row), {"event": "asteps.approval:7"}).status_code == 403
    assert client.post(f"{EVENTS}asteps.approval_3A7/send/", {"payload": "", "confirmed": "yes"}).status_code == 403
    assert not EventState.objects.filter(sent_at__isnull=False).exists()


def test_an_event_is_sent_by_post_and_with_a_token_only(root: Client) -> None:
    row = started(order)
    assert root.get(send_url(row)).status_code == 405
    assert root.get(f"{EVENTS}asteps.approval_3A7/send/").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    assert strict.post(send_url(row), {"event": "asteps.approval:7"}).status_code == 403


def test_a_sleeping_job_is_unblocked(root: Client) -> None:
    row = started(nap)
    text = page(root, row)
    assert words(section(text, "Waits for")).startswith("Sleep sleep Until")
    assert "Unblock ends its sleep." in text
    assert offered(root, row) == {"unblock", "cancel", "abandon"}, "run now would only let it sleep again"
    answer = root.post(steer_url(row, "unblock"), {"reason": "no time"}, follow=True)
    assert said(answer) == ["Unblock: 1 changed. Reason: no time."]
    assert run_jobs().succeeded == [row.pk]


def test_in_the_list_unblock_takes_those_that_sleep_and_no_other_scheduled_job(root: Client) -> None:
    asleep = started(nap)
    later = member.using(delay=3600).register(1)
    answer = act(root, "unblock", [asleep, later], confirmed="yes", reason="")
    assert said(answer)[0].startswith("Unblock: 1 changed, 1 skipped: 1 ready.")
    answer = act(root, "unblock", [later], "?suspended=sleeping", select_across="1")
    assert answer.context["preview"].ids == [], "it is due by now"
    started(nap)
    answer = act(root, "unblock", [later], select_across="1")
    assert len(answer.context["preview"].ids) == 1


# Lists


def test_sleeping_and_waiting_jobs_are_listed(root: Client) -> None:
    asleep, waits = started(nap), started(order)
    started(flaky), started(gathers), make(run_at=timezone.now() + timedelta(days=1))
    ended = started(nap)
    ended.cancel()
    assert ids_on(root.get(LIST, {"suspended": "sleeping"})) == [asleep.pk]
    assert ids_on(root.get(LIST, {"suspended": "waiting_for_event"})) == [waits.pk]
    assert ids_on(root.get(LIST, {"suspended": "sleeping", "name": "asteps.nap"})) == [asleep.pk]
    assert ids_on(root.get(LIST, {"suspended": "sleeping", "state": "scheduled"})) == [asleep.pk]
    assert ids_on(root.get(LIST, {"suspended": "sleeping", "name": "asteps.order"})) == []
    assert ids_on(root.get(LIST, {"suspended": "sleeping", "q": str(waits.pk)})) == []
    assert ids_on(root.get(LIST, {"suspended": "sleeping", "q": str(asleep.pk)})) == [asleep.pk]
    approval.send(7)
    assert ids_on(root.get(LIST, {"suspended": "waiting_for_event"})) == [], "it is due"
    assert root.get(LIST, {"suspended": "odd"}).status_code == 302


def test_members_that_sleep_are_listed(root: Client) -> None:
    with Batch("naps") as batch:
        batch.add_many([nap.bind(), member.using(delay=3600).bind(1)])
    run_jobs(queues=["default"])
    started(nap)
    (asleep,) = Job.objects.filter(parent_id=batch.job.pk, name="asteps.nap").values_list("pk", flat=True)
    assert ids_on(root.get(LIST, {"suspended": "sleeping", "batch": str(batch.job.pk)})) == [asleep]


def test_a_long_list_of_sleepers_is_bounded_and_says_so(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "NEAR_SUSPENDED", 2)
    rows = [started(nap) for _ in range(3)]
    shown = root.get(LIST, {"suspended": "sleeping"})
    assert len(ids_on(shown)) == 2
    assert "Only the first 2 jobs of this list were searched." in html(shown)
    assert ids_on(root.get(LIST, {"suspended": "sleeping", "reach": "far"})) == [row.pk for row in reversed(rows)]
    monkeypatch.setattr(reach, "NEAR_SUSPENDED", 3)
    assert "were searched" not in html(root.get(LIST, {"suspended": "sleeping"}))


# Events


def names_on(answer: Any) -> list[str]:
    assert answer.status_code == 200
    return [row.pk for row in answer.context["cl"].result_list]


def test_events_are_listed_the_latest_first_and_filtered(root: Client) -> None:
    started(order)
    approval.send(8, by="web")
    started(gathers)
    assert EventState.objects.filter(name__startswith="pgjobs.").exists()
    assert names_on(root.get(EVENTS)) == ["asteps.approval:8", "asteps.approval:7"], "our own are no concern of theirs"
    assert names_on(root.get(EVENTS, {"sent": "not_sent"})) == ["asteps.approval:7"]
    assert names_on(root.get(EVENTS, {"sent": "sent"})) == ["asteps.approval:8"]
    assert names_on(root.get(EVENTS, {"sent": "nobody_waits"})) == ["asteps.approval:8"]
    approval.send(7)
    assert names_on(root.get(EVENTS, {"sent": "nobody_waits"})) == ["asteps.approval:8"], "a job waited for the other"
    assert names_on(root.get(EVENTS, {"q": "asteps.approval:7"})) == ["asteps.approval:7"]
    assert names_on(root.get(EVENTS, {"q": "PROVAL"})) == ["asteps.approval:8", "asteps.approval:7"]
    assert root.get(EVENTS, {"payload__contains": "x"}).status_code == 400, "nobody probes payloads"


def test_only_the_newest_events_are_searched(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        EventState.objects.create(name=f"e{n}", created_at=timezone.now() - timedelta(hours=n))
    monkeypatch.setattr(event_pages, "MOST", 2)
    assert names_on(root.get(EVENTS)) == ["e0", "e1"]
    assert names_on(root.get(EVENTS, {"q": "e"})) == ["e0", "e1"]
    assert names_on(root.get(EVENTS, {"q": "e3"})) == ["e3"], "a whole name is found however old it is"


def test_an_event_is_sent_from_its_own_page() -> None:
    row = started(order)
    client = client_with("send_event", "view_eventstate")
    text = html(client.get(event_page("asteps.approval:7")))
    assert f"asteps.order #{row.pk}" in words(text)
    url = re.search(r'action="([^"]*/send/)"', text)
    assert url
    assert "This is not valid JSON" in html(client.post(url[1], {"payload": "{", "confirmed": "yes"}))
    answer = client.post(url[1], {"payload": "[1]", "confirmed": "yes"}, follow=True)
    assert said(answer) == ["Sent asteps.approval:7."]
    assert not re.search(r'action="([^"]*/send/)"', html(answer))
    again = client.post(url[1], {"payload": "[2]", "confirmed": "yes"}, follow=True)
    assert said(again) == ["asteps.approval:7 was sent before: the first one counts."]
    assert EventState.objects.get().payload == [1]
    assert Action.objects.count() == LogEntry.objects.count() == 1
    assert run_jobs().succeeded == [row.pk]


def test_the_payload_of_an_event_needs_its_permission() -> None:
    approval.send(7, payload={"card": "4111-1111"}, by=MARKUP)
    url = event_page("asteps.approval:7")
    text = html(client_with("view_eventstate").get(url))
    assert "4111-1111" not in text
    assert "<script>alert" not in text
    assert "4111-1111" in html(another("view_eventstate", "view_payload").get(url))


@pytest.mark.parametrize("name", [*HOSTILE[:3], "a/b?c#d", "../x", "_", "ä ö", "x" * 5000])
def test_hostile_events_break_no_page(root: Client, name: str) -> None:
    EventState.objects.create(name=name, payload={"x": name})
    listed = root.get(EVENTS)
    links = re.findall(r'<th class="field-shown_name"><a href="([^"]*)"', html(listed))
    assert len(links) == 1
    answer = root.get(links[0])
    text = html(answer)
    assert answer.status_code == 200
    for shown in (html(listed), text):
        assert "<script>alert" not in shown
        assert "<img src=x" not in shown
        assert "\u202e" not in shown
    url = re.search(r'action="([^"]*/send/)"', text)
    if name.isprintable() and len(name) <= 200:
        assert url
        root.post(url[1], {"payload": "1", "confirmed": "yes"})
        assert EventState.objects.get(payload=1).name == name
    else:
        assert url is None, "no event has such a name"
        sent = root.post(links[0].replace("change/", "send/"), {"payload": "1", "confirmed": "yes"})
        assert "the name of an event must be a printable text" in html(sent)


def test_an_event_of_this_package_is_not_sent_and_a_missing_one_neither(root: Client) -> None:
    started(gathers)
    ours = EventState.objects.get(name__startswith="pgjobs.").pk
    for name in (ours, "nobody"):
        answer = root.post(
            f"{EVENTS}{name.replace(':', '_3A')}/send/", {"payload": "", "confirmed": "yes"}, follow=True
        )
        assert said(answer) == [f"There is no event {name}."]
    assert not EventState.objects.filter(sent_at__isnull=False).exists()


# Undo


def undone() -> Job:
    """An order that failed after it had charged, and whose refund failed too."""
    row = started(order)
    broken.add("refund")
    approval.send(7, payload="no")
    run_jobs()
    row.refresh_from_db()
    assert row.outcome == "abandoned"
    return row


def test_what_undoes_a_job_is_on_its_page_and_leads_back(root: Client) -> None:
    row = undone()
    undo, part = Job.objects.filter(target=row).order_by("pk")
    assert (undo.name, undo.outcome, part.name) == ("pgjobs.undo", "abandoned", "asteps.refund")
    flow = section(page(root, row), "Flow")
    assert f"Undone by pgjobs.undo #{undo.pk} abandoned" in words(flow)
    assert f"Parts undone by asteps.refund #{part.pk} abandoned (step charge)" in words(flow)
    assert f"/pgjobs/job/{part.pk}/change/" in flow
    back = section(page(root, part), "Flow")
    assert f"Undoes asteps.order #{row.pk} abandoned (step charge)" in words(back)
    assert f"/pgjobs/job/{row.pk}/change/" in back
    assert f"Undoes asteps.order #{row.pk}" in words(section(page(root, undo), "Flow"))


def test_undo_again_goes_on_where_it_stopped() -> None:
    row = undone()
    client = client_with("retry_job")
    assert offered(client, row) == {"undo_again"}, "what it remembers is not so any more: it is not retried"
    assert "It is not retried, as its undo has begun." in page(client, row)
    assert "undo_again" not in offered(another("view_job", "send_event"), row)
    broken.clear()
    answer = client.post(steer_url(row, "undo_again"), follow=True)
    assert said(answer) == ["Undo again: 1 changed."]
    run_jobs()
    assert Job.objects.get(name="pgjobs.undo").outcome == "succeeded"
    assert offered(client, row) == set()
    answer = client.post(steer_url(row, "undo_again"), follow=True)
    assert said(answer) == ["Undo again: 0 changed, 1 skipped: 1 succeeded."]
    assert said(client.post(steer_url(row, "retry"), follow=True)) == [
        "Retry: 0 changed, 1 skipped: 1 its undo has begun."
    ]


def test_undo_again_where_nothing_undoes(root: Client) -> None:
    row = make(name="asteps.member", outcome="abandoned", finished_at=timezone.now())
    answer = root.post(steer_url(row, "undo_again"), follow=True)
    assert said(answer) == ["Undo again: 0 changed, 1 skipped: 1 nothing undoes it."]


def test_many_compensations_are_cut(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presentation, "MOST", 2)
    row = make(name="asteps.order", flow=4, outcome="abandoned", finished_at=timezone.now())
    for n in range(5):
        make(name="asteps.refund", target_id=row.pk, options={"target": [row.pk, f"<b>{n}"]})
    flow = section(page(root, row), "Flow")
    assert "and 3 more" in flow
    assert "&lt;b&gt;0" in flow


@pytest.mark.parametrize("options", [{"target": "x"}, {"target": [1]}, {"target": {"1": "a"}}, [1], "x", None])
def test_hostile_targets_break_no_page(root: Client, options: Any) -> None:
    gone = make(name="asteps.refund", target_id=999_999_999, options=options)
    assert not section(page(root, gone), "Flow")
    row = make(name="asteps.refund", target_id=gone.pk, options=options)
    assert f"asteps.refund #{gone.pk}" in words(section(page(root, row), "Flow"))
