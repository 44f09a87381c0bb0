"""Pruning takes nothing that something unfinished still needs, whichever way it is pruned, paused or moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import F

from django_pgjobs import Batch, Flow, JobContext, job, sql
from django_pgjobs.exceptions import Abandon
from django_pgjobs.maintenance.mending import Mender
from django_pgjobs.maintenance.pruning import Pruner, PruneRule
from django_pgjobs.models import Job, QueueState
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.states import FlowFlag as Flags
from django_pgjobs.states import Outcome
from django_pgjobs.store.database import on
from django_pgjobs.store.pruning import prune_jobs
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import Background, RawDatabase, wait_until
from tests.plugins.sabotage import sabotage

STATEMENT = sql.statement

LATE = "late"
"""The queue of what is left to do when the tables are pruned."""

said: list[Any] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()
    broken.clear()


@job(name="needed.book", max_attempts=1)
def book(number: int) -> int:
    return number * 10


@book.undo(max_attempts=1, queue=LATE)
def unbook(context: JobContext, number: int) -> None:
    if "undo" in broken:
        raise ValueError("not now")
    said.append((number, context.target.result))


@job(name="needed.fail", max_attempts=1)
def fail() -> None:
    raise ValueError("it fails")


@job(name="needed.count", takes_context=True, queue=LATE)
def count(context: JobContext) -> None:
    """Say what is there of the batch that it needs."""
    [batch] = context.inputs.jobs
    said.append(sorted(batch.members.values_list("result", flat=True)))


@job(name="needed.sum", queue=LATE)
def add_up(parts: list[int]) -> None:
    said.append(sum(parts))


@job(name="needed.gather", takes_context=True, max_attempts=1, queue=LATE)
def gathers(context: JobContext) -> None:
    said.append(context.gather([book.using(queue="default").bind(n) for n in (1, 2)]))


@job(name="needed.saga", takes_context=True, max_attempts=1, queue=LATE)
def saga(context: JobContext) -> None:
    for number in (1, 2):
        context.step.using(key=number, undo=unbook)(book, number)
    raise Abandon("refused")


# What is unfinished, and what its end says


def _batch(**options: Any) -> Batch:
    with Batch("needed", **options) as batch:
        batch.add_many([book.bind(1), book.bind(2)])
    return batch


def open_batch() -> list[Any]:
    batch = Batch("open", settled=count.bind(), queue=LATE).open()
    batch.add_many([book.bind(1), book.bind(2)])
    batch.add(book.using(queue=LATE).bind(3))
    run_jobs(queues="default")
    batch.close()
    return [[10, 20, 30]]


def callback() -> list[Any]:
    _batch(settled=count.bind())
    run_jobs(queues="default")
    return [[10, 20]]


def flow_needed() -> list[Any]:
    flow = Flow("needed")
    for number in (1, 2):
        flow.add(book.bind(number))
    count.using(after=flow.register()).register()
    run_jobs(queues="default")
    return [[10, 20]]


def result_to_come() -> list[Any]:
    flow = Flow("sum", queue=LATE)
    flow.add(add_up.bind([flow.add(book.bind(number)).result for number in (1, 2)]))
    flow.register()
    run_jobs(queues="default")
    return [30]


def need_of_one() -> list[Any]:
    one = _batch().job
    run_jobs(queues="default")
    count.using(after=one).register()
    return [[10, 20]]


def gather_before_its_members() -> list[Any]:
    gathers.register()
    run_jobs(queues=LATE)
    run_jobs(queues="default")
    return [[10, 20]]


def gather_before_it_is_woken() -> list[Any]:
    gather_before_its_members()
    run_jobs(queues=LATE, limit=1)
    assert Job.objects.get(name="pgjobs.batch").outcome == "succeeded"
    return [[10, 20]]


def gather_before_it_reads() -> list[Any]:
    gather_before_it_is_woken()
    run_jobs(queues=LATE, limit=1)
    assert Job.objects.get(name="pgjobs.wake").outcome == "succeeded"
    return [[10, 20]]


def _failing() -> None:
    with Batch("undone", undo=True, queue=LATE) as batch:
        batch.add_many([book.bind(1), book.bind(2), fail.bind()])
    run_jobs(queues="default")


def undo_to_come() -> list[Any]:
    _failing()
    return [(2, 20), (1, 10)]


def undo_of_a_batch() -> list[Any]:
    _failing()
    run_jobs(queues=LATE, limit=1)
    assert Job.objects.get(name="pgjobs.undo").outcome is None
    return [(2, 20), (1, 10)]


def undo_halfway() -> list[Any]:
    _failing()
    while not said:
        run_jobs(queues=LATE, limit=1)
    return [(2, 20), (1, 10)]


def undo_of_a_flow() -> list[Any]:
    flow = Flow("undone", undo=True, queue=LATE)
    flow.add(fail.bind(), [flow.add(book.bind(number)) for number in (1, 2)])
    flow.register()
    run_jobs(queues="default")
    run_jobs(queues=LATE, limit=1)
    return [(2, 20), (1, 10)]


def undo_of_steps() -> list[Any]:
    saga.register()
    run_jobs(queues=LATE, limit=1)
    assert Job.objects.get(name="needed.saga").outcome == "abandoned"
    return [(2, 20), (1, 10)]


UNFINISHED = (
    open_batch, callback, flow_needed, result_to_come, need_of_one, gather_before_its_members,
    gather_before_it_is_woken, gather_before_it_reads, undo_to_come, undo_of_a_batch, undo_halfway, undo_of_a_flow,
    undo_of_steps,
)  # fmt: skip

# How it is paused or moved, and pruned


def left_alone() -> None: ...


def queue_paused() -> None:
    Queue(LATE).pause()


def names_paused() -> None:
    unfinished = Job.objects.filter(finished_at=None).exclude(name__startswith="pgjobs.")
    for name in unfinished.values_list("name", flat=True).distinct():
        pauses.pause("job", name)


def moved() -> None:
    Job.objects.filter(finished_at=None).reschedule(queue="other", delay=0)


STEERED = (left_alone, queue_paused, names_paused, moved)


def by_the_leader(settings: Any) -> None:
    Pruner()(on("default"))


def without_retention(settings: Any) -> None:
    settings.PGJOBS = {**settings.PGJOBS, "RETENTION": dict.fromkeys(Outcome, 0)}
    Pruner()(on("default"))


def by_command(settings: Any) -> None:
    for which in (["--queue", "default"], ["--outcome", "succeeded"], []):
        with suppress(SystemExit):  # it says that some were skipped
            call_command("pgjobs", "prune", "--older-than", "2m", *which, "--yes")


WAYS = (by_the_leader, without_retention, by_command)


def _years_pass() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgjobs_job SET finished_at = finished_at - interval '3 years'")


@pytest.mark.django_db
@pytest.mark.parametrize("pruned", WAYS)
@pytest.mark.parametrize("steered", STEERED)
@pytest.mark.parametrize("unfinished", UNFINISHED)
def test_what_something_unfinished_points_to_is_not_pruned(
    unfinished: Callable[[], list[Any]], steered: Callable[[], None], pruned: Callable[[Any], None], settings: Any
) -> None:
    """W34: a queue or a name may be paused for longer than the retention; then everything ends as it would have."""
    expected = unfinished()
    steered()
    _years_pass()
    pruned(settings)
    # Without retention an end deletes no row that has a bit in ``flow``: so nothing of this either.
    assert not Job.objects.exclude(finished_at=None).filter(flow=0).exists()
    for pause in QueueState.objects.current():
        pauses.resume(pause.kind, pause.name)
    run_jobs()
    assert said == expected
    assert not Job.objects.filter(finished_at=None).exists()
    _years_pass()
    for _ in range(3):  # members go behind what needs them, an undo behind what it has undone
        Pruner()(on("default"))
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_an_undo_that_failed_finds_later_what_it_is_to_undo() -> None:
    """Members stay as long as their batch, not for the day of what succeeded."""
    broken.add("undo")
    undo_of_a_batch()
    run_jobs()
    undo = Job.objects.get(name="pgjobs.undo")
    assert (undo.outcome, said) == ("abandoned", [])
    _years_pass()
    Pruner(rules=[PruneRule("succeeded", 60.0)])(on("default"))
    broken.clear()
    assert undo.retry().changed == 1
    run_jobs()
    assert said == [(2, 20), (1, 10)]


@pytest.mark.django_db
def test_what_was_undone_is_not_retried_as_long_as_it_is_there() -> None:
    """The row of the undo says so; what succeeded is kept for a shorter time than what was abandoned."""
    undo_of_a_batch()
    run_jobs()
    _years_pass()
    Pruner(rules=[PruneRule("succeeded", 60.0)])(on("default"))
    assert Job.objects.get(name="needed.fail").retry().skipped == {"undone": 1}


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("undone", [undo_of_a_batch, undo_of_steps], ids=lambda undone: undone.__name__)
def test_what_is_to_be_undone_stays_while_the_job_that_undoes_it_is_gone(
    undone: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch, raw: RawDatabase
) -> None:
    """Its row was deleted, and the leader registers another at its next turn."""
    expected = undone()
    raw.query("DELETE FROM pgjobs_job WHERE name = 'pgjobs.undo'")
    kept = sorted(Job.objects.values_list("pk", flat=True))
    assert prune_jobs(on("default"), kept, until="infinity") == []
    with transaction.atomic(), monkeypatch.context() as sabotaged:
        [line] = [line for line in STATEMENT("prune_jobs").splitlines() if "p.flow & 256" in line]
        sabotage(sabotaged, "prune_jobs", line)
        assert sorted(prune_jobs(on("default"), kept, until="infinity") or ()) == kept, "the sabotaged twin"
        transaction.set_rollback(True)
    assert Mender()(raw) == 1
    run_jobs()
    assert said == expected


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("undone", [undo_of_a_batch, undo_of_steps], ids=lambda undone: undone.__name__)
def test_what_was_undone_is_not_undone_again_by_an_undo_that_is_registered_anew(
    undone: Callable[[], list[Any]], raw: RawDatabase
) -> None:
    """The compensations say what was undone, as long as that is there; the row of the undo may be lost."""
    expected = undone()
    run_jobs()
    assert said == expected
    undo = Job.objects.get(name="pgjobs.undo")
    Job.objects.filter(pk=str(undo.target_id)).update(flow=F("flow").bitor(Flags.UNDOING.value))
    raw.query("DELETE FROM pgjobs_memo WHERE job_id = %s", [undo.pk])
    raw.query("DELETE FROM pgjobs_job WHERE id = %s", [undo.pk])
    _years_pass()
    Pruner(rules=[PruneRule("succeeded", 60.0, names=(unbook.name,))])(on("default"))
    assert Mender()(raw) == 1
    run_jobs()
    assert said == expected
    assert Job.objects.get(name="pgjobs.undo").outcome == "succeeded"


def test_a_job_that_another_begins_to_need_while_it_is_pruned_stays(
    background: Background, monkeypatch: pytest.MonkeyPatch, raw: RawDatabase
) -> None:
    """The registration commits after the statement has read the links, and before it locks the job."""
    one = book.register(1)
    run_jobs()
    with pruned_slowly(background, monkeypatch, raw, one) as pruning:
        add_up.using(after=one).register([1])
    assert pruning.result() == []


@contextmanager
def pruned_slowly(
    background: Background, monkeypatch: pytest.MonkeyPatch, raw: RawDatabase, one: Job
) -> Iterator[Future[list[int] | None]]:
    """Prune this job by a statement that has read what needs it, and locks it after the block."""
    slow = sql.statement("prune_jobs").replace(
        "old AS MATERIALIZED (", "waits AS MATERIALIZED (SELECT pg_advisory_xact_lock(36)),\nold AS MATERIALIZED ("
    ).replace("WHERE j.xmin", "WHERE (SELECT count(*) FROM waits) = 1 AND j.xmin")  # fmt: skip
    monkeypatch.setattr(sql, "statement", lambda name: slow if name == "prune_jobs" else STATEMENT(name))
    raw.query("SELECT pg_advisory_lock(36)")
    pruning = background(lambda: prune_jobs(on("default"), [one.pk], until="infinity"))
    wait_until(lambda: waiters(raw) == 1, 10, "the statement has its snapshot and waits")
    yield pruning
    raw.query("SELECT pg_advisory_unlock(36)")


def waiters(raw: RawDatabase) -> int:
    return int(raw.value(
        "SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database AND d.datname = current_database()"
        " WHERE locktype = 'advisory' AND NOT granted"
    ))  # fmt: skip


@job(name="needed.refuse", max_attempts=1)
def refuse(number: int) -> None:
    if "refuse" not in broken:
        raise Abandon(f"not {number}")


def needed_by_one_that_refused() -> tuple[Job, Job]:
    one = book.register(1)
    dependent = refuse.using(after=one).register(1)
    run_jobs()
    return one, dependent


def test_a_retry_waits_for_a_prune_that_deletes_what_the_job_needed(
    background: Background, monkeypatch: pytest.MonkeyPatch, raw: RawDatabase
) -> None:
    """No commit is between what the prune has read and what it deletes: the retry is before both, or behind both."""
    one, dependent = needed_by_one_that_refused()
    with pruned_slowly(background, monkeypatch, raw, one) as pruning:
        retry = background(lambda: Job.objects.filter(pk=dependent.pk).retry())
        wait_until(lambda: waiters(raw) == 2, 10, "the retry waits, too")
        assert Job.objects.get(pk=dependent.pk).outcome == "abandoned"
    assert pruning.result() == [one.pk]
    assert retry.result().changed == 1


def test_while_a_retry_is_under_way_nothing_is_pruned(background: Background) -> None:
    """It has not committed that another job is needed again; the pruner comes back."""
    one, dependent = needed_by_one_that_refused()
    with transaction.atomic():
        assert Job.objects.filter(pk=dependent.pk).retry().changed == 1
        assert background(lambda: prune_jobs(on("default"), [one.pk], until="infinity")).result() is None
    assert prune_jobs(on("default"), [one.pk], until="infinity") == [], "the job needs it"
    broken.add("refuse")
    run_jobs()
    assert sorted(prune_jobs(on("default"), [one.pk, dependent.pk], until="infinity") or ()) == [one.pk, dependent.pk]


def test_without_the_lock_of_retries_a_retry_commits_while_what_it_needs_is_deleted(
    background: Background, monkeypatch: pytest.MonkeyPatch, raw: RawDatabase
) -> None:
    """The sabotaged twin."""
    one, dependent = needed_by_one_that_refused()
    with pruned_slowly(background, monkeypatch, raw, one) as pruning:
        sabotage(monkeypatch, "lock_pruning", "ELSE pg_advisory_xact_lock_shared(", "ELSE num_nulls(")
        retry = background(lambda: Job.objects.filter(pk=dependent.pk).retry())
        assert retry.result(60).changed == 1
    assert pruning.result() == [one.pk]
    assert Job.objects.get(pk=dependent.pk).outcome is None, "it runs again, without what it needs"


def test_without_the_lock_of_a_prune_it_deletes_what_a_retry_begins_to_need(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin."""
    one = book.register(1)
    dependent = refuse.using(after=one).register(1)
    run_jobs()
    line = next(line for line in STATEMENT("lock_pruning").splitlines() if "pg_try_advisory" in line)
    sabotage(monkeypatch, "lock_pruning", line, "THEN %(class)s::integer > 0")
    with transaction.atomic():
        assert Job.objects.filter(pk=dependent.pk).retry().changed == 1
        assert background(lambda: prune_jobs(on("default"), [one.pk], until="infinity")).result() == [one.pk]


def test_a_pruner_comes_back_after_a_retry_and_says_nothing_of_it(background: Background) -> None:
    """What it has listed stays listed: neither skipped nor left to a later walk."""
    one = book.register(1)
    dependent = refuse.register(1)
    run_jobs()
    _years_pass()
    pruner = Pruner(rules=[PruneRule("succeeded", 60.0)])
    with transaction.atomic():
        assert Job.objects.filter(pk=dependent.pk).retry().changed == 1
        assert background(lambda: pruner(on("default"))).result() == 0
    wait_until(lambda: pruner(on("default")) == 1, 10, "it deletes the job")
    assert not Job.objects.filter(pk=one.pk).exists()
    assert pruner.skipped == 0
