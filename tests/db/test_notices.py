"""Notices of failures: what is in one, when it comes, and that each abandoned job is in one, whatever happens."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from django_pgjobs import sql
from django_pgjobs.diagnosis.problem import HealthProblem
from django_pgjobs.maintenance import notices
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.notices import (
    CHECK_SECONDS,
    DELIVERING_SECONDS,
    PATIENCE_SECONDS,
    UNLED_SECONDS,
    Horizon,
    Notifier,
)
from django_pgjobs.models import Job
from django_pgjobs.models.numbers import Notice
from django_pgjobs.running.served_database import ServedDatabase
from django_pgjobs.store import finalising, leading, noticing, schemas, steering
from django_pgjobs.store.database import Params, Rows
from django_pgjobs.store.finalising import Author
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.store.noticing import Failures
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests.plugins.explaining import Explaining, analysed_while_empty, pages
from tests.plugins.fix_clock import Time
from tests.plugins.fix_db import AUTHOR, FAILURE, Background, RawDatabase, blocked_by, claim, register, wait_until

Connect = Callable[..., RawDatabase]

DAY = 86_400.0


@pytest.fixture(autouse=True)
def notified(settings: Any) -> None:
    settings.PGJOBS = {"NOTIFY_FAILURES": {"to": "mail_admins", "every_seconds": 900, "at_most": 3}}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement has its lock as soon as it starts: one turn shows who is writing, the next tells."""
    monkeypatch.setattr(noticing, "MARGIN_SECONDS", 0.0)


@pytest.fixture
def leader(raw: RawDatabase) -> Leader:
    leader = Leader(AUTHOR)
    leader.tick(raw)
    return leader


class Found:
    """What is wrong, as a test says."""

    def __init__(self) -> None:
        self.problems: list[HealthProblem] = []
        self.asked = 0

    def __call__(self, db: object) -> list[HealthProblem]:
        self.asked += 1
        return self.problems


@pytest.fixture
def found() -> Found:
    return Found()


@pytest.fixture
def notifier(raw: RawDatabase, leader: Leader, time: Time, found: Found) -> Notifier:
    """A leader that has had its first turn."""
    made = Notifier(leader, found)
    assert made(raw) is None
    return made


def abandon(
    raw: RawDatabase,
    count: int = 1,
    name: str = "shop.pay",
    error: str | None = "shop.Declined",
    ago: float = 0.0,
    queue: str = "default",
) -> list[int]:
    """Store abandoned jobs, that ended so many seconds ago."""
    rows = raw.query(
        "INSERT INTO pgjobs_job (name, queue, payload, outcome, finished_at, error_class, error, result)"
        ' SELECT %s, %s, \'{"args": ["secret"], "kwargs": {}}\', \'abandoned\','
        " statement_timestamp() - make_interval(secs => %s), %s, 'secret message', '\"secret\"'"
        " FROM generate_series(1, %s) RETURNING id",
        [name, queue, ago, error, count],
    )
    return [row[0] for row in rows]


def turns(notifier: Notifier, db: RawDatabase, count: int = 3) -> dict[str, Any] | None:
    """Give it so many turns, and return the digest of the one notice that it makes, if it makes one."""
    made = [job_id for _ in range(count) if (job_id := notifier(db)) is not None]
    assert len(made) <= 1
    if not made:
        return None
    job = Job.objects.get(pk=made[0])
    [digest] = job.payload["args"]
    return dict(digest)


def delivered(raw: RawDatabase) -> None:
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = statement_timestamp() WHERE name = 'pgjobs.notify'"
    )


def silence(raw: RawDatabase, time: Time, seconds: float = 900.0) -> None:
    """Let so many seconds pass since the last notice, by both clocks."""
    raw.query("UPDATE pgjobs_notice SET notified_at = notified_at - make_interval(secs => %s)", [seconds])
    time(seconds)


def counted(digest: dict[str, Any] | None) -> dict[tuple[str, str], int]:
    return {} if digest is None else {(each["name"], each["error_class"]): each["jobs"] for each in digest["groups"]}


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


# Once


def test_two_leaders_make_one_notice(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase, db_connection: Connect, background: Background
) -> None:
    """The second has read before the first has written, and waits for its row."""
    abandon(raw)
    reached = noticing.read_notice(raw)
    until = raw.value("SELECT statement_timestamp()::text")
    delivery = NewJob("pgjobs.notify", "{}")
    written = noticing.write_notice(other, reached, until=until, problems=[], delivery=delivery, notify=True)
    assert written[0]
    second = background(
        noticing.write_notice, db_connection(), reached, until=until, problems=[], delivery=delivery, notify=True
    )
    wait_until(lambda: blocked_by(raw, other.pid), 5, "the second waits")
    other.commit()
    assert second.result(10) == (False, None)
    assert Job.objects.filter(name="pgjobs.notify").count() == 1


