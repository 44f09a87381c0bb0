"""Waking workers: once what they are to see is committed, often enough, and never at the expense of a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_pgjobs import Limit, Unique, job, register_many, sql
from django_pgjobs.models import Job
from django_pgjobs.store import notifying, waking
from django_pgjobs.store.database import Database
from django_pgjobs.worker.threads import claimer

on_disk = pytest.mark.django_db(transaction=True)

WORKERS_OWN = {
    "admit_jobs", "end_atomic", "expire_jobs", "finalise_end", "finalise_success", "finalise_success_fast",
    "finalise_success_keyed", "fire_cron", "rescue_jobs",
    "write_notice",
}  # fmt: skip


@job
def pay(order: int) -> None: ...


@job(queue="mail", priority=7)
def send(to: str) -> None: ...


@job(limits=[Limit(1)])
def one_by_one(number: int) -> None: ...


@pytest.fixture(autouse=True)
def _fresh_throttle() -> None:
    waking._notified.clear()


@contextmanager
def notifications(channel: str = "pgjobs") -> Iterator[list[str]]:
    """What was sent on the channel within the block, in the order of the commits, filled at its end."""
    heard: list[str] = []
    params = connection.get_connection_params() | {"cursor_factory": None}
    with psycopg.connect(**params, autocommit=True) as listener:
        listener.add_notify_handler(lambda notice: heard.append(notice.payload))
        listener.execute(f"LISTEN {channel}")
        yield heard
        listener.execute("SELECT 1")  # its answer arrives after everything committed before it


def hooks() -> int:
    return len(connection.run_on_commit)


# When


def test_only_statements_of_workers_notify_while_they_write() -> None:
    """Those of producers and operators run in transactions that are not ours."""
    found = {name for name in sql.names() if "pg_notify" in sql.statement(name)}
    assert found == {"notify", "notify_many", "notify_of_schema"} | WORKERS_OWN


@on_disk
def test_a_transaction_wakes_workers_once_per_queue_and_priority_behind_its_commit() -> None:
    with notifications() as sent, CaptureQueriesContext(connection) as queries:
        with transaction.atomic():
            for n in range(5):
                pay.register(n)
            send.register("a@example.org")
            register_many([pay.bind(n) for n in range(400)])
            assert hooks() == 1, "one hook for a transaction that registers much"
        assert queries[-1]["sql"] == "COMMIT", "what is sent now and then only is no query that a project counts"
    assert sorted(sent) == ["0:default", "7:mail"]


@on_disk
@pytest.mark.parametrize(
    "register",
    [
        lambda: pay.using(unique="k").register(1),
        lambda: pay.using(unique=Unique("k", on_conflict="replace")).register(1),
        lambda: pay.using(unique=Unique("k", window=timedelta(hours=1))).register(1),
        lambda: register_many([pay.using(unique="k").bind(1)]),
        lambda: pay.using(delay=60).register(1),
    ],
    ids=["key", "replace", "window", "many", "delayed"],
)
@pytest.mark.parametrize("within", [False, True], ids=["autocommit", "transaction"])
def test_every_way_of_registering_wakes_workers(register: Callable[[], object], within: bool) -> None:
    with notifications() as sent:
        if within:
            with transaction.atomic():
                register()
                assert hooks() == 1
        else:
            register()
    assert sent == ["0:default"]


@on_disk
def test_a_job_that_a_limit_holds_wakes_those_who_let_in() -> None:
    with notifications() as sent, transaction.atomic():
        one_by_one.register(1)
    assert sent == ["limited:default"]


@on_disk
def test_a_key_that_is_taken_wakes_nobody() -> None:
    pay.using(unique="k").register(1)
    waking._notified.clear()
    with notifications() as sent, transaction.atomic():
        pay.using(unique="k").register(1)
        assert register_many([pay.using(unique="k").bind(1)])
    assert sent == []


@on_disk
def test_a_rolled_back_transaction_wakes_nobody_and_silences_nobody() -> None:
    with notifications() as sent:
        with transaction.atomic():
            pay.register(1)
            transaction.set_rollback(True)
        assert hooks() == 0
    assert sent == []
    with notifications() as sent:
        pay.register(2)
    assert sent == ["0:default"]


@on_disk
def test_a_savepoint_that_is_rolled_back_takes_its_wake_up_along() -> None:
    with notifications() as sent, transaction.atomic():
        pay.register(1)
        with transaction.atomic():
            pay.register(2)  # woken with the first
            send.register("a@example.org")
            transaction.set_rollback(True)
    assert sent == ["0:default"]
    assert Job.objects.count() == 1


@on_disk
def test_what_is_registered_in_a_savepoint_and_behind_it_is_woken_for() -> None:
    """The same queue, inside first: the wake-up for the later job does not depend on the savepoint."""
    with notifications() as sent, transaction.atomic():
        for roll_back in (True, False):
            with transaction.atomic():
                pay.register(1)
                transaction.set_rollback(roll_back)
        with transaction.atomic():
            send.register("a@example.org")
            transaction.set_rollback(True)
        send.register("b@example.org")
    assert sorted(sent) == ["0:default", "7:mail"]


@on_disk
def test_a_registration_that_failed_does_not_silence_the_next() -> None:
    with (
        patch("django_pgjobs.registering.register.register_plain", side_effect=LookupError),
        pytest.raises(LookupError),
    ):
        pay.register(1)
    with notifications() as sent:
        pay.register(2)
    assert sent == ["0:default"]


@on_disk
@override_settings(PGJOBS={"NOTIFY": False})
def test_workers_are_not_told_where_notifications_are_switched_off() -> None:
    with notifications() as sent:
        pay.register(1)
        with transaction.atomic():
            register_many([pay.bind(2)])
            assert hooks() == 0
        Job.objects.filter(name=pay.name).reschedule(queue="mail")
    assert sent == []


# How often


@on_disk
def test_a_burst_wakes_workers_once() -> None:
    with patch("django_pgjobs.store.waking.monotonic", return_value=100.0), notifications() as sent:
        for n in range(5):
            pay.register(n)
            with transaction.atomic():
                pay.register(n)
    assert sent == ["0:default"]


@on_disk
@pytest.mark.parametrize("register", [pay.register, lambda n: pay.register_many([(n,)])], ids=["one", "many"])
@pytest.mark.parametrize(("committed", "times"), [(100.0049, 1), (100.0051, 2)])
def test_who_is_committed_behind_the_interval_wakes_workers_again(register: Any, committed: float, times: int) -> None:
    """The interval runs from when the last notification began to when this registration is committed.

    A worker looks again so long after it heard that it sees all that is committed within the interval.
    """
    sent = sent_at([100.0, committed], register, cost=0.02)
    assert [any("0:default" in each for each in one) for one in sent] == [True, times == 2]
    assert waking.QUIET_SECONDS < claimer.POLL_AGAIN_SECONDS


def sent_at(
    instants: list[float], register: Callable[[int], object] = pay.register, *, cost: float = 0.004
) -> list[list[str]]:
    """Register at these instants; return what each registration sent, if each notification costs so many seconds."""
    sent = []
    took = cost / waking.COST_FACTOR
    for n, instant in enumerate(instants):
        with (
            patch("django_pgjobs.store.waking.monotonic", side_effect=[instant, instant + took]),
            notifications() as one,
        ):
            register(n)
        sent.append(one)
    return sent


ONE = ["0:default"]
BUSY = ["0:default", "busy:default"]


@on_disk
def test_a_producer_in_a_rush_says_that_it_is_busy_and_stays_silent_for_longer() -> None:
    """Workers poll on their own then."""
    assert sent_at([100.0, 100.002, 100.005, 100.06, 100.104, 100.106]) == [ONE, [], BUSY, [], [], ONE]
    assert waking.BUSY_SECONDS < claimer.BUSY_SECONDS


@on_disk
@pytest.mark.parametrize("pace", [0.0041, 0.01, 0.02, 0.05])
def test_a_producer_notifies_each_time_if_that_costs_less_than_its_pace(pace: float) -> None:
    """Fifty registrations a second are an ordinary web site: none of its jobs waits for a poll."""
    assert sent_at([100.0 + n * pace for n in range(20)]) == [ONE] * 20


@on_disk
def test_a_pace_at_which_notifications_are_dear_is_a_rush_from_the_second_on() -> None:
    """Sixteen producers on two cores notify slowly."""
    assert sent_at([100.0, 100.007, 100.014, 100.021], cost=0.02) == [ONE, BUSY, [], []]


@on_disk
def test_a_rush_lasts_as_long_as_its_pace() -> None:
    flood = [100.0 + n * 0.001 for n in range(211)]
    assert [one for one in sent_at(flood) if one] == [ONE, BUSY, BUSY, BUSY]
    assert sent_at([100.25, 100.3, 100.35, 100.4]) == [[], [], ONE, ONE]


@on_disk
def test_two_registrations_at_once_now_and_then_are_no_rush() -> None:
    pairs = [100.0 + n * 0.05 + late for n in range(5) for late in (0.0, 0.001)]
    assert sent_at(pairs) == [ONE, []] * 5


@on_disk
def test_one_slow_notification_is_no_rush_for_long() -> None:
    assert sent_at([100.0], cost=3.0) == [ONE]
    assert sent_at([100.019, 100.039, 100.12, 100.14, 100.16]) == [BUSY, [], ONE, ONE, ONE]


@on_disk
def test_a_steady_pace_is_no_rush_for_long_because_it_began_slowly() -> None:
    """The first notification opens a connection. At 250 a second the others take a quarter of a millisecond each."""
    assert sent_at([100.0, 100.006], cost=0.02) == [ONE, BUSY]
    steady = sent_at([100.2 + n * 0.004 for n in range(420)], cost=0.002)
    assert steady[-50:] == [ONE] * 50


@on_disk
def test_what_limits_hold_is_never_registered_in_long_silence() -> None:
    """Whoever lets jobs in looks twice, not for as long as a producer is busy."""
    assert sent_at([100.0, 100.006, 100.012], one_by_one.register, cost=0.02) == [["limited:default"]] * 3


@on_disk
def test_each_queue_and_priority_is_told_of_for_itself() -> None:
    with notifications() as sent:
        for options in ({}, {"priority": 5}, {"queue": "bulk"}):
            pay.using(**options).register(1)
        register_many([pay.using(queue="mail").bind(n) for n in range(3)])
    assert sorted(sent) == ["0:bulk", "0:default", "0:mail", "5:default"]


@on_disk
def test_what_an_operator_does_is_always_told() -> None:
    """Nothing is silenced by a registration a moment ago: a worker's second look does not go far back."""
    ids = [pay.register(n).pk for n in range(2)]
    Job.objects.filter(pk__in=ids).abandon()
    waking._notified.clear()
    with patch("django_pgjobs.store.waking.monotonic", return_value=100.0), notifications() as sent:
        pay.register(3)
        Job.objects.filter(pk=ids[0]).retry()
        with transaction.atomic():
            Job.objects.filter(pk=ids[1]).retry()
    assert sent == ["0:default"] * 3


