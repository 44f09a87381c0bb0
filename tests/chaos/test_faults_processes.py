"""Processes killed and frozen: what each leaves behind is taken over in time, and nobody ends a job twice.

Leases of 1.5 s, renewed each 0.4 s (``helping.FAST``).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

import pytest

from django_pgjobs import register_many
from django_pgjobs.models import Attempt, Job
from django_pgjobs.models.attempts import Claim
from tests.chaos.helping import FAST, LEASE, Record, Recovery, running
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, age, ended, history, read

pytestmark = pytest.mark.chaos


def send(number: int, pids: Iterable[int]) -> None:
    """Send a signal to each that is still there: the watchdog ends executors of a frozen supervisor."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def outcomes(found: list[Job]) -> set[tuple[str | None, int, tuple[tuple[int, str], ...]]]:
    """Return the distinct (outcome, attempt, history) of ended jobs."""
    return {(job.outcome, job.attempt, tuple(history(job))) for job in ended(*found)}


@pytest.mark.parametrize("everything", [False, True], ids=["supervisor", "supervisor and executors"])
def test_the_jobs_of_a_killed_worker_run_elsewhere_within_its_lease_and_two_seconds(
    worker: Workers, stage: Stage, record_property: Record, everything: bool
) -> None:
    """C12 C36 D3 W12: the orphans end, the attempt is charged as lost, and each job has one effect."""
    first = worker(conf=FAST, processes=2, threads=2)
    taken = running(stage, "k", 4)
    second = worker(conf=FAST)
    victims = [first.pid, *(first.executors() if everything else [])]
    fault = Recovery(record_property)
    send(signal.SIGKILL, victims)
    wait_until(lambda: stage.count("start", "k") == 8, 30, "all run again")
    fault.check(LEASE + 2, max(trace.at for trace in stage.traces("start", "k")))
    wait_until(lambda: not first.executors(), 5, "no executor of the killed worker is left")
    stage.open("k")
    assert outcomes(taken) == {("succeeded", 2, ((1, "lost"),))}
    assert stage.count("end", "k") == 4
    assert {job.attempts.get().worker_name for job in taken} == {first.name}
    assert second.stop() == 0
    assert not Claim.objects.exists()


def test_the_death_of_an_executor_is_recorded_and_its_job_runs_again_within_a_second(
    worker: Workers, stage: Stage, record_property: Record
) -> None:
    """C29 W13: no lease is waited for; the exit status tells."""
    process = worker(conf={**FAST, "LEASE_SECONDS": 30}, processes=2, threads=1)
    (job,) = running(stage, "k", 1)
    pid = stage.traces("start", "k")[0].pid
    fault = Recovery(record_property)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stage.count("start", "k") == 2, 10, "it runs again")
    fault.check(1.0, stage.traces("start", "k")[1].at)
    assert history(job) == [(1, "crashed")]
    assert "killed by SIGKILL" in job.attempts.get().message
    stage.open("k")
    assert [after.outcome for after in ended(job)] == ["succeeded"]
    process.ready(3)


def test_all_executors_killed_at_once_cost_each_job_one_attempt_at_most(
    worker: Workers, stage: Stage, record_property: Record
) -> None:
    """C29 D18: alone in its executor a job is charged, in company each half runs again by itself; all end once."""
    process = worker(conf={**FAST, "LEASE_SECONDS": 30}, processes=2, threads=3)
    taken = running(stage, "k", 5)
    fault = Recovery(record_property)
    stage.open("k")
    send(signal.SIGKILL, process.executors())
    after = ended(*taken)
    fault.check(10)
    assert {job.outcome for job in after} == {"succeeded"}
    assert all(job.attempt <= 2 for job in after)
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"


