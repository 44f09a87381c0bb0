"""A job of one database is never taken for the job of the same number in another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections

from django_pgjobs import Batch, JobContext, job, register_many
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job
from django_pgjobs.queues import Queue
from django_pgjobs.testing import run_jobs

pytestmark = pytest.mark.usefixtures("committed")


@job(name="two.work", max_attempts=1)
def work() -> None: ...


@job(name="two.gathers", takes_context=True, max_attempts=1)
def gathers(context: JobContext) -> None:
    context.gather([work.using(database="far").bind()])


queues: list[Queue] = []


@job(name="two.asks", max_attempts=1)
def asks(context: JobContext) -> None:
    queues.append(Queue(context))
    queues[-1].job(context.id)


def alias(name: str, options: str) -> Iterator[str]:
    own: Any = connection.copy(name)
    own.settings_dict["OPTIONS"] = {**own.settings_dict.get("OPTIONS", {}), "options": options}
    connections[name], connections.settings[name] = own, own.settings_dict
    yield name
    own.close()
    del connections[name], connections.settings[name]


@pytest.fixture
def far() -> Iterator[str]:
    """Another alias, where other jobs have the numbers of those in the default database."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA far")
        cursor.execute("CREATE TABLE far.pgjobs_job (LIKE public.pgjobs_job INCLUDING ALL)")
    yield from alias("far", "-c search_path=far,public")
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA far CASCADE")


@pytest.fixture
def twins(far: str) -> tuple[Job, Job]:
    """Two jobs of one number: here, and in the other database."""
    here = work.register()
    there = work.using(database=far).register()
    Job.objects.filter(pk=here.pk).update(id=there.pk)
    return Job.objects.get(pk=there.pk), there


@pytest.mark.parametrize("way", ["register", "register_many", "a batch"])
def test_a_job_does_not_wait_for_the_job_of_its_number_in_another_database(twins: tuple[Job, Job], way: str) -> None:
    here, there = twins
    call = work.using(after=there).bind()
    ways: dict[str, Callable[[], Any]] = {
        "register": call.register,
        "register_many": lambda: register_many([call]),
        "a batch": lambda: Batch().add(call),
    }
    with pytest.raises(InvalidJob, match=f"after names job {there.pk} of database 'far', and this is for .*'default'"):
        ways[way]()
    assert work.using(after=here).register().state == "blocked"


@pytest.fixture
def replica() -> Iterator[str]:
    yield from alias("replica", "-c default_transaction_read_only=on")


def test_a_job_that_was_read_from_a_replica_is_the_same_job(replica: str) -> None:
    read = Job.objects.using(replica).get(pk=work.register().pk)
    assert work.using(after=[read]).register().state == "blocked"


def test_members_are_added_to_a_batch_that_was_read_from_a_replica(replica: str) -> None:
    with Batch() as batch:
        batch.add(work.bind())
    read = Job.objects.using(replica).get(pk=batch.job.pk)
    Batch.of(read).add(work.bind())
    assert batch.figures.total == 2


def test_a_gather_takes_no_call_for_another_database(far: str) -> None:
    registered = gathers.register()
    run_jobs()
    registered.refresh_from_db()
    assert "job 'two.work' has to go to database 'default', where this one is, not to 'far'" in registered.error


def test_a_job_finds_its_own_queue_in_its_own_database(far: str) -> None:
    there = asks.using(database=far, queue="mail").register()
    assert run_jobs(database=far, raise_errors=True).succeeded == [there.pk]
    assert queues == [Queue("mail", far)]
