"""Notices of what is wrong: once until it comes back, and in a schema that the workers visit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from django_pgjobs.diagnosis.problem import HealthProblem
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.maintenance.notices import CHECK_SECONDS, UNLED_SECONDS, Notifier
from django_pgjobs.models import Job
from django_pgjobs.models.numbers import Notice
from django_pgjobs.running.served_database import ServedDatabase
from django_pgjobs.store import leading, schemas
from django_pgjobs.store.finalising import Author
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests.db.notices_ground import (
    Found,
    abandon,
    at_once,
    delivered,
    found,
    leader,
    notified,
    notifier,
    silence,
    turns,
)
from tests.plugins.fix_clock import Time
from tests.plugins.fix_db import AUTHOR, RawDatabase, register

__all__ = ["at_once", "found", "leader", "notified", "notifier"]


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
