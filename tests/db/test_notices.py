"""Notices of failures: what is in one, when it comes, and what it costs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs import sql
from django_pgjobs.maintenance import notices
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.notices import DELIVERING_SECONDS, Notifier
from django_pgjobs.models import Job
from django_pgjobs.store import finalising, noticing
from django_pgjobs.store.database import Params, Rows
from django_pgjobs.store.noticing import Failures
from tests.db.notices_ground import (
    Connect,
    Found,
    abandon,
    at_once,
    counted,
    delivered,
    found,
    leader,
    notified,
    notifier,
    silence,
    turns,
)
from tests.plugins.explaining import Explaining, analysed_while_empty, pages
from tests.plugins.fix_clock import Time
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, register

__all__ = ["at_once", "found", "leader", "notified", "notifier"]

DAY = 86_400.0


# What a notice is of


def test_failures_are_counted_by_name_and_class(notifier: Notifier, raw: RawDatabase) -> None:
    ids = abandon(raw, 5)
    abandon(raw, 2, error="timeout")
    abandon(raw, 1, "shop.mail", None)
    digest = turns(notifier, raw)
    assert digest is not None
    assert counted(digest) == {("shop.pay", "shop.Declined"): 5, ("shop.pay", "timeout"): 2, ("shop.mail", ""): 1}
    assert set(digest["groups"][0]["ids"]) < set(ids)
    assert (len(digest["groups"][0]["ids"]), digest["jobs"], digest["other_groups"]) == (3, 8, 0)
    assert "secret" not in json.dumps(digest), "neither arguments nor results nor messages"
    job = Job.objects.get(name="pgjobs.notify")
    assert (job.queue, job.max_attempts, job.timeout_seconds) == ("pgjobs", 5, 30.0)


def test_the_largest_groups_are_named_and_the_others_counted(notifier: Notifier, raw: RawDatabase) -> None:
    for number in range(1, 6):
        abandon(raw, number, f"n{number}")
    digest = turns(notifier, raw)
    assert digest is not None
    assert list(counted(digest).values()) == [5, 4, 3]
    assert (digest["jobs"], digest["other_groups"], digest["at_least"]) == (15, 2, False)


def test_a_notice_names_the_releases_that_ran_the_jobs(notifier: Notifier, raw: RawDatabase) -> None:
    """Of those that have a name."""
    for release in ("release 1", ""):
        register()
        ends = claim(raw).ends(cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE)
        finalising.finalise_end(raw, ends, dataclasses.replace(AUTHOR, release=release))
    digest = turns(notifier, raw)
    assert digest is not None
    assert digest["groups"][0]["releases"] == ["release 1"]
    assert counted(digest) == {("test.job", "shop.errors.Declined"): 2}


def test_more_failures_than_it_counts_are_at_least_so_many(
    notifier: Notifier, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next notice does not begin with the rest."""
    monkeypatch.setattr(notices, "BOUNDS", (10, 5))
    abandon(raw, 25)
    digest = turns(notifier, raw)
    assert digest is not None
    assert (digest["jobs"], digest["at_least"]) == (10, True)


def test_a_server_that_is_too_slow_counts_fewer(
    notifier: Notifier, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "BOUNDS", (50, 5))
    whole = sql.statement
    slow = "SELECT pg_sleep(CASE WHEN %(most)s::integer = 50 THEN 60 ELSE 0 END)"
    text = whole("read_failures").replace("WITH ended AS", f"WITH slow AS MATERIALIZED ({slow}),\nended AS")
    text = text.replace("FROM pgjobs_job AS j\n", "FROM slow, pgjobs_job AS j\n")
    monkeypatch.setattr(sql, "statement", lambda name: text if name == "read_failures" else whole(name))
    raw.query("SET statement_timeout = '200ms'")
    abandon(raw, 25)
    digest = turns(notifier, raw)
    assert digest is not None
    assert (digest["jobs"], digest["at_least"]) == (5, True)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ({}, {("shop.pay", "shop.Declined"): 1, ("shop.mail", "shop.Declined"): 1}),
        ({"queues": ["mail"]}, {("shop.mail", "shop.Declined"): 1}),
        ({"names": ["shop.pay"]}, {("shop.pay", "shop.Declined"): 1}),
        ({"names": ["shop.pay"], "queues": ["mail"]}, {}),
    ],
)
def test_the_setting_names_queues_and_names(
    notifier: Notifier, raw: RawDatabase, settings: Any, only: dict[str, Any], expected: dict[tuple[str, str], int]
) -> None:
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": "mail_admins", **only}}
    abandon(raw)
    abandon(raw, name="shop.mail", queue="mail")
    assert counted(turns(notifier, raw)) == expected


def test_failures_left_out_are_left_behind(notifier: Notifier, raw: RawDatabase, settings: Any) -> None:
    """A change of the setting applies to new failures, and nobody reads the old ones again and again."""
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": "mail_admins", "names": ["shop.other"]}}
    abandon(raw)
    assert turns(notifier, raw) is None
    assert noticing.read_notice(raw).news is False
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": "mail_admins"}}
    assert turns(notifier, raw) is None
    abandon(raw, name="shop.new")
    assert counted(turns(notifier, raw)) == {("shop.new", "shop.Declined"): 1}


def test_nobody_is_notified_of_a_notice_that_could_not_be_delivered(notifier: Notifier, raw: RawDatabase) -> None:
    abandon(raw, 3, "pgjobs.notify")
    assert turns(notifier, raw) is None
    assert noticing.read_notice(raw).news is False


