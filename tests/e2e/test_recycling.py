"""Executors that have done enough, and code that was replaced beneath a worker."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import django_pgjobs
from django_pgjobs import register_many
from django_pgjobs.models import Job
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ANEW, WorkerProcess, Workers, ended, history


def test_executors_are_replaced_after_so_many_jobs(worker: Workers, stage: Stage) -> None:
    """Nothing is lost, nothing is charged, and there is never a moment without one that takes jobs."""
    process = worker("--executor-max-jobs=40", threads=2)
    ids = []
    for turn in range(3):
        ids += register_many(jobs.effect.bind(f"{turn}-{n}", seconds=0.005) for n in range(100))
        if turn < 2:
            process.wait_for_log("executor has been recycled", times=turn + 1)
    after = ended(*Job.objects.filter(pk__in=ids))
    assert {(job.outcome, job.attempt) for job in after} == {("succeeded", 1)}
    assert stage.count("effect") == 300
    assert len({trace.pid for trace in stage.traces("effect")}) >= 3
    words = ("it has run", "executor is ready", "executor has been recycled")
    told = [word for line in process.log.splitlines() for word in words if word in line]
    assert told[:4] == ["executor is ready", "it has run", "executor is ready", "executor has been recycled"]
    assert not process.said("executor ended, replaced")


def test_an_executor_that_holds_too_much_memory_is_replaced(worker: Workers, stage: Stage) -> None:
    """What it runs goes on in it; what comes then runs in its successor."""
    process = worker("--executor-max-megabytes=300")
    running = jobs.waits.register("one")
    wait_until(lambda: stage.count("start", "one") == 1, 15, "it runs")
    (eaten,) = ended(jobs.eats_memory.register(400))
    process.ready(2)
    process.wait_for_log("executor is recycled, its successor starts first.*it holds [4-9]..")
    (after,) = ended(jobs.descriptors_of_a_child.register())
    assert after.outcome == "succeeded"
    assert len(process.executors()) == 2
    stage.open("one")
    (after,) = ended(running)
    assert (after.outcome, after.attempt) == ("succeeded", 1)
    assert stage.traces("end", "one")[0].pid == eaten.result
    process.wait_for_log("executor has been recycled")
    wait_until(lambda: len(process.executors()) == 1, 5, "it has gone")


def test_a_worker_says_once_that_its_executors_may_outgrow_the_memory(worker: Workers, stage: Stage) -> None:
    """The second may not even start then; jobs run all the same."""
    process = worker("--executor-max-megabytes=10000000", processes=2)
    process.ready(2)
    (after,) = ended(jobs.effect.register("one"))
    assert after.outcome == "succeeded"
    assert process.log.count("memory may run out: 2 executors of 10000000 MB, to which they may grow, do not fit") == 1


@pytest.fixture
def copied(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A copy of the package, and the environment of a worker that runs it."""
    package = Path(django_pgjobs.__file__).parent
    copy = tmp_path / "django_pgjobs"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy, {"PYTHONPATH": f"{tmp_path}:{package.parent}", "PGJOBS_TEST_CWD": str(tmp_path)}


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("__init__.py", '__version__ = "', '__version__ = "99.', "it runs version 99."),
        ("clock.py", "from __future__", "# of another build\nfrom __future__", "it runs version "),
    ],
)
def test_another_version_or_build_beneath_a_worker_stops_it(
    worker: Workers, stage: Stage, copied: tuple[Path, dict[str, str]], path: str, old: str, new: str, said: str
) -> None:
    """Protocol trap 18: what runs is finished by the code that has begun it, then whoever restarts it gets the new."""
    package, environment = copied
    process = worker(processes=2, env=environment, conf=ANEW)
    running = jobs.waits.register("one")
    wait_until(lambda: stage.count("start", "one") == 1, 15, "it runs")
    replaced = package / path
    replaced.write_text(replaced.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    (idle,) = set(process.executors()) - {stage.traces("start", "one")[0].pid}
    os.kill(idle, signal.SIGKILL)
    process.wait_for_log(f"another version was deployed, worker stops.*{said}")
    assert process.process.poll() is None
    stage.open("one")
    assert process.wait() == 1, process.log
    assert ended(running)[0].attempt == 1


def test_statements_replaced_beneath_a_worker_are_those_it_started_with(
    worker: Workers, stage: Stage, copied: tuple[Path, dict[str, str]]
) -> None:
    """Protocol trap 18: an upgrade replaces files; a worker stays of one piece until somebody restarts it."""
    package, environment = copied
    process = worker(env=environment)
    for statement in (package / "sql").glob("*.sql"):
        statement.write_text("-- of another version\nSELECT this is no statement")
    after = ended(jobs.effect.register("one"), jobs.doomed.register(), jobs.spins.using(timeout=0.2).register())
    assert [job.outcome for job in after] == ["succeeded", "abandoned", "abandoned"]
    stopped = jobs.waits.register("two")
    wait_until(lambda: stage.count("start", "two") == 1, 15, "it runs")
    os.kill(process.pid, signal.SIGTERM)
    stage.open("two")
    assert process.wait() == 0, process.log
    assert ended(stopped)[0].outcome == "succeeded"
    assert "this is no statement" not in process.log
    assert not process.said("duty failed")


@pytest.mark.slow
def test_new_code_that_cannot_boot_stops_a_worker_after_three_tries(worker: Workers, stage: Stage) -> None:
    """Protocol trap 18: jobs go on in the executors that are left, then it drains."""
    process = worker(processes=2, env={"PGJOBS_TEST_BOOT": "breaks"}, conf=ANEW)
    running = jobs.waits.register("one")
    wait_until(lambda: stage.count("start", "one") == 1, 15, "it runs")
    stage.open("broken")
    (idle,) = set(process.executors()) - {stage.traces("start", "one")[0].pid}
    os.kill(idle, signal.SIGKILL)
    process.wait_for_log("executor cannot boot, tried again", times=3)
    assert ended(jobs.effect.register("meanwhile"))[0].outcome == "succeeded"
    process.wait_for_log("executor cannot boot, worker stops")
    stage.open("one")
    assert process.wait() == 1, process.log
    assert ended(running)[0].attempt == 1


# Out of memory

Group = Callable[[int], tuple[str, ...]]


@pytest.fixture
def memory_group() -> Iterator[Group]:
    """Returns a program that runs in a control group with so many megabytes; skips where none can be made."""
    made: list[Path] = []

    def make(megabytes: int) -> tuple[str, ...]:
        root = Path("/sys/fs/cgroup")
        one = (root / "memory/memory.limit_in_bytes").exists()
        place = (root / "memory" if one else root) / f"pgjobs-test-{uuid4().hex[:8]}"
        try:
            place.mkdir()
            made.append(place)
            (place / ("memory.limit_in_bytes" if one else "memory.max")).write_text(str(megabytes * 1024 * 1024))
            if not one:
                (place / "memory.swap.max").write_text("0")
        except OSError as error:
            pytest.skip(f"no control group with a memory limit can be made here: {error}")
        return ("/bin/sh", "-c", f'echo $$ > {place}/cgroup.procs && exec "$0" "$@"', sys.executable, "-m", "django")

    yield make
    for place in made:

        def gone(place: Path = place) -> bool:
            with contextlib.suppress(OSError):
                place.rmdir()
            return not place.exists()

        wait_until(gone, 10, "the control group is empty and removed")


def eaten_in(worker: Workers, memory_group: Group, tries: int = 3) -> tuple[WorkerProcess, Job]:
    """Return a worker whose job has eaten too much, and the job.

    The kernel may want memory once more before it has what the killed process held (6 ms were seen between the two),
    and kill the worker as well; then another one is tried.
    """
    process = worker(program=memory_group(400))
    eaten = jobs.eats_memory.register(600)
    this = Job._base_manager.filter(pk=eaten.pk)
    wait_until(lambda: this.get().finished_at is not None or process.process.poll() is not None, 20, "it is killed")
    if process.process.poll() is not None and tries > 1:
        this.delete()
        return eaten_in(worker, memory_group, tries - 1)
    return process, ended(eaten)[0]


def test_a_process_that_the_kernel_kills_for_its_memory_is_named_so(
    worker: Workers, stage: Stage, memory_group: Group
) -> None:
    """§4: the counter of the control group proves it; another SIGKILL is not called so."""
    process, eaten = eaten_in(worker, memory_group)
    assert history(eaten) == [(1, "crashed")]
    assert eaten.attempts.get().message == "The process that ran the job was killed by the kernel: out of memory."
    assert process.said(r"executor ended, replaced pid=\d+ status=-9 \(out of memory\)")
    (killed,) = ended(jobs.dies_once.register("kill"))
    assert "SIGKILL" in killed.attempts.get().message
    assert process.stop() == 0
