"""``manage.py pgjobs pause`` and ``resume``: the pauses, the messages, and the exit status."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_pgjobs import job as define
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import QueueState
from tests.plugins.fix_db import RawDatabase
from tests.plugins.shell import printed


def send() -> None: ...


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with registry.isolated():
        define(name="mail.send")(send)
        yield


def test_queues_and_jobs_are_paused_and_resumed(raw: RawDatabase) -> None:
    status, told = printed("pause", "mail", "bulk", "--job", "mail.send", "--by", "anna", "--reason", "server\nmoves")
    assert (status, told) == (
        0,
        "paused queue mail until it is resumed by anna: server moves\n"
        "paused queue bulk until it is resumed by anna: server moves\n"
        "paused job mail.send until it is resumed by anna: server moves\n",
    )
    assert [(state.kind, state.name, state.reason) for state in QueueState.objects.current()] == [
        ("queue", "bulk", "server\nmoves"), ("queue", "mail", "server\nmoves"), ("job", "mail.send", "server\nmoves"),
    ]  # fmt: skip
    assert printed("resume", "mail", "--job", "mail.send") == (0, "resumed queue mail\nresumed job mail.send\n")
    assert printed("resume", "mail", "bulk") == (1, "queue mail was not paused\nresumed queue bulk\n")
    assert list(QueueState.objects.current()) == []


def test_a_queue_that_no_job_is_declared_with_is_paused_and_remarked(raw: RawDatabase) -> None:
    with registry.isolated():
        define(name="mail.send", queue="mail")(send)
        aside = StringIO()
        call_command("pgjobs", "pause", "mail", "mial", stdout=StringIO(), stderr=aside)
    assert aside.getvalue() == (
        "No job in this process declares queue 'mial' (did you mean 'mail'?); it is paused anyway.\n"
    )
    assert [state.name for state in QueueState.objects.current()] == ["mail", "mial"]


def test_until_when(raw: RawDatabase) -> None:
    printed("pause", "a", "--until", "2070-01-31T08:00+01:00")
    printed("pause", "b", "--for", "2h")
    a, b = QueueState.objects.current()
    assert a.until == datetime(2070, 1, 31, 7, tzinfo=UTC)
    assert b.until is not None
    assert 7100 < (b.until - b.paused_at).total_seconds() <= 7200


def test_who_is_the_user_of_the_shell(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "carol")
    printed("pause", "mail")
    assert QueueState.objects.get().paused_by == "carol"


def test_the_list_and_its_json(raw: RawDatabase) -> None:
    assert printed("pause", "--list") == (0, "Nothing is paused.\n")
    status, told = printed("pause", "mail", "--by", "anna", "--for", "60", "--format", "json")
    state = QueueState.objects.get()
    assert state.until is not None
    expected = {
        "kind": "queue", "name": "mail", "by": "anna", "reason": "", "paused_at": state.paused_at.isoformat(),
        "until": state.until.isoformat(),
    }  # fmt: skip
    assert (status, json.loads(told)) == (0, {"paused": [expected]})
    assert json.loads(printed("pause", "--list", "--format", "json")[1]) == {"paused": [expected]}
    status, told = printed("resume", "mail", "other", "--format", "json")
    resumed = [{"kind": "queue", "name": name, "was_paused": name == "mail"} for name in ("mail", "other")]
    assert (status, json.loads(told)) == (1, {"resumed": resumed})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pause"], "Name the queues"),
        (["resume"], "Name the queues"),
        (["pause", "no good"], "no queue 'no good'"),
        (["pause", "mail", "--job", "mail.sent"], "did you mean 'mail.send'"),
        (["pause", "mail", "--until", "2001-01-01T00:00Z"], "is in the past"),
        (["pause", "mail", "--until", "tomorrow"], "is not an instant"),
        (["pause", "mail", "--until", "2070-02-30"], "is not an instant"),
        (["pause", "mail", "--for", "x"], "is not an age"),
        (["pause", "mail", "--for", "0"], "a time from now"),
        (["pause", "mail", "--for", "1h", "--until", "2070-01-01T00:00Z"], "not allowed with"),
        (["pause", "mail", "--database", "elsewhere"], "no database alias"),
    ],
)
def test_what_is_wrong_is_told_and_pauses_nothing(raw: RawDatabase, arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        printed(*arguments)
    assert list(QueueState.objects.current()) == []