# What goes wrong


@pytest.fixture
def tenants(committed: None) -> Iterator[str]:
    """An alias with an engine for tenants. No schema exists, so all find the tables of ``public``."""
    own = {**connections["default"].settings_dict, "ENGINE": "tests.plugins.tenant_engine"}
    connections.settings["tenants"] = own
    yield "tenants"
    connections["tenants"].close()
    del connections["tenants"], connections.settings["tenants"]


@override_settings(PGJOBS={"SCHEMAS": lambda: ["one", "two"]})
def test_a_transaction_in_several_schemas_wakes_workers_for_each(tenants: str) -> None:
    """By the commit the path leads to one of them, or to another."""
    wrapper: Any = connections[tenants]
    register = pay.using(database=tenants).register
    with notifications() as sent:
        with transaction.atomic(using=tenants):
            for schema in ("one", "one", "two", "one", "two"):
                wrapper.set_schema(schema)
                register(1)
            Job.objects.using(tenants).reschedule(queue="mail")
            wrapper.set_schema("public")
            assert len(wrapper.run_on_commit) == 3
        wrapper.set_schema("one")
        register(2)
    assert sorted(sent) == ["0:default@one", "0:default@one", "0:default@two", "0:mail@two"]


def cut_before_notifying(db: Database, notices: Any, schema: str, notify: Any = notifying.notify) -> None:
    """Let somebody end the connection between what stores and the statement that notifies."""
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
    notify(db, notices, schema)


