"""A router that reads from a replica: steering a row read there goes to the router's write database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections
from django.test import Client

from django_pgjobs import Cron, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import JobNotFinished
from django_pgjobs.models import CronEntry, Job, QueueState
from django_pgjobs.queues import Queue
from django_pgjobs.store import firing, registering
from django_pgjobs.store.database import on, written_at
from django_pgjobs.store.new_jobs import NewJob

pytestmark = pytest.mark.django_db(transaction=True)

CRONS = "/admin/pgjobs/cronentry/"
PAUSES = "/admin/pgjobs/queuestate/"


def clean() -> None: ...


class OursFromReplica:
    def db_for_read(self, model: type, **hints: object) -> str | None:
        return "replica" if model.__module__.startswith("django_pgjobs") else None

    def db_for_write(self, model: type, **hints: object) -> str:
        return "default"


def elsewhere(alias: str, **options: str) -> Iterator[str]:
    """Another alias of the test database, with a connection of its own."""
    own: Any = connection.copy(alias)
    said = " ".join(f"-c {name}={value}" for name, value in options.items())
    own.settings_dict["OPTIONS"] = {**own.settings_dict.get("OPTIONS", {}), "options": said}
    connections[alias] = own
    yield alias
    own.close()
    del connections[alias]


@pytest.fixture
def replica(settings: Any) -> Iterator[str]:
    """Where nothing can be written, and from where everything of ours is read."""
    settings.DATABASE_ROUTERS = [OursFromReplica()]
    yield from elsewhere("replica", default_transaction_read_only="on")


@pytest.fixture
def second() -> Iterator[str]:
    """Where jobs are because somebody named it, and of which the router knows nothing."""
    yield from elsewhere("second")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with registry.isolated():
        definition = job(name="shop.clean")(clean)
        declared = Cron("0 3 * * *", definition.bind(), name="nightly").declared()
        firing.declare_cron(on("default"), declared, overwrite=True, fresh_seconds=0)
        yield


def registered() -> int:
    return registering.register_plain(connection, NewJob("shop.clean", "{}")).id


def test_a_cron_entry_is_steered(replica: str) -> None:
    entry = CronEntry.objects.get(pk="nightly")
    assert entry._state.db == replica
    assert entry.pause(by="ann") == 1
    entry.override(expression="@hourly")
    made = entry.run_now()
    assert entry.stop().changed == 1
    row = CronEntry.objects.get(pk="nightly")
    assert (row.status, row.expression, row.last_job_id) == ("paused", "@hourly", made.pk)


def test_a_job_is_steered_also_from_asynchronous_code(replica: str) -> None:
    row = Job.objects.get(pk=registered())
    assert row._state.db == replica
    again = row.register_again()
    assert row.reschedule(delay=60).changed == 1
    assert row.cancel().changed == 1
    assert async_to_sync(Job.objects.using(replica).get(pk=again.pk).acancel)().changed == 1


def test_a_job_is_waited_for(replica: str) -> None:
    """Who waits says so in the job's row, which takes a write."""
    row = Job.objects.get(pk=registered())
    assert row._state.db == replica
    with pytest.raises(JobNotFinished):
        row.wait(timeout=0.1)
    Job.objects.using("default").get(pk=row.pk).cancel()
    assert row.wait(timeout=5).state == "cancelled"


@pytest.mark.parametrize("verb", ["pause", "run_now", "stop"])
def test_a_cron_entry_is_steered_in_the_admin(replica: str, root: Client, verb: str) -> None:
    assert root.post(f"{CRONS}nightly/steer/{verb}/").status_code == 302
    assert (CronEntry.objects.get().status, Job.objects.count()) == (("on", 1) if verb == "run_now" else ("paused", 0))


def test_a_pause_is_ended_in_the_admin(replica: str, root: Client) -> None:
    state = Queue("default").pause(by="ann")
    assert root.post(PAUSES, {"action": "resume", "_selected_action": [state.pk]}).status_code == 302
    assert list(QueueState.objects.current()) == []


def test_what_was_read_from_an_alias_that_somebody_named_is_steered_there(second: str) -> None:
    """The router of these tests writes everything elsewhere: there another job has its id."""
    assert written_at(Job.objects.using(second).get(pk=registered())) == second
    assert written_at(Job.objects.get()) == "default"
    assert written_at(Job()) == "default"
