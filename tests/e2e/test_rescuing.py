"""Workers that lose jobs, and workers that take them back: leases, late starts, refused ends, broken connections."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import timedelta

import psycopg
import pytest
from django.db import transaction
from django.db.models.functions import Now

from django_pgjobs.models import Heartbeat, Job, LeaderTerm
from django_pgjobs.models.attempts import Claim
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended, history, read

QUICK = {"LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.5, "BEAT_SECONDS": 0.5, "STALE_SECONDS": 2.0}
HEARING = {"PGJOBS_TEST_RECEIVERS": "1"}


def started(stage: Stage, key: object) -> None:
    wait_until(lambda: stage.count("start", key), 20, f"{key} has started")


def warm_up(process: WorkerProcess) -> None:
    """Let a worker learn that jobs are short, so that it claims more than it has threads."""
    ended(*(jobs.no_op.register() for _ in range(40)))


def heard(stage: Stage, job: Job) -> list[tuple[str, ...]]:
    """What the receivers heard of a job."""
    return [trace.words[2:] for trace in stage.traces("signal", job.pk)]


def test_a_job_that_was_taken_while_it_waited_is_not_started(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """C1 C2 W24: claimed together with a slow one, it waits for its thread; its owner is changed meanwhile, by SQL."""
    process = worker(threads=1)
    warm_up(process)
    with transaction.atomic():
        slow, victim = jobs.waits.register("slow"), jobs.effect.register("victim")
    started(stage, "slow")
    taken = "UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s AND claim_id IS NOT NULL RETURNING id"
    wait_until(lambda: raw.query(taken, [victim.pk]), 20, "the second is claimed too, and taken away")
    before = raw.row(victim.pk)
    process.wait_for_log(
        f"lease lost, nothing of the job was changed name=tests.e2e.jobs.effect job={victim.pk} .*could not start"
    )
    stage.open("slow")
    ended(slow, jobs.effect.register("next"))
    assert (stage.count("effect", "victim"), stage.count("effect", "next")) == (0, 1)
    assert raw.row(victim.pk) == before
    assert not process.said(f"lease lost.* job={victim.pk} ", times=2)
    assert process.stop() == 0
    process.wait_for_log("worker stopped jobs=")
    raw.query("UPDATE pgjobs_job SET claim_id = NULL, outcome = 'cancelled', finished_at = now()")


def test_a_job_whose_end_was_taken_back_is_given_up_after_its_deadline(
    worker: Workers, stage: Stage, raw: RawDatabase
) -> None:
    """As by a failover that loses a commit: its claim is renewed, for another job of it still runs."""
    process = worker(threads=1, conf=QUICK)
    warm_up(process)
    with transaction.atomic():
        victim, slow = jobs.effect.register("victim"), jobs.waits.register("slow")
    ended(victim)
    started(stage, "slow")
    raw.query(
        "UPDATE pgjobs_job SET outcome = NULL, finished_at = NULL, overdue_at = now() - interval '1 h' "
        "WHERE id = %s AND claim_id = (SELECT claim_id FROM pgjobs_job WHERE id = %s)",
        [victim.pk, slow.pk],
    )
    assert read(victim).outcome is None, "both are of one claim"
    process.wait_for_log(f"not hold are given up after their deadlines jobs=1: {victim.pk}\n")
    process.wait_for_log(f"job rescued name=tests.e2e.jobs.effect job={victim.pk} .*outcome=retried cause=timeout")
    assert read(slow).attempt == 1
    stage.open("slow")
    ended(slow, victim)
    assert history(victim) == [(1, "timeout")]
    assert (stage.count("effect", "victim"), stage.count("start", "slow")) == (2, 1)


def test_a_job_claimed_long_after_its_deadline_stays_with_a_worker_that_stands_still(
    worker: Workers, stage: Stage, raw: RawDatabase
) -> None:
    """D25 W17: three seconds under a lease of thirty; it is abandoned and told once, by the one that claimed it."""
    stage.open("hear-all")
    conf = {"LEASE_SECONDS": 30.0, "RENEW_SECONDS": 1.0, "BEAT_SECONDS": 1.0}
    other = worker("--queues=other", conf=conf)
    process = worker(threads=1, conf=conf, env=HEARING)
    warm_up(process)
    with transaction.atomic():
        slow, late = jobs.waits.register("slow"), jobs.effect.register("late")
        Job.objects.filter(pk=late.pk).update(deadline=Now() - timedelta(days=2))
    claimed = "SELECT claimed_at FROM pgjobs_job WHERE id = %s AND claim_id IS NOT NULL"
    wait_until(lambda: raw.query(claimed, [late.pk]), 20, "the late one is claimed, too")
    os.kill(process.pid, signal.SIGSTOP)
    [[since]] = raw.query("SELECT statement_timestamp()")
    wait_until(lambda: raw.value("SELECT statement_timestamp() > %s::timestamptz + interval '3 s'", [since]), 20, "3 s")
    os.kill(process.pid, signal.SIGCONT)
    stage.open("slow")
    ended(slow, late)
    assert (read(late).outcome, history(late)) == ("abandoned", [(1, "timeout")])
    assert "had passed before the attempt could start" in read(late).error
    wait_until(lambda: heard(stage, late), 10, "its end is told")
    assert heard(stage, late) == [("finished", "abandoned", "abandoned")]
    assert not other.said("job rescued")
    assert len(re.findall(rf" ERROR .* job={late.pk} ", process.log)) == 1


@pytest.mark.slow
def test_the_jobs_of_a_killed_worker_go_on_with_another(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """C16 C12 D20 W21 W25 W26 P3 A66 X2 X8: within the lease and two seconds; told by line and by signal."""
    lost = worker(conf=QUICK)
    again, once = jobs.waits.register("again"), jobs.waits.using(max_attempts=1).register("once")
    unwanted = jobs.waits.register("unwanted")
    for key in ("again", "once", "unwanted"):
        started(stage, key)
    other = worker(conf=QUICK, env=HEARING)
    wait_until(lambda: Heartbeat.objects.count() == 2, 10, "both beat")
    os.kill(lost.pid, signal.SIGKILL)
    killed = time.monotonic()
    Job.objects.filter(pk=unwanted.pk).cancel(by="anna")
    wait_until(lambda: stage.count("start", "again") == 2, 20, "the other worker runs it")
    assert time.monotonic() - killed < patience(QUICK["LEASE_SECONDS"] + 2)
    stage.open("again")
    after = ended(again, once, unwanted)
    assert [(job.outcome, job.attempt) for job in after] == [("succeeded", 2), ("abandoned", 1), ("cancelled", 1)]
    assert stage.count("start", "once") == 1
    assert history(again) == [(1, "lost")]
    other.wait_for_log("job rescued name=", times=3)
    other.wait_for_log("jobs were rescued from workers that had lost them jobs=")
    wait_until(lambda: ("finished", "succeeded", "succeeded") in heard(stage, again), 10, "all is told")
    told = [words for words in heard(stage, again) if words[0] not in ("started", "ended")]
    assert told[0] == ("rescued", "lost", "1", "default", "ready")
    assert [words[0] for words in told] == ["rescued", "retried", "finished"]
    assert heard(stage, once) == [
        ("rescued", "lost", "1", "default", "abandoned"), ("finished", "abandoned", "abandoned"),
    ]  # fmt: skip
    assert heard(stage, unwanted)[0] == ("rescued", "lost", "1", "default", "cancelled")
    lost.kill()


def test_a_worker_learns_that_it_lost_its_job(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """C39 C44 C45 C64 W23 W24 P19 D16: rescued by another; its job is told to stop, and its end refused."""
    slow: dict[str, object] = {"LEASE_SECONDS": 9.0, "RENEW_SECONDS": 3.0}
    process = worker(conf=slow, env=HEARING)
    job = jobs.obedient.register("fail", 60)
    started(stage, job.pk)
    worker(conf=slow, env=HEARING)
    first = read(job).claim_id
    expire = (
        "UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01'"
        " WHERE claim_id = %s RETURNING 1"
    )
    wait_until(lambda: not raw.query(expire, [first]), 20, "its claim has been rescued, before it was renewed")
    wait_until(lambda: stage.count("saw", job.pk, "True"), 10, "the job is told on the worker that has lost it")
    process.wait_for_log(f"lease lost.*job={job.pk} .*claim={first} ")
    wait_until(lambda: stage.count("start", job.pk) == 2, 20, "it runs again")
    assert ended(jobs.effect.register("next"))[0].outcome == "succeeded"
    Job.objects.filter(pk=job.pk).cancel()
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("cancelled", 2)]
    assert history(job)[0] == (1, "lost")
    wait_until(lambda: [words[0] for words in heard(stage, job)].count("lost") == 1, 10, "and told to who listens")
    [facts] = [trace.words[3:] for trace in stage.traces("facts", job.pk) if trace.words[2] == "lost"]
    assert facts[0].startswith("pgjobs_")
    assert facts[1:] == (str(first), "1", "it_was_taken_from_this_worker")


@pytest.mark.parametrize("lost", ["the row", "a part of it"])
def test_a_running_job_that_no_claim_names_is_audited_and_rescued(
    worker: Workers, stage: Stage, raw: RawDatabase, lost: str
) -> None:
    """D13 C42: forged by SQL, or by a restored table; the leader finds it, and it runs."""
    job = jobs.effect.register("stranded")
    raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid(), attempt = 1 WHERE id = %s", [job.pk])
    if lost == "a part of it":
        raw.query(
            "INSERT INTO pgjobs_claim (claim_id, part, worker, lease_expires_at, check_at, job_ids) "
            "SELECT claim_id, 0, claim_id, now() + interval '9 h', now() + interval '9 h', '{}' FROM pgjobs_job"
        )
    process = worker(conf=QUICK)
    process.wait_for_log("worker leads now term=1")
    process.wait_for_log("running jobs without a claim got one jobs=1")
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("succeeded", 2)]
    assert history(job) == [(1, "lost")]


@pytest.mark.slow
def test_a_leader_that_leaves_hands_over(worker: Workers) -> None:
    """W1 W3 W8: the next one leads as soon as it asks."""
    first = worker()
    first.wait_for_log("worker leads now term=1")
    second = worker()
    assert not second.said("worker leads now")
    assert first.stop() == 0
    second.wait_for_log("worker leads now term=2", timeout=10)
    assert LeaderTerm.objects.get().worker == Heartbeat.objects.get(name=second.name).pk


@pytest.mark.slow
def test_a_long_job_runs_under_many_short_leases(worker: Workers, stage: Stage) -> None:
    """C5 C15 D17 D22: leases below a second; ten of them, one attempt, and none rescued by a neighbour."""
    conf = {"LEASE_SECONDS": 0.75, "RENEW_SECONDS": 0.2, "BEAT_SECONDS": 0.2, "STALE_SECONDS": 0.5, "POLL_SECONDS": 0.5}
    first, second = worker(conf=conf), worker(conf=conf)
    job = jobs.waits.register("long")
    started(stage, "long")
    least = 9.0
    until = time.monotonic() + 7.5
    while time.monotonic() < until:
        row = Claim.objects.extra(
            select={"left": "extract(epoch FROM lease_expires_at - statement_timestamp())::float8"}
        ).get()
        least = min(least, row.left)
    stage.open("long")
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("succeeded", 1)]
    assert least > 0, "never has it run out"
    assert not first.said("job rescued")
    assert not second.said("job rescued")


def locks(other: RawDatabase, *tables: str) -> bool:
    """Lock these tables against everybody; return whether it did not deadlock."""
    try:
        other.query(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
    except psycopg.errors.DeadlockDetected:
        other.rollback()
        return False
    return True


def test_no_renewal_for_a_while_harms_no_job(worker: Workers, stage: Stage, other: RawDatabase) -> None:
    """C9 C10 C11 D8: ledger and heartbeats are locked; jobs run, end and are recorded, beats go on afterwards."""
    process = worker(conf={**QUICK, "LEASE_SECONDS": 30.0})
    job = jobs.waits.register("w")
    started(stage, "w")
    # A query of the worker that has read one table and now wants the other would deadlock with this LOCK.
    wait_until(lambda: locks(other, "pgjobs_claim", "pgjobs_heartbeat"), 20, "both tables are locked")
    process.wait_for_log("database trouble, will try again loop=keep")
    stage.open("w")
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("succeeded", 1)]
    other.rollback()
    beat = Heartbeat.objects.get(name=process.name).last_beat_at
    wait_until(lambda: Heartbeat.objects.get(name=process.name).last_beat_at > beat, 20, "it beats again")
    assert ended(jobs.effect.register("next"))[0].outcome == "succeeded"


@pytest.mark.slow
def test_a_row_locked_for_three_leases_is_ended_by_its_owner(worker: Workers, stage: Stage, other: RawDatabase) -> None:
    """C14: its lease goes on, nobody rescues it, and the end waits for the lock alone; other ends do not wait."""
    process, neighbour = worker(conf=QUICK), worker(conf=QUICK)
    job = jobs.waits.register("locked")
    started(stage, "locked")
    other.lock(job.pk)
    stage.open("locked")
    free = time.monotonic() + 3 * QUICK["LEASE_SECONDS"]
    wait_until(lambda: time.monotonic() > free, 10, "three leases are over")
    assert ended(jobs.effect.register("free"))[0].outcome == "succeeded"
    assert read(job).state == "running"
    other.rollback()
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("succeeded", 1)]
    assert not process.said("job rescued")
    assert not neighbour.said("job rescued")


ROLES = ("claim", "finalise", "keep", "maintenance", "listen")


@pytest.mark.slow
def test_every_loop_survives_the_end_of_its_connection(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """C3 C10 C52 C56 P41 W7: each cut several times under load; each job has one effect, and one attempt."""
    process = worker(processes=2, conf={"POLL_SECONDS": 1.0})
    everything: list[Job] = []
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name LIKE 'pgjobs %%' AND application_name LIKE %s"
    )
    for turn in range(3):
        for role in ROLES:
            everything += [jobs.effect.register(f"{turn}.{role}.{n}") for n in range(8)]
            if turn == 2:
                everything.append(jobs.aeffect.register(f"{turn}.{role}.a", 0.05))
            assert raw.value(cut, [f"%{process.name[:40]} {role}"]) == 1, role
            everything += [jobs.effect.register(f"{turn}.{role}.{n}") for n in range(8, 12)]
            process.wait_for_log(f"database is back loop={role}", times=turn + 1)
    after = ended(*everything, timeout=60)
    assert {(job.outcome, job.attempt) for job in after} == {("succeeded", 1)}
    assert stage.count("effect") == len(everything)
    wait_until(lambda: not Claim.objects.exists(), 10, "no row of the ledger is left")
    assert process.process.poll() is None
    assert read(everything[0]).attempts.count() == 0
