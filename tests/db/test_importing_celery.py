"""``pgjobs import celery``: what Celery has written into Redis comes once, whatever dies, and goes back once."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError

pytest.importorskip("celery", reason="Celery is not installed, or does not allow this Python")

from celery import Celery, chain
from redis import Redis

from django_pgjobs.celery_bridge import install
from django_pgjobs.importing import brokers, taking
from django_pgjobs.importing.brokers import OURS
from django_pgjobs.importing.celery_messages import CELERY
from django_pgjobs.models import Job
from django_pgjobs.models.imports import ImportNote
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.db.celery_ground import alone, cast_of
from tests.db.importing_brokers_ground import LATER, Run, killings, reasons, redis_url, run_import
from tests.db.importing_ground import mail, send
from tests.plugins.fix_db import Background, RawDatabase, claim
from tests.plugins.shell import pgjobs

__all__ = ["redis_url", "run_import"]

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with Redis.from_url(redis_url) as found:
        found.flushall()
        yield found


@pytest.fixture
def producer(redis_url: str, client: Any) -> Iterator[Celery]:
    """An app of Celery as it was before any move: it knows the tasks by their names alone."""
    with alone():
        made = Celery("shop", broker=redis_url, backend="cache+memory://", set_as_current=False, fixups=[])
        yield made
        made.close()


def waiting(client: Any) -> list[str]:
    """Return the ids of what workers would take, in their order."""
    found = [member for key in sorted(client.keys("celery*")) for member in reversed(client.lrange(key, 0, -1))]
    return [json.loads(each)["headers"]["id"] for each in found]


def fetch(app: Celery, count: int) -> Any:
    """Take messages as a worker does that has not run them yet; return its connection."""
    held = app.connection_for_read()
    for _ in range(count):
        assert held.default_channel.basic_get("celery") is not None
    return held


# Plain jobs under the names of tasks


def test_what_waits_becomes_jobs_in_its_order(producer: Celery, client: Any, run_import: Run) -> None:
    ids = [str(producer.send_task("shop.send", [str(each)], {"copies": each})) for each in range(3)]
    ids.append(str(producer.send_task("shop.send", ["anna"], eta=LATER, expires=LATER + timedelta(days=1))))
    answer = run_import("celery", "--apply")
    assert [each["id"] for each in answer["jobs"]] == ids
    assert [each["differences"] for each in answer["jobs"]] == [[]] * 4
    jobs = list(Job.objects.order_by("pk"))
    assert [job.payload["args"] for job in jobs] == [["0"], ["1"], ["2"], ["anna"]]
    assert [job.payload["kwargs"] for job in jobs] == [{"copies": 0}, {"copies": 1}, {"copies": 2}, {}]
    assert {(job.name, job.queue, job.state, job.priority) for job in jobs} == {(send.name, "default", "ready", 0)}
    assert (jobs[3].run_at, jobs[3].expires_at) == (LATER, LATER + timedelta(days=1))
    assert waiting(client) == client.keys(OURS + "*") == []


def test_queues_and_priorities_come(producer: Celery, run_import: Run) -> None:
    for priority in (9, 0, 4):
        producer.send_task("shop.send", [str(priority)], priority=priority, queue="high")
    producer.send_task("shop.mail", ["anna"])
    run_import("celery", "--apply")
    found = [(job.payload["args"][0], job.queue, job.priority) for job in Job.objects.order_by("-priority", "pk")]
    assert found == [("anna", mail.queue, 0), ("0", "high", 0), ("4", "high", -4), ("9", "high", -9)]


def test_values_of_its_json_come_as_themselves(producer: Celery, run_import: Run) -> None:
    uuid, amount = UUID("0f0ee5d0-6b4b-4d6a-a1a5-5d3f2c7a4f11"), Decimal("1.50")
    producer.send_task("shop.send", [[uuid, amount, LATER, LATER.date()]])
    assert run_import("celery", "--apply")["taken"] == 1
    arguments = Job.objects.get().arguments
    assert arguments is not None
    assert next(iter(arguments.values())) == [uuid, amount, LATER, LATER.date()]


def test_without_apply_nothing_is_written(producer: Celery, client: Any, run_import: Run) -> None:
    producer.send_task("shop.send", ["anna"])
    producer.send_task("shop.gone")
    before = {key: client.dump(key) for key in client.scan_iter()}
    answer = run_import("celery")
    assert (answer["applied"], answer["taken"], answer["left"]) == (False, 1, 1)
    assert {key: client.dump(key) for key in client.scan_iter()} == before
    assert (Job.objects.count(), ImportNote.objects.count()) == (0, 0)


def test_what_cannot_run_here_stays_in_its_order(
    producer: Celery, client: Any, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    follow = producer.signature("shop.mail")
    stay = {
        "shop.gone": producer.send_task("shop.gone"),
        "shop.send": producer.send_task("shop.send", [], {"whom": 1}),
        "pickled": producer.send_task("pickled", ["a"], serializer="pickle"),
        "packed": producer.send_task("packed", ["a"], compression="zlib"),
        "old": producer.send_task("old", ["a"], expires=datetime.now(UTC) - timedelta(seconds=5)),
        "link": producer.send_task("link", ["a"], link=follow),
        "chain": producer.send_task("chain", ["a"], chain=[follow]),
        "chord": producer.send_task("chord", ["a"], chord=follow),
    }
    for _ in range(3):
        producer.send_task("shop.send", ["anna"])
    client.rpush("celery", b"not json", b'{"headers": {}, "properties": {}, "body": "", "content-type": ""}')
    answer = run_import("celery", "--apply")
    assert (answer["taken"], answer["left"]) == (3, 10)
    words = {
        "shop.gone": "No job named", "shop.send": "whom", "pickled": "x-python-serialize", "packed": "x-gzip",
        "old": "has expired", "link": "it has callbacks", "chain": "it has chain", "chord": "is of a chord",
    }  # fmt: skip
    told = reasons(answer)
    assert {name: word for name, word in words.items() if word in told[name]} == words
    assert sum("cannot be read" in each["reason"] for each in answer["jobs"]) == 2
    client.rpop("celery", 2)
    assert waiting(client) == [str(each) for each in stay.values()]


def test_a_foreign_message_stops_no_import(producer: Celery, client: Any, run_import: Run) -> None:
    there = producer.send_task("shop.send", ["anna"])
    written = json.loads(client.lindex("celery", 0))
    body = base64.b64encode(b'[[{"__type__": "decimal", "__value__": "x"}], {}, {}]').decode()
    client.lpush("celery", json.dumps({**written, "body": body}))
    client.lpush("celery", *(json.dumps({**written, "headers": {"id": each, "task": "shop.send"}}) for each in FOREIGN))
    client.zadd("unacked_index", {"tag": 1})
    client.hset("unacked", "tag", "{")
    answer = run_import("celery", "--apply")
    assert (answer["taken"], answer["left"]) == (1, 5)
    assert ImportNote.objects.get().source_id == str(there)
    assert sum(each["reason"] == "its id cannot be stored" for each in answer["jobs"]) == len(FOREIGN)


FOREIGN = ("a\0b", "\ud800", "x" * 3000)


def test_what_was_imported_before_is_not_taken_again(producer: Celery, client: Any, run_import: Run) -> None:
    """As when Redis is restored."""
    producer.send_task("shop.send", ["anna"])
    saved = client.dump("celery")
    run_import("celery", "--apply")
    [job] = Job.objects.all()
    client.restore("celery", 0, saved)
    assert reasons(run_import("celery", "--apply")) == {"shop.send": f"was imported before, as job {job.pk}"}


def test_attempts_count_and_time_limits_are_told(producer: Celery, run_import: Run) -> None:
    producer.send_task("shop.send", ["anna"], retries=1, time_limit=7)
    [told] = run_import("celery", "--apply")["jobs"]
    assert told["differences"] == ["without its time limits", "3 attempts left, after 1 there"]


# A bridged app


@pytest.fixture
def app(redis_url: str, client: Any) -> Iterator[Any]:
    """An app with its cast: ``install`` has not been called for it yet, so it publishes into Redis."""
    made = Celery("moving", broker=redis_url, backend="cache+memory://", set_as_current=False, fixups=[])
    cast_of(made)
    made.finalize()
    with isolated_registry(), alone():
        yield made


def test_tasks_of_a_bridged_app_come_with_all_they_have(app: Any, client: Any) -> None:
    """Its broker is known, and ids, chains, retries and priorities are as if the call had been made here."""
    cast = app.cast
    first = cast.add.apply_async((1, 2), priority=3, countdown=0.01)
    second = chain(cast.add.s(1, 1), cast.add.s(5)).apply_async()
    install(app)
    status, out, _ = pgjobs("import", "celery", "--apply")
    assert (status, waiting(client)) == (0, []), out
    assert Job.objects.tagged(f"celery:{first.id}").get().priority == -3
    run_jobs()
    result = app.AsyncResult
    assert (result(first.id).get(timeout=9), result(second.id).get(timeout=9)) == (3, 7)


def test_what_the_patterns_leave_to_the_broker_stays_there(app: Any, client: Any) -> None:
    app.cast.add.delay(1)
    app.cast.same.delay(1)
    install(app, tasks=["shop.add"])
    status, out, _ = pgjobs("import", "celery", "--apply")
    assert status == 1
    assert "the patterns of install() leave it to the broker" in out
    assert (len(waiting(client)), Job.objects.get().name) == (1, "shop.add")


def test_a_prefix_of_keys_is_known_from_the_app(app: Any, client: Any) -> None:
    app.conf.broker_transport_options = {"global_keyprefix": "shop-"}
    app.cast.add.delay(1)
    assert client.llen("shop-celery") == 1
    install(app)
    assert pgjobs("import", "celery", "--apply")[0] == 0
    assert (client.llen("shop-celery"), Job.objects.count()) == (0, 1)


def test_without_an_app_the_broker_is_asked_for() -> None:
    with alone(), pytest.raises(CommandError, match="Give its Redis"):
        pgjobs("import", "celery")


# Undo and deaths


def test_what_nobody_has_started_goes_back_as_it_was(
    producer: Celery, client: Any, run_import: Run, raw: RawDatabase
) -> None:
    for number in range(4):
        producer.send_task("shop.send", [str(number)], priority=number)
    before = {key: client.dump(key) for key in client.scan_iter()}
    run = run_import("celery", "--apply")["run"]
    answer = run_import("--undo", run, "--apply")
    assert (answer["returned"], answer["kept"]) == (4, {})
    assert {key: client.dump(key) for key in client.scan_iter()} == before
    run = run_import("celery", "--apply")["run"]
    claimed = claim(raw)
    assert run_import("--undo", run, "--apply")["kept"] == {"running": 1}
    assert list(Job.objects.values_list("pk", flat=True)) == claimed.ids


def test_whatever_dies_each_message_comes_once(
    producer: Celery, client: Any, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    ids = [str(producer.send_task("shop.send", ["anna"], priority=each % 2 * 3)) for each in range(4)]
    for number in killings(monkeypatch, lambda: run_import("celery", "--apply")):
        noted = dict(ImportNote.objects.values_list("source_id", "job_id"))
        assert set(noted.values()) == set(Job.objects.values_list("pk", flat=True))
        assert not set(noted) & set(waiting(client))
        assert len(waiting(client)) == len(set(waiting(client)))
        if number % 2:  # so that each step is died in
            ids.append(str(producer.send_task("shop.send", ["anna"])))
    run_import("celery", "--apply")
    assert sorted(ImportNote.objects.values_list("source_id", flat=True)) == sorted(ids)
    assert (waiting(client), client.keys(OURS + "*")) == ([], [])


def test_the_check_above_sees_a_message_that_is_not_taken_out(
    producer: Celery, client: Any, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "_move", lambda client, place, messages, take: (set(messages), set()))
    with pytest.raises(AssertionError):
        test_whatever_dies_each_message_comes_once(producer, client, run_import, monkeypatch)


# Under load


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_come_once_while_producers_and_workers_continue(
    producer: Celery, redis_url: str, client: Any, background: Background
) -> None:
    done = threading.Event()
    published: list[str] = []
    fetched: list[str] = []

    def produce() -> None:
        while not done.is_set():
            published.append(str(producer.send_task("shop.send", ["anna"])))

    def work() -> None:
        with producer.connection_for_read() as held:
            while not done.is_set():
                if (message := held.default_channel.basic_get("celery")) is not None:
                    fetched.append(message.headers["id"])
                    held.default_channel.basic_ack(message.delivery_tag)
                    done.wait(0.01)  # the time of a task

    message = str(producer.send_task("shop.send", ["anna"]))
    written = client.rpop("celery").decode()
    ids = [f"{number:08x}{message[8:]}" for number in range(100_000)]
    for start in range(0, 100_000, 10_000):
        client.lpush("celery", *(written.replace(message, each) for each in ids[start : start + 10_000]))
    producing, working = background(produce), background(work)
    while ImportNote.objects.count() + len(fetched) < 100_000:
        brokers.take_messages(CELERY, redis_url, "default", apply=True, report=lambda fates: None)
    done.set()
    producing.result()
    working.result()
    brokers.take_messages(CELERY, redis_url, "default", apply=True, report=lambda fates: None)
    ours = list(ImportNote.objects.values_list("source_id", flat=True))
    assert Counter(ours + fetched) == Counter(ids + published)
    assert Job.objects.count() == len(ours) > 90_000
    assert published
    assert client.keys(OURS + "*") == waiting(client) == []
