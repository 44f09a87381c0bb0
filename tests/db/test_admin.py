"""The admin's lists as the test client sees them: filters, search, bad input, queries and plans; workers."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgjobs.models import Attempt, Heartbeat, Job
from django_pgjobs.presentation import job_list, reach
from django_pgjobs.presentation.filters import STATES
from tests.plugins.explaining import nodes, rows_read
from tests.plugins.fix_admin import (
    LIST,
    client_with,
    html,
    ids_on,
    make,
    make_one_of_each,
    now_plus,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]


# --- the list ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_filter_by_state_shows_the_jobs_of_that_label_only(root: Client, state: str) -> None:
    rows = make_one_of_each()
    page = root.get(LIST, {"state": state})
    assert ids_on(page) == [rows[state].pk]
    assert f"pgjobs-{state}" in html(page)


def test_all_jobs_are_listed_newest_first(root: Client) -> None:
    rows = make_one_of_each()
    assert ids_on(root.get(LIST)) == sorted((row.pk for row in rows.values()), reverse=True)


def test_list_shows_words_attempts_and_escaped_errors(root: Client) -> None:
    make_one_of_each()
    text = html(root.get(LIST))
    assert ">retrying</span>" in text
    assert "2 / 5" in text
    assert "250 ms" in text
    assert "no such job here" in text
    assert "ValueError: &lt;b&gt;no" in text
    assert "<b>no" not in text


def test_due_jobs_are_listed_in_the_order_of_run_at_across_queues_and_priorities(root: Client) -> None:
    late, early, middle = (
        make(run_at=now_plus(-10), queue="a"),
        make(run_at=now_plus(-30), queue="b", priority=-5),
        make(run_at=now_plus(-20), queue="a", priority=50),
    )
    assert ids_on(root.get(LIST, {"state": "ready"})) == [early.pk, middle.pk, late.pk]
    assert ids_on(root.get(LIST, {"state": "ready", "queue": "a"})) == [middle.pk, late.pk]


def test_due_jobs_of_more_pairs_than_ranges_are_all_listed(root: Client) -> None:
    rows = [make(queue=f"q{i}", run_at=now_plus(-100 + i)) for i in range(job_list.MOST_RANGES + 3)]
    assert ids_on(root.get(LIST, {"state": "ready"})) == [row.pk for row in rows]


def test_filters_combine(root: Client) -> None:
    make(queue="a", name="one")
    wanted = make(queue="b", name="one")
    make(queue="b", name="two")
    assert ids_on(root.get(LIST, {"queue": "b", "name": "one"})) == [wanted.pk]


def test_queue_choices_come_from_unfinished_jobs_definitions_and_settings(root: Client, settings: Any) -> None:
    settings.PGJOBS = {"QUEUES": ["payments", "configured", "live"]}
    make(queue="live")
    make(queue="only-history", outcome="succeeded", finished_at=now_plus(-1))
    page = html(root.get(LIST))
    assert all(f"?queue={queue}" in page for queue in ("live", "payments", "configured"))
    assert "only-history</a>" not in page
    assert "only-history</a>" in html(root.get(LIST, {"queue": "only-history"}))


@pytest.mark.parametrize("search", ["{id}", " #{id} ", "000{id}"])
def test_digits_find_exactly_that_id(root: Client, search: str) -> None:
    wanted = make()
    make(description=f"mentions {wanted.pk}")
    assert ids_on(root.get(LIST, {"q": search.format(id=wanted.pk)})) == [wanted.pk]


@pytest.mark.parametrize("search", ["shop.res", "ACME", "100%", '"42"'])
def test_text_finds_parts_of_name_and_description(root: Client, search: str) -> None:
    wanted = make(name="shop.resize", description="for acme: 100% of 42")
    make(name="shop.other", description="100 of it")
    assert ids_on(root.get(LIST, {"q": search})) == [wanted.pk]


def test_the_page_of_a_job_shows_its_keys(root: Client) -> None:
    """Row A18: who looks for the job that has a key finds it there."""
    with_keys, without = make(key="welcome:7", idempotency_key="order:8"), make()
    page = html(root.get(f"{LIST}{with_keys.pk}/change/"))
    assert all(words in page for words in ("welcome:7", "Idempotency key", "order:8"))
    assert "Idempotency key" not in html(root.get(f"{LIST}{without.pk}/change/"))


def test_count_stops_and_says_so(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "MOST", 60)
    Job.objects.bulk_create([Job(name="many", payload={}) for _ in range(61)])
    page = root.get(LIST)
    assert page.context["cl"].count_text == "more than 60"
    assert "more than 60" in html(page)
    assert len(ids_on(root.get(LIST, {"p": 2}))) == 10


def test_scheduled_jobs_are_counted_less_far(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index has the attempt, so each of them is read; retrying ones among them count for nothing."""
    monkeypatch.setattr(job_list, "MOST_SCHEDULED", 60)
    Job.objects.bulk_create(
        [Job(name="many", payload={}, run_at=now_plus(3600 + number), attempt=number % 2) for number in range(122)]
    )
    page = root.get(LIST, {"state": "scheduled"})
    assert page.context["cl"].count_text == "more than 60"
    assert root.get(LIST, {"state": "retrying"}).context["cl"].count_text == "61"


