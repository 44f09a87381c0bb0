"""The signals of tasks: who is told of what, when, by whom, and at what cost. Paper §1.6, §8.10."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_pgjobs import signals
from django_pgjobs.execution import events
from django_pgjobs.models import Job
from django_pgjobs.tasks import PgJobsBackend, enqueue_many, families, job_of, results, sending
from django_pgjobs.testing import run_jobs
from tests.db.tasks_ground import cast

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("our_tasks")]

Told = list[tuple[str, Any, Any]]


class Receiver:
    """Notes what it is told, with the row as it is then."""

    def __init__(self) -> None:
        self.told: Told = []
        self.raises: BaseException | None = None

    def note(self, what: str, sender: Any, task_result: Any) -> None:
        self.told.append((what, sender, task_result))
        if self.raises is not None:
            raise self.raises

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(what, str(result.status)) for what, _, result in self.told]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    connected = []
    for what in ("enqueued", "started", "finished"):
        signal = getattr(families, f"task_{what}")

        def receive(sender: Any, task_result: Any, what: str = what, **_: Any) -> None:
            made.note(what, sender, task_result)

        signal.connect(receive, weak=False)
        connected.append((signal, receive))
    yield made
    for signal, receive in connected:
        signal.disconnect(receive)


def test_each_start_and_one_end_are_told_with_the_row_of_then(receiver: Receiver) -> None:
    """Never an end for a retry; the class is the sender."""
    result = cast.fails.enqueue()
    run_jobs()
    assert receiver.kinds == [
        ("enqueued", "READY"),
        ("started", "RUNNING"),
        ("started", "RUNNING"),
        ("finished", "FAILED"),
    ]
    assert {sender for _, sender, _ in receiver.told} == {PgJobsBackend}
    assert [told.attempts for _, _, told in receiver.told] == [0, 1, 2, 2]
    assert [len(told.errors) for _, _, told in receiver.told] == [0, 0, 1, 2]
    result.refresh()
    assert receiver.told[-1][2] == result


@pytest.mark.parametrize("task", ["asleep", "echo", "in_context"])
def test_every_kind_of_task_tells_of_itself(receiver: Receiver, task: str) -> None:
    getattr(cast, task).enqueue(3)
    run_jobs()
    assert receiver.kinds == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
    assert receiver.told[-1][2].return_value in (4, 3, [1, Job.objects.get().pk, 3])


def test_a_receiver_that_raises_harms_nothing(receiver: Receiver) -> None:
    receiver.raises = RuntimeError("of the receiver")
    result = cast.echo.enqueue(1)
    run_jobs()
    result.refresh()
    assert (result.status, len(receiver.told)) == ("SUCCESSFUL", 3)


def test_an_end_that_no_worker_wrote_is_told_after_its_commit(
    receiver: Receiver, django_capture_on_commit_callbacks: Any
) -> None:
    """O8."""
    result = cast.noop.enqueue()
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        Job.objects.get(pk=result.id).cancel(by="ops")
        assert receiver.kinds == [("enqueued", "READY")]
    assert receiver.kinds[1:] == [("finished", "FAILED")]
    assert receiver.told[-1][2].errors[0].traceback == "Cancelled by ops"


def test_a_key_conflict_enqueues_nothing(receiver: Receiver) -> None:
    """§1.2."""
    cast.index.enqueue(1)
    cast.index.enqueue(1)
    assert receiver.kinds == [("enqueued", "READY")]


def test_many_are_told_one_by_one_but_not_those_there_are(receiver: Receiver) -> None:
    cast.index.enqueue(1)
    ids = enqueue_many(cast.index, [((1,), {}), ((2,), {}), ((3,), {})])
    assert [result.id for _, _, result in receiver.told] == [ids[0], ids[1], ids[2]]
    assert [result.args for _, _, result in receiver.told] == [[1], [2], [3]]


def test_jobs_of_their_own_are_no_tasks(receiver: Receiver) -> None:
    cast.native.register(1)
    run_jobs()
    assert receiver.told == []


def test_a_bypass_has_no_row_and_tells_of_its_start(receiver: Receiver) -> None:
    from django_pgjobs.testing import wait_for_bypassed

    job_of(cast.noop).using(bypass=True).register()
    wait_for_bypassed()
    assert ("started", "RUNNING") in receiver.kinds


@pytest.mark.usefixtures("receivers_as_before")
def test_a_row_that_is_gone_by_then_is_told_of_all_the_same(receiver: Receiver) -> None:
    """T13: with what is known without it, as with a retention of 0."""

    def delete(job_id: int, **_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM pgjobs_job WHERE id = %s", [job_id])

    signals.job_finished.connect(delete)
    result = cast.echo.enqueue(1)
    run_jobs()
    assert not Job.objects.exists()
    assert receiver.kinds[-1] == ("finished", "SUCCESSFUL")
    assert receiver.told[-1][2].id == result.id


# The log, and what it costs


@pytest.fixture
def quiet() -> Iterator[logging.Logger]:
    """Django's logger as ``runjobs`` leaves it: at WARNING."""
    log = logging.getLogger(families.FAMILY)
    before = log.level
    log.setLevel(logging.WARNING)
    yield log
    log.setLevel(before)


