"""Connections that many schemas share: each statement finds the tables of its own schema, or none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connection

from django_pgjobs import clock
from django_pgjobs.models import Heartbeat
from django_pgjobs.store import schemas
from django_pgjobs.store.schemas import scan_of
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.lines import KEPT_SECONDS, RETRY_SECONDS, FairLock, SharedLine
from tests.plugins.fix_db import wait_until

NAMES = ["one", 'tw"o', "thr%ee"]
TABLES = ("pgjobs_job", "pgjobs_claim", "pgjobs_gate", "pgjobs_queue_state", "pgjobs_cron_entry", "pgjobs_leader_term")


@pytest.fixture
def line(committed: None) -> Iterator[SharedLine]:
    """A line, and schemas with a table of heartbeats and those of a look, all empty."""
    with connection.cursor() as cursor:
        for name in NAMES:
            quoted = connection.ops.quote_name(name) if '"' not in name else '"tw""o"'
            quoted = quoted.replace("%", "%%")
            cursor.execute(f"CREATE SCHEMA {quoted}", ())
            for table in (*TABLES, "pgjobs_heartbeat"):
                cursor.execute(f"CREATE TABLE {quoted}.{table} (LIKE public.{table} INCLUDING ALL)", ())
    line = SharedLine("test", lambda: WorkerConnection("default", "pgjobs test line", statement_seconds=5))
    yield line
    line.close()
    with connection.cursor() as cursor:
        for quoted in ('"one"', '"tw""o"', '"thr%%ee"'):
            cursor.execute(f"DROP SCHEMA IF EXISTS {quoted} CASCADE", ())


def seen(db: WorkerConnection) -> str:
    return schemas.own_schema(db)


def test_each_statement_finds_its_own_schema(line: SharedLine) -> None:
    homes = {name: line.open(name) for name in NAMES}
    for _ in range(2):
        assert {name: seen(db) for name, db in homes.items()} == {name: name for name in NAMES}
    assert len({db.pid for db in homes.values()}) == 1


def test_a_transaction_keeps_its_turn(line: SharedLine) -> None:
    """Another schema's thread waits until it is over, and finds its own schema after it."""
    one, other = line.open("one"), line.open('tw"o')
    entered, found = threading.Event(), []

    def ask() -> None:
        entered.set()
        found.append(seen(other))

    with one.transaction():
        thread = threading.Thread(target=ask)
        thread.start()
        entered.wait()
        assert [seen(one), seen(one)] == ["one", "one"]
        assert found == []
    thread.join()
    assert found == ['tw"o']


def test_a_turn_goes_to_who_has_waited_for_longest() -> None:
    """Whoever has it and asks again at once stands behind those that wait."""
    turn, order = FairLock(), []

    def take(n: int) -> None:
        with turn, turn:
            order.append(n)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(3)]
    with turn:
        for n, thread in enumerate(threads):
            thread.start()
            wait_until(lambda n=n: turn.waiting == n + 1, 5, "it waits")  # type: ignore[misc]
    with turn:
        order.append(-1)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, -1]
    assert turn.acquire(blocking=False)
    late: list[bool] = []
    other = threading.Thread(target=lambda: late.extend((turn.acquire(blocking=False), turn.acquire(timeout=0.01))))
    other.start()
    other.join()
    assert late == [False, False]
    turn.release()
    assert turn.waiting == 0


def test_the_orm_writes_into_the_schema_also_in_another_thread(line: SharedLine) -> None:
    db = line.open("one")
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with db.orm() as using:
                assert Heartbeat.objects.using(using).count() == 0
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert failures == []


def test_a_schema_that_was_dropped_is_an_error_and_not_public(line: SharedLine) -> None:
    db = line.open("one")
    db.fetch("list_pairs", {})
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA one CASCADE")
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.fetch("list_pairs", {})
    assert seen(line.open('tw"o')) == 'tw"o'


def test_a_statement_that_fails_leaves_the_line_usable(line: SharedLine) -> None:
    one, other = line.open("one"), line.open("thr%ee")
    with pytest.raises(psycopg.Error):
        one.fetch("configure", {"names": ["no_such_setting"], "values": ["1"], "local": False})
    assert [seen(other), seen(one)] == ["thr%ee", "one"]


def test_after_its_connection_was_cut_a_line_makes_another(line: SharedLine) -> None:
    one, other = line.open("one"), line.open('tw"o')
    before = one.pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [before])
    with pytest.raises(psycopg.OperationalError):
        [seen(one) for _ in range(1000)]
    again = line.open("one")
    assert other.gone
    assert seen(again) == "one"
    assert again.pid != before


def test_while_the_server_is_away_one_tries_to_connect_for_all() -> None:
    """Others fail at once: threads of many homes would each wait in turn for a server that says nothing."""
    tries: list[int] = []

    def connect() -> WorkerConnection:
        tries.append(1)
        raise psycopg.OperationalError("away")

    line = SharedLine("test", connect)
    for name in NAMES:
        with pytest.raises(psycopg.OperationalError, match="away"):
            line.open(name)
    assert len(tries) == 1
    line.failed_at -= RETRY_SECONDS
    with pytest.raises(psycopg.OperationalError, match="away"):
        line.open("one")
    assert len(tries) == 2