def test_exactly_as_many_as_are_counted_is_no_more_than(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "MOST", 60)
    Job.objects.bulk_create([Job(name="many", payload={}) for _ in range(60)])
    assert root.get(LIST).context["cl"].count_text == "60"


@pytest.mark.parametrize("state", ["", "ready", "succeeded", "parked"])
def test_a_bounded_search_says_so_and_can_be_widened(root: Client, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("NEAR", "NEAR_TEXT", "NEAR_ENDED", "NEAR_HELD"):
        monkeypatch.setattr(reach, limit, 1000)
    fillers: list[Job] = []
    fields: dict[str, Any] = {"": {}, "ready": {}, "parked": {"hold": "parked"}}.get(
        state, {"outcome": "succeeded", "finished_at": now_plus(-1)}
    )
    first = make(name="a.needle", **fields)
    for number in range(1005):
        fields |= {"finished_at": now_plus(number)} if state == "succeeded" else {}
        fillers.append(Job(name="m", payload={}, **fields))
    Job.objects.bulk_create(fillers)
    last = make(name="z.needle", **fields)
    narrow = root.get(LIST, {"q": "needle", "state": state} if state else {"q": "needle"})
    found = {"": last, "succeeded": last, "ready": first, "parked": first}[state]
    assert ids_on(narrow) == [found.pk]
    assert "Only the first 1,000 jobs of this list were searched." in html(narrow)
    wide = root.get(LIST, {"q": "needle", "state": state, "reach": "far"} if state else {"q": "needle", "reach": "far"})
    assert sorted(ids_on(wide)) == sorted([first.pk, last.pk])
    assert "were searched" not in html(wide)


def test_an_empty_list_is_a_page(root: Client) -> None:
    page = root.get(LIST)
    assert page.status_code == 200
    assert "0 jobs" in html(page)


def test_query_string_cannot_choose_another_order(root: Client) -> None:
    first, second = make(description="a"), make(description="b")
    assert ids_on(root.get(LIST, {"o": "-1.2.9"})) == [second.pk, first.pk]


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["state=garbage", "state=%00", "queue=%00", "name=a%00b", "p=99", "state=READY'--"])
def test_garbage_in_filters_goes_back_to_the_whole_list(root: Client, query: str) -> None:
    make()
    answer = root.get(f"{LIST}?{query}", follow=True)
    assert answer.status_code == 200
    assert len(ids_on(answer)) == 1


