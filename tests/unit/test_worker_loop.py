"""A thread that owns a connection outlives any trouble with it, on a sound connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.loop import FIRST_PAUSE_SECONDS, Loop
from django_pgjobs.worker.threads.maintainer import KEPT_SECONDS, LONGEST_SECONDS, Maintainer, Upkeeper, do_duty
from tests.unit.worker_fakes import Heard


class FakeConnection:
    """A connection with a count of statements."""

    def __init__(self) -> None:
        self.statements = 0
        self.gone = self.closed = False

    def close(self) -> None:
        self.gone = self.closed = True

    def fetch(self, name: str, params: object) -> list[tuple[bool]]:
        assert name == "is_read_only"
        return [(False,)]

    def inherit(self, old: WorkerConnection) -> None:
        assert old.gone

    def cut_if_mute(self, now: float) -> bool:
        return now > 5.0


class Scripted(Loop):
    """Does one scripted thing at each call of ``serve``, then stops."""

    def __init__(self, *steps: Callable[[FakeConnection], None]) -> None:
        self.made: list[FakeConnection] = []
        super().__init__(self._make, Heard())
        self.steps = list(steps)
        self.pauses: list[int] = []
        self.served: list[FakeConnection] = []

    def _make(self) -> WorkerConnection:
        self.made.append(FakeConnection())
        return cast(WorkerConnection, self.made[-1])

    def serve(self, db: WorkerConnection) -> None:
        connection = cast(FakeConnection, db)
        self.served.append(connection)
        step = self.steps.pop(0)
        if not self.steps:
            self.stopping.set()
        step(connection)

    def _pause(self, failures: int) -> None:
        self.pauses.append(failures)


def raises(error: Exception, *, answered: int = 0, gone: bool = False) -> Callable[[FakeConnection], None]:
    def step(db: FakeConnection) -> None:
        db.statements += answered
        db.gone = db.gone or gone
        raise error

    return step


def answers(db: FakeConnection) -> None:
    db.statements += 1


AWAY = psycopg.OperationalError("server closed\nthe connection")


def test_a_lost_connection_is_replaced_and_the_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = Scripted(raises(AWAY, gone=True), raises(AWAY, gone=True), answers)
    with caplog.at_level(logging.WARNING):
        loop.run()
    assert len(loop.made) == 3
    assert all(connection.closed for connection in loop.made), "what the server has left still holds a socket"
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "database trouble, will try again loop=loop: server closed the connection",
        "database is back loop=loop",
        "database trouble, will try again loop=loop: server closed the connection",
        "database is back loop=loop",
    ]


def test_a_statement_that_took_too_long_is_no_outage() -> None:
    """Its connection is kept, and the next real outage is told of."""
    loop = Scripted(raises(psycopg.errors.QueryCanceled("statement timeout")), answers)
    loop.run()
    assert len(loop.made) == 1
    assert loop.reachable


def test_a_server_that_has_become_a_standby_is_left() -> None:
    """The connection is sound, and would refuse every write for ever; the same name leads to the new primary."""
    loop = Scripted(raises(psycopg.errors.ReadOnlySqlTransaction("read-only")), answers)
    loop.run()
    assert loop.served == loop.made
    assert len(loop.made) == 2


def test_pauses_grow_while_nothing_is_answered() -> None:
    """A statement that fails each time must not be tried, and logged, some times a second for ever."""
    bug = ValueError("a bug")
    loop = Scripted(raises(bug), raises(bug), raises(AWAY), raises(bug, answered=1), answers)
    loop.run()
    assert loop.pauses == [1, 2, 3, 1]


def test_statements_are_counted_once_whatever_was_replaced() -> None:
    connections: list[WorkerConnection | Exception] = []
    loop = Scripted(raises(AWAY, answered=5, gone=True), answers)
    make = loop.connect
    connections += [make(), AWAY, AWAY, make()]

    def connect() -> WorkerConnection:
        made = connections.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    loop.connect = connect
    loop.run()
    assert loop.statements == 6
    assert loop.pauses == [1, 2, 3]


def test_a_pause_is_jittered_grows_and_ends_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(lambda: pytest.fail("connected"), Heard())
    waited: list[float | None] = []
    monkeypatch.setattr(loop.stopping, "wait", waited.append)
    for failures in (1, 2, 99):
        loop._pause(failures)
    assert FIRST_PAUSE_SECONDS / 2 <= cast(float, waited[0]) <= FIRST_PAUSE_SECONDS
    assert FIRST_PAUSE_SECONDS <= cast(float, waited[1]) <= FIRST_PAUSE_SECONDS * 2
    assert 5.0 <= cast(float, waited[2]) <= 10.0


def test_a_connection_that_does_not_answer_is_cut_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    loop = Scripted(answers)
    loop.watch(9.0)  # not connected yet
    loop.run()
    with caplog.at_level(logging.WARNING):
        loop.watch(5.0)
        loop.watch(6.0)
    assert caplog.messages == ["database does not answer, the connection is cut loop=loop"]


# A worker's own connection


class Cursor:
    """Answers or fails as a test says."""

    answers: Iterator[Any]

    def __init__(self, connection: object) -> None:
        self.pgresult: object = None

    def execute(self, *_: object, **__: object) -> None:
        answer = next(Cursor.answers)
        if isinstance(answer, Exception):
            raise answer


def test_only_statements_that_were_answered_count(monkeypatch: pytest.MonkeyPatch) -> None:
    db = WorkerConnection.__new__(WorkerConnection)
    db.statements, db.pooled = 0, False
    db.connection = cast(Any, SimpleNamespace(closed=False, broken=True))
    monkeypatch.setattr(psycopg, "Cursor", Cursor)
    Cursor.answers = iter([None, AWAY])
    db.fetch("listen", {})
    with pytest.raises(psycopg.OperationalError):
        db.fetch("listen", {})
    assert (db.statements, db.gone) == (1, True)


# Duties


class Duty:
    def __init__(self, name: str, error: Exception | None) -> None:
        self.name = name
        self.error = error
        self.ticks = 0

    def tick(self, db: object) -> None:
        self.ticks += 1
        if self.error is not None:
            raise self.error

    def leave(self, db: object) -> None:
        self.ticks -= 100


@pytest.mark.parametrize(("error", "gone"), [(AWAY, True), (psycopg.errors.ReadOnlySqlTransaction("read-only"), False)])
def test_a_duty_on_a_server_that_is_no_good_asks_for_another_connection(error: Exception, gone: bool) -> None:
    duty = Duty("one", error)
    with pytest.raises(type(error)):
        do_duty("one", duty.tick, cast(Any, SimpleNamespace(gone=gone)))


@pytest.mark.parametrize("error", [ValueError("a bug"), psycopg.errors.QueryCanceled("statement timeout")])
def test_a_duty_that_fails_leaves_the_others_alone(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """W25: a bug, or a table that is locked; logged as an error."""
    duties = [Duty("one", error), Duty("two", None)]
    for duty in duties:
        do_duty(duty.name, duty.tick, cast(Any, SimpleNamespace(gone=False)))
    assert [duty.ticks for duty in duties] == [1, 1]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_duties_take_leave_when_the_worker_stops() -> None:
    duty = Duty("one", None)
    maintainer = Maintainer(lambda: pytest.fail("connected"), Heard(), [duty])
    maintainer.stopping.set()
    maintainer.serve(cast(Any, SimpleNamespace(gone=False)))
    assert duty.ticks == -100


class Slow(Duty):
    """A duty that is due each ``period`` seconds."""

    def __init__(self, time: Callable[[], float], period: float) -> None:
        super().__init__("slow", None)
        self.time, self.period = time, period
        self.due = 0.0
        self.turns: list[float] = []

    def tick(self, db: object) -> None:
        if self.time() >= self.due:
            self.turns.append(self.time())
            self.due = self.time() + self.period


@pytest.mark.parametrize(("period", "connections"), [(30.0, 4), (4.0, 1)])
def test_slow_duties_have_a_connection_while_one_is_due_soon(
    monkeypatch: pytest.MonkeyPatch, period: float, connections: int
) -> None:
    """None is late for that."""
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    made: list[FakeConnection] = []
    duty = Slow(clock.monotonic, period)

    def connect() -> WorkerConnection:
        made.append(FakeConnection())
        return cast(WorkerConnection, made[-1])

    upkeeper = Upkeeper(connect, Heard(), [duty], lambda: True)

    def wait(seconds: float) -> None:
        now[0] += seconds
        if now[0] >= 1100.0:
            upkeeper.stopping.set()

    monkeypatch.setattr(upkeeper.stopping, "wait", wait)
    upkeeper.run()
    assert len(made) == connections
    assert all(connection.closed for connection in made)
    assert max(after - before for before, after in pairwise(duty.turns)) <= period + 1.0
    assert period > KEPT_SECONDS or connections == 1


def test_whoever_leads_from_now_on_begins_with_the_slow_duties_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long nothing is due: it sleeps for that only while it leads."""
    waits: list[float] = []
    leads = [False, True]
    duty = Slow(clock.monotonic, 30.0)
    duty.due = clock.monotonic() + 999.0
    upkeeper = Upkeeper(lambda: pytest.fail("connected"), Heard(), [duty], lambda: leads.pop(0))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if not leads:
            upkeeper.stopping.set()

    monkeypatch.setattr(upkeeper.stopping, "wait", wait)
    upkeeper.run()
    assert waits == [1.0, LONGEST_SECONDS]
