"""What the lists and pages of the admin tell, and that no text of a stranger can change how they read."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_pgjobs.models import Attempt, CronEntry, Heartbeat, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.presentation import reach
from django_pgjobs.presentation.filters import STATES
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.serialization.escapes import visible
from tests.plugins.fix_admin import CLAIM, LIST, WORKER, act, html, ids_on, make, make_one_of_each, now_plus

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]

HIDDEN = "\u202e\u2066\u200f\x1b\x9b\u2028"
"""Marks that turn the direction of what follows, a separator of lines, and the beginning of an escape sequence."""


def beat(**fields: Any) -> Heartbeat:
    given = {"host": "h", "pid": 71, "processes": 2, "threads": 4, "async_slots": 50, "version": "1", **fields}
    row: Heartbeat = Heartbeat.objects.create(name=given.pop("name", "web-1"), **given)
    return row


def cell(page: Any, name: str) -> str:
    """The text of a column of the only row."""
    [found] = re.findall(rf'<t[dh] class="field-{name}[^"]*">(.*?)</t[dh]>', html(page), re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", found).split())


# --- what they tell ------------------------------------------------------------------------------------------------


def running_job() -> Job:
    row = make(
        claim_id=CLAIM, claimed_at=now_plus(-90), attempt=2, error="OSError: of the attempt before",
        progress={"n": 30, "total": 40, "message": "lines"},
    )  # fmt: skip
    beat(id=WORKER)
    far = now_plus(60)
    Claim.objects.create(claim_id=CLAIM, part=0, worker=WORKER, lease_expires_at=far, check_at=far, job_ids=[row.pk])
    return row


def test_the_list_of_running_jobs_says_where_since_when_and_how_far(root: Client) -> None:
    running_job()
    page = root.get(LIST, {"state": "running"})
    assert cell(page, "shown_worker") == "web-1"
    assert re.fullmatch(r"\d\d\.\d s", cell(page, "shown_claimed"))
    assert cell(page, "shown_progress") == "30 / 40 lines"
    assert cell(page, "shown_state") == "running", "nothing is told twice"
    assert "of the attempt before" not in html(page)


def test_the_list_of_all_jobs_says_it_below_the_state(root: Client) -> None:
    running_job()
    page = root.get(LIST)
    assert cell(page, "shown_state") == "running web-1 30 / 40 lines"


@pytest.mark.parametrize("query", [{}, {"state": "cancelled"}])
def test_cancelled_jobs_say_by_whom_and_why(root: Client, query: dict[str, str]) -> None:
    make(
        outcome="cancelled", finished_at=now_plus(-5), cancel_by="auth.User:1 anna", cancel_reason="sale is over",
        error="CancelRequested: in line 17", cancel_requested_at=now_plus(-6),
    )  # fmt: skip
    page = root.get(LIST, query)
    assert "by anna : sale is over" in cell(page, "shown_cancel" if query else "shown_state")
    assert "in line 17" not in html(page)


@pytest.mark.parametrize("state", ["abandoned", "retrying"])
def test_an_error_has_a_column_of_its_own_and_times_are_told_by_their_distance(root: Client, state: str) -> None:
    ended = {"outcome": "abandoned", "finished_at": now_plus(-300)}
    make(**(ended if state == "abandoned" else {"run_at": now_plus(301)}), attempt=2, error="Declined: <b>no</b>")
    page = root.get(LIST, {"state": state})
    assert cell(page, "shown_error") == "Declined: &lt;b&gt;no&lt;/b&gt;"
    assert cell(page, "shown_state") == state, "nothing is told twice"
    when = cell(page, "shown_end" if state == "abandoned" else "shown_run_at")
    assert re.fullmatch(r"5 min 0\d s ago" if state == "abandoned" else r"in [45]\sminutes.*", when)
    assert re.search(r'<time datetime="[^"]+" title="\d{4}-\d\d-\d\d \d\d:\d\d:\d\d">', html(page))


def test_a_job_that_cancelled_itself_says_why(root: Client) -> None:
    make(outcome="cancelled", finished_at=now_plus(-5), error="nothing to do")
    assert cell(root.get(LIST, {"state": "cancelled"}), "shown_cancel") == "nothing to do"


def test_a_pause_without_an_end_says_so(root: Client) -> None:
    Queue("mail").pause()
    assert cell(root.get("/admin/pgjobs/queuestate/"), "shown_until") == "no end"


def test_workers_say_where_they_run_and_what_they_do_before_the_page_is_full(root: Client) -> None:
    beat(running=3, finished=12_000)
    page = root.get("/admin/pgjobs/heartbeat/")
    assert cell(page, "shown_name") == "web-1 h, process 71"
    assert cell(page, "shown_work") == "3 running 12,000 finished"
    assert html(page).index("field-shown_beat") < html(page).index("field-shown_queues")


def test_a_reason_is_told_once(root: Client) -> None:
    row = make(
        outcome="cancelled", finished_at=now_plus(-5), cancel_by="anna", cancel_reason="sale is over",
        cancel_requested_at=now_plus(-6), cancel_mode="kill",
    )  # fmt: skip
    text = html(root.get(f"{LIST}{row.pk}/change/"))
    assert text.count("sale is over") == 1
    assert "Cancel (kill) requested" in text


def test_pages_with_buttons_send_nobody_to_the_shell_for_what_the_buttons_do(root: Client) -> None:
    rows = make_one_of_each()
    pauses.pause("job", "shop.charge")
    rows["held"] = make()
    Job.objects.filter(pk=rows["running"].pk).update(cancel_requested_at=timezone.now(), cancel_mode="ask")
    for state, row in rows.items():
        text = html(root.get(f"{LIST}{row.pk}/change/"))
        # A move has no button: it is finished where it was begun.
        assert ("manage.py pgjobs" in text) == (state == "moving"), state


def test_times_of_an_earlier_claim_are_not_those_of_a_waiting_job(root: Client) -> None:
    for fields in ({}, {"hold": "parked"}, {"hold": "limited"}):
        row = make(claimed_at=now_plus(-600), overdue_at=now_plus(-60), attempt=1, **fields)
        text = html(root.get(f"{LIST}{row.pk}/change/"))
        assert "Claimed at" not in text
        assert "Deadline" not in text


# --- how far a search looks ----------------------------------------------------------------------------------------


def fill(number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgjobs_job (name, payload, outcome, finished_at) SELECT 'm', '{}', 'succeeded', "
            "statement_timestamp() FROM generate_series(1, %s)",
            [number],
        )


def test_a_text_is_found_behind_fifty_thousand_newer_jobs(root: Client) -> None:
    wanted = make(description="order 595 of ACME")
    fill(50_001)
    page = root.get(LIST, {"q": "595 of acme"})
    assert ids_on(page) == [wanted.pk]
    assert "were searched" not in html(page), "it looked at all of them"


def test_a_search_says_how_far_it_looked_and_offers_to_look_further(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the list, where it is seen."""
    for limit, number in (("NEAR_TEXT", 1000), ("FAR", 2000)):
        monkeypatch.setattr(reach, limit, number)
    fill(3000)
    page = html(root.get(LIST, {"q": "nothing has this", "p": "1"}))
    link = re.search(
        r'<p class="pgjobs-note" role="status">([^<]*) <a href="([^"]*)" id="pgjobs-further">([^<]*)</a>', page
    )
    assert link is not None
    assert link[1] == "Only the first 1,000 jobs of this list were searched."
    assert link[3] == "Search the first 2,000"
    assert page.index("pgjobs-further") < page.index('id="changelist-form"')
    far = html(root.get(LIST + link[2].replace("&amp;", "&")))
    assert "Only the first 2,000 jobs of this list were searched." in far
    assert "pgjobs-further" not in far
    assert "Filter by state, queue or name" in far