def test_a_worker_frozen_beyond_its_lease_changes_nothing_with_the_outcomes_it_had_buffered(
    worker: Workers, stage: Stage, raw: RawDatabase, record_property: Record
) -> None:
    """C41 C42 W14 X9: the zombie's outcomes wait in its sockets; thawed, each is refused by its fence, by id."""
    zombie = worker(conf=FAST)
    taken = running(stage, "z", 4)
    heir = worker(conf=FAST)
    fault = Recovery(record_property)
    zombie.signal(signal.SIGSTOP)
    stage.open("z")
    wait_until(lambda: stage.count("end", "z") == 4, 10, "its executors have finished all")
    after = ended(*taken)
    fault.check(LEASE + 2)
    assert {(job.outcome, tuple(history(job))) for job in after} == {("succeeded", ((1, "lost"),))}
    rows = [raw.row(job.pk) for job in taken]
    zombie.signal(signal.SIGCONT)
    for job in taken:
        zombie.wait_for_log(rf"lease lost, nothing of the job was changed .*job={job.pk} ")
    assert [raw.row(job.pk) for job in taken] == rows
    assert stage.count("start", "z") == 8
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"
    assert [heir.stop(), zombie.stop()] == [0, 0]
    assert [raw.row(job.pk) for job in taken] == rows


def test_a_whole_worker_frozen_beyond_its_lease_ends_nothing_when_it_is_thawed(
    worker: Workers, stage: Stage, raw: RawDatabase, record_property: Record
) -> None:
    """C41 C42 W14: supervisor and executors stop in the middle of the jobs; thawed, it ends none of them."""
    zombie = worker(conf=FAST)
    taken = running(stage, "z", 4)
    heir = worker(conf=FAST)
    frozen = [zombie.pid, *zombie.executors()]
    fault = Recovery(record_property)
    send(signal.SIGSTOP, frozen)
    wait_until(lambda: stage.count("start", "z") == 8, 20, "all run at the heir's")
    fault.check(LEASE + 2, max(trace.at for trace in stage.traces("start", "z")))
    stage.open("z")
    assert outcomes(taken) == {("succeeded", 2, ((1, "lost"),))}
    rows = [raw.row(job.pk) for job in taken]
    send(signal.SIGCONT, frozen)
    for job in taken:
        zombie.wait_for_log(rf"lease lost.* job={job.pk} ")
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"
    assert [heir.stop(), zombie.stop()] == [0, 0]
    assert [raw.row(job.pk) for job in taken] == rows


def test_a_frozen_executor_loses_nothing_and_is_not_waited_for(worker: Workers, stage: Stage) -> None:
    """W16: its supervisor renews its leases; what it has started goes on when it is thawed, at the same attempt."""
    process = worker(conf=FAST, processes=2, threads=1)
    (frozen,) = running(stage, "f", 1)
    pid = stage.traces("start", "f")[0].pid
    os.kill(pid, signal.SIGSTOP)
    others = register_many(jobs.effect.bind(n) for n in range(20))
    wait_until(lambda: stage.count("effect") >= 18, 20, "the other executor works")
    wait_until(lambda: age(frozen) > 3 * LEASE, 20, "three leases have passed")
    assert (read(frozen).state, history(frozen)) == ("running", [])
    os.kill(pid, signal.SIGCONT)
    stage.open("f")
    assert outcomes([frozen]) == {("succeeded", 1, ())}
    assert outcomes(list(Job.objects.filter(pk__in=others))) == {("succeeded", 1, ())}
    assert stage.count("effect") == 20
    assert process.stop() == 0


def test_a_frozen_executor_is_killed_for_a_deadline_that_passes(
    worker: Workers, stage: Stage, record_property: Record
) -> None:
    """C26 W16: a stopped process hears no signal but SIGKILL."""
    process = worker(conf=FAST)
    late = jobs.spins.register("late")
    wait_until(lambda: stage.count("start", "late"), 10, "it runs")
    fault = Recovery(record_property)
    send(signal.SIGSTOP, process.executors())
    (after,) = ended(late)
    fault.check(7)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "timeout")])
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"