@pytest.mark.parametrize(
    "predicate",
    ["n.finished_at = %(finished_at)s::timestamptz", "n.notified_at IS NOT DISTINCT FROM %(notified_at)s::timestamptz"],
)
def test_each_half_of_the_comparison_is_needed(
    notifier: Notifier, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, predicate: str
) -> None:
    """Notices have reached further; or have reached as far, of problems."""
    reached = noticing.read_notice(raw)
    further = "'2020-01-01'" if predicate.startswith("n.finished_at") else "finished_at"
    told = "notified_at" if predicate.startswith("n.finished_at") else "statement_timestamp()"
    raw.query(f"UPDATE pgjobs_notice SET finished_at = {further}, notified_at = {told}")
    given: dict[str, Any] = {"until": reached.finished_at, "problems": [], "delivery": None, "notify": False}
    assert noticing.write_notice(raw, reached, **given) == (False, None)
    whole = sql.statement
    sabotaged = whole("write_notice").replace(predicate, "true")
    assert sabotaged != whole("write_notice")
    monkeypatch.setattr(sql, "statement", lambda name: sabotaged if name == "write_notice" else whole(name))
    assert noticing.write_notice(raw, reached, **given) == (True, None)


def test_a_delivery_and_the_row_are_written_together_or_not_at_all(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase
) -> None:
    """The leader dies before its commit: nothing is lost, and the next leader makes the notice."""
    abandon(raw)
    assert any(notifier(other) for _ in range(3))
    other.rollback()
    assert not Job.objects.filter(name="pgjobs.notify").exists()
    assert counted(turns(Notifier(notifier.leader, Found()), raw)) == {("shop.pay", "shop.Declined"): 1}


def test_a_new_leader_goes_on_where_the_last_has_been(notifier: Notifier, raw: RawDatabase) -> None:
    abandon(raw)
    assert turns(notifier, raw)
    delivered(raw)
    abandon(raw)
    assert turns(Notifier(notifier.leader, Found()), raw) is None, "it keeps the silence"


# Late commits


def test_an_end_that_is_committed_late_is_in_the_notice(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase
) -> None:
    """It has finished before another that is visible already."""
    abandon(other, name="late")
    abandon(raw, name="early")
    for _ in range(5):
        assert notifier(raw) is None
    other.commit()
    assert counted(turns(notifier, raw)) == {("late", "shop.Declined"): 1, ("early", "shop.Declined"): 1}