WINDOW = {"unique": Unique("shop", window=timedelta(hours=1))}


@on_disk
@pytest.mark.parametrize(
    ("options", "one"), [({}, False), ({"unique": "shop"}, False), (WINDOW, False), (WINDOW, True)]
)
@pytest.mark.parametrize("within", [False, True], ids=["autocommit", "transaction"])
def test_a_notification_that_fails_behind_the_commit_costs_no_job(
    caplog: pytest.LogCaptureFixture, options: Any, one: bool, within: bool
) -> None:
    """An error would make the caller register a stored job again."""
    declared = pay.using(**options)
    with patch("django_pgjobs.store.notifying.notify", cut_before_notifying):
        if within:
            with transaction.atomic():
                ids = [declared.register(1).pk] if one else declared.register_many([(1,)])
        else:
            ids = [declared.register(1).pk] if one else declared.register_many([(1,)])
    connection.close()
    assert list(Job.objects.values_list("pk", flat=True)) == ids
    assert "workers find the jobs at their next poll" in caplog.text


@on_disk
def test_a_notification_that_failed_silences_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with (
        patch("django_pgjobs.store.waking.monotonic", return_value=100.0),
        patch("django_pgjobs.store.notifying.notify", side_effect=OperationalError("the line\nis dead")),
    ):
        assert pay.register(1).pk
    assert "workers find the jobs at their next poll: the line is dead" in caplog.text
    with patch("django_pgjobs.store.waking.monotonic", return_value=100.0), notifications() as sent:
        pay.register(2)
    assert sent == ["0:default"]


