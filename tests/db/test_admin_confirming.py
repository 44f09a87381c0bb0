"""The admin's confirmation before it steers, its message afterwards, and the rows that record both."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_pgjobs.admin import confirming
from django_pgjobs.models import Action, Heartbeat, Job
from django_pgjobs.models.attempts import Claim
from tests.plugins.fix_admin import (
    CLAIM,
    LIST,
    WORKER,
    act,
    client_with,
    html,
    make,
    make_one_of_each,
    now_plus,
    steer_url,
)

pytestmark = pytest.mark.django_db

ACTIONS = "/admin/pgjobs/action/"


def part(page: Any, name: str) -> str:
    """The text of one part of the question, without tags."""
    found = re.search(rf'id="pgjobs-{name}">(.*?)</(?:td|strong)>', html(page), re.DOTALL)
    assert found is not None
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", found[1])).split())


def two_on_one_worker() -> tuple[Job, Job]:
    """Two running jobs of one worker, of different claims."""
    Heartbeat.objects.create(
        id=WORKER, name="web-1", host="h", pid=1, processes=1, threads=4, async_slots=0, version="1"
    )
    rows = []
    for number in (1, 2):
        claim_id, far = UUID(int=number), now_plus(60)
        row = make(claim_id=claim_id, claimed_at=now_plus(-1), attempt=1)
        Claim.objects.create(
            claim_id=claim_id, part=0, worker=WORKER, lease_expires_at=far, check_at=far, job_ids=[row.pk]
        )
        rows.append(row)
    return rows[0], rows[1]


# --- release -------------------------------------------------------------------------------------------------------


def test_release_asks_and_names_the_neighbours_that_may_go_down_with_it(root: Client) -> None:
    one, other = two_on_one_worker()
    page = act(root, "release", [one])
    assert "its worker kills the process" in html(page)
    assert f"Also running on web-1: #{other.pk} shop.charge." in html(page)
    one.refresh_from_db()
    assert one.release_requested_at is None
    answer = act(root, "release", [one], confirmed="yes", reason="host goes away")
    assert "Release: 1 changed. Reason: host goes away." in html(answer)
    one.refresh_from_db()
    assert one.release_requested_at is not None


def test_the_page_of_a_running_job_asks_before_it_releases_and_names_the_neighbours(root: Client) -> None:
    one, other = two_on_one_worker()
    text = html(root.get(f"{LIST}{one.pk}/change/"))
    form = re.search(r"<details[^>]*>(?:(?!</details>).)*id=\"pgjobs-release\".*?</details>", text, re.DOTALL)
    assert form is not None, "the button is behind a question"
    assert f"#{other.pk} shop.charge" in form[0]
    assert "its worker kills the process" in form[0]
    assert "Release this job" in form[0]


def test_that_nothing_else_runs_there_is_said_too(root: Client) -> None:
    row = make_one_of_each()["running"]
    assert re.search("Nothing else runs on [^.]+ now[.]", html(act(root, "release", [row])))


# --- the question of a bulk action ---------------------------------------------------------------------------------


def test_the_question_says_filter_number_names_and_some_of_the_jobs(root: Client) -> None:
    for number in range(7):
        make(queue="bulk", name="shop.charge" if number else "shop.other", description=f"order {number}")
    make(queue="bulk", outcome="succeeded", finished_at=now_plus(-1))
    first = Job.objects.filter(queue="bulk").order_by("pk")[:1]
    page = act(root, "cancel", first, "?queue=bulk&q=shop", select_across="1")
    assert part(page, "count") == "7"
    assert part(page, "filter") == 'queue bulk, "shop"'
    assert part(page, "names") == "6 × shop.charge 1 × shop.other"
    assert part(page, "samples").startswith(f"#{first[0].pk} shop.other: order 0 (ready, bulk)")
    assert part(page, "samples").count("#") == confirming.SAMPLED


def test_no_filter_is_said_to_be_none(root: Client) -> None:
    page = act(root, "cancel", [make()], select_across="1")
    assert part(page, "filter") == "none: every job"


def test_chosen_jobs_that_cannot_take_it_are_counted_by_state(root: Client) -> None:
    rows = make_one_of_each()
    page = act(root, "abandon", rows.values())
    assert part(page, "count") == "7"
    assert part(page, "skipped") == "1 abandoned, 1 cancelled, 1 moving, 1 running, 1 succeeded"


def test_more_jobs_than_are_counted_are_said_to_be_more(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "COUNTED", 3)
    rows = [make() for _ in range(5)]
    assert part(act(root, "cancel", rows[:1], select_across="1"), "count") == "more than 3"


def test_many_names_are_summed_up(root: Client) -> None:
    for number in range(confirming.NAMED + 3):
        make(name=f"n{number}")
    page = act(root, "cancel", Job.objects.all()[:1], select_across="1")
    assert part(page, "names").endswith("3 × 3 other names")


# --- what is kept --------------------------------------------------------------------------------------------------


def test_the_admin_leaves_who_did_what_how_and_why(root: Client) -> None:
    row = make()
    root.post(steer_url(row, "cancel"), {"mode": "kill", "reason": "ordered twice"})
    [action] = Action.objects.all()
    assert (action.verb, action.mode, action.via, action.reason) == ("cancel", "kill", "admin", "ordered twice")
    assert action.acted_by.endswith(" root")
    root.post(steer_url(row, "retry"))
    trail = html(root.get(f"{LIST}{row.pk}/change/")).partition("Operator actions")[2]
    assert "Cancel (kill)" in trail, "the retry does not erase it"
    assert trail.index("<td>Retry</td>") < trail.index("Cancel (kill)")
    assert "ordered twice" in trail


def test_a_bulk_action_keeps_its_filter_and_each_job_shows_it(root: Client) -> None:
    rows = [make(queue="bulk") for _ in range(3)]
    act(root, "cancel", rows[:1], "?queue=bulk", select_across="1", confirmed="yes", mode="ask", reason="wrong import")
    [action] = Action.objects.all()
    assert (action.asked, action.changed, action.via) == ("queue bulk", 3, "admin")
    for row in rows:
        text = html(root.get(f"{LIST}{row.pk}/change/"))
        assert "one of 3: queue bulk" in text
        assert f"{ACTIONS}{action.pk}/change/" in text
    assert LogEntry.objects.get().object_id == str(action.pk)


def test_chosen_jobs_have_it_in_their_history(root: Client) -> None:
    """Those that were changed, and no others."""
    done, left = make(outcome="abandoned", finished_at=now_plus(-1)), make()
    answer = act(root, "retry", [done, left], confirmed="yes")
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(done.pk)]
    assert "Retry: 1 changed, 1 skipped: 1 ready." in html(root.get(f"{LIST}{done.pk}/history/"))
    assert f"{ACTIONS}{Action.objects.get().pk}/change/" in html(answer)


def test_the_list_of_actions_and_the_page_of_one(root: Client) -> None:
    rows = [make(claim_id=CLAIM if not n else None) for n in range(3)]
    Job.objects.filter(pk__in=[row.pk for row in rows]).abandon(by="<b>anna</b>", reason="<i>hopeless</i>")
    text = html(root.get(ACTIONS))
    assert "&lt;b&gt;anna" in text
    assert "&lt;i&gt;hopeless" in text
    assert "skipped: 1 running" in text
    page = html(root.get(f"{ACTIONS}{Action.objects.get().pk}/change/"))
    assert f"#{rows[1].pk}</a>, <a" in page
    assert f"#{rows[0].pk}<" not in page


def test_actions_are_for_looking_only() -> None:
    row = make()
    row.cancel(by="anna")
    url = f"{ACTIONS}{Action.objects.get().pk}/"
    assert client_with().get(ACTIONS).status_code == 403
    reader = Client()
    reader.force_login(User.objects.create_superuser("root"))
    assert reader.post(f"{url}change/", {"verb": "x"}).status_code == 403
    assert reader.post(f"{url}delete/", {"post": "yes"}).status_code == 403
    assert reader.get(f"{ACTIONS}add/").status_code == 403
    assert "delete_selected" not in html(reader.get(ACTIONS))


def test_who_may_not_see_actions_is_not_sent_there_but_sees_what_was_done_to_the_job() -> None:
    row = make()
    row.cancel(by="anna")
    text = html(client_with().get(f"{LIST}{row.pk}/change/"))
    assert "Operator actions" in text
    assert ACTIONS not in text
