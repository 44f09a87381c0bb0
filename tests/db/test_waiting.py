"""Waiting for a job's end: a notification wakes it at once; it never waits forever, or for a lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction

from django_pgjobs.exceptions import JobDoesNotExist, JobNotCommitted, JobNotFinished
from django_pgjobs.models import Job
from django_pgjobs.steering import wait
from django_pgjobs.store import finalising, keeping
from tests.plugins.fix_db import AUTHOR, Background, Claimed, RawDatabase, claim, job, patience, register, wait_until
from tests.plugins.fix_roles import Role


@pytest.fixture
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification can wake."""
    monkeypatch.setattr(wait, "POLL_SECONDS", 60.0)


@pytest.fixture
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "POLL_SECONDS", 0.05)


def listeners(raw: RawDatabase) -> int:
    """The number of other connections that are idle after a query for a job's end."""
    text = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND state = 'idle' AND query LIKE '%%SET waited = true%%'"
    )
    return int(raw.value(text, ()))


def is_waited_for(raw: RawDatabase, job_id: int) -> None:
    wait_until(lambda: raw.row(job_id)["waited"] and listeners(raw), 5, "somebody waits for the job")


ENDS: dict[str, Callable[[RawDatabase, Claimed], object]] = {
    "succeeded": lambda raw, claimed: finalising.finalise_success(raw, claimed.ends(result="7"), AUTHOR),
    "abandoned": lambda raw, claimed: finalising.finalise_end(raw, claimed.ends(outcome="abandoned"), AUTHOR),
    "cancelled": lambda raw, claimed: finalising.finalise_end(raw, claimed.ends(outcome="cancelled"), AUTHOR),
}

STEERED: dict[str, Callable[[Job], object]] = {"cancelled": Job.cancel, "abandoned": Job.abandon}


@pytest.mark.usefixtures("never_polls")
@pytest.mark.parametrize("state", ENDS)
def test_a_worker_that_ends_the_job_wakes_the_waiter(raw: RawDatabase, background: Background, state: str) -> None:
    """C38: within 100 ms on a quiet machine; a second here, and a look comes after sixty only."""
    [one] = register()
    claimed = claim(raw)
    found = job(one)
    answer = background(found.wait, 50)
    is_waited_for(raw, one)
    ended_at = time.monotonic()
    ENDS[state](raw, claimed)
    assert answer.result() is found
    assert time.monotonic() - ended_at < patience(1)
    assert found.state == state


@pytest.mark.usefixtures("never_polls")
@pytest.mark.parametrize("state", STEERED)
def test_an_operator_who_ends_the_job_wakes_the_waiter(raw: RawDatabase, background: Background, state: str) -> None:
    """C38."""
    [one] = register()
    answer = background(job(one).wait, 50)
    is_waited_for(raw, one)
    ended_at = time.monotonic()
    STEERED[state](job(one))
    assert answer.result().state == state
    assert time.monotonic() - ended_at < patience(1)


@pytest.mark.usefixtures("never_polls")
def test_the_end_of_another_job_does_not_end_the_wait(raw: RawDatabase, background: Background) -> None:
    one, another = register(2)
    claimed = claim(raw, 2)
    answers = [background(job(job_id).wait, 50) for job_id in (one, another)]
    wait_until(lambda: listeners(raw) == 2, 5, "both are waited for")
    finalising.finalise_success(raw, claimed.ends()[1:], AUTHOR)
    assert answers[1].result().state == "succeeded"
    assert not answers[0].done()
    finalising.finalise_success(raw, claimed.ends()[:1], AUTHOR)
    assert answers[0].result().state == "succeeded"


@pytest.mark.usefixtures("polls_often")
def test_a_lost_notification_costs_a_look(raw: RawDatabase, background: Background) -> None:
    """Polling is the truth: a pooler or a restart may swallow any notification."""
    [one] = register()
    answer = background(job(one).wait, 20)
    is_waited_for(raw, one)
    raw.query("UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = statement_timestamp()")
    assert answer.result().state == "succeeded"


