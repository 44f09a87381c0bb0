"""The admin over two servers, one of which is frozen or down: it says so in time, and the other is as ever."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import Job
from tests.e2e.elsewhere import aliased, ask, frozen, put
from tests.plugins.fix_db import patience, register

ADMIN = "/admin/pgjobs"


@pytest.fixture
def second(server: EmbeddedServer, committed: object, settings: Any) -> Iterator[EmbeddedServer]:
    """What the alias *second* leads to."""
    with aliased("second", server.url):
        settings.PGJOBS = {"DATABASES": ["default", "second"]}
        yield server


@pytest.fixture
def client(committed: object) -> Client:
    """A superuser who is logged in."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@contextmanager
def within(seconds: float) -> Iterator[None]:
    before = time.monotonic()
    yield
    assert time.monotonic() - before < seconds


def test_the_rows_and_pages_of_both_are_there(client: Client, second: EmbeddedServer) -> None:
    register()
    there = put(second.url, "notes_its_home")
    put(second.url, "notes_its_home")
    rows = client.get(f"{ADMIN}/overview/").context["rows"]
    assert [(row["name"], row["figures"][0]["number"]) for row in rows] == [("default", "1"), ("second", "2")]
    page = client.get(f"{ADMIN}/job/second:{there}/change/")
    assert "notes_its_home" in page.content.decode()
    client.post(f"{ADMIN}/job/second:{there}/steer/cancel/", {"mode": "ask"})
    assert ask(second.url, "SELECT outcome FROM pgjobs_job WHERE id = %s", there) == [("cancelled",)]


@pytest.mark.parametrize("how", ["frozen", "stopped"])
def test_a_database_without_an_answer_is_a_red_row(client: Client, second: EmbeddedServer, how: str) -> None:
    register()
    job = Job.objects.get()
    there = put(second.url, "notes_its_home")
    assert client.get(f"{ADMIN}/job/?database=second").status_code == 200
    with frozen(second.pid) if how == "frozen" else stopped(second):
        with within(patience(4)):
            page = client.get(f"{ADMIN}/overview/")
        text = page.content.decode()
        assert page.status_code == 200
        assert re.search(r'class="pgjobs-down">.*?second.*?No answer', text, re.DOTALL)
        assert [row["figures"][0]["number"] for row in page.context["rows"] if "figures" in row] == ["1"]
        for path in ("overview/?database=second", "job/?database=second", f"job/second:{there}/change/"):
            with within(patience(4)):
                page = client.get(f"{ADMIN}/{path}")
            assert (page.status_code, "The database second gives no answer" in page.content.decode()) == (503, True)
        with within(patience(4)):
            answer = client.post(f"{ADMIN}/job/second:{there}/steer/cancel/", {"mode": "ask"})
        assert answer.status_code == 503
        with within(patience(4)):
            page = client.get(f"{ADMIN}/job/?q={job.pk}")
        assert (page.status_code, "second: it" in page.content.decode()) == (200, True)
        client.post(f"{ADMIN}/job/default:{job.pk}/steer/cancel/", {"mode": "ask"})
        assert Job.objects.get().outcome == "cancelled"
    assert ask(second.url, "SELECT outcome FROM pgjobs_job") == [(None,)]
    connections["second"].close()
    assert client.get(f"{ADMIN}/job/second:{there}/change/").status_code == 200


@contextmanager
def stopped(server: EmbeddedServer) -> Iterator[None]:
    server.halt()
    try:
        yield
    finally:
        server.start()


def test_a_database_that_takes_no_writes_is_shown_and_not_steered(client: Client, second: EmbeddedServer) -> None:
    """As a replica would be: what steers its rows would look for them where routers write."""
    put(second.url, "notes_its_home")
    register()
    Job.objects.update(id=1)
    ask(second.url, "ALTER SYSTEM SET default_transaction_read_only = on")
    ask(second.url, "SELECT pg_reload_conf()")
    try:
        assert client.get(f"{ADMIN}/job/second:1/change/").status_code == 200
        answer = client.post(f"{ADMIN}/job/second:1/steer/cancel/", {"mode": "ask"})
        assert (answer.status_code, "it takes no writes now" in answer.content.decode()) == (503, True)
    finally:
        ask(second.url, "ALTER SYSTEM RESET default_transaction_read_only")
        ask(second.url, "SELECT pg_reload_conf()")
    assert [Job.objects.get().state, ask(second.url, "SELECT outcome FROM pgjobs_job")] == ["ready", [(None,)]]