ODD = [
    "q=%00", "q=99999999999999999999999999", "q=9223372036854775808", "q=%25%27%22%5C", "q=%D9%A3", "q=" + "x" * 5000,
    "reach=x&q=a", "p=x", "queue=nowhere", "name=nobody", "e=1", "all=", "_facets=1", "o=x", "state=", "queue=",
]  # fmt: skip


@pytest.mark.parametrize("query", ODD)
def test_odd_queries_are_pages(root: Client, query: str) -> None:
    make()
    assert root.get(f"{LIST}?{query}").status_code == 200


@pytest.mark.parametrize(
    "lookup", ["payload__contains=x", "result=1", "attempts__traceback__contains=x", "cancel_by=x"]
)
def test_only_our_filters_are_lookups_or_the_payload_could_be_probed(root: Client, lookup: str) -> None:
    make()
    assert root.get(f"{LIST}?{lookup}").status_code == 400


@pytest.mark.parametrize("object_id", ["0", "-1", "abc", "99999999999999999999999", "9" * 5000, "1_2C3", "%00"])
def test_no_such_job_goes_back_with_a_message(root: Client, object_id: str) -> None:
    answer = root.get(f"{LIST}{object_id}/change/", follow=True)
    assert answer.status_code == 200
    assert "exist" in html(answer) or "deleted" in html(answer)


@pytest.mark.parametrize("chosen", ["abc", "-1", "9" * 40, "9223372036854775808", "", "٣", "1; DROP"])
def test_chosen_ids_that_are_none_change_nothing(root: Client, chosen: str) -> None:
    row = make(outcome="abandoned", finished_at=now_plus(-1))
    answer = root.post(
        LIST,
        {"action": "retry", "_selected_action": [str(row.pk), chosen], "index": "0", "confirmed": "yes"},
        follow=True,
    )
    assert answer.status_code == 200
    assert "The selection has invalid job ids." in html(answer)
    assert Job.objects.get().state == "abandoned"


FORGED = [
    '[1, 2]', '"text"', "null", "17", "{}", '{"args": 3}', '{"args": {}, "kwargs": []}', '{"kwargs": {"a": 1}, "x": 2}',
    '{"args": [{"$datetime": "nonsense"}], "kwargs": {}}', '{"args": [{"$nope": 1}, {"$tuple": 4}], "kwargs": {}}',
    "[" * 5000 + "]" * 5000, '{"args": [' + "9" * 5000 + "]}", '{"args": ["<script>alert(1)</script>"]}',
    '{"kwargs": {"<script>alert(1)</script>": 1}}',
]  # fmt: skip


@pytest.mark.parametrize("payload", FORGED, ids=range(len(FORGED)))
@pytest.mark.parametrize("reveal", [True, False])
@pytest.mark.parametrize("name", ["shop.charge", "nobody.knows"])
def test_forged_rows_spoil_nothing(payload: str, reveal: bool, name: str) -> None:
    row = make(name=name, outcome="succeeded", finished_at=now_plus(-1))
    with connection.cursor() as cursor:
        columns = "payload = %(v)s::jsonb, result = %(v)s::jsonb, headers = %(v)s::jsonb, progress = %(v)s::jsonb"
        cursor.execute(f"UPDATE pgjobs_job SET {columns}, error = '<script>alert(2)</script>'", {"v": payload})
    client = client_with("view_payload") if reveal else client_with()
    page = client.get(f"{LIST}{row.pk}/change/")
    assert page.status_code == 200
    assert "<script>alert" not in html(page)
    assert client.get(LIST).status_code == 200


def test_forged_attempts_spoil_nothing(root: Client) -> None:
    row = make(attempt=3)
    for number, chain in enumerate(
        ["17", '[["a"], 3, ["<script>alert", "<script>alert"]]', "[" * 4000 + "]" * 4000], 1
    ):
        Attempt.objects.create(
            job=row, claim_id=UUID(int=number), number=number, cause="odd", exception="X", message="y"
        )
        with connection.cursor() as cursor:
            cursor.execute("UPDATE pgjobs_attempt SET chain = %s::jsonb WHERE number = %s", [chain, number])
    page = root.get(f"{LIST}{row.pk}/change/")
    assert page.status_code == 200
    assert "<script>alert" not in html(page)
    assert "&lt;script&gt;alert" in html(page)