@pytest.mark.usefixtures("never_polls")
def test_a_job_that_has_ended_is_not_waited_for(raw: RawDatabase) -> None:
    [one] = register()
    before = job(one)
    finalising.finalise_success(raw, claim(raw).ends(result='{"a": [1]}'), AUTHOR)
    assert before.wait(0).result == {"a": [1]}
    assert raw.row(one)["waited"] is False


def test_waiting_inside_the_registering_transaction_is_refused_at_once(raw: RawDatabase) -> None:
    """It could never end: no worker sees the job before the commit."""
    with transaction.atomic():
        [one] = register()
        found = job(one)
        started = time.monotonic()
        with pytest.raises(JobNotCommitted, match="transaction that registered it"):
            found.wait(30)
        assert time.monotonic() - started < patience(1)
        assert job(one).state == "ready"
    with pytest.raises(JobNotFinished):
        found.wait(0)


@pytest.mark.usefixtures("never_polls")
@pytest.mark.parametrize("timeout", [0, 0.2, timedelta(seconds=0.2)], ids=str)
def test_the_wait_ends_with_the_time_given(raw: RawDatabase, timeout: Any) -> None:
    [one] = register()
    started = time.monotonic()
    with pytest.raises(JobNotFinished):
        job(one).wait(timeout)
    assert time.monotonic() - started < patience(2)


@pytest.mark.usefixtures("never_polls")
def test_the_wait_does_not_stand_behind_a_lock(raw: RawDatabase, other: RawDatabase) -> None:
    """Somebody's open transaction holds the row; it may even be the caller's own, which could never end."""
    [one] = register()
    other.lock(one)
    started = time.monotonic()
    with pytest.raises(JobNotFinished):
        job(one).wait(0.2)
    assert time.monotonic() - started < patience(2)


