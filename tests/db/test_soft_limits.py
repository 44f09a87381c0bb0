"""At its soft limit a job in a thread loses no connection: it is told between two queries, or by a cancelled one."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from traceback import walk_stack
from typing import Any

import psycopg
import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import Error, connection, connections, transaction
from django.db.backends.signals import connection_created

from django_pgjobs.exceptions import CancelRequested, SoftDeadlinePassed
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.worker.executor import cleanup, soft_limits
from django_pgjobs.worker.executor.cancelling import cancel_queries
from django_pgjobs.worker.executor.interrupts import Door, raise_ignored_again
from tests.plugins.fix_db import patience, wait_until
from tests.unit.job_room import Room, spin

ROUNDS = 160
BESIDE = "beside"
SLEEP = "SELECT pg_sleep(60)"


class SoftRoom(Room):
    """A job thread whose jobs have a soft limit."""

    def _one(self, door: Door, control: RunControl, body: Callable[[Any], Any]) -> tuple[str, Any]:
        door.control = control
        door.limit_softly()
        try:
            return super()._one(door, control, body)
        finally:
            door.end_soft_limit()

    def run(self, body: Callable[[Any], Any], seconds: float = 0.05, until: Callable[[], object] = lambda: True) -> Any:
        """Run a job, tell it of its soft limit so many seconds after ``until``, and return what it returns."""
        control = self.start(body)
        assert self.door is not None
        door = self.door
        wait_until(lambda: door.open is control and until(), 5, "it runs")
        spin(seconds)
        door.interrupt(control, SoftDeadlinePassed)
        how, found = self.outcome()
        if how != "returned":
            raise AssertionError("the job failed") from found
        return found


@pytest.fixture
def soft(committed: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SoftRoom]:
    monkeypatch.setattr("sys.unraisablehook", sys.unraisablehook)  # restored after it
    raise_ignored_again()
    connection_created.connect(cleanup._remember)
    connections.settings[BESIDE] = dict(connections.settings["default"])
    room = SoftRoom()
    yield room
    room.start(lambda _: cleanup.discard_all())
    room.outcome()
    room.work.put(None)
    assert room.escaped == []
    del connections.settings[BESIDE]
    connection_created.disconnect(cleanup._remember)


def value(query: str, using: str = "default") -> Any:
    with connections[using].cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def pid(using: str = "default") -> Any:
    return value("SELECT pg_backend_pid()", using)


def tell(soft: SoftRoom, work: Callable[[], Any], using: str = "default", seconds: float = 0.1) -> float:
    """Run a job that catches the soft limit and then uses the same session; return after which time it was told."""
    begun: list[float] = []

    def body(_: Any) -> float:
        before, took = pid(using), 0.0
        try:
            begun.append(time.monotonic())
            work()
        except SoftDeadlinePassed:
            took = time.monotonic() - begun[0]
        assert not connections[using].in_atomic_block
        for number in range(20):
            assert value(f"SELECT {number}", using) == number
        with transaction.atomic(using):
            assert pid(using) == before, "it is the same session"
        return took - seconds

    found: float = soft.run(body, seconds, begun.__len__)
    return found


def in_atomic() -> None:
    with transaction.atomic():
        while True:
            value("SELECT 1")


def in_savepoints() -> None:
    while True:
        with transaction.atomic(), transaction.atomic():
            value("SELECT 1")


def outside_transactions() -> None:
    while True:
        value("SELECT 1")


def through_models() -> None:
    while True:
        ContentType.objects.get_or_create(app_label="soft", model="limit")
        list(ContentType.objects.all())
        list(ContentType.objects.all()[:5].iterator())


def by_server_side_cursors() -> None:
    with transaction.atomic():
        while True:
            for _ in ContentType.objects.all().iterator(chunk_size=1):
                pass


def by_raw_cursors() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        while True:
            with connection.connection.cursor() as raw:
                raw.execute("SELECT generate_series(1, 3)")
                raw.fetchmany(2)
            with cursor.copy("COPY (SELECT generate_series(1, 100)) TO STDOUT") as copy:
                for _ in copy.rows():
                    pass


def by_copying() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE copied (number int)")
    while True:
        with connection.cursor() as cursor, cursor.copy("COPY copied FROM STDIN") as copy:
            for number in range(100):
                copy.write_row([number])


def by_a_connection_of_its_own() -> None:
    kept = connection.get_connection_params()
    with psycopg.connect(**{name: kept[name] for name in ("dbname", "host", "port", "user", "password")}) as own:
        try:
            while True:
                own.execute("SELECT 1")
        finally:
            assert own.execute("SELECT 7").fetchone() == (7,)


def by_committing() -> None:
    connection.set_autocommit(False)
    try:
        while True:
            value("SELECT 1")
            connection.commit()
    finally:
        connection.rollback()
        connection.set_autocommit(True)


LOOPS = (
    in_atomic,
    in_savepoints,
    outside_transactions,
    through_models,
    by_server_side_cursors,
    by_raw_cursors,
    by_copying,
    by_a_connection_of_its_own,
    by_committing,
)


@pytest.mark.parametrize("work", LOOPS, ids=lambda work: work.__name__)
def test_a_job_that_does_nothing_but_send_queries_keeps_its_connection(soft: SoftRoom, work: Callable[[], Any]) -> None:
    """An exception between a query and its answer would break the connection."""
    chance = random.Random(7)
    for _ in range(ROUNDS if work is in_atomic else ROUNDS // 5):
        tell(soft, work, seconds=chance.uniform(0, 0.006))


def query() -> None:
    value(SLEEP)


def fetch_from_the_server() -> None:
    for _ in ContentType.objects.extra(select={"slow": "pg_sleep(60)::text"}).iterator():
        pass


def fetch_in_atomic() -> None:
    with transaction.atomic():
        value("SELECT 1")
        fetch_from_the_server()


def raw_query() -> None:
    connection.ensure_connection()
    connection.connection.execute(SLEEP)


def own_query() -> None:
    own = connection.copy()  # no alias leads to it
    try:
        own.cursor().execute(SLEEP)
    finally:
        own.close()


def copy() -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY ({SLEEP}) TO STDOUT") as copy:
        list(copy.rows())


def query_on_another_alias() -> None:
    value(SLEEP, BESIDE)


LONG = (query, own_query, fetch_from_the_server, fetch_in_atomic, raw_query, copy)


@pytest.mark.parametrize("work", LONG, ids=lambda work: work.__name__)
def test_a_long_query_is_cancelled_and_tells_the_job(soft: SoftRoom, work: Callable[[], Any]) -> None:
    ContentType.objects.get_or_create(app_label="soft", model="limit")
    for _ in range(5):
        assert tell(soft, work) < patience(5)


def test_a_query_on_another_alias_is_cancelled_too(soft: SoftRoom) -> None:
    assert tell(soft, query_on_another_alias, BESIDE) < patience(5)
    assert tell(soft, query_on_another_alias) < patience(5), "connected after the start"


def test_a_transaction_whose_query_was_cancelled_is_aborted_as_by_any_error(soft: SoftRoom) -> None:
    connected: list[Any] = []

    def body(_: Any) -> list[str]:
        seen = []
        connected.append(pid())
        try:
            with transaction.atomic():
                try:
                    with transaction.atomic():
                        value(SLEEP)
                except SoftDeadlinePassed as error:
                    seen.append(type(error.__cause__).__name__)
                assert value("SELECT 1") == 1, "back at the savepoint"
                value("SELECT 1 / 0")
        except Exception as error:
            seen.append(type(error).__name__)
        assert value("SELECT 1") == 1
        return seen

    assert soft.run(body, until=connected.__len__) == ["QueryCanceled", "DataError"]


@pytest.mark.parametrize("how", ["counts", "sleeps", "in_a_hook"])
def test_a_job_in_python_is_notified_at_once(soft: SoftRoom, how: str) -> None:
    def works() -> None:
        while True:
            if how == "sleeps":
                time.sleep(0.001)

    def work() -> None:
        if how == "in_a_hook":
            with transaction.atomic():
                transaction.on_commit(works)
        works()

    for _ in range(20):
        assert tell(soft, work, seconds=0.01) < patience(1)


def test_it_is_told_once(soft: SoftRoom) -> None:
    def body(_: Any) -> int:
        heard = 0
        until = time.monotonic() + 0.4
        while time.monotonic() < until:
            try:
                while time.monotonic() < until:
                    value("SELECT 1")
            except SoftDeadlinePassed:
                heard += 1
        return heard

    assert {soft.run(body, 0.002) for _ in range(10)} == {1}


def test_a_server_side_cursor_is_closed_before_the_job_is_told(soft: SoftRoom) -> None:
    """One that stays open would hold its rows on the server until the transaction ends."""
    ContentType.objects.get_or_create(app_label="soft", model="limit")

    def body(_: Any) -> int:
        assert soft.door is not None
        assert soft.door.soft is not None
        with transaction.atomic():
            rows = ContentType.objects.all().iterator(chunk_size=1)
            next(rows)
            soft.door.control.interrupt = SoftDeadlinePassed
            soft.door.soft.arm()
            rows.close()  # type: ignore[attr-defined]
            with pytest.raises(SoftDeadlinePassed):
                value("SELECT 1")
            found: int = value("SELECT count(*) FROM pg_cursors WHERE NOT is_holdable")
            return found

    soft.start(body)
    assert soft.outcome() == ("returned", 0)


def test_a_cancelled_query_is_behind_when_the_job_sends_its_next(soft: SoftRoom) -> None:
    """A request to cancel that comes late would meet the query by which a job tidies up."""
    seen: Counter[str] = Counter()

    def body(_: Any) -> None:
        try:
            value("SELECT pg_sleep(0.155)")  # ends about when it is cancelled
            value("SELECT 1")
            while True:
                time.sleep(0)
        except SoftDeadlinePassed as error:
            seen["cancelled" if error.__cause__ else "between"] += 1
        for _ in range(30):
            value("SELECT 1")

    for _ in range(60):
        soft.run(body, 0.0)
    assert seen.total() == 60


def test_a_job_goes_on_only_when_no_request_to_cancel_is_under_way(soft: SoftRoom, monkeypatch: Any) -> None:
    """The request is under way until the job's thread is seen to wait for it, or has gone on without it."""
    behind, gone_on = threading.Event(), threading.Event()
    ident = 0

    def waits() -> bool:
        frame = sys._current_frames().get(ident)
        return any(each.f_code.co_name == "_leave" for each, _ in walk_stack(frame))

    def behind_later(queries: list[Any], done: Callable[[], object]) -> None:
        def later() -> None:
            wait_until(lambda: waits() or gone_on.is_set(), 10, "the job waits, or goes on")
            behind.set()
            done()

        cancel_queries(queries, later)

    def work() -> None:
        nonlocal ident
        ident = threading.get_ident()
        try:
            value(SLEEP)
        finally:
            try:
                assert behind.is_set()
            finally:
                gone_on.set()

    monkeypatch.setattr(soft_limits, "cancel_queries", behind_later)
    tell(soft, work, seconds=0.3)


def test_a_job_that_ends_has_left_nothing_on_its_connection(soft: SoftRoom) -> None:
    kept: list[Any] = []

    def body(_: Any) -> int:
        kept.extend((pid(), connections["default"]))
        return len(connections["default"].execute_wrappers)

    soft.start(body)
    assert soft.outcome() == ("returned", 1)
    wait_until(lambda: not kept[1].execute_wrappers, 5, "it has ended")


def test_a_cancel_right_behind_a_soft_limit_stops_the_job(soft: SoftRoom) -> None:
    begun: list[Any] = []

    def body(_: Any) -> None:
        begun.append(pid())
        while True:
            with suppress(SoftDeadlinePassed):
                value("SELECT 1")

    for number in range(30):
        control = soft.start(body)
        wait_until(lambda: len(begun) > number, 5, "it is connected")  # noqa: B023
        spin(0.003)
        assert soft.door is not None
        soft.door.interrupt(control, SoftDeadlinePassed)
        soft.door.interrupt(control, CancelRequested)
        how, error = soft.outcome()
        assert how == "raised"
        assert isinstance(error, (CancelRequested, Error)), repr(error)
