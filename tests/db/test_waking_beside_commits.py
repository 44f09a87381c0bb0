"""What a notification inside of a caller's transaction would forbid or break, on a server that is set up to show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction

from django_pgjobs import Cron, Limit, Unique, job, register_many
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.store import firing, registering, waking
from django_pgjobs.store.database import on
from tests.chaos.ground import ChaosServer, django_on
from tests.plugins.fix_db import wait_until

SERVER = {"max_prepared_transactions": 4, "max_notify_queue_pages": 64}
FULL = "too many notifications in the NOTIFY queue"


def plain(n: int = 1) -> None: ...


@pytest.fixture(autouse=True)
def known(chaos_server: ChaosServer, django_db_blocker: Any, settings: Any) -> Iterator[None]:
    """Jobs of several kinds, on the module's own server."""
    settings.PGJOBS = {"CAPACITY": {"bounded": 10_000}}
    waking._notified.clear()
    chaos_server.empty()
    with django_db_blocker.unblock(), django_on(chaos_server.url), registry.isolated():
        registry_of()
        declared = Cron("0 3 * * *", JOBS["plain"].bind(), name="clean").declared()
        firing.declare_cron(on("default"), declared, overwrite=True, fresh_seconds=0)
        yield
        Group.objects.all().delete()
        Queue("mail").resume()


JOBS: dict[str, Any] = {}


def registry_of() -> None:
    JOBS["plain"] = job(name="waking.plain")(plain)
    JOBS["limited"] = job(name="waking.limited", limits=[Limit(1)])(plain)
    JOBS["careful"] = job(name="waking.careful")(plain)
    JOBS["careful"].on_cancel(lambda context, n=1: None)
    JOBS["careful"].on_abandon(lambda context, n=1: None)


def one(name: str = "plain", **values: Any) -> Any:
    """A stored job, as a queryset."""
    found = Job.objects.filter(pk=JOBS[name].register().pk)
    found.update(**values)
    return found


def again() -> None:
    one().get().register_again()


def replace() -> None:
    register = JOBS["careful"].using(unique=Unique("k", on_conflict="replace")).register
    assert register().pk != register().pk


def postpone() -> None:
    register = JOBS["plain"].using(unique=Unique("k", on_conflict="postpone")).register
    assert register().pk == register().pk


def entry() -> CronEntry:
    return CronEntry.objects.get(pk="clean")


ACTIONS: dict[str, Callable[[], object]] = {
    "register": lambda: JOBS["plain"].register(),
    "delayed": lambda: JOBS["plain"].using(delay=1).register(),
    "limited": lambda: JOBS["limited"].register(),
    "bounded": lambda: JOBS["plain"].using(queue="bounded").register(),
    "key": lambda: JOBS["plain"].using(unique="k").register(),
    "window": lambda: JOBS["plain"].using(unique=Unique("k", window=timedelta(hours=1))).register(),
    "idempotent": lambda: JOBS["plain"].using(idempotency_key="k").register(),
    "many": lambda: register_many([JOBS["plain"].bind(n) for n in range(3)]),
    "copied": lambda: register_many([JOBS["plain"].bind(n) for n in range(registering.COPY_FROM_JOBS)]),
    "many keys": lambda: register_many([JOBS["plain"].using(unique=f"k{n}").bind(n) for n in range(3)]),
    "again": again,
    "retry": lambda: one(outcome="abandoned", finished_at="2026-01-01T00:00Z").retry(),
    "abandon": lambda: one(waited=True).abandon(),
    "abandon with a callback": lambda: one("careful").abandon(),
    "cancel": lambda: one(waited=True).cancel(),
    "cancel with a callback": lambda: one("careful", run_at="2026-01-01T00:00Z").cancel(),
    "release": lambda: one().release(),
    "reschedule": lambda: one().reschedule(delay=0, queue="mail"),
    "reschedule far back": lambda: one().reschedule(run_at=Job.objects.get().created_at - timedelta(days=1)),
    "replace": replace,
    "postpone": postpone,
    "pause": lambda: Queue("mail").pause(),
    "resume": lambda: (Queue("mail").pause(), Queue("mail").resume()),
    "pause a job": lambda: pauses.pause("job", "waking.plain", until=60),
    "run now": lambda: entry().run_now(),
    "pause a cron entry": lambda: entry().pause(),
    "resume a cron entry": lambda: (entry().pause(), entry().resume()),
    "stop a cron entry": lambda: (entry().run_now(), entry().stop()),
}
"""Every call of a producer or an operator that has its own transaction and sends a notification."""


_numbers = count()


@pytest.mark.parametrize("name", ACTIONS)
def test_a_transaction_of_the_callers_can_be_prepared(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """PostgreSQL prepares none that has notified. What was written is there when it is committed at last."""
    identifier = f"waking {next(_numbers)}"
    written = Group(name=identifier)
    with transaction.atomic():
        written.save()
        ACTIONS[name]()
        with connection.cursor() as cursor:
            cursor.execute("PREPARE TRANSACTION %s", [identifier])
    assert (Group.objects.count(), Job.objects.count()) == (0, 0)
    with connection.cursor() as cursor:
        cursor.execute("COMMIT PREPARED %s", [identifier])
    assert Group.objects.get() == written
    assert Job.objects.exists() or "pause" in name or "resume" in name
    assert caplog.text.count("workers find the jobs") == 0


@pytest.fixture
def full_queue(chaos_server: ChaosServer) -> Iterator[None]:
    """A listener that reads nothing, and notifications until no more fit in."""
    with psycopg.connect(chaos_server.url) as deaf, psycopg.connect(chaos_server.url, autocommit=True) as other:
        deaf.execute("LISTEN waking_test")
        deaf.commit()
        deaf.execute("SELECT 1")  # its transaction stays open

        def fill() -> None:
            for n in range(1000):
                other.execute("SELECT pg_notify('waking_test', %s)", [f"{n:07000}"])

        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=FULL):
            fill()
        yield
        deaf.close()
        # Asking also cuts off what everybody has read.
        usage = lambda: other.execute("SELECT pg_notification_queue_usage()").fetchone()  # noqa: E731
        wait_until(lambda: usage() == (0,), 5, "the queue of notifications is empty")


@pytest.mark.parametrize("name", ["register", "copied", "replace", "retry", "cancel", "pause", "run now"])
def test_a_full_queue_of_notifications_fails_no_commit_of_the_callers(
    full_queue: None, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers find the job by polling; the rows written beside it exist."""
    with transaction.atomic():
        Group.objects.create(name="business")
        ACTIONS[name]()
    assert Group.objects.exists()
    ACTIONS["register"]()
    assert Job.objects.filter(name="waking.plain").exists()
    assert FULL in caplog.text
    with pytest.raises(OperationalError, match=FULL), connection.cursor() as cursor:
        cursor.execute("NOTIFY pgjobs")  # it is full indeed