def test_a_megabyte_of_payload_is_shown_by_its_beginning(root: Client) -> None:
    row = make(payload={"args": ["4111", 7, "n" * 1_000_000], "kwargs": {}})
    page = root.get(f"{LIST}{row.pk}/change/")
    assert len(page.content) < 100_000
    assert "1,000,002 characters; showing only the beginning" in html(page)


# --- queries and plans ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", ["", "?state=ready", "?state=succeeded", "?queue=bulk", "?q=many", "?state=parked&q=x"]
)
def test_a_list_takes_at_most_nine_queries_and_no_payload(root: Client, query: str) -> None:
    make_one_of_each()
    Job.objects.bulk_create([Job(name="many", queue="bulk", payload={}) for _ in range(120)])
    with CaptureQueriesContext(connection) as queries:
        assert root.get(LIST + query).status_code == 200
    assert len(queries) <= 9, [q["sql"][:100] for q in queries]
    assert not any("payload" in q["sql"] or "COUNT(" in q["sql"] for q in queries)


def test_a_jobs_page_says_why_it_does_not_run(root: Client) -> None:
    """The sentence of ``pgjobs why``, escaped."""
    rows = make_one_of_each()
    Job.objects.filter(pk=rows["parked"].pk).update(hold_reason="no <b>such</b> job")
    assert "but the only worker that was heard from lately does not serve queue default." in html(
        root.get(f"{LIST}{rows['ready'].pk}/change/")
    )
    assert "it runs at" in html(root.get(f"{LIST}{rows['scheduled'].pk}/change/"))
    assert "cannot run it: no &lt;b&gt;such&lt;/b&gt; job." in html(root.get(f"{LIST}{rows['parked'].pk}/change/"))


def test_a_jobs_page_takes_at_most_twelve_queries(root: Client) -> None:
    row = make_one_of_each()["running"]
    Attempt.objects.bulk_create(Attempt(job=row, claim_id=UUID(int=n), number=n, cause="failed") for n in range(1, 21))
    with CaptureQueriesContext(connection) as queries:
        assert root.get(f"{LIST}{row.pk}/change/").status_code == 200
    assert len(queries) <= 12, [q["sql"][:100] for q in queries]


HELD = ("blocked", "parked", "limited", "paused")

INDEXES = {
    "": "pgjobs_job_pkey",
    "ready": "pgjobs_job_claim_order",
    "scheduled": "pgjobs_job_claim_order",
    "retrying": "pgjobs_job_claim_order",
    "running": "pgjobs_job_pkey",
    "blocked": "pgjobs_job_held",
    "parked": "pgjobs_job_held",
    "limited": "pgjobs_job_limited",
    "paused": "pgjobs_job_held",
    "succeeded": "pgjobs_job_ended",
    "cancelled": "pgjobs_job_ended",
    "abandoned": "pgjobs_job_ended",
}


