"""``pgjobs import celery --unacked``: what killed workers had comes once, and what a living one has stays with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import CommandError

pytest.importorskip("celery", reason="Celery is not installed, or does not allow this Python")

from celery import Celery
from kombu import Queue
from redis import Redis

from django_pgjobs.importing import celery_messages
from django_pgjobs.models import Job
from django_pgjobs.models.imports import ImportNote
from tests.db.importing_brokers_ground import LATER, Run, killings, reasons, redis_url, run_import
from tests.db.test_importing_celery import client, fetch, producer, waiting
from tests.plugins.fix_db import Background, wait_until

__all__ = ["client", "producer", "redis_url", "run_import"]

pytestmark = pytest.mark.usefixtures("committed")


def held_by_killed(client: Any, ids: list[str]) -> list[str]:
    """Move these messages to where kombu keeps what a worker has."""
    for key in ("celery", "celery\x06\x163"):
        for at, member in enumerate(reversed(client.lrange(key, 0, -1))):
            raw = json.loads(member)
            tag = raw["properties"]["delivery_tag"]
            client.zadd("unacked_index", {tag: at})
            client.hset("unacked", tag, json.dumps([raw, "", "celery"]))
        client.delete(key)
    return ids


def test_what_a_worker_has_is_told_and_left(producer: Celery, client: Any, run_import: Run) -> None:
    producer.send_task("shop.send", ["anna"], eta=LATER)
    held = fetch(producer, 1)
    assert "a worker there has it" in reasons(run_import("celery", "--apply"))["shop.send"]
    held.default_channel.close()  # as a worker that stops
    held.close()
    assert run_import("celery", "--apply")["taken"] == 1


def test_what_killed_workers_had_comes_with_unacked(producer: Celery, client: Any, run_import: Run) -> None:
    ids = [str(producer.send_task("shop.send", [str(each)], priority=each)) for each in range(4)]
    held_by_killed(client, ids)
    assert run_import("celery", "--unacked")["left"] == 4
    answer = run_import("celery", "--unacked", "--apply")
    assert sorted(each["id"] for each in answer["jobs"]) == sorted(ids)
    assert answer["taken"] == Job.objects.count() == 4
    assert not client.exists("unacked", "unacked_index")


def test_unacked_is_refused_while_a_worker_is_connected(client: Any, run_import: Run) -> None:
    with client.pubsub() as worker:
        worker.psubscribe("/0.celery.pidbox")
        assert worker.get_message(timeout=5)
        with pytest.raises(CommandError, match="stop it, or leave out --unacked"):
            run_import("celery", "--unacked", "--apply")


def consume(app: Celery, done: threading.Event) -> None:
    """Wait for messages as a worker does that has no remote control."""
    queues, keep = [Queue("celery")], [lambda body, message: None]
    with app.connection_for_read() as held, held.Consumer(queues, callbacks=keep):
        while not done.is_set():
            with suppress(TimeoutError):
                held.drain_events(timeout=0.1)


def test_unacked_is_refused_while_a_worker_without_remote_control_waits(
    producer: Celery, client: Any, run_import: Run, background: Background
) -> None:
    held_by_killed(client, [str(producer.send_task("shop.send", ["anna"]))])
    done = threading.Event()
    working = background(consume, producer, done)
    try:
        wait_until(lambda: any(each["cmd"] == "brpop" for each in client.client_list()), 5, "the worker waits")
        with pytest.raises(CommandError, match="stop it, or leave out --unacked"):
            run_import("celery", "--unacked", "--apply")
    finally:
        done.set()
    working.result()
    assert not Job.objects.exists()


def after_the_look(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Call the action when it was seen that no worker is connected."""
    look = Redis.client_list

    def looked(*given: Any) -> Any:
        found = look(*given)
        action()
        return found

    monkeypatch.setattr(Redis, "client_list", looked)


def test_what_a_worker_gets_after_the_look_stays_with_it(
    producer: Celery, client: Any, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    [there] = held_by_killed(client, [str(producer.send_task("shop.send", ["anna"]))])
    producer.send_task("shop.mail", ["bert"])
    started: list[Any] = []
    after_the_look(monkeypatch, lambda: started.append(fetch(producer, 1)))
    answer = run_import("celery", "--unacked", "--apply")
    assert [each["id"] for each in answer["jobs"] if not each["reason"]] == [there]
    assert "a worker there has it" in reasons(answer)["shop.mail"]
    assert client.hlen("unacked") == client.zcard("unacked_index") == 1
    started[0].default_channel.close()


def test_what_another_worker_gets_again_after_the_look_stays_with_it(
    producer: Celery, client: Any, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written as before, as it was given out again once already; only its instant is another one."""
    producer.send_task("shop.send", ["anna"])
    held = [fetch(producer, 1)]

    def give_out_again() -> None:
        [tag] = client.hkeys("unacked")
        held[-1].default_channel.qos.restore_by_tag(tag)
        held.append(fetch(producer, 1))

    give_out_again()
    before = client.hgetall("unacked")
    after_the_look(monkeypatch, give_out_again)
    try:
        answer = run_import("celery", "--unacked", "--apply")
        assert "a worker there has it" in reasons(answer)["shop.send"]
        assert client.hgetall("unacked") == before
        assert not Job.objects.exists()
    finally:
        for each in held:
            each.default_channel.close()


def test_what_killed_workers_had_of_a_queue_that_is_gone_stays_and_is_told(
    producer: Celery, client: Any, run_import: Run
) -> None:
    ids = [str(producer.send_task("shop.send", [each])) for each in ("anna", "bert")]
    held_by_killed(client, ids)
    tag, data = next(iter(client.hgetall("unacked").items()))
    client.hset("unacked", tag, json.dumps([json.loads(data)[0], "", "gone"]))
    client.zadd("unacked_index", {"broken": 1})
    client.hset("unacked", "broken", "{")
    answer = run_import("celery", "--unacked", "--apply")
    assert (answer["taken"], answer["left"]) == (1, 2)
    assert client.keys("gone*") == []


def test_the_check_above_sees_that_no_instant_is_compared(
    producer: Celery, client: Any, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = celery_messages.RESTORE.replace("tonumber(score) == tonumber(ARGV[2])", "true")
    assert blind != celery_messages.RESTORE
    monkeypatch.setattr(celery_messages, "RESTORE", blind)
    with pytest.raises(KeyError):
        test_what_another_worker_gets_again_after_the_look_stays_with_it(producer, client, run_import, monkeypatch)


def test_whatever_dies_what_killed_workers_had_waits_once(
    producer: Celery, client: Any, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = held_by_killed(client, [str(producer.send_task("shop.send", ["anna"])) for _ in range(3)])
    for _ in killings(monkeypatch, lambda: run_import("celery", "--unacked", "--apply")):
        noted = set(ImportNote.objects.values_list("source_id", flat=True))
        assert Job.objects.count() == len(noted)
        assert not noted & set(waiting(client))
        assert client.hlen("unacked") == client.zcard("unacked_index")
    assert sorted(ImportNote.objects.values_list("source_id", flat=True)) == sorted(ids)
    assert client.hlen("unacked") == 0