def test_without_the_wait_for_writers_it_would_be_lost(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin."""
    whole = sql.statement
    blind = whole("list_writers").replace("'RowExclusiveLock'", "'NoLock'")
    monkeypatch.setattr(sql, "statement", lambda name: blind if name == "list_writers" else whole(name))
    abandon(other, name="late")
    abandon(raw, name="early")
    assert counted(turns(notifier, raw)) == {("early", "shop.Declined"): 1}
    other.commit()
    assert not noticing.read_notice(raw).news


def test_an_end_that_waits_for_a_lock_is_in_the_notice(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase, db_connection: Connect, background: Background
) -> None:
    """Its statement has begun, so its clock stands; it has no transaction id yet."""
    [job_id] = register()
    other.lock(job_id)
    late = background(steering.abandon_jobs, db_connection(), [job_id], reason="", with_callback=[])
    wait_until(lambda: blocked_by(raw, other.pid), 5, "it waits")
    abandon(raw, name="early")
    for _ in range(5):
        assert notifier(raw) is None
    other.rollback()
    late.result(10)
    assert counted(turns(notifier, raw)) == {("early", "shop.Declined"): 1, ("test.job", ""): 1}


def test_a_transaction_that_never_ends_is_waited_for_a_minute(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """And once: the next notice does not wait for it."""
    abandon(other, name="late")
    abandon(raw, name="early")
    assert turns(notifier, raw) is None
    time(PATIENCE_SECONDS - 1)
    assert turns(notifier, raw) is None
    time(1)
    with caplog.at_level(logging.WARNING):
        assert counted(turns(notifier, raw)) == {("early", "shop.Declined"): 1}
    assert "waits no longer for open transactions transactions=1" in caplog.text
    delivered(raw)
    silence(raw, time)
    abandon(raw, name="next")
    assert counted(turns(notifier, raw)) == {("next", "shop.Declined"): 1}


def test_a_transaction_that_writes_no_jobs_delays_no_notice(
    notifier: Notifier, raw: RawDatabase, other: RawDatabase
) -> None:
    other.query("INSERT INTO pgjobs_event (name) VALUES ('x')")
    other.query("SELECT count(*) FROM pgjobs_job")
    abandon(raw)
    assert turns(notifier, raw)
    other.rollback()


def test_a_statement_may_take_a_moment_to_its_lock(
    notifier: Notifier, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noticing, "MARGIN_SECONDS", 3600.0)
    abandon(raw)
    assert turns(notifier, raw) is None
    monkeypatch.setattr(noticing, "MARGIN_SECONDS", 0.0)
    assert turns(notifier, raw)


def test_a_prepared_transaction_has_another_name_than_before() -> None:
    """Until its commit its ends are invisible, and the server of the tests prepares none."""

    class Server:
        writers: list[str] = []
        at = 0

        def fetch(self, name: str, params: Params) -> Rows:
            self.at += 1
            return [(str(self.at), self.writers)]

    server, horizon = Server(), Horizon()
    server.writers = ["3/17"]
    assert horizon.advance(server, 0.0) is None
    server.writers = ["-1/900"]
    assert horizon.advance(server, 1.0) is None
    server.writers = ["4/1"]
    assert horizon.advance(server, 2.0) == "1"
    server.writers = ["4/2"]
    assert horizon.advance(server, 3.0) == "3"


# Problems


def test_a_problem_is_told_once_until_it_comes_back(
    notifier: Notifier, raw: RawDatabase, time: Time, found: Found
) -> None:
    silent = HealthProblem("silent", "Worker w was last heard from 25 s ago.", subject="w")
    found.problems = [silent]
    assert turns(notifier, raw) is None, "workers have just started"
    time(CHECK_SECONDS)
    digest = turns(notifier, raw)
    assert digest is not None
    assert (digest["problems"], digest["jobs"], digest["since"]) == ([["silent", silent.text]], 0, None)
    delivered(raw)
    silence(raw, time)
    found.problems = [HealthProblem("silent", "Worker w was last heard from 15 min ago.", subject="w")]
    assert turns(notifier, raw) is None
    found.problems = []
    time(CHECK_SECONDS)
    assert turns(notifier, raw) is None
    assert Notice.objects.get().problems == []
    found.problems = [silent]
    time(CHECK_SECONDS)
    digest = turns(notifier, raw)
    assert digest is not None
    assert digest["problems"] == [["silent", silent.text]]


def test_problems_keep_the_silence_and_join_the_failures(
    notifier: Notifier, raw: RawDatabase, time: Time, found: Found
) -> None:
    abandon(raw)
    assert turns(notifier, raw)
    delivered(raw)
    found.problems = [HealthProblem("cron", "Cron entry a is broken.", subject="a")]
    time(CHECK_SECONDS)
    assert turns(notifier, raw) is None
    abandon(raw)
    silence(raw, time)
    digest = turns(notifier, raw)
    assert digest is not None
    assert (digest["jobs"], len(digest["problems"]), found.asked) == (1, 1, 2)


def test_a_new_leader_knows_the_problems_that_are_known(
    notifier: Notifier, raw: RawDatabase, time: Time, found: Found
) -> None:
    found.problems = [HealthProblem("cron", "Cron entry a is broken.", subject="a")]
    time(CHECK_SECONDS)
    assert turns(notifier, raw)
    delivered(raw)
    heir = Notifier(notifier.leader, found)
    turns(heir, raw)
    silence(raw, time)
    assert turns(heir, raw) is None
    assert Notice.objects.get().problems == [["cron", "a"]]


def test_ten_thousand_problems_are_bounded(notifier: Notifier, raw: RawDatabase, time: Time, found: Found) -> None:
    found.problems = [HealthProblem("no_worker", "x" * 10**6, subject=f"{n:05}{'y' * 10**4}") for n in range(1000)]
    time(CHECK_SECONDS)
    digest = turns(notifier, raw)
    assert digest is not None
    assert len(json.dumps(digest)) < 200_000
    delivered(raw)
    silence(raw, time)
    assert turns(notifier, raw) is None


def test_the_time_without_a_leader_is_a_problem(raw: RawDatabase, leader: Leader, time: Time) -> None:
    raw.query(
        "UPDATE pgjobs_leader_term SET expires_at = statement_timestamp() - make_interval(secs => %s)",
        [UNLED_SECONDS + 1],
    )
    heir = Leader(Author(uuid4(), "heir"))
    heir.tick(raw)
    notifier = Notifier(heir, Found())
    digest = turns(notifier, raw)
    assert digest is not None
    assert digest["problems"] == [["unled", "No worker led for 5 min: schedules did not fire, and nothing was pruned."]]
    delivered(raw)
    silence(raw, time)
    assert turns(notifier, raw) is None


def test_a_deployment_of_minutes_is_none(raw: RawDatabase, leader: Leader, time: Time) -> None:
    raw.query(
        "UPDATE pgjobs_leader_term SET expires_at = statement_timestamp() - make_interval(secs => %s)",
        [UNLED_SECONDS - 10],
    )
    heir = Leader(Author(uuid4(), "heir"))
    heir.tick(raw)
    assert turns(Notifier(heir, Found()), raw) is None


# One of many schemas, where each visit is a term


@pytest.fixture
def visited(settings: Any) -> None:
    settings.PGJOBS = {**settings.PGJOBS, "SCHEMAS": lambda: ["tenant"]}


def sleep(raw: RawDatabase, leader: Leader, seconds: float = schemas.UNLED_SECONDS) -> None:
    """Let nobody lead for so long, and then this one."""
    leader.leave(raw)
    raw.query("UPDATE pgjobs_leader_term SET expires_at = expires_at - make_interval(secs => %s)", [seconds])
    leader.tick(raw)


@pytest.mark.usefixtures("visited")
@pytest.mark.parametrize(("visits", "told"), [(1, False), (2, False), (3, True)])
def test_the_time_between_visits_to_a_schema_is_no_time_without_a_leader(
    raw: RawDatabase, leader: Leader, notifier: Notifier, found: Found, visits: int, told: bool
) -> None:
    """Each visit registered a notice. Now it tells that the workers were away, or what else is wrong."""
    sleep(raw, leader, visits * schemas.UNLED_SECONDS)
    found.problems = [HealthProblem("cron", "Cron entry a is broken.", subject="a")]
    digest = turns(notifier, raw, 1)
    assert digest is not None
    assert [code for code, _ in digest["problems"]] == (["unled"] if told else ["cron"])


@pytest.mark.usefixtures("visited")
def test_a_visit_to_a_schema_lasts_until_its_failures_are_told(
    raw: RawDatabase, leader: Leader, notifier: Notifier
) -> None:
    """One turn shows who is writing, the next one tells: the home has left before that, at each visit."""
    served: Any = SimpleNamespace(kept_up=[], progress=SimpleNamespace(notifier=notifier))
    is_kept_up: Any = ServedDatabase.is_kept_up
    sleep(raw, leader)
    assert notifier(raw) is None
    assert is_kept_up.fget(served) is True, "nothing has failed"
    abandon(raw)
    assert notifier(raw) is None
    assert is_kept_up.fget(served) is False
    assert notifier(raw) is not None
    assert is_kept_up.fget(served) is True


@pytest.mark.usefixtures("visited")
def test_failures_that_a_visit_could_not_tell_are_told_at_the_next(
    raw: RawDatabase, other: RawDatabase, leader: Leader, notifier: Notifier, time: Time
) -> None:
    """A transaction that writes jobs is open for longer than any visit lasts."""
    sleep(raw, leader)
    other.query("INSERT INTO pgjobs_job (name, payload) VALUES ('slow', '{}')")
    abandon(raw)
    assert [notifier(raw) for _ in range(3)] == [None] * 3
    assert notifier.waits
    time(schemas.UNLED_SECONDS)
    sleep(raw, leader)
    assert turns(notifier, raw, 1) is not None
    other.rollback()


@pytest.mark.parametrize("written", ["-infinity", "infinity"])
def test_a_term_that_ended_never_says_nothing(raw: RawDatabase, leader: Leader, written: str) -> None:
    raw.query("UPDATE pgjobs_leader_term SET expires_at = %s", [written])
    taken = leading.take_term(raw, AUTHOR, seconds=6)
    assert taken is None if written == "infinity" else taken == (2, None)


@pytest.fixture
def connection(committed: None) -> Iterator[WorkerConnection]:
    db = WorkerConnection("default", "test", statement_seconds=5.0)
    yield db
    db.close()


def test_what_is_wrong_is_found_on_a_workers_connection(
    connection: WorkerConnection, raw: RawDatabase, leader: Leader, time: Time
) -> None:
    """Parked jobs, broken and missing entries, and what ``pgjobs check`` finds."""
    raw.query(
        "INSERT INTO pgjobs_cron_entry (name, job_name, declared_expression, declared_zone, declared_payload,"
        " declared_options, broken, missing_since) VALUES"
        " ('broken', 'a', '', '', '{}', '{}', 'no such zone', NULL), ('missing', 'a', '', '', '{}', '{}', '', now())"
    )
    register(2)
    raw.query("UPDATE pgjobs_job SET hold = 'parked' WHERE id = (SELECT min(id) FROM pgjobs_job)")
    notifier = Notifier(leader)
    assert notifier(connection) is None
    time(CHECK_SECONDS)
    job_id = notifier(connection)
    assert job_id is not None
    [digest] = Job.objects.get(pk=job_id).payload["args"]
    assert {code for code, _ in digest["problems"]} == {"parked", "cron", "cron_missing", "no_worker"}


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
