"""Jobs that behave badly in their process: the next job of the same thread, and its neighbours, are unharmed.

A lease of 1.5 s, renewed each 0.4 s (``helping.FAST``). What a process shares among all its jobs (environment, clock,
directory, limits) is the project's own; what is shown of it is that no job is lost and the worker can be stopped.
"""

from __future__ import annotations

import pytest

from django_pgjobs import register_many
from django_pgjobs.models import Job
from tests.chaos import guests
from tests.chaos.helping import FAST, Record, Recovery
from tests.e2e import jobs
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history

pytestmark = pytest.mark.chaos

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {
    "threads": 1, "conf": {**FAST, "LEASE_SECONDS": 30, "CALLBACK_SECONDS": 3,
    "EXECUTOR_MAX_JOBS": 6},
}  # fmt: skip

FAILING = {
    "exit": "SystemExit", "chain": "link 4999", "recursion": "RecursionError", "memory": "MemoryError",
    "generator": "StopIteration", "hard exit": "exited with status 0",
}  # fmt: skip
"""What these jobs end with; the others succeed."""


@pytest.mark.parametrize("how", guests.BADLY)
def test_the_next_job_is_unharmed_by(shared_worker: WorkerProcess, record_property: Record, how: str) -> None:
    """C28 C29 W22: in the same thread, right after; then the executor goes, and the next is as new."""
    (before,) = ended(guests.looks_around.register())
    bad = guests.behaves_badly.using(max_attempts=1).register(how)
    fault = Recovery(record_property)
    following = [guests.looks_around.register(), *(jobs.effect.register(n) for n in range(3))]
    (after,) = ended(bad)
    look, *effects = ended(*following)
    fault.check(18 if how == "alarm" else 10)  # the job that it hits is retried by its backoff, 15 s
    if how in FAILING:
        assert (after.outcome, FAILING[how] in after.error) == ("abandoned", True), after.error
    elif how != "alarm":  # SIGALRM ends the process, as anywhere: the job has finished by then, or it is charged
        assert (after.outcome, after.result) == ("succeeded", how), after.error
    assert [job.outcome for job in effects] == ["succeeded"] * 3
    assert shared_worker.stage.count("effect") == 3
    assert look.outcome == "succeeded", look.error
    kept = ("search_path", "role", "two")
    assert [(look.result or {})[key] for key in kept] == [(before.result or {})[key] for key in kept]
    replaced(shared_worker, {(before.result or {})["pid"], (look.result or {})["pid"]})


def replaced(worker: WorkerProcess, pids: set[int]) -> None:
    """Give these executors jobs until they are replaced: killed, they would be some of many that die at once."""
    wait_until(
        lambda: not pids & set(worker.executors()) or not ended(jobs.no_op.register()), 20, "the executor has gone"
    )


def test_poison_payloads_and_results_among_good_ones_take_none_of_them_along(
    shared_worker: WorkerProcess, record_property: Record
) -> None:
    """C27 C46 P27: what cannot be stored is bisected out of a batch, each good one ends once."""
    poison = {
        "surrogate": jobs.returns.register("surrogate"),
        "nul": jobs.returns.register("nul"),
        "nan": jobs.returns.register("nan"),
        "deep": jobs.returns.register("deep"),
        "integer": jobs.returns.register("integer"),
        "object": jobs.returns.register("object"),
        "broken": jobs.returns.register("broken"),
        "huge": jobs.returns.register("huge"),
        "words": jobs.says_escaped.using(max_attempts=1).register("a\\0b\\ud800", "fail"),
    }
    fault = Recovery(record_property)
    ids = register_many(jobs.effect.bind(n) for n in range(300))
    after = ended(*Job.objects.filter(pk__in=ids))
    bad = dict(zip(poison, ended(*poison.values()), strict=True))
    fault.check(20)
    assert {(job.outcome, job.attempt) for job in after} == {("succeeded", 1)}
    assert shared_worker.stage.count("effect") == 300
    for what, job in bad.items():
        assert job.outcome in ("succeeded", "abandoned"), what
        assert len(history(job)) <= 1, what


@pytest.mark.parametrize("size", [64 * 1024 - 100, 64 * 1024 + 1, 1024 * 1024 - 100])
def test_large_payloads_reach_their_jobs_whole(shared_worker: WorkerProcess, size: int) -> None:
    """P35: below and above what travels with a claim; the large ones are read by the executor, under the fence."""
    ids = register_many(jobs.swallows.bind("ü" * (size // 2 - n)) for n in range(12))
    after = ended(*Job.objects.filter(pk__in=ids).order_by("id").defer("payload"))
    assert [job.result for job in after] == [[size // 2 - n, 0] for n in range(12)]
    assert {job.attempt for job in after} == {1}