def test_statements_that_fail_count_for_nothing(line: SharedLine) -> None:
    """Whoever counts them would try again and again without a growing pause."""
    db = line.open("one")
    before = db.statements
    with pytest.raises(psycopg.Error):
        db.fetch("configure", {"names": ["no_such_setting"], "values": ["1"], "local": False})
    assert db.statements == before
    seen(db)
    assert db.statements == before + 1


def test_a_line_at_rest_closes_its_connection(line: SharedLine) -> None:
    db = line.open("one")
    open_at = []
    for seconds in (KEPT_SECONDS - 1, KEPT_SECONDS + 1):
        line.watch(line.used_at + seconds)
        open_at.append(line.db is not None)
    assert open_at == [True, False]
    assert not db.gone
    assert [seen(db), seen(line.open('tw"o')), seen(db)] == ["one", 'tw"o', "one"]


def test_each_connection_asks_once_whether_a_schema_is_a_copy(line: SharedLine) -> None:
    """Also the one that a line at rest makes anew beneath a home that is awake."""
    with connection.cursor() as cursor:
        for quoted in ("one", '"tw""o"'):
            cursor.execute(f"CREATE TABLE {quoted}.pgjobs_installation (LIKE pgjobs_installation INCLUDING ALL)")
    asked: list[str] = []

    def settle(db: WorkerConnection) -> None:
        asked.append(seen(db))
        schemas.settle(db, "staging")

    line.settle = settle
    one, other = line.open("one"), line.open('tw"o')
    for _ in range(2):
        assert [seen(one), seen(other)] == ["one", 'tw"o']
    assert asked == ["one", 'tw"o']
    line.close()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE one.pgjobs_installation SET environment = 'production'")
    with pytest.raises(schemas.NotServed, match="environment 'production', and ENVIRONMENT names 'staging'"):
        seen(one)
    assert seen(other) == 'tw"o'
    with pytest.raises(schemas.NotServed):
        seen(one)


def test_a_look_is_about_each_schema_by_itself(line: SharedLine) -> None:
    db = WorkerConnection("default", "pgjobs test look", statement_seconds=5)
    params: dict[str, object] = {"queues": None, "excluded": [], "ahead": 2.0, "unled": 300.0}
    scan = scan_of(NAMES)
    try:
        assert scan.ask(db, params) == [(name, None, False, True) for name in NAMES]
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO one.pgjobs_job (name, queue, priority, max_attempts, payload, run_at)"
                " VALUES ('a', 'q', 0, 1, '{}', statement_timestamp() + interval '60 s')"
            )
        [(_, due, duty, unled), *others] = scan.ask(db, params)
        assert 50 < float(due or 0) <= 60
        assert (duty, unled) == (False, True)
        assert others == [(name, None, False, True) for name in NAMES[1:]]
        assert scan.ask(db, {**params, "excluded": ["q"]})[0][1] is None
        assert [schema for schema, *_ in scan.ask(db, params, {"one"})] == NAMES[1:]
        assert scan.ask(db, {**params, "queues": ["other"]})[0][1] is None
        prepared = "SELECT count(*) FROM pg_prepared_statements WHERE position('has.unled' IN statement) > 0"
        assert db.connection.execute(prepared).fetchone() == (1,), "planned once, whichever schemas are awake"
    finally:
        db.close()


@pytest.mark.parametrize("finished", [False, True])
def test_a_schema_sleeps_while_the_next_fire_waits_for_a_job(line: SharedLine, finished: bool) -> None:
    """That may run for hours elsewhere, or wait for a person: each round woke the schema, and it stayed awake."""
    db = WorkerConnection("default", "pgjobs test look", statement_seconds=5)
    state = "NULL, now(), 'succeeded'" if finished else "'parked', NULL, NULL"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO one.pgjobs_cron_entry (name, job_name, declared_expression, declared_zone, declared_payload,"
            " declared_options, overlap) VALUES ('nightly', 'a', '@daily', 'UTC', '{}', '{}', 'after_completion')"
        )
        cursor.execute(
            "INSERT INTO one.pgjobs_job (name, payload, cron_entry, hold, finished_at, outcome)"
            f" VALUES ('a', '{{}}', 'nightly', {state})"
        )
    try:
        params: dict[str, object] = {"queues": None, "excluded": [], "ahead": 2.0, "unled": 300.0}
        assert scan_of(["one"]).ask(db, params) == [("one", None, finished, True)]
    finally:
        db.close()


def test_a_connection_says_when_its_statement_was_sent(line: SharedLine) -> None:
    """A claim that has waited for its turn is no older than its statement, and was not slow itself."""
    one, other = line.open("one"), line.open("two")
    assert one.sent_at == 0.0
    with ThreadPoolExecutor(1) as pool:
        with other.transaction():
            asked = pool.submit(seen, one)
            wait_until(lambda: line.turn.waiting, 5, "it waits for its turn")
            ended_at = clock.monotonic()
        asked.result(5)
    assert one.sent_at >= ended_at