# --- texts of strangers --------------------------------------------------------------------------------------------


def forged_rows() -> Job:
    """A row of every kind whose every text hides something."""
    text = f"a{HIDDEN}b"
    row = make(
        name=text, queue=text, description=text, error=text, key=text, idempotency_key=text, cron_entry=text,
        cancel_by=f"auth.User:1 {text}", cancel_reason=text, cancel_mode=text, cancel_requested_at=now_plus(-5),
        payload={"args": [text], "kwargs": {text: text}}, headers={text: text}, progress={"n": 1, "message": text},
        attempt=1,
    )  # fmt: skip
    Attempt.objects.create(
        job=row, claim_id=CLAIM, number=1, cause=text, worker_name=text, release=text, exception=text, message=text,
        chain=[[text, text]], traceback=text,
    )  # fmt: skip
    make(name=text, hold="parked", hold_reason=text)
    make(name=text, queue=text, outcome="abandoned", finished_at=now_plus(-1), error=text)
    make(name=text, outcome="cancelled", finished_at=now_plus(-1), cancel_by=text, cancel_reason=text)
    beat(id=WORKER, name=text, host=text, release=text, queues=[text], excluded_queues=[text])
    other, far = make(name=text, claim_id=UUID(int=9), progress={"n": 1, "message": text}), now_plus(60)
    Claim.objects.create(
        claim_id=UUID(int=9), part=0, worker=WORKER, lease_expires_at=far, check_at=far, job_ids=[other.pk]
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgjobs_queue_state (kind, name, paused_by, reason) VALUES ('queue', %s, %s, %s)", [text] * 3
        )
    CronEntry.objects.bulk_create([
        CronEntry(
            name=text, job_name=text, declared_expression=text, declared_zone=text, declared_payload={},
            declared_options={}, broken=text, paused_by=text, paused_reason=text, paused_at=timezone.now(),
        )
    ])  # fmt: skip
    Job.objects.filter(pk=row.pk).reschedule(priority=3, by=text, reason=text)
    return row


