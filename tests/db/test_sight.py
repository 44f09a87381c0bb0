"""Every door asks the one table of what ``view_payload`` covers: pages, search, forms and the shell."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from django_pgjobs import Limit, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import CronEntry, EventState, Job, LogLine, Memo
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.presentation.sight import TABLE, Fact, Hidden, Without
from django_pgjobs.presentation.wording import arguments
from tests.plugins.fix_admin import html, make, now_plus, user_with
from tests.plugins.shell import printed

pytestmark = pytest.mark.django_db

ROOT = "/admin/pgjobs/"
SECRET = "4111-1111"
NAME = "shop.pay"
ENDED = {"outcome": "succeeded", "attempt": 1}


def pay(card: str = "", order: int = 0) -> None: ...


def plain(note: str = "") -> None: ...


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with registry.isolated():
        job(name=NAME, sensitive=["card"], schedulable=True)(pay)
        job(name="shop.plain")(plain)
        yield


def person(*, reveal: bool) -> Client:
    rights = ["view_job", "view_cronentry", "add_cronentry", "change_cronentry", "view_eventstate"]
    client = Client()
    client.force_login(user_with(*rights, *(["view_payload"] if reveal else []), name=f"p{reveal}"))
    return client


def row(**fields: Any) -> Job:
    return make(**{"name": NAME, "payload": {"args": [], "kwargs": {}}, **fields})


def page(client: Client, one: Job) -> str:
    return html(client.get(f"{ROOT}job/{one.pk}/change/"))


def remembering(client: Client, kind: str, name: str = NAME) -> str:
    one = row(name=name, flow=32)
    Memo.objects.create(job=one, name="m", kind=kind, result={"card": SECRET}, finished_at=timezone.now())
    return page(client, one)


def entry(client: Client) -> str:
    CronEntry.objects.bulk_create([
        CronEntry(
            name="nightly", job_name=NAME, declared_expression="0 7 * * 1", declared_zone="UTC", declared_options={},
            declared_payload={"args": [], "kwargs": {"card": SECRET}},
        )
    ])  # fmt: skip
    return html(client.get(f"{ROOT}cronentry/nightly/change/"))


def event(client: Client) -> str:
    EventState.objects.create(name="approval", payload={"card": SECRET}, sent_at=timezone.now())
    return html(client.get(f"{ROOT}eventstate/approval/change/"))


def searched(client: Client, **fields: Any) -> str:
    """The secret if a search by it finds the job."""
    one = row(**fields)
    found = html(client.get(f"{ROOT}job/", {"q": f"arg.card:{SECRET}"}))
    return SECRET if f"/job/{one.pk}/change/" in found else ""


def added(client: Client) -> str:
    """The secret if a schedule with it could be made, by the form that is offered or by the URL alone."""
    given = {
        "name": "by:form", "expression": "0 7 * * 1", "tz": "UTC", "misfire": "once", "overlap": "allow",
        "enabled": "on", "argument_card": SECRET,
    }  # fmt: skip
    text = html(client.get(f"{ROOT}cronentry/add/", {"job": NAME}))
    client.post(f"{ROOT}cronentry/add/?job={NAME}", given)
    made = CronEntry.objects.filter(pk="by:form").exists()
    assert made == ('name="argument_card"' in text)
    assert made or "you need the permission pgjobs.view_payload" in text
    return SECRET if made else ""


def overridden(client: Client) -> str:
    """The secret if an override with it could be written."""
    entry(client)
    given = {"expression": "", "zone": "", "payload": json.dumps({"args": [SECRET], "kwargs": {}})}
    client.post(f"{ROOT}cronentry/nightly/change/", given)
    return json.dumps(CronEntry.objects.get().payload)


def ended(**fields: Any) -> Job:
    return row(finished_at=now_plus(-5), **ENDED, **fields)


def having_logged(name: str = NAME) -> Job:
    job = ended(name=name)
    LogLine.objects.create(
        job=job, claimed_at=timezone.now(), number=1, claim_id=uuid4(), attempt=1, level=20, logger="shop",
        message=f"paid with {SECRET}", logged_at=timezone.now(),
    )  # fmt: skip
    return job


DOORS: dict[Fact, dict[str, Callable[[Client], str]]] = {
    Fact.ARGUMENT: {
        "page": lambda client: page(client, row(payload={"args": [SECRET], "kwargs": {}})),
        "page, by name": lambda client: page(client, row(payload={"args": [], "kwargs": {"card": SECRET}})),
        "page, of older code": lambda client: page(client, row(payload={"args": [], "kwargs": {"pan": SECRET}})),
        "page, of an unknown job": lambda client: page(client, row(name="no.such", payload={"args": [SECRET]})),
        "cron entry": entry,
    },
    Fact.FOUND: {
        "by place": lambda client: searched(client, payload={"args": [SECRET], "kwargs": {}}),
        "by name": lambda client: searched(client, payload={"args": [], "kwargs": {"card": SECRET}}),
        "of an unknown job": lambda client: searched(
            client, name="no.such", payload={"args": [], "kwargs": {"card": SECRET}}
        ),
    },
    Fact.WRITTEN: {"schedule": added, "override": overridden},
    Fact.RESULT: {
        "page": lambda client: page(client, ended(result={"card": SECRET})),
        "page, of an unknown job": lambda client: page(client, ended(name="no.such", result=SECRET)),
    },
    Fact.STEP_RESULT: {
        "page": lambda client: remembering(client, "step"),
        "page, of an unknown job": lambda client: remembering(client, "step", "no.such"),
    },
    Fact.LINES: {
        "page": lambda client: page(client, having_logged()),
        "page, of an unknown job": lambda client: page(client, having_logged("no.such")),
    },
    Fact.EVENT_PAYLOAD: {
        "its page": event,
        "what a job remembers": lambda client: remembering(client, "event"),
        "what a job without secrets remembers": lambda client: remembering(client, "event", "shop.plain"),
    },
    Fact.OPEN: {
        "key": lambda client: page(client, row(key=SECRET)),
        "tag": lambda client: page(client, row(tags=[SECRET])),
        "error": lambda client: page(client, row(error=SECRET)),
        "list": lambda client: (row(description=SECRET), html(client.get(f"{ROOT}job/")))[1],
    },
}


@pytest.mark.parametrize("reveal", [False, True])
@pytest.mark.parametrize(("fact", "door"), [(fact, door) for fact in Fact for door in DOORS[fact]], ids=str)
def test_every_door_shows_what_the_table_says(fact: Fact, door: str, reveal: bool) -> None:
    text = DOORS[fact][door](person(reveal=reveal))
    assert (SECRET in text) is (reveal or TABLE[fact] is Without.ALWAYS)


def test_what_holds_no_secret_is_shown_to_all() -> None:
    client = person(reveal=False)
    one = make(name="shop.plain", payload={"args": [SECRET], "kwargs": {}}, result=7, finished_at=now_plus(-5), **ENDED)
    assert SECRET in page(client, one)
    assert "<pre" in page(client, one).partition("Result")[2]
    assert SECRET in remembering(client, "step", "shop.plain")


@pytest.mark.parametrize("form", ["table", "json"])
def test_the_shell_shows_what_somebody_without_the_permission_sees(form: str) -> None:
    one = ended(payload={"args": [SECRET], "kwargs": {}}, result={"card": SECRET}, flow=32)
    for kind in ("step", "event"):
        Memo.objects.create(job=one, name=kind, kind=kind, result={"card": SECRET}, finished_at=timezone.now())
    for arguments_of in (("list", "--all"), ("why", str(one.pk))):
        assert SECRET not in printed(*arguments_of, "--format", form)[1]
    said = printed("show", str(one.pk), "--format", form)[1]
    assert SECRET not in said
    assert ('"result_hidden": true' if form == "json" else "hidden") in said


def test_the_shell_finds_nobody_by_what_it_hides() -> None:
    one = row(payload={"args": [], "kwargs": {"card": SECRET, "order": 17}})
    assert f'"id": {one.pk}' in printed("list", "--arg", "order=17", "--format", "json")[1]
    assert printed("list", "--arg", f"card={SECRET}", "--format", "json")[1] == "[]\n"


# A search finds nobody by what is hidden


def kwargs_hidden(order: int, **card: object) -> None: ...
def one_of_kwargs(order: int, **more: object) -> None: ...
def rest_hidden(*cards: str, order: int = 0) -> None: ...
def by_place_only(order: int, card: str, /, **order_too: object) -> None: ...


FUNCTIONS: list[tuple[Callable[..., None], list[str]]] = [
    (pay, ["card"]),
    (pay, []),
    (kwargs_hidden, ["card"]),
    (one_of_kwargs, ["card"]),
    (rest_hidden, ["cards"]),
    (by_place_only, ["card", "order_too"]),
]
KEYWORDS: list[dict[str, int]] = [
    {}, {"card": 4111}, {"order": 4111}, {"order": 17, "card": 4111}, {"pan": 4111}, {"order": 4111, "x": 1},
]  # fmt: skip
PLACES: list[list[int]] = [[], [4111], [17, 4111], [4111, 17], [4111, 17, 5], [1, 2, 4111]]
FORGED: list[Any] = [
    {"args": 4111, "kwargs": {}}, {"args": [4111], "kwargs": [4111]}, {"args": [4111]}, {"kwargs": {"order": 4111}}, 5,
]  # fmt: skip
PAYLOADS = [{"args": args, "kwargs": kwargs} for args in PLACES for kwargs in KEYWORDS] + FORGED
NAMES = ("card", "cards", "order", "pan", "more", "order_too", "x")


@pytest.mark.parametrize("reveal", [False, True])
@pytest.mark.parametrize(("function", "sensitive"), FUNCTIONS)
def test_a_job_is_found_by_what_its_page_shows_and_by_nothing_that_it_hides(
    function: Callable[..., None], sensitive: list[str], reveal: bool
) -> None:
    """Sensitive ``**kwargs``, arguments of older code that fit no more, payloads that others have written."""
    registry._by_name.clear()
    definition = job(name=NAME, sensitive=sensitive)(function)
    rows = [row(payload=payload) for payload in PAYLOADS]
    for name in NAMES:
        search = JobSearch.of({}, f"arg.{name}:4111", reveal=reveal)
        found = set(Job.objects.filter(search.where()).values_list("pk", flat=True))
        for one in rows:
            shown = arguments(NAME, json.dumps(one.payload), reveal=reveal)
            seen = {} if isinstance(shown, Hidden) else dict(shown)
            if one.pk in found and sensitive and not reveal:
                assert "4111" in seen.get(name, ""), (name, one.payload)
            kind = getattr(definition._signature.parameters.get(name), "kind", None)
            fits = not isinstance(shown, Hidden) and seen.get(name) == "4111"
            if fits and kind in (None, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
                doubtful = kind is None or one.payload in FORGED
                hidden_by_doubt = doubtful and bool(sensitive) and not reveal
                assert one.pk in found or hidden_by_doubt, (name, one.payload)


# Keys are shown to everybody


@pytest.mark.parametrize(
    "options",
    [
        {"unique": "pay:{card}"},
        {"unique": "pay:{order}:{card[0]}"},
        {"idempotency_key": "{card!r}"},
        {"limits": [Limit(1, key="{card}")]},
    ],
)
def test_a_key_made_of_a_sensitive_argument_is_refused_where_it_is_declared(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="shows the sensitive argument 'card' to all users who may see"):
        job(name="shop.other", sensitive=["card"], **options)(pay)
    job(name="shop.third", sensitive=["card"], unique=lambda card, order: "digest")(pay)
