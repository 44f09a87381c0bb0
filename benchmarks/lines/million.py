"""A million members of one batch: added, run, cancelled half-way, retried, run to the end, pruned.

The figures of the gate and the rows are compared at each stage; a difference fails the line, and so does memory that
grows with the members.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Result, at_most
from benchmarks.plan import Plan
from django_pgjobs import Batch
from django_pgjobs.flows.batch import Figures
from django_pgjobs.jobs import BoundJob
from django_pgjobs.maintenance.pruning import Pruner, PruneRule
from django_pgjobs.states import Outcome
from django_pgjobs.store.database import on

TITLE = "A million members"
PROCESSES = 2
PORTIONS = 10
SMALL = 200_000
"""Members of fewer take some milliseconds each: no-ops would have run before anybody cancels them."""
LONGEST = 3600.0
FLAT = 1.1
SLACK_MIB = 16.0
"""Memory may grow by a tenth, or by this much: a small run shows what a process keeps of any work at all."""
TABLES = ("pgjobs_job", "pgjobs_gate", "pgjobs_link", "pgjobs_attempt", "pgjobs_step")


@dataclass(slots=True)
class Course:
    """Seconds of each phase, and memory in MiB at certain points of it."""

    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began

    def weigh(self, name: str, pid: int) -> None:
        """Record the memory of a process."""
        self.memory[name] = workers.resident_mb(pid) or 0.0


def measure(plan: Plan) -> Result:
    """Lead one batch through its whole life."""
    count = plan.count(1_000_000, least=5000)
    course = Course()
    tables.empty()
    batch = _added(count, course)
    with workers.working(processes=PROCESSES, empty=False) as worker:
        _run_to_the_middle(batch, count, worker, course)
        cancelled = _cancelled(batch, count, worker, course)
        _retried(batch, count, cancelled, worker, course)
    with course.phase("prune"):
        _prune()
    course.weigh("producer, pruned", os.getpid())
    left = {table: int(tables.value(f"SELECT count(*) FROM {table}")) for table in TABLES}
    if any(left.values()):
        raise workers.BenchmarkError(f"rows are left: {left}")
    for process in ("producer", "supervisor"):
        _must_be_flat(process, course)
    return Result(
        [*_figures(course), Figure("left", "rows left in all tables", sum(left.values()), "", at_most(0))],
        f"{count:,} members, {cancelled:,} of them cancelled and retried; {PROCESSES} processes",
        raw={"seconds": course.seconds, "memory": course.memory, "left": left},
    )


def _prune() -> None:
    """Prune everything, as the leader does when the retention is over."""
    pruner = Pruner(rules=[PruneRule(str(outcome), 0.0) for outcome in Outcome])
    while not pruner.done:
        pruner(on("default"))


def _added(count: int, course: Course) -> Batch:
    with course.phase("add"), Batch("a million", settled=jobs.noop.bind(0)) as batch:
        for portion in range(PORTIONS):
            batch.add_many(_member(count, number) for number in range(count // PORTIONS))
            if portion == 0:
                course.weigh("producer, 10 %", os.getpid())
    course.weigh("producer, 100 %", os.getpid())
    _must_be(batch, count, Figures(count, 0, 0, 0, count))
    return batch


def _member(count: int, number: int) -> BoundJob:
    return jobs.nap.bind(0.003) if count < SMALL else jobs.noop.bind(number)


def _run_to_the_middle(batch: Batch, count: int, worker: workers.Worker, course: Course) -> None:
    with course.phase("run the first half"):
        _wait(worker, lambda: batch.figures.succeeded >= 0.1 * count)
        course.weigh("supervisor, 10 %", worker.process.pid)
        _wait(worker, lambda: batch.figures.succeeded >= 0.5 * count)


def _cancelled(batch: Batch, count: int, worker: workers.Worker, course: Course) -> int:
    with course.phase("cancel"):
        batch.job.cancel(by="benchmark")
        _wait(worker, lambda: batch.job.outcome is not None)
    workers.until_idle(worker)
    figures, job = batch.figures, batch.job
    if job.outcome != "cancelled" or not figures.cancelled:
        raise workers.BenchmarkError(f"the batch was {job.outcome} with {figures}")
    _must_be(batch, count, Figures(count, count - figures.cancelled, 0, figures.cancelled, 0))
    return figures.cancelled


def _retried(batch: Batch, count: int, cancelled: int, worker: workers.Worker, course: Course) -> None:
    with course.phase("retry"):
        changed = batch.retry(outcome="cancelled", by="benchmark").changed
    course.weigh("producer, retried", os.getpid())
    if changed != cancelled:
        raise workers.BenchmarkError(f"{changed} of {cancelled} members were retried")
    with course.phase("run the rest"):
        _wait(worker, lambda: batch.figures.pending == 0)
    course.weigh("supervisor, 100 %", worker.process.pid)
    workers.until_idle(worker)
    _must_be(batch, count, Figures(count, count, 0, 0, 0))
    if batch.job.outcome != "cancelled":
        raise workers.BenchmarkError(f"the cancelled batch has become {batch.job.outcome}")


def _wait(worker: workers.Worker, fact: object) -> None:
    workers.wait_until(worker, fact, LONGEST, pause=0.02)  # type: ignore[arg-type]


def _must_be(batch: Batch, count: int, wanted: Figures) -> None:
    """Compare the gate and the rows with what must be."""
    rows = tables.value(
        "SELECT ARRAY[count(*), count(*) FILTER (WHERE outcome = 'succeeded'),"
        " count(*) FILTER (WHERE outcome = 'abandoned'), count(*) FILTER (WHERE outcome = 'cancelled'),"
        " count(*) FILTER (WHERE outcome IS NULL)] FROM pgjobs_job WHERE parent_id = %s",
        batch.job.pk,
    )
    if not tuple(batch.figures) == tuple(rows) == tuple(wanted):
        raise workers.BenchmarkError(f"of {count} members the gate counts {batch.figures}, the rows say {rows}")


def _must_be_flat(process: str, course: Course) -> None:
    first, last = course.memory[f"{process}, 10 %"], course.memory[f"{process}, 100 %"]
    if last > max(FLAT * first, first + SLACK_MIB):
        raise workers.BenchmarkError(f"memory of the {process} grew from {first:.0f} to {last:.0f} MiB")


def _figures(course: Course) -> Iterator[Figure]:
    for name, seconds in course.seconds.items():
        yield Figure(name.replace(" ", "_"), name, seconds, "s")
    for name, held in course.memory.items():
        yield Figure(
            name.replace(", ", "_").replace(" ", "_").replace("%", "percent"), f"memory of the {name}", held, "MiB"
        )
