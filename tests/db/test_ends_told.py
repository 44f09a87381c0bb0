"""``job_finished`` for ends that no worker writes: from the process that wrote them, after its commit (O8)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_pgjobs import Batch, Unique, register_many, signals
from django_pgjobs import job as define
from django_pgjobs.context import JobContext
from django_pgjobs.models import Job
from django_pgjobs.queues import Queue
from django_pgjobs.store.steering import send_finished
from django_pgjobs.testing import run_jobs
from tests.db.steering_ground import cancelled, ending, running, succeeded
from tests.plugins.fix_db import RawDatabase, claim, register

pytestmark = pytest.mark.usefixtures("committed")


@define(name="told.plain")
def plain(n: int = 0) -> None: ...


@define(name="told.careful")
def careful() -> None: ...


@careful.on_cancel
def undo(context: JobContext) -> None: ...


@careful.on_abandon
def apologise(context: JobContext) -> None: ...


Told = list[dict[str, Any]]


@pytest.fixture
def told() -> Iterator[Told]:
    """What a receiver of ``job_finished`` is told, with the sender."""
    found: Told = []

    def receive(sender: Any, **fields: Any) -> None:
        found.append({"sender": sender, **{name: value for name, value in fields.items() if name != "signal"}})

    signals.job_finished.connect(receive)
    yield found
    signals.job_finished.disconnect(receive)


def hooks() -> list[Any]:
    """What is to be told when the open transaction commits."""
    found: list[Any] = connection.run_on_commit
    return [hook for hook in found if getattr(hook[1], "func", hook[1]).__module__ == send_finished.__module__]


def ids_of(told: Told) -> list[int]:
    return [fields["job_id"] for fields in told]


def test_a_cancel_tells_who_listens_once_with_all_that_is_known(told: Told) -> None:
    one = plain.using(queue="mail").register()
    one.cancel(by="ops", reason="not needed")
    one.cancel(by="ops")
    assert told == [
        {
            "sender": plain, "job_id": one.pk, "name": "told.plain", "queue": "mail", "attempt": 0,
            "outcome": "cancelled", "database": "default", "executor": "", "duration": None, "error": "",
            "by_worker": False,
        }
    ]  # fmt: skip


def test_an_abandon_tells_why_in_one_line(told: Told) -> None:
    one = plain.register()
    one.abandon(by="ops", reason="broken\nfor ever")
    [fields] = told
    assert (fields["job_id"], fields["outcome"]) == (one.pk, "abandoned")
    assert fields["error"] == "Abandoned by ops: broken for ever"


def test_a_name_that_this_process_does_not_know_has_no_sender(told: Told) -> None:
    [one] = register(name="no.such")
    Job.objects.filter(pk=one).cancel()
    assert [(fields["sender"], fields["name"]) for fields in told] == [(None, "no.such")]


@pytest.mark.parametrize("maker", [running, ending, succeeded, cancelled])
def test_what_has_not_ended_now_or_ended_before_is_not_told(
    raw: RawDatabase, told: Told, maker: Callable[[RawDatabase], int]
) -> None:
    """Its worker tells the end of a running job; a callback that is left belongs to a worker, too."""
    one = Job.objects.filter(pk=maker(raw))
    one.cancel()
    one.abandon()
    assert told == []


def test_a_job_with_a_callback_is_told_when_a_worker_has_run_it(told: Told) -> None:
    first, second = careful.register(), careful.register()
    first.cancel()
    second.abandon()
    assert told == []
    run_jobs()
    assert sorted((fields["job_id"], fields["outcome"]) for fields in told) == [
        (first.pk, "cancelled"),
        (second.pk, "abandoned"),
    ]


def test_the_row_says_so_when_a_receiver_is_told(raw: RawDatabase) -> None:
    """After the commit: another connection sees the end."""
    seen: list[str] = []

    def look(sender: Any, job_id: int, **fields: Any) -> None:
        seen.append(raw.value("SELECT outcome FROM pgjobs_job WHERE id = %s", [job_id]))

    signals.job_finished.connect(look)
    try:
        one, other = plain.register(), plain.register()
        one.cancel()
        with transaction.atomic():
            other.abandon()
            assert seen == ["cancelled"]
        assert seen == ["cancelled", "abandoned"]
    finally:
        signals.job_finished.disconnect(look)


def test_nothing_that_was_rolled_back_is_told(told: Told) -> None:
    one, other = plain.register(), plain.register()
    with suppress(ZeroDivisionError), transaction.atomic():
        one.cancel()
        raise ZeroDivisionError
    with transaction.atomic():
        with suppress(ZeroDivisionError), transaction.atomic():
            one.cancel()
            raise ZeroDivisionError
        other.cancel()
        assert told == []
    assert ids_of(told) == [other.pk]


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_replaced_job_is_told(told: Told, *, many: bool) -> None:
    old = plain.using(unique="k").register(1)
    new = plain.using(unique=Unique("k", on_conflict="replace"))
    if many:
        register_many([new.bind(2), plain.bind(3)])
    else:
        new.register(2)
    assert [(fields["job_id"], fields["outcome"]) for fields in told] == [(old.pk, "cancelled")]


def test_a_replacement_that_is_rolled_back_tells_nothing(told: Told) -> None:
    plain.using(unique="k").register(1)
    with suppress(ZeroDivisionError), transaction.atomic():
        plain.using(unique=Unique("k", on_conflict="replace")).register(2)
        raise ZeroDivisionError
    assert told == []


def test_every_way_to_cancel_tells(told: Told) -> None:
    one, two, three = plain.register(), plain.register(), plain.using(queue="mail").register()
    call_command("pgjobs", "cancel", str(one.pk), stdout=StringIO(), stderr=StringIO())
    Job.objects.filter(pk=two.pk).cancel()
    Queue("mail").cancel(three.pk)
    assert ids_of(told) == [one.pk, two.pk, three.pk]


def test_each_job_of_a_cancelled_batch_is_told_once(told: Told) -> None:
    """Their ends count in a gate, so workers write and tell them; nobody else does."""
    with Batch("told") as batch:
        for n in range(3):
            batch.add(plain.bind(n))
    batch.job.cancel()
    run_jobs()
    members = list(Job.objects.filter(parent_id=batch.job.pk).order_by("pk").values_list("pk", flat=True))
    assert len(members) == 3
    assert set(Job.objects.filter(pk__in=[batch.job.pk, *members]).values_list("outcome", flat=True)) == {"cancelled"}
    found = [job_id for job_id in ids_of(told) if job_id in {batch.job.pk, *members}]
    assert sorted(found) == [batch.job.pk, *members]


@pytest.mark.parametrize("atomic", [False, True])
def test_very_many_cost_no_query_each(told: Told, monkeypatch: pytest.MonkeyPatch, *, atomic: bool) -> None:
    """Without a transaction they are told batch by batch, else all at the commit."""
    monkeypatch.setattr("django_pgjobs.steering.batching.BATCH", 10)
    ids = register(25)

    def cancel() -> int:
        before = len(told)
        with CaptureQueriesContext(connection) as queries:
            if atomic:
                with transaction.atomic():
                    Job.objects.filter(pk__in=ids).cancel()
                    assert len(told) == before
            else:
                Job.objects.filter(pk__in=ids).cancel()
        return len(queries)

    with_a_listener = cancel()
    assert sorted(ids_of(told)) == ids
    ids = register(25)
    receivers, signals.job_finished.receivers = signals.job_finished.receivers, []
    try:
        without = cancel()
    finally:
        signals.job_finished.receivers = receivers
    assert with_a_listener == without
    assert len(told) == 25


def test_nothing_is_kept_while_nobody_listens() -> None:
    one = plain.register()
    with transaction.atomic():
        one.abandon()
        assert hooks() == []


def test_what_is_kept_until_the_commit_is_one_entry_for_all_alike(told: Told) -> None:
    """Millions of jobs may end in one transaction."""
    ids = register(500)
    with transaction.atomic():
        Job.objects.filter(pk__in=ids).cancel()
        [hook] = hooks()
        [(_, kept)] = hook[1].args[0].items()
        assert kept.itemsize * len(kept) == 8 * 500
    assert ids_of(told) == ids


def test_a_receiver_that_raises_changes_nothing(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    def raises(**fields: Any) -> None:
        raise ZeroDivisionError

    signals.job_finished.connect(raises)
    try:
        ids = [plain.register().pk, plain.register().pk]
        with caplog.at_level(logging.ERROR):
            assert Job.objects.filter(pk__in=ids).cancel().changed == 2
    finally:
        signals.job_finished.disconnect(raises)
    assert ids_of(told) == ids


def test_a_listener_is_told_what_it_wants_and_nothing_is_kept_for_it_otherwise() -> None:
    """§1.6: a front whose receivers are always there costs nothing while they would do nothing."""
    heard: list[tuple[int, str]] = []
    wanted = {"abandoned"}

    def listener(sender: Any, job_id: int, outcome: str, **fields: Any) -> None:
        heard.append((job_id, outcome))

    signals.job_finished.add_listener(listener, wanted.__contains__)
    try:
        one, other, third = plain.register(), plain.register(), plain.register()
        with transaction.atomic():
            one.cancel()
            assert hooks() == []
        other.abandon()
        wanted.add("cancelled")
        third.cancel()
    finally:
        signals.job_finished.remove_listener(listener)
    assert heard == [(other.pk, "abandoned"), (third.pk, "cancelled")]


def test_a_job_that_had_run_before_tells_its_attempt(raw: RawDatabase, told: Told) -> None:
    [one] = register()
    Job.objects.filter(pk=one).update(attempt=2)
    Job.objects.filter(pk=one).abandon()
    assert [(fields["attempt"], fields["duration"]) for fields in told] == [(2, None)]
    assert claim(raw).jobs == []


class InATestCase(TestCase):
    """Hooks run where Django's tests ask for it."""

    def test_a_cancel_is_told_by_captured_hooks(self) -> None:
        found: list[int] = []

        def receive(sender: Any, job_id: int, **fields: Any) -> None:
            found.append(job_id)

        signals.job_finished.connect(receive)
        self.addCleanup(signals.job_finished.disconnect, receive)
        one = plain.register()
        with self.captureOnCommitCallbacks(execute=True):
            one.cancel()
            assert found == []
        assert found == [one.pk]