def test_workers_killed_again_and_again_lose_no_job(worker: Workers, stage: Stage, record_property: Record) -> None:
    """C1 D3 W12 W15: one of two workers at a time is killed with all it runs, four times; every job ends once."""
    crew: list[WorkerProcess] = [worker(conf=FAST, processes=2, threads=2) for _ in range(2)]
    ids: list[int] = []
    for nth in range(4):
        enough = stage.count("effect") + 50
        ids += register_many(jobs.effect.using(max_attempts=20).bind(len(ids) + n, seconds=0.05) for n in range(250))
        wait_until(lambda enough=enough: stage.count("effect") > enough, 60, "jobs are done")  # type: ignore[misc]
        victim = crew[nth % 2]
        send(signal.SIGKILL, [victim.pid, *(victim.executors() if nth % 2 else [])])
        crew[nth % 2] = worker(conf=FAST, processes=2, threads=2)
    fault = Recovery(record_property)
    after = ended(*Job.objects.filter(pk__in=ids), timeout=60)
    fault.check(30)
    assert {job.outcome for job in after} == {"succeeded"}
    assert sorted(job.result or 0 for job in after) == list(range(len(ids)))
    assert all(job.attempt == 1 + job.attempts.count() for job in after)
    assert stage.count("effect") <= len(ids) + Attempt.objects.count()
    assert [process.stop() for process in crew] == [0, 0]
    assert not Claim.objects.exists()


def test_templates_killed_while_executors_die_cost_no_job(
    worker: Workers, stage: Stage, record_property: Record
) -> None:
    """C1 C29: of five workers each loses its executors and, at a moment of its own, the template that replaces them."""
    crew = [worker(conf=FAST, processes=2, threads=2, ready=False) for _ in range(5)]
    ids = register_many(jobs.effect.using(max_attempts=50).bind(n, seconds=0.05) for n in range(600))
    fault = Recovery(record_property)
    for nth, process in enumerate(crew):
        process.ready(2)
        (template,) = process.templates()
        send(signal.SIGKILL, process.executors())
        time.sleep(0.002 * nth)  # within the forks of their successors, as likely as not
        send(signal.SIGKILL, [template])
    after = ended(*Job.objects.filter(pk__in=ids), timeout=60)
    fault.check(40)
    assert {job.outcome for job in after} == {"succeeded"}
    assert sorted(job.result or 0 for job in after) == list(range(len(ids)))
    for process in crew:
        process.wait_for_log("WARNING template of the executors is gone")
        process.ready(4)
        assert not process.said("template of the executors is gone", times=2)
        assert not process.templates()
        assert process.stop() == 0
    assert not Claim.objects.exists()


@pytest.mark.parametrize("company", [False, True], ids=["alone", "in company"])
def test_an_on_abandon_that_kills_its_process_is_started_three_times_and_then_left(
    worker: Workers, record_property: Record, company: bool
) -> None:
    """W21, I12: the end is written with the job's own error; neighbours run again, alone and uncharged."""
    process = worker(conf={**FAST, "LEASE_SECONDS": 30, "CALLBACK_SECONDS": 3}, threads=4)
    neighbours = [jobs.waits.register("k") for _ in range(2 if company else 0)]
    wait_until(lambda: process.stage.count("start", "k") == len(neighbours), 20, "neighbours run")
    fault = Recovery(record_property)
    doomed = jobs.doomed.register("kill")
    if company:
        wait_until(lambda: process.stage.count("on_abandon", doomed.pk) >= 1, 20, "the callback has killed once")
        process.stage.open("k")
    (after,) = ended(doomed, timeout=40)
    fault.check(30)
    assert (after.outcome, after.error) == ("abandoned", "ValueError: outer ← KeyError: 'inner'")
    assert process.stage.count("on_abandon", doomed.pk) <= (4 if company else 3)
    assert {(job.outcome, job.attempt) for job in ended(*neighbours)} <= {("succeeded", 1)}
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"


@pytest.mark.parametrize("name", ["o'brien; --", "n" * 200, "работник ☃ 漢字", '%s %(x)s {0} \\ " $1'])
def test_a_worker_may_be_called_anything(worker: Workers, name: str) -> None:
    """W2 P35: its name is data everywhere: in its connections' names, in the heartbeat, in the history of attempts."""
    process = worker(f"--name={name}", conf={**FAST, "LEASE_SECONDS": 30})
    (after,) = ended(jobs.dies_once.register("kill"))
    assert after.attempts.get().worker_name == name
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"
    assert process.stop() == 0
