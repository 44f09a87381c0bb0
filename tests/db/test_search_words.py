"""The words of a search: what they find in the admin and from the shell, and what they never tell."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from django_pgjobs.models import Job
from django_pgjobs.presentation import reach
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.presentation.search_words import complaint_of, taken_apart
from tests.plugins.fix_admin import (
    LIST,
    WORKER,
    act,
    client_with,
    html,
    ids_on,
    make,
    make_one_of_each,
    now_plus,
    said,
    user_with,
)
from tests.plugins.shell import pgjobs

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]


def found(client: Client, search: str, **query: str) -> list[int]:
    return sorted(ids_on(client.get(LIST, {"q": search, **query})))


def failed(**fields: Any) -> int:
    return make(outcome="abandoned", **{"finished_at": now_plus(-5), **fields}).pk


def test_an_error_is_found_by_its_class_whole_or_without_its_path(root: Client) -> None:
    ours, theirs = failed(error_class="shop.Declined"), failed(error_class="bank.Declined")
    failed(error_class="shop.NotDeclined")
    assert found(root, "error:Declined") == [ours, theirs]
    assert found(root, 'error:"shop.Declined"') == found(root, "error:shop.Declined") == [ours]
    assert found(root, 'error:"Declined"') == []
    retrying = make(run_at=now_plus(60), attempt=1, error="Declined: card refused").pk
    make(run_at=now_plus(60), attempt=1, error="Declinedness: no")
    assert found(root, "error:shop.Declined", state="retrying") == [retrying]
    assert pgjobs("list", "--error", "Declined", "--format", "json")[1].count('"id"') == 2


def test_an_error_without_a_state_says_which_states_were_looked_at() -> None:
    make(run_at=now_plus(60), attempt=1, error="Declined: card refused")
    code, out, err = pgjobs("list", "--error", "Declined", "--format", "json")
    assert (code, out) == (0, "[]\n")
    assert err.startswith("Only abandoned jobs were looked at: --state retrying and --state limited find")
    assert "Only abandoned" not in pgjobs("list", "--error", "Declined", "--state", "retrying")[2]


def test_words_and_text_narrow_together(root: Client) -> None:
    both = failed(error_class="shop.Declined", queue="mail", description="order 17")
    failed(error_class="shop.Declined", queue="mail")
    failed(error_class="shop.Declined", description="order 17")
    assert found(root, "error:Declined queue:mail order 17") == [both]
    assert found(root, f"queue:mail {both}") == [both]


def test_a_colon_alone_makes_no_word(root: Client) -> None:
    ours = make(description="http://example.org").pk
    make(description="else")
    assert found(root, "http://example") == [ours]


@pytest.mark.parametrize(
    ("payload", "search"),
    [
        ({"args": ["4111", 595], "kwargs": {}}, "arg.amount:595"),
        ({"args": [], "kwargs": {"amount": 595}}, "arg.amount:595"),
        ({"args": [], "kwargs": {"note": "by hand"}}, 'arg.note:"by hand"'),
        ({"args": [], "kwargs": {"note": "595"}}, 'arg.note:"595"'),
        ({"args": [], "kwargs": {"note": None}}, "arg.note:null"),
        ({"args": [], "kwargs": {"note": True}}, "arg.note:true"),
    ],
)
def test_an_argument_is_found_by_name_wherever_it_stands(payload: Any, search: str) -> None:
    ours = make(payload=payload).pk
    make(payload={"args": ["4111", 7], "kwargs": {"note": 595}})
    assert found(client_with(), search) == [ours]


@pytest.mark.parametrize("value", ["NaN", "1e999", "[1]", "{}", "9" * 150, "'", "%", "\\"])
def test_odd_values_find_nothing_and_break_nothing(root: Client, value: str) -> None:
    make()
    assert found(root, f"arg.amount:{value}") == []


def test_nobody_finds_a_job_by_an_argument_that_they_may_not_see(root: Client) -> None:
    """Neither a sensitive one, by place or by name, nor any of a job that the process does not know."""
    placed = make(payload={"args": ["4111", 7], "kwargs": {}}).pk
    named = make(payload={"args": [], "kwargs": {"card": "4111"}}).pk
    unknown = make(name="else.where", payload={"args": [], "kwargs": {"card": "4111", "amount": 7}}).pk
    assert found(root, "arg.card:4111") == [placed, named, unknown]
    assert found(client_with("view_payload"), "arg.card:4111", state="ready") == [placed, named, unknown]
    viewer = Client()
    viewer.force_login(user_with("view_job", name="bo"))
    assert found(viewer, "arg.card:4111") == []
    assert found(viewer, "arg.amount:7") == [placed]


def test_a_bounded_search_for_an_argument_says_how_far_it_looked(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "NEAR_ARGUMENTS", 1000)
    old = make(payload={"args": ["x", 1], "kwargs": {}}).pk
    Job.objects.bulk_create([Job(name="shop.charge", payload={"args": ["x", 2], "kwargs": {}})] * 1001)
    page = root.get(LIST, {"q": "arg.amount:1"})
    assert ids_on(page) == []
    assert "Only the first 1,000 jobs" in html(page)
    assert found(root, "arg.amount:1", reach="far") == [old]


@pytest.mark.parametrize("state", ["", "abandoned", "parked"])
def test_a_tag_of_many_jobs_is_searched_along_the_list_which_says_so(
    root: Client, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of tags would read all of them, to sort them."""
    ended = {"outcome": "abandoned", "finished_at": now_plus(-60)}
    fields: dict[str, Any] = {"": {}, "abandoned": ended, "parked": {"hold": "parked"}}[state]
    old = make(tags=["vip"], **fields)
    ended["finished_at"] = now_plus(-5)
    Job.objects.bulk_create([Job(name="z", payload={}, **fields) for _ in range(1100)])
    new = make(tags=["vip"], name="a", **fields)
    asked = {"tag": "vip", "state": state} if state else {"tag": "vip"}
    assert sorted(ids_on(root.get(LIST, asked))) == [old.pk, new.pk], "few have it: the index finds all"
    monkeypatch.setattr(reach, "NEAR_TAGGED", 1)
    for limit in ("NEAR_COMMON", "NEAR_ENDED", "NEAR_HELD"):
        monkeypatch.setattr(reach, limit, 1000)
    page = root.get(LIST, asked)
    assert new.pk in ids_on(page)
    assert "Only the first 1,000 jobs of this list were searched." in html(page)
    assert sorted(ids_on(root.get(LIST, {**asked, "reach": "far"}))) == [old.pk, new.pk]


