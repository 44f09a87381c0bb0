"""Batches and jobs that need others, with real workers: one release, whoever dies, and only then."""

from __future__ import annotations

import os
import random
import signal
from functools import partial

from django.db import transaction

from django_pgjobs import Batch, Flow
from django_pgjobs.models import Job
from django_pgjobs.models.gates import Gate
from tests.e2e import flows, jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import Background, RawDatabase, wait_until
from tests.plugins.fix_worker import Workers, ended, read


def reached(batch: Batch, share: int) -> bool:
    return batch.figures.succeeded >= share


FAST = {"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 0.5, "POLL_SECONDS": 60}


def test_what_comes_after_a_batch_runs_once_and_last_though_executors_die(worker: Workers, stage: Stage) -> None:
    """C40: kill -9 of executors in the middle; each member that they had runs again, and counts once."""
    process = worker(processes=2, conf=FAST)
    with Batch("fan-in", settled=flows.after.bind("done")) as batch:
        batch.add_many(flows.member.bind(n) for n in range(3000))
    for share in (300, 900, 1800):
        wait_until(partial(reached, batch, share), 60, f"{share} members have ended")
        wait_until(lambda: process.ready_executors(), 30, "an executor is ready")
        os.kill(random.choice(process.ready_executors()), signal.SIGKILL)
    (after,) = ended(*Job.objects.filter(name="flows.after"), timeout=60)
    assert (after.outcome, stage.count("after", "done")) == ("succeeded", 1)
    figures = batch.figures
    assert (figures.total, figures.pending) == (3000, 0)
    counted = [Job.objects.filter(parent_id=batch.job.pk, outcome=each).count() for each in ("succeeded", "abandoned")]
    assert [figures.succeeded, figures.abandoned] == counted
    assert batch.job.outcome == ("succeeded" if figures.succeeded == 3000 else "abandoned")


def test_a_worker_that_is_killed_leaves_its_members_to_another(worker: Workers, stage: Stage) -> None:
    first = worker(conf=FAST, threads=2)
    with Batch("two workers", settled=flows.after.bind("second")) as batch:
        batch.add_many(jobs.waits.bind("gate") for _ in range(2))
    wait_until(lambda: stage.count("start", "gate") == 2, 30, "both members run")
    worker(conf=FAST, threads=2)
    first.kill()
    stage.open("gate")
    (after,) = ended(*Job.objects.filter(name="flows.after"), timeout=60)
    assert (after.outcome, batch.figures.succeeded, stage.count("after", "second")) == ("succeeded", 2, 1)


def test_an_atomic_member_counts_with_its_commit(worker: Workers, stage: Stage) -> None:
    worker(conf=FAST)
    with Batch("atomic", succeeded=flows.after.bind("atomic")) as batch:
        batch.add_many(flows.pays.bind(n) for n in range(20))
    (after,) = ended(*Job.objects.filter(name="flows.after"), timeout=60)
    assert (after.outcome, batch.figures.succeeded, stage.count("after", "atomic")) == ("succeeded", 20, 1)


def test_a_job_that_comes_to_be_needed_while_it_runs_releases_the_other(worker: Workers, stage: Stage) -> None:
    """Its claim knew nothing of that: its plain end matches no row, and is written the other way."""
    worker(conf=FAST)
    running = jobs.waits.register("late")
    wait_until(lambda: stage.count("start", "late") == 1, 30, "it runs")
    after = flows.after.using(after=running).register("needed late")
    stage.open("late")
    assert [job.outcome for job in ended(running, after)] == ["succeeded", "succeeded"]


def test_a_chain_with_callbacks_ends_level_by_level(worker: Workers, stage: Stage) -> None:
    worker(conf=FAST)
    first = jobs.doomed.register()
    second = flows.after.using(after=first).register("never")
    third = flows.after.using(after=second, when="failed").register("instead")
    assert [job.outcome for job in ended(first, second, third)] == ["abandoned", "cancelled", "succeeded"]
    assert (stage.count("after", "never"), stage.count("after", "instead")) == (0, 1)


def test_a_gate_that_an_operator_holds_keeps_no_other_batch_waiting(
    worker: Workers, stage: Stage, background: Background
) -> None:
    held = Batch("held", settled=flows.after.bind("held")).open()
    held.add_many(flows.member.bind(n) for n in range(20))
    with transaction.atomic():
        Gate.objects.select_for_update().get(pk=held.job.pk)
        worker(processes=2, conf=FAST)  # by now no member's end can be counted

        def other() -> list[Job]:
            with Batch("other", settled=flows.after.bind("other")) as batch:
                batch.add_many(flows.member.bind(n) for n in range(500))
            return ended(*Job.objects.filter(needs__parent=batch.job.pk), timeout=30)

        assert [job.outcome for job in background(other).result()] == ["succeeded"]
        assert Job.objects.filter(parent_id=held.job.pk, finished_at=None).count() == 20
    held.close()
    wait_until(lambda: stage.count("after", "held") == 1, 30, "the held batch goes on")
    assert held.figures.succeeded == 20


def test_an_end_that_a_locked_gate_keeps_waiting_is_not_taken_for_a_job_that_nobody_stopped(
    worker: Workers, stage: Stage, raw: RawDatabase
) -> None:
    """W20: it has succeeded, and its deadline passes while another worker looks on."""
    conf = {
        "LEASE_SECONDS": 12.0,
        "RENEW_SECONDS": 3.0,
        "POLL_SECONDS": 1.0,
        "RESCUE_GRACE_SECONDS": 6.5,
        "CALLBACK_SECONDS": 1.0,
    }
    worker(conf=conf)
    worker(conf=conf)
    batch = Batch("held").open()
    batch.add(flows.seen.bind("x"))
    member = Job.objects.get(parent_id=batch.job.pk)
    wait_until(lambda: stage.count("start", "x") == 1, 30, "it runs")
    with transaction.atomic():
        Gate.objects.select_for_update().get(pk=batch.job.pk)
        # Until then a rescue was due: the grace, and a renewal that would have said so.
        late = "SELECT statement_timestamp() > overdue_at + interval '11 s' FROM pgjobs_job WHERE id = %s"
        wait_until(lambda: raw.value(late, [member.pk]), 40, "its deadline has long passed")
    (member,) = ended(member, timeout=30)
    assert (member.outcome, member.attempt, stage.count("start", "x")) == ("succeeded", 1, 1)


def test_a_worker_that_leaves_says_which_ends_a_lock_has_kept_from_being_written(worker: Workers, stage: Stage) -> None:
    process = worker(conf={**FAST, "DRAIN_SECONDS": 1.0})
    batch = Batch("held").open()
    batch.add(flows.slow.bind("x"))
    wait_until(lambda: stage.count("start", "x") == 1, 30, "it runs")
    with transaction.atomic():
        Gate.objects.select_for_update().get(pk=batch.job.pk)
        stage.open("x")
        wait_until(lambda: stage.count("done", "x") == 1, 30, "it has run")
        assert process.stop() == 0, process.log
    assert process.said("ends could not be written, other workers rescue these jobs jobs=1 locked=1")
    assert not process.said("drain limit reached")


def test_a_cancel_reaches_members_that_run_and_those_that_wait(worker: Workers, stage: Stage) -> None:
    """C50: no retry; what comes after the batch comes after them."""
    worker(conf=FAST, threads=2)
    with Batch("cancelled", settled=flows.after.bind("cancelled")) as batch:
        batch.add_many(jobs.waits.bind("never") for _ in range(10))
    wait_until(lambda: stage.count("start", "never") == 2, 30, "two members run")
    batch.job.cancel(mode="interrupt", by="an operator")
    (after,) = ended(*Job.objects.filter(name="flows.after"), timeout=30)
    assert (after.outcome, read(batch.job).outcome) == ("succeeded", "cancelled")
    assert batch.figures.cancelled == 10
    assert not Job.objects.filter(parent_id=batch.job.pk, attempt__gt=1).exists()


def test_an_operator_lets_go_on_what_waits_and_a_result_that_is_not_there_is_a_clear_error(
    worker: Workers, stage: Stage
) -> None:
    worker(conf=FAST, threads=2)
    flow = Flow("let go on")
    source = flow.add(flows.slow.bind("source"))
    takes, plain = flow.add(flows.after.bind(source.result)), flow.add(flows.after.bind("plain"), after=source)
    made = flow.register()
    wait_until(lambda: stage.count("start", "source") == 1, 30, "the source runs")
    rows = Job.objects.filter(pk__in=[takes.job_id, plain.job_id])
    assert rows.unblock(by="an operator").changed == 2
    first, second = ended(*rows.order_by("pk"), timeout=30)
    text = f"It takes the result of job {source.job_id}, which has not ended."
    assert (first.outcome, first.error) == ("abandoned", f"UnreadablePayload: {text}")
    assert (second.outcome, stage.count("after", "plain")) == ("succeeded", 1)
    stage.open("source")
    (whole,) = ended(made, timeout=30)
    assert (whole.outcome, whole.error) == ("abandoned", "1 of 3 members did not succeed.")
    assert stage.count("after", "plain") == 1
    assert first.retry().changed == 1
    (first,) = ended(first, timeout=30)
    assert (first.outcome, stage.count("after", "source")) == ("succeeded", 1)
    wait_until(lambda: read(made).outcome == "succeeded", 30, "the flow has ended anew")