@pytest.fixture
def history() -> None:
    """Old rare jobs below much history: the case in which walking the ids backwards reads everything."""
    make_one_of_each()
    seed = """
        INSERT INTO pgjobs_job (name, payload, outcome, finished_at, queue)
        SELECT 'shop.charge', '{}', 'succeeded', statement_timestamp() - n * interval '1 second', 'bulk'
        FROM generate_series(1, 30000) AS n
    """
    with connection.cursor() as cursor:
        cursor.execute(seed)
        cursor.execute("ANALYZE pgjobs_job")


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("extra", [{}, {"q": "nothing has this"}, {"name": "nobody"}])
def test_every_state_is_read_along_its_index(
    root: Client, extra: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("NEAR", "NEAR_TEXT", "NEAR_ENDED", "NEAR_HELD"):
        monkeypatch.setattr(reach, limit, 1000)
    # ``store.first_due`` finds scheduled and retrying jobs: see test_plans_of_lists.py.
    for state, index in [each for each in INDEXES.items() if each[0] not in ("scheduled", "retrying")]:
        with CaptureQueriesContext(connection) as queries:
            root.get(LIST, {"state": state, **extra})
        listed = [q["sql"] for q in queries if "LIMIT 10001" in q["sql"]]
        assert len(listed) == 1, state
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + listed[0])
            (plan,) = cursor.fetchone()[0]
        # Those that are held are in two indexes; which of them is taken depends on what the server knows of the rows.
        along = {index, "pgjobs_job_held", "pgjobs_job_held_order"} if state in HELD else {index}
        assert {node.get("Index Name") for node in nodes(plan["Plan"])} & along, (state, listed[0], plan)
        read = max(rows_read(node) for node in nodes(plan["Plan"]))
        assert read <= (1100 if extra else job_list.MOST + 100), (state, extra, read)


# --- workers -------------------------------------------------------------------------------------------------------


def test_workers_are_shown_and_those_not_heard_from_are_silent_and_lost(root: Client, settings: Any) -> None:
    settings.PGJOBS = {"STALE_SECONDS": 60, "BEAT_SECONDS": 10}
    common: dict[str, Any] = {"host": "h", "pid": 1, "processes": 2, "threads": 4, "async_slots": 50, "version": "1"}
    Heartbeat.objects.create(name="alive", last_beat_at=now_plus(-5), queues=["mail"], **common)
    Heartbeat.objects.create(name="silent<1>", last_beat_at=now_plus(-21), excluded_queues=["bulk"], **common)
    Heartbeat.objects.create(name="forgotten", last_beat_at=now_plus(-61), **common)
    Heartbeat.objects.create(name="gone", last_beat_at=now_plus(-3600), state="stopped", queues="forged", **common)
    text = html(root.get("/admin/pgjobs/heartbeat/"))
    states = re.findall(r"pgjobs-state pgjobs-(\w+)", text)
    assert states == ["running", "silent", "lost", "stopped"]
    assert "all − bulk" in text
    assert "silent&lt;1&gt;" in text
    assert "2 × (4 threads + 50 async)" in text


def test_places_of_queues_are_shown_with_a_worker(root: Client) -> None:
    common: dict[str, Any] = {"host": "h", "pid": 1, "processes": 2, "threads": 4, "async_slots": 0, "version": "1"}
    beat = Heartbeat.objects.create(name="w", places={"mail<": 2, "*": 5, "x": "forged"}, **common)
    page = f"/admin/pgjobs/heartbeat/{beat.pk}/change/"
    assert "mail&lt;: 2, *: 5<" in html(root.get(page)).replace("\n", "")
    assert "mail&lt;: 2, *: 5" in html(root.get("/admin/pgjobs/overview/"))
    Heartbeat.objects.filter(pk=beat.pk).update(places="forged")
    assert root.get(page).status_code == 200


def test_workers_are_read_only(root: Client) -> None:
    beat = Heartbeat.objects.create(name="w", host="h", pid=1, processes=1, threads=1, async_slots=0, version="1")
    url = f"/admin/pgjobs/heartbeat/{beat.pk}/change/"
    assert root.get(url).status_code == 200
    assert root.post(url, {"name": "x"}).status_code == 403
    assert root.get("/admin/pgjobs/heartbeat/add/").status_code == 403
    assert root.get("/admin/pgjobs/heartbeat/nonsense/change/", follow=True).status_code == 200


def test_what_is_not_for_people_is_not_in_the_admin(root: Client) -> None:
    index = html(root.get("/admin/pgjobs/"))
    assert "/admin/pgjobs/job/" in index
    assert "/admin/pgjobs/heartbeat/" in index
    assert "claim" not in index
    assert "/attempt/" not in index