def test_a_worker_is_found_by_what_it_runs_and_what_it_ended(root: Client) -> None:
    rows = make_one_of_each()
    make(outcome="succeeded", finished_at=now_plus(-5))
    ended = make(outcome="succeeded", finished_at=now_plus(-5), worker=WORKER).pk
    assert found(root, "worker:web-1") == found(root, f"worker:{WORKER}") == [rows["running"].pk]
    assert found(root, "worker:web-1", state="succeeded") == [ended]
    assert found(root, "worker:gone") == []


def test_ages_count_from_the_end_or_from_the_registration(root: Client) -> None:
    young, old = failed(), failed(finished_at=now_plus(-7200))
    assert found(root, "since:1h", state="abandoned") == [young]
    assert found(root, "older:1h", state="abandoned") == [old]
    begins, ends = now_plus(-7300), now_plus(-7100)
    span = f"since:{begins:%Y-%m-%dT%H:%M:%SZ} older:{ends:%Y-%m-%dT%H:%M:%SZ}"
    assert found(root, span, state="abandoned") == [old]
    Job.objects.filter(pk=old).update(created_at=now_plus(0) - timedelta(hours=2))
    assert found(root, "older:1h") == [old]


@pytest.mark.parametrize("search", ["since:yesterday", "older:-1h", "since:2026-13-45", "error:", 'queue:""'])
def test_a_word_that_cannot_be_read_says_so_and_nothing_is_listed_or_changed(root: Client, search: str) -> None:
    row = make(outcome="abandoned", finished_at=now_plus(-5))
    page = root.get(LIST, {"q": search})
    assert ids_on(page) == []
    word = search.partition(":")[0]
    assert any(f"{word}: " in text for text in said(page)), said(page)
    act(root, "retry", [row], f"?q={search}", select_across="1", confirmed="yes")
    assert Job.objects.get(pk=row.pk).outcome == "abandoned"


def test_the_trail_names_the_words_but_not_the_value_of_an_argument(root: Client) -> None:
    make(outcome="abandoned", finished_at=now_plus(-5), payload={"args": ["4111", 7], "kwargs": {}})
    search = JobSearch.of({}, "arg.card:4111 error:Declined worker:web-1 since:2026-11-24T10:00Z", reveal=True)
    assert search.words == "state abandoned, error Declined, worker web-1, since 2026-11-24 10:00, argument card"


@pytest.mark.parametrize("word", ["since", "older"])
@pytest.mark.parametrize("value", ["9999-12-31T23:59-23:59", "9999-12-31T23:59Z", "0001-01-01T00:00+23:59"])
def test_an_instant_beyond_the_calendar_is_none(root: Client, word: str, value: str) -> None:
    term = f"{word}:{value}"
    assert root.get(LIST, {"q": term}).status_code == 200
    assert complaint_of(taken_apart(term)).startswith(f"{word}: takes 90s, 30m")


def test_the_shell_finds_arguments_too() -> None:
    ours = make(payload={"args": ["4111", 595], "kwargs": {}}).pk
    make()
    assert f'"id": {ours}' in pgjobs("list", "--arg", "amount=595", "--format", "json")[1]