def test_marks_that_turn_text_around_are_shown_as_their_numbers_on_every_page(root: Client) -> None:
    row = forged_rows()
    lists = [f"/admin/pgjobs/{name}/" for name in ("job", "heartbeat", "queuestate", "cronentry", "action")]
    pages = {url: root.get(url) for url in lists}
    pages |= {f"{LIST}?state={state}": root.get(LIST, {"state": state}) for state in STATES}
    for url in lists:
        for number, link in enumerate(set(re.findall(rf'href="({url}[^"?]*/change/)', html(pages[url])))):
            pages[f"{url} {number}"] = root.get(link)
            pages[f"{url} {number} history"] = root.get(link.replace("/change/", "/history/"))
    pages["question"] = act(root, "cancel", Job.objects.all())
    pages["release"] = act(root, "release", Job.objects.all())
    pages["done"] = act(root, "cancel", [row], confirmed="yes", mode="ask", reason=f"c{HIDDEN}d")
    pages["history"] = root.get(f"{LIST}{row.pk}/history/")
    assert len(pages) > 25
    for where, page in pages.items():
        assert page.status_code == 200, where
        # What a checkbox stands for is not shown, and must stay what it is.
        text = re.sub(r'<input type="(?:checkbox|hidden)"[^>]*>', "", html(page))
        shown = [char for char in HIDDEN if char in text]
        assert shown == [], (where, text[text.index(shown[0]) - 200 :][:250] if shown else "")
    assert r"a\u202e\u2066\u200f\x1b\x9b\u2028b" in html(pages[LIST])


def test_what_only_joins_letters_stays_as_do_lines() -> None:
    assert (
        visible("می\u200cخواهم\n\t👨\u200d👩\u200d👧 10\u202f000\xa0€")
        == "می\u200cخواهم\n\t👨\u200d👩\u200d👧 10\u202f000\xa0€"
    )
