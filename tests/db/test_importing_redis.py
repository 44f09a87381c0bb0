"""``pgjobs import`` from Redis: what RQ and huey have written there comes once, whatever dies, and goes back once."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.core import signing
from django.core.management import CommandError
from huey import PriorityRedisHuey, RedisExpireHuey, RedisHuey
from huey.registry import Message
from redis import Redis

from django_pgjobs.importing import brokers, taking
from django_pgjobs.importing.brokers import OURS
from django_pgjobs.importing.judging import judge
from django_pgjobs.importing.messages import BROKERS
from django_pgjobs.importing.sources import of_q2
from django_pgjobs.models import Job
from django_pgjobs.models.crons import aware
from django_pgjobs.models.imports import ImportNote
from tests.db.importing_brokers_ground import LATER, Rq, Run, killings, meanwhile, reasons, redis_url, rq, run_import
from tests.db.importing_ground import send
from tests.db.moving_ground import far, far_server
from tests.db.test_importing_q2 import Pickles
from tests.plugins.fix_db import Background, RawDatabase, claim
from tests.plugins.shell import pgjobs

__all__ = ["far", "far_server", "redis_url", "rq", "run_import"]

pytestmark = pytest.mark.usefixtures("committed")


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
def huey(redis_url: str) -> Iterator[Huey]:
    found = Huey(redis_url)
    yield found
    found.client.flushall()
    found.client.close()


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


# Deaths


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
        assert {each["id"] for each in run_import(theirs.source)["jobs"]} == written - set(noted)
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
    monkeypatch.setattr(brokers, "_move", lambda client, origin, messages, take: (set(messages), set()))
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


# Another database


def import_to(alias: str, theirs: Theirs, redis_url: str) -> list[str]:
    """Import into this database; return the ids of what has come."""
    fates: list[taking.Fate] = []
    brokers.take_messages(BROKERS[theirs.source], redis_url, alias, apply=True, report=fates.extend)
    return [each.id for each in fates if not each.is_left]


def test_databases_that_import_from_one_redis_leave_each_other_alone(theirs: Theirs, redis_url: str, far: str) -> None:
    ids = [theirs.defer(), theirs.defer()]
    came: list[str] = []

    def produce_and_import() -> None:
        ids.append(theirs.defer())
        came.extend(import_to(far, theirs, redis_url))

    with meanwhile("INSERT INTO pgjobs_job ", produce_and_import):
        assert import_to("default", theirs, redis_url) == ids[:2]
    assert came == ids[2:]
    assert (Job.objects.count(), Job.objects.using(far).count()) == (2, 1)
    assert (theirs.waiting(), theirs.client.keys(OURS + "*")) == ([], [])


def test_what_a_dead_run_has_left_waits_for_its_own_database(
    theirs: Theirs, redis_url: str, run_import: Run, far: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs.defer()
    for _ in killings(monkeypatch, lambda: run_import(theirs.source, "--apply")):
        left = theirs.client.keys(OURS + "*")
        come = import_to(far, theirs, redis_url)
        assert not (left and come)
        assert theirs.client.keys(OURS + "*") == left
        run_import(theirs.source, "--apply")
        theirs.defer()
    run_import(theirs.source, "--apply")
    assert theirs.waiting() == theirs.client.keys(OURS + "*") == []
    noted = [note.source_id for alias in ("default", far) for note in ImportNote.objects.using(alias)]
    assert len(noted) == len(set(noted)) == Job.objects.count() + Job.objects.using(far).count() > 0


def test_the_check_above_sees_keys_that_name_no_database(
    rq: Rq, redis_url: str, far: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "beginning", lambda using: OURS)
    with pytest.raises(AssertionError):
        test_databases_that_import_from_one_redis_leave_each_other_alone(rq, redis_url, far)


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
