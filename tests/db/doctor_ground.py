"""What tests of ``pgjobs doctor`` share: its findings, a cure as somebody types it, and a server that is altered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_pgjobs import __version__
from django_pgjobs.models import Heartbeat
from django_pgjobs.store import examining
from django_pgjobs.testing import isolated_registry
from tests.plugins.fix_db import TABLES, RawDatabase, wait_until
from tests.plugins.shell import BEAT, pgjobs

Found = dict[str, Any]


def nothing() -> None: ...


def examined(*options: object) -> tuple[int, list[Found]]:
    status, out, _ = pgjobs("doctor", "--format", "json", *options)
    return status, json.loads(out)["findings"]


def findings(id: str, *options: object) -> list[Found]:
    return [each for each in examined(*options)[1] if each["id"] == id]


def finding(id: str, *options: object) -> Found:
    [found] = findings(id, *options)
    assert found["what"]
    assert found["why"]
    assert found["cure"]
    return found


def typed(sql: str, raw: RawDatabase) -> None:
    """Type a cure of SQL, as into psql: each statement by itself."""
    assert sql.endswith(";")
    for statement in sql.split(";")[:-1]:
        raw.query(statement)


def mends(id: str, raw: RawDatabase, severity: str, *options: object) -> Found:
    """The cure of this finding, typed as printed, leaves none."""
    found = finding(id, *options)
    assert found["severity"] == severity
    typed(found["cure"], raw)
    connections["default"].close()  # settings of the role and the database are those of new sessions
    assert findings(id, *options) == []
    return found


def heart(**facts: Any) -> Any:
    row = {**BEAT, "version": __version__, "queues": None, "excluded_queues": None, **facts}
    return Heartbeat.objects.create(**row)


def seen(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Let the doctor see another server."""
    read = examining.read_server
    monkeypatch.setattr(examining, "read_server", lambda db: read(db)._replace(**facts))


def here(raw: RawDatabase) -> str:
    return f'"{raw.value("SELECT current_database()")}"'


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    with isolated_registry():
        yield


@pytest.fixture
def analysed(raw: RawDatabase) -> None:
    """The statistics are of now, whatever other tests have written; our own session has told what it wrote."""
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    connection.close()
    gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
    wait_until(lambda: raw.value(gone, [pid]), 10, "the session ends")
    raw.query("SELECT pg_stat_force_next_flush()")
    raw.query(f"ANALYZE {', '.join(TABLES)}")


@pytest.fixture
def altered(raw: RawDatabase) -> Iterator[Callable[..., None]]:
    """Alter something, and back at the end, whatever the cure did."""
    undo: list[str] = []

    def alter(do: str, back: str) -> None:
        undo.append(back)
        raw.query(do)
        connections["default"].close()

    yield alter
    for each in undo:
        raw.query(each)
    connections["default"].close()