def test_nobody_hears_of_successes_by_default(quiet: logging.Logger) -> None:
    """No end of a job costs a message, though Django's own receiver is connected."""
    assert families.task_finished.receivers
    assert events.interest() == {"abandoned"}
    assert not sending.anybody_wants_starts()
    quiet.setLevel(logging.INFO)
    assert events.interest() == {"abandoned", "succeeded"}
    assert sending.anybody_wants_starts()
    quiet.setLevel(logging.CRITICAL)
    assert events.interest() == set()


@pytest.mark.parametrize("action", ["cancel", "abandon"])
def test_whoever_ends_thousands_of_tasks_mails_nobody(
    quiet: logging.Logger, caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Any, action: str
) -> None:
    """T10: by default Django mails each ERROR of this logger, here in the operator's own request."""
    enqueue_many(cast.noop, [((), {})] * 3)
    with django_capture_on_commit_callbacks(execute=True):
        assert getattr(Job.objects.all(), action)(by="ops").changed == 3
    assert [record for record in caplog.records if record.name == families.FAMILY] == []


def test_without_a_backend_of_ours_nobody_wants_to_hear_of_ends(receiver: Receiver) -> None:
    with override_settings(TASKS={}):
        assert not [listener for listener in signals.job_finished.listeners if listener.is_interested("abandoned")]


def test_the_line_of_a_success_needs_no_row(
    quiet: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.setLevel(logging.INFO)
    monkeypatch.setattr(results, "read_result", lambda *_: pytest.fail("a row was read"))
    result = cast.echo.enqueue(1)
    run_jobs()
    lines = [record.getMessage() for record in caplog.records if record.name == families.FAMILY]
    path = "tests.db.tasks_cast.echo"
    assert lines == [f"Task id={result.id} path={path} state={state}" for state in ("RUNNING", "SUCCESSFUL")]


def test_in_the_process_of_the_task_the_line_of_a_failure_has_its_exception(
    quiet: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    """§1.6: ``run_jobs`` and ``--inline`` have the live exception, and leave it as it was."""
    cast.fails.enqueue("of the task")
    ran = run_jobs()
    [record] = [record for record in caplog.records if record.name == families.FAMILY]
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "of the task"
    trace, files = ran.errors[-1].__traceback__, []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert sending.__file__ not in files


@pytest.mark.parametrize("cancels", [False, True])
def test_an_exception_that_was_retried_is_not_that_of_the_end(
    receiver: Receiver, cancels: bool, django_capture_on_commit_callbacks: Any
) -> None:
    """In the same process: neither a later success nor an operator's cancel was raised by it."""
    seen: list[Any] = []
    receiver.note = lambda what, *_: seen.append((what, sys.exc_info()[1]))  # type: ignore[method-assign]
    result = cast.in_context.enqueue(1)
    run_jobs(limit=1)
    if cancels:
        with django_capture_on_commit_callbacks(execute=True):
            Job.objects.get(pk=result.id).cancel(by="ops")
    else:
        run_jobs()
    assert seen[-1] == ("finished", None)
    assert [error for _, error in seen] == [None] * len(seen)