@pytest.mark.parametrize("outcome", ["succeeded", "cancelled"])
def test_other_ends_are_no_news(notifier: Notifier, raw: RawDatabase, outcome: str) -> None:
    abandon(raw)
    raw.query("UPDATE pgjobs_job SET outcome = %s", [outcome])
    assert not noticing.read_notice(raw).news
    assert turns(notifier, raw) is None
    assert noticing.read_failures(
        raw, after="-infinity", until="infinity", queues=None, names=None, groups=1, most=10
    ) == Failures(0, False, [])


# When it comes


def test_failures_before_the_first_turn_are_nobodys_news(raw: RawDatabase, leader: Leader, time: Time) -> None:
    abandon(raw, 100, ago=10)
    assert turns(Notifier(leader, Found()), raw) is None


def test_failures_of_long_ago_are_no_news(notifier: Notifier, raw: RawDatabase) -> None:
    """Notices were off for a month, or nobody led."""
    raw.query("UPDATE pgjobs_notice SET finished_at = statement_timestamp() - interval '30 days'")
    abandon(raw, 2, "old", ago=DAY + 60)
    abandon(raw, 1, "new", ago=DAY - 60)
    assert counted(turns(notifier, raw)) == {("new", "shop.Declined"): 1}


def test_the_first_comes_at_once_and_others_are_gathered(notifier: Notifier, raw: RawDatabase, time: Time) -> None:
    abandon(raw)
    assert counted(turns(notifier, raw)) == {("shop.pay", "shop.Declined"): 1}
    delivered(raw)
    for _ in range(10):
        abandon(raw, 100)
        assert turns(notifier, raw) is None
    silence(raw, time, 899)
    assert turns(notifier, raw) is None
    silence(raw, time, 1)
    assert counted(turns(notifier, raw)) == {("shop.pay", "shop.Declined"): 1000}
    delivered(raw)
    silence(raw, time)
    assert turns(notifier, raw) is None, "there is no news"
    abandon(raw)
    assert counted(turns(notifier, raw)) == {("shop.pay", "shop.Declined"): 1}


def test_a_digest_reaches_to_the_end_of_the_silence(notifier: Notifier, raw: RawDatabase, time: Time) -> None:
    """And not only to what was known when it began: the rest would wait for the digest after it."""
    abandon(raw, name="first")
    assert notifier(raw) is None
    abandon(raw, name="second")
    assert counted(turns(notifier, raw)) == {("first", "shop.Declined"): 1}
    delivered(raw)
    abandon(raw, name="third")
    silence(raw, time)
    assert counted(turns(notifier, raw)) == {("second", "shop.Declined"): 1, ("third", "shop.Declined"): 1}


def test_it_asks_nothing_while_there_is_nothing_to_do(
    notifier: Notifier, raw: RawDatabase, time: Time, settings: Any
) -> None:
    class Asked(RawDatabase):
        names: list[str] = []

        def fetch(self, name: str, params: Params) -> Rows:
            self.names.append(name)
            return super().fetch(name, params)

    db = Asked(raw.raw)
    turns(notifier, db)
    assert db.names == ["read_notice"] * 3
    abandon(raw)
    turns(notifier, db)
    delivered(raw)
    db.names.clear()
    turns(notifier, db)
    assert db.names == [], "it knows when the silence is over"
    settings.PGJOBS = {}
    silence(raw, time)
    abandon(raw)
    turns(notifier, db)
    assert db.names == [], "there is no setting"


def test_while_one_is_to_be_delivered_there_is_no_other(notifier: Notifier, raw: RawDatabase, time: Time) -> None:
    """A dead mail server occupies one place, and what has failed meanwhile is in one notice."""
    abandon(raw)
    assert turns(notifier, raw)
    abandon(raw, 2)
    silence(raw, time, 2000)
    assert turns(notifier, raw) is None
    delivered(raw)
    assert turns(notifier, raw) is None, "it does not look at every turn"
    time(DELIVERING_SECONDS)
    assert counted(turns(notifier, raw)) == {("shop.pay", "shop.Declined"): 2}


def test_ends_in_the_future_are_no_news_yet(notifier: Notifier, raw: RawDatabase) -> None:
    """Rows written by hand: otherwise it would read them for ever."""
    abandon(raw, ago=-3600)
    raw.query("UPDATE pgjobs_job SET finished_at = 'infinity' WHERE id = %s", abandon(raw))
    assert not noticing.read_notice(raw).news
    assert turns(notifier, raw) is None


# Its cost


@pytest.mark.parametrize("prepared", ["before", "after"])
def test_its_cost_does_not_grow_with_the_ended_jobs(
    db_connection: Connect, raw: RawDatabase, prepared: str, leader: Leader
) -> None:
    """P16: whether there is news, and how many failed, on tables that were analysed while empty."""
    explaining = Explaining(db_connection(), set())
    asked: dict[str, Callable[[], object]] = {
        "read_notice": lambda: explaining.fetch("read_notice", {"most": DAY}),
        "read_failures": lambda: explaining.fetch(
            "read_failures",
            {"after": "-infinity", "until": "infinity", "queues": None, "names": None, "groups": 20, "most": 100},
        ),
    }
    noticing.read_notice(raw)
    with analysed_while_empty(raw):
        if prepared == "before":
            for ask in asked.values():
                ask()
        abandon(raw, 20_000, ago=3600)
        abandon(raw, 20_000)
        raw.query("UPDATE pgjobs_job SET outcome = 'succeeded' WHERE mod(id, 2) = 0")
        register(5_000)
        cost = {}
        for name, ask in asked.items():
            ask()
            cost[name] = pages(explaining)
    assert cost["read_notice"] < 50
    assert cost["read_failures"] < 400
