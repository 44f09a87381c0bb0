"""``pgjobs import celery``: what Celery has written into RabbitMQ comes once, whatever dies, and goes back once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

pytest.importorskip("celery", reason="Celery is not installed, or does not allow this Python")

from celery import Celery, chain
from kombu import Connection

from django_pgjobs.celery_bridge import install
from django_pgjobs.importing import rabbit, taking
from django_pgjobs.models import Job
from django_pgjobs.models.imports import ImportNote
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.db.celery_ground import alone, cast_of
from tests.db.importing_brokers_ground import LATER, Run, importer
from tests.db.importing_ground import send
from tests.plugins.fix_db import wait_until
from tests.plugins.ports import free_port
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"

PRIORITIES, QUORUM = {"x-max-priority": 9}, {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def rabbit_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    epmd = shutil.which("epmd")
    if not Path(PROGRAM).exists() or epmd is None:
        pytest.skip("RabbitMQ is not installed: apt-get install rabbitmq-server")
    home = tmp_path_factory.mktemp("rabbit")
    ports = {name: free_port() for name in ("RABBITMQ_NODE_PORT", "RABBITMQ_DIST_PORT", "ERL_EPMD_PORT")}
    told = {
        "HOME": home, "RABBITMQ_NODENAME": f"pgjobs{os.getpid()}@localhost", "RABBITMQ_MNESIA_BASE": home / "data",
        "RABBITMQ_LOG_BASE": home / "log", "RABBITMQ_ENABLED_PLUGINS_FILE": home / "plugins",
        "RABBITMQ_CONF_ENV_FILE": home / "none", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", **ports,
    }  # fmt: skip
    env = {**os.environ, **{name: str(value) for name, value in told.items()}}
    started = [
        subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for command in ([epmd, "-port", str(ports["ERL_EPMD_PORT"])], [PROGRAM])
    ]
    url = f"amqp://guest:guest@127.0.0.1:{ports['RABBITMQ_NODE_PORT']}//"

    def answers() -> bool:
        with suppress(OSError), Connection(url) as found:
            found.connect()
            return True
        return False

    try:
        wait_until(answers, 60, "RabbitMQ answers")
        yield url
    finally:
        for each in reversed(started):
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def publishing(app: Celery) -> None:
    """Let an app publish to queues with priorities, and wait until RabbitMQ has each message."""
    app.conf.task_queue_max_priority = 9
    app.conf.broker_transport_options = {"confirm_publish": True}


def purge(app: Celery) -> None:
    """Empty the queue; its producers, which outlive an app, would not declare it again."""
    with app.connection_for_write() as held:
        held.default_channel.queue_purge("celery")


@pytest.fixture
def producer(rabbit_url: str) -> Iterator[Celery]:
    """An app of Celery as it was before any move: it knows the tasks by their names alone."""
    with alone():
        made = Celery("shop", broker=rabbit_url, backend="cache+memory://", set_as_current=False, fixups=[])
        publishing(made)
        yield made
        purge(made)
        made.close()


@pytest.fixture
def replaced(producer: Celery) -> Iterator[Callable[..., None]]:
    """Give the queue other arguments than the producer has declared it with, until the end of the test."""

    def replace(arguments: dict[str, Any]) -> None:
        with producer.connection_for_write() as held:
            channel = held.channel()
            channel.queue_delete("celery")
            channel.queue_declare("celery", durable=True, auto_delete=False, arguments=arguments)

    producer.send_task("shop.send", ["declares it"])
    purge(producer)
    yield replace
    replace(PRIORITIES)


@pytest.fixture
def run_import(rabbit_url: str) -> Run:
    return importer(rabbit_url)


def ready(app: Celery) -> int:
    """Return the number of messages that workers would get."""
    with app.connection_for_read() as held:
        count: int = held.channel().queue_declare("celery", passive=True).message_count
    return count


def waiting(app: Celery, count: int) -> list[str]:
    """Return the ids of so many messages that workers would get, in their order.

    RabbitMQ gives messages back a little later than it says that a connection has ended.
    """
    with app.connection_for_read() as held:
        looking = held.channel()

        def wait() -> None:
            wait_until(lambda: looking.queue_declare("celery", passive=True).message_count == count, 30, "all wait")

        wait()
        getting = held.channel()
        found = [message.headers["id"] for message in iter(lambda: getting.basic_get("celery"), None)]
        getting.close()
        wait()
    return found


def test_what_waits_becomes_jobs_in_its_order(producer: Celery, run_import: Run) -> None:
    ids = [str(producer.send_task("shop.send", [str(each)], {"copies": each})) for each in range(3)]
    ids.append(str(producer.send_task("shop.send", ["anna"], eta=LATER)))
    ids.insert(0, str(producer.send_task("shop.send", ["first"], priority=7)))
    answer = run_import("celery")
    assert ([each["id"] for each in answer["jobs"]], answer["taken"], Job.objects.count()) == (ids, 5, 0)
    assert waiting(producer, 5) == ids
    answer = run_import("celery", "--apply")
    assert [each["id"] for each in answer["jobs"]] == ids
    jobs = list(Job.objects.order_by("pk"))
    assert [job.payload["args"] for job in jobs] == [["first"], ["0"], ["1"], ["2"], ["anna"]]
    assert [job.priority for job in jobs] == [7, 0, 0, 0, 0]
    assert {(job.name, job.queue, job.state) for job in jobs} == {(send.name, "default", "ready")}
    assert jobs[4].run_at == LATER
    assert waiting(producer, 0) == []


def test_what_cannot_run_here_stays_in_its_order(
    producer: Celery, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    stay = []
    for number in range(4):
        stay.append(str(producer.send_task("shop.gone", [number])))
        producer.send_task("shop.send", ["anna"])
    answer = run_import("celery", "--apply")
    assert (answer["taken"], answer["left"], waiting(producer, 4)) == (4, 4, stay)
    assert run_import("celery", "--apply")["left"] == 4


def test_a_second_message_of_an_id_stays(producer: Celery, run_import: Run) -> None:
    producer.send_task("shop.send", ["anna"], task_id="nightly")
    producer.send_task("shop.send", ["bert"], task_id="nightly")
    assert run_import("celery", "--apply")["left"] == 1
    assert waiting(producer, 1) == ["nightly"]
    answer = run_import("celery", "--apply")
    assert answer["jobs"][0]["reason"].startswith("was imported before, as job")


def test_tasks_of_a_bridged_app_come_with_all_they_have(rabbit_url: str) -> None:
    app = Celery("moving", broker=rabbit_url, backend="cache+memory://", set_as_current=False, fixups=[])
    publishing(app)
    cast = cast_of(app)
    app.finalize()
    with isolated_registry(), alone():
        first, second = cast.add.delay(1, 2), chain(cast.add.s(1, 1), cast.add.s(5)).apply_async()
        install(app)
        status, out, _ = pgjobs("import", "celery", "--apply")
        assert status == 0, out
        run_jobs()
        result = app.AsyncResult
        assert (result(first.id).get(timeout=9), result(second.id).get(timeout=9)) == (3, 7)
        purge(app)


def test_what_nobody_has_started_goes_back(producer: Celery, run_import: Run) -> None:
    ids = [str(producer.send_task("shop.send", [str(each)], priority=each % 2)) for each in range(4)]
    run = run_import("celery", "--apply")["run"]
    assert run_import("--undo", run)["returned"] == 4
    answer = run_import("--undo", run, "--apply")
    assert (answer["returned"], answer["kept"]) == (4, {})
    assert (Job.objects.count(), ImportNote.objects.count()) == (0, 0)
    assert sorted(waiting(producer, 4)) == sorted(ids)
    [first, *_] = run_import("celery", "--apply")["jobs"]
    assert first["id"] == ids[1]


def test_nothing_is_taken_while_a_worker_takes_it(producer: Celery, run_import: Run) -> None:
    """It would run what an import that has died did not acknowledge."""
    producer.send_task("shop.send", ["anna"])
    with producer.connection_for_read() as held:
        worker = held.channel()
        worker.basic_qos(0, 1, False)
        worker.basic_consume("celery", callback=lambda message: None)
        with pytest.raises(CommandError, match=r"Workers of Celery take from celery: stop them"):
            run_import("celery", "--apply")
        assert (run_import("celery")["taken"], Job.objects.count()) == (0, 0)
    assert waiting(producer, 1)
    run = run_import("celery", "--apply")["run"]
    with producer.connection_for_read() as held:
        held.channel().basic_consume("celery", callback=lambda message: None)
        with pytest.raises(CommandError, match="stop them"):
            run_import("--undo", run, "--apply")
    assert run_import("--undo", run, "--apply")["returned"] == 1


def test_what_has_no_queue_any_more_is_kept_until_it_has_one(
    producer: Celery, run_import: Run, replaced: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(producer.send_task("shop.send", [str(each)])) for each in range(2)]
    run = run_import("celery", "--apply")["run"]
    with producer.connection_for_write() as held:
        held.channel().queue_delete("celery")
    with pytest.raises(CommandError, match="RabbitMQ has no queue celery: declare it"):
        run_import("--undo", run, "--apply")
    assert Job.objects.count() == 2
    with monkeypatch.context() as patch:  # it goes a moment later
        patch.setattr(rabbit, "_settle", lambda *given: None)
        with pytest.raises(CommandError, match="RabbitMQ has no queue celery: declare it"):
            run_import("--undo", run, "--apply")
    assert ImportNote.objects.count() == 2
    replaced(PRIORITIES)
    assert run_import("--undo", run, "--apply")["returned"] == 2
    assert (waiting(producer, 2), ImportNote.objects.count()) == (ids, 0)


# Quorum queues


def test_a_quorum_queue_says_how_often_a_message_was_left(
    producer: Celery, run_import: Run, replaced: Callable[..., None]
) -> None:
    replaced(QUORUM)
    producer.send_task("shop.gone", ["anna"])
    reasons = []
    for _ in range(rabbit.OFTEN + 1):
        reasons.append(run_import("celery", "--apply")["jobs"][0]["reason"])
        wait_until(lambda: ready(producer) == 1, 30, "it waits")
    assert ["RabbitMQ has given it out 10 times" in each for each in reasons] == [False] * 10 + [True]


def test_a_message_of_a_quorum_queue_comes_once(
    producer: Celery, run_import: Run, replaced: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(QUORUM)
    ids = [str(producer.send_task("shop.send", ["anna"]))]
    with monkeypatch.context() as patch, suppress(Death):
        patch.setattr(rabbit, "_acknowledge", die)
        run_import("celery", "--apply")
    assert (waiting(producer, 1), Job.objects.count()) == (ids, 1)
    assert run_import("celery", "--apply")["left"] == 0
    assert (waiting(producer, 0), Job.objects.count()) == ([], 1)


# Deaths


class Death(BaseException):
    """The process is killed: it says no more."""


def die(*_given: Any) -> None:
    raise Death


def killings(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> Iterator[int]:
    """Let the action die before its first write to RabbitMQ or PostgreSQL, its second, and so on, until its end."""
    transports = pytest.importorskip("amqp.transport")._AbstractTransport
    write = transports.write
    sockets: list[Any] = []
    left = 0

    def kill(go_on: Callable[..., Any], *args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Death
        return go_on(*args, **options)

    def write_or_die(transport: Any, data: Any) -> None:
        sockets.append(transport.sock)
        kill(write, transport, data)

    for number in range(1, 300):
        left = number
        with monkeypatch.context() as patch, connection.execute_wrapper(kill):
            patch.setattr(transports, "write", write_or_die)
            with suppress(Death):
                action()
        for each in sockets:  # as the end of the process does
            each.close()
        connection.close()
        yield number
        if left > 0:
            return
    pytest.fail("It does not end.")


def test_whatever_dies_each_message_comes_once(
    producer: Celery, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    ids = []
    for _ in killings(monkeypatch, lambda: run_import("celery", "--apply")):
        noted = set(ImportNote.objects.values_list("job_id", flat=True))
        assert noted == set(Job.objects.values_list("pk", flat=True))
        ids.append(str(producer.send_task("shop.send", ["anna"])))

    def is_empty() -> bool:
        run_import("celery", "--apply")
        return Job.objects.count() >= len(ids)

    wait_until(is_empty, 30, "all have come")
    assert sorted(ImportNote.objects.values_list("source_id", flat=True)) == sorted(ids)
    assert (Job.objects.count(), waiting(producer, 0)) == (len(ids), [])


def test_the_check_above_sees_a_message_that_is_acknowledged_before_the_commit(
    producer: Celery, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = rabbit._get

    def acknowledge(channel: Any, queue: str) -> Iterator[Any]:
        for each in get(channel, queue):
            channel.basic_ack(each.tag)
            yield each

        channel.tx_commit()

    monkeypatch.setattr(rabbit, "_get", acknowledge)
    monkeypatch.setattr(rabbit, "_acknowledge", lambda channel, settled: None)
    monkeypatch.setattr("tests.db.test_importing_rabbit.wait_until", lambda done, *more: done())
    with pytest.raises(AssertionError):
        test_whatever_dies_each_message_comes_once(producer, run_import, monkeypatch)


def test_whatever_dies_each_message_goes_back_once(
    producer: Celery, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "BATCH", 2)
    ids = [str(producer.send_task("shop.send", ["anna"])) for _ in range(5)]
    run = run_import("celery", "--apply")["run"]

    def action() -> None:
        with suppress(CommandError):  # all of it went back
            run_import("--undo", run, "--apply")

    for _ in killings(monkeypatch, action):
        noted = set(ImportNote.objects.filter(run=run).values_list("job_id", flat=True))
        assert noted == set(Job.objects.values_list("pk", flat=True))
    assert (Job.objects.count(), ImportNote.objects.count()) == (0, 0)
    assert sorted(waiting(producer, 5)) == sorted(ids)


def test_what_a_dead_run_has_not_acknowledged_goes_back_once(
    producer: Celery, run_import: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(producer.send_task("shop.send", ["anna"])) for _ in range(3)]
    stays = str(producer.send_task("shop.gone", ["anna"]))
    with monkeypatch.context() as patch, suppress(Death):
        patch.setattr(rabbit, "_acknowledge", die)
        run_import("celery", "--apply")
    assert (waiting(producer, 4), Job.objects.count()) == ([*ids, stays], 3)
    run = ImportNote.objects.values_list("run", flat=True)[0]
    assert run_import("--undo", run, "--apply")["returned"] == 3
    assert sorted(waiting(producer, 4)) == sorted([*ids, stays])