@pytest.mark.usefixtures("polls_often")
def test_a_row_that_was_locked_at_first_is_marked_later(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    [one] = register()
    other.lock(one)
    answer = background(job(one).wait, 20)
    wait_until(lambda: listeners(raw), 5, "somebody looks")
    other.rollback()
    is_waited_for(raw, one)
    finalising.finalise_success(raw, claim(raw).ends(), AUTHOR)
    assert answer.result().state == "succeeded"


@pytest.mark.usefixtures("never_polls")
def test_an_end_that_had_its_row_locked_already_is_seen_soon(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """Such an end read the row before anybody waited, so it notifies nobody: the waiter looks again by itself."""
    [one] = register()
    claimed = claim(raw)
    other.lock(one)
    answer = background(job(one).wait, 50)
    wait_until(lambda: listeners(raw), 5, "somebody has looked")
    finalising.finalise_success(other, claimed.ends(result="7"), AUTHOR)
    other.commit()
    assert answer.result(patience(10)).state == "succeeded"


def test_looking_again_writes_nothing(raw: RawDatabase) -> None:
    """One row version a job that somebody waits for, not one a second."""
    [one] = register()
    assert keeping.mark_waited(raw, one) == (False, True)
    version = raw.value("SELECT xmin FROM pgjobs_job")
    assert keeping.mark_waited(raw, one) == (False, True)
    assert raw.value("SELECT xmin FROM pgjobs_job") == version
    finalising.finalise_success(raw, claim(raw).ends(), AUTHOR)
    assert keeping.mark_waited(raw, one) == (True, True)
    assert keeping.mark_waited(raw, one + 1) is None


def test_a_locked_row_is_not_marked(raw: RawDatabase, other: RawDatabase) -> None:
    [one] = register()
    other.lock(one)
    assert keeping.mark_waited(raw, one) == (False, False)
    other.rollback()
    assert keeping.mark_waited(raw, one) == (False, True)


def test_a_job_that_is_gone_does_not_exist(raw: RawDatabase) -> None:
    [one] = register()
    found = job(one)
    raw.query("DELETE FROM pgjobs_job")
    with pytest.raises(JobDoesNotExist):
        found.wait(1)


@pytest.mark.usefixtures("polls_often")
def test_a_job_that_goes_during_the_wait_does_not_exist(raw: RawDatabase, background: Background) -> None:
    """Pruned at once, for example, where the retention is nothing."""
    [one] = register()
    answer = background(job(one).wait, 20)
    is_waited_for(raw, one)
    raw.query("DELETE FROM pgjobs_job")
    assert isinstance(answer.exception(), JobDoesNotExist)


def connections_of_others(raw: RawDatabase) -> int:
    text = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    )
    return int(raw.value(text))


def test_the_waiters_own_connection_is_closed(raw: RawDatabase) -> None:
    [one] = register()
    before = connections_of_others(raw)
    with pytest.raises(JobNotFinished):
        job(one).wait(0)
    wait_until(lambda: connections_of_others(raw) == before, 5, "the connection is closed")


def test_waiting_from_asynchronous_code_leaves_no_connection_behind(raw: RawDatabase) -> None:
    """It runs in a pool thread, where nobody else would close its connection."""
    [one] = register()
    found = job(one)
    before = connections_of_others(raw)
    with pytest.raises(JobNotFinished):
        async_to_sync(found.await_end)(0)
    finalising.finalise_success(raw, claim(raw).ends(), AUTHOR)
    assert async_to_sync(found.await_end)(1).state == "succeeded"
    wait_until(lambda: connections_of_others(raw) == before, 5, "the connections are closed")
    assert connection.alias == "default"


def test_a_pool_of_the_engine_is_not_used_for_waiting() -> None:
    """A listening connection that went back into the pool would be handed to somebody else."""
    assert wait._without_pool({"OPTIONS": {"pool": True, "sslmode": "require"}}) == {"sslmode": "require"}


def test_a_waiter_that_is_flooded_with_notifications_only_polls(
    raw: RawDatabase, background: Background, other: RawDatabase
) -> None:
    """Every role of the database may send them: ten times the bound ends the listening, not the wait."""
    [one] = register()
    answer = background(job(one).wait, 50)
    is_waited_for(raw, one)
    listening = (
        "SELECT pid FROM pg_stat_activity WHERE query LIKE '%%SET waited = true%%' AND pid <> pg_backend_pid()"
        " AND datname = current_database()"
    )
    first = raw.value(listening)
    sent = "SELECT count(pg_notify('pgjobs_ended', 'x' || n)) FROM generate_series(1, %s) AS n"
    other.query(sent, [10 * wait.MOST_RECEIVED])
    other.commit()
    wait_until(lambda: [row for row in raw.query(listening) if row[0] != first], 10, "it has connected anew")
    assert not answer.done()
    job(one).cancel()
    assert answer.result().state == "cancelled"


@pytest.fixture
def hidden_by_policy(raw: RawDatabase, role: Callable[..., Role]) -> Iterator[Role]:
    """A role that sees jobs only on connections with the setting of its tenant."""
    made = role("SELECT, UPDATE ON pgjobs_job")
    raw.query("ALTER TABLE pgjobs_job ENABLE ROW LEVEL SECURITY")
    raw.query("CREATE POLICY tenants ON pgjobs_job USING (current_setting('app.tenant', true) = 'acme')")
    yield made
    raw.query("DROP POLICY tenants ON pgjobs_job")
    raw.query("ALTER TABLE pgjobs_job DISABLE ROW LEVEL SECURITY")


@pytest.mark.usefixtures("polls_often")
def test_row_level_security_by_a_setting_hides_no_job_from_who_waits(
    hidden_by_policy: Role, background: Background
) -> None:
    """The waiter's own connection lacks the setting: the caller's is polled."""
    [one] = register()
    alias, waiting = hidden_by_policy.alias, threading.Event()

    def waits() -> Job:
        with connections[alias].cursor() as cursor:
            cursor.execute("SET app.tenant = 'acme'")
        found = Job.objects.using(alias).get(pk=one)
        with pytest.raises(JobNotFinished):
            found.wait(0.2)
        with transaction.atomic(using=alias), pytest.raises(JobNotCommitted, match="Or row-level security hides it"):
            found.wait(5)
        waiting.set()
        return found.wait(50)

    answer = background(waits)
    assert waiting.wait(patience(10))
    job(one).cancel()
    assert answer.result().state == "cancelled"
