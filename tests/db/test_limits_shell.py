"""``manage.py pgjobs limit``: what is set, restored and listed, the messages, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_pgjobs import Limit
from django_pgjobs import job as define
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Action, LimitOverride
from django_pgjobs.store import limiting
from django_pgjobs.store.admitting import Bounds
from tests.plugins.fix_db import RawDatabase
from tests.plugins.shell import printed


def send(tenant: str = "") -> None: ...


@pytest.fixture(autouse=True)
def known(settings: Any) -> Iterator[None]:
    settings.PGJOBS = {"QUEUE_LIMITS": {"mail": {"concurrency": 9, "rate": 100, "per": 60}}}
    with registry.isolated():
        define(name="mail.send", limits=Limit(4, key="{tenant}"))(send)
        yield


def test_limits_are_set_listed_and_restored(raw: RawDatabase) -> None:
    status, told = printed("limit", "mail", "bulk", "--concurrency", "2", "--by", "anna", "--reason", "slow\nAPI")
    assert (status, told) == (
        0,
        "limit of queue mail: 2 at once, in the code 9 at once and 100 starts in 60 s until it is restored by anna: "
        "slow API\n"
        "limit of queue bulk: 2 at once, none in the code until it is restored by anna: slow API\n",
    )
    assert printed("limit", "--job", "mail.send", "--each-key", "--rate", "5", "--per", "2") == (
        0,
        f"limit of each key of job mail.send: 5 starts in 2 s, in the code 4 at once until it is restored by "
        f"{LimitOverride.objects.get(kind='key').set_by}\n",
    )
    status, told = printed("limit", "--list", "--format", "json")
    assert status == 0
    found = json.loads(told)["limits"]
    assert [(each["kind"], each["name"], each["concurrency"], each["rate"]) for each in found] == [
        ("queue", "bulk", 2, None), ("queue", "mail", 2, None), ("key", "mail.send", None, 5),
    ]  # fmt: skip
    assert found[1]["code"] == {"concurrency": 9, "rate": 100, "per": 60.0}
    assert (found[0]["code"], found[0]["idle"], found[0]["by"], found[0]["until"]) == (None, False, "anna", None)
    assert printed("limit", "mail", "--restore") == (0, "queue mail: restored\n")
    assert printed("limit", "mail", "bulk", "--restore") == (
        1, "queue mail: no limit was set\nqueue bulk: restored\n",
    )  # fmt: skip
    assert printed("limit", "--job", "mail.send", "--each-key", "--restore") == (
        0, "each key of job mail.send: restored\n",
    )  # fmt: skip
    assert printed("limit", "--list") == (0, "No limit is set in place of the code's.\n")
    assert set(Action.objects.values_list("via", flat=True)) == {"shell"}


def test_a_limit_of_what_the_code_has_no_more_is_idle(raw: RawDatabase) -> None:
    limiting.override_limit(raw, "key", ["mail.gone"], Bounds(1), by="anna", reason="")
    assert printed("limit", "--list") == (
        0,
        "limit of each key of job mail.gone: 1 at once, none in the code until it is restored by anna "
        "(idle: this code has nothing that it could count)\n",
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--concurrency", "2"], "Name the queues"),
        (["mail"], "give concurrency, rate or both"),
        (["mail", "no good", "--concurrency", "2"], "There is no queue"),
        (["mail", "--each-key", "--concurrency", "2"], "about jobs"),
        (["mail", "--concurrency", "0"], "pause"),
        (["--job", "mail.sent", "--concurrency", "2"], "mail.send"),
        (["mail", "--concurrency", "2", "--until", "2001-01-01"], "in the past"),
    ],
)
def test_a_mistake_sets_nothing(raw: RawDatabase, words: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        call_command("pgjobs", "limit", *words)
    assert not LimitOverride.objects.exists()