@on_disk
def test_a_hook_of_the_project_that_raises_costs_no_job() -> None:
    """Django drops the later hooks: workers find the job by polling."""

    def fail() -> None:
        raise LookupError

    def register() -> None:
        with transaction.atomic():
            transaction.on_commit(fail)
            pay.register(1)

    with pytest.raises(LookupError):
        register()
    assert Job.objects.count() == 1


# Where Django's hooks do not run, or run without a commit


@on_disk
def test_with_autocommit_off_workers_are_woken_when_it_is_on_again_behind_a_commit() -> None:
    """Django has no hook at such a commit: until then a worker's look finds the job."""
    transaction.set_autocommit(False)
    try:
        with notifications() as sent:
            pay.register(1)
            pay.register(2)
            assert hooks() == 1
            transaction.commit()
            assert Job.objects.count() == 2
            transaction.commit()
            transaction.set_autocommit(True)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert sent == ["0:default"]


@on_disk
def test_with_autocommit_off_a_rollback_wakes_nobody() -> None:
    transaction.set_autocommit(False)
    try:
        with notifications() as sent:
            pay.register(1)
            transaction.rollback()
            transaction.set_autocommit(True)
    finally:
        transaction.set_autocommit(True)
    assert (sent, Job.objects.count()) == ([], 0)


@on_disk
def test_an_atomic_block_with_autocommit_off_wakes_workers_then_too() -> None:
    transaction.set_autocommit(False)
    try:
        with notifications() as sent:
            with transaction.atomic():
                pay.register(1)
            transaction.commit()
            transaction.set_autocommit(True)
    finally:
        transaction.set_autocommit(True)
    assert sent == ["0:default"]


@pytest.mark.django_db
def test_a_test_case_of_the_project_sees_no_hook_and_no_query_of_ours(
    django_capture_on_commit_callbacks: Any, django_assert_num_queries: Any
) -> None:
    """What a project's tests count is theirs: the transaction of a ``TestCase`` is never committed."""
    called: list[int] = []
    with django_assert_num_queries(1), django_capture_on_commit_callbacks(execute=True) as callbacks:
        pay.register(1)
        transaction.on_commit(lambda: called.append(1))
    assert (len(callbacks), called) == (1, [1])


@on_disk
def test_a_hook_that_somebody_calls_before_the_commit_sends_nothing(django_assert_num_queries: Any) -> None:
    with transaction.atomic():
        pay.register(1)
        [(_, hook, *_)] = connection.run_on_commit
        with django_assert_num_queries(0):
            hook()


@on_disk
def test_a_hundred_savepoints_wake_workers_once() -> None:
    silent = patch("django_pgjobs.store.waking.monotonic", return_value=100.0)
    with notifications() as sent, silent, transaction.atomic():
        for n in range(100):
            with transaction.atomic():
                pay.register(n)
    assert sent == ["0:default"]
