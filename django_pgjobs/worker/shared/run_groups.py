"""Runs as a RUN frame carries them: what jobs have in common once, each other value of theirs in a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import repeat
from operator import attrgetter
from typing import Any

from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.worker.shared.runs import HeldRun

_OWN = ClaimedJob._fields.index("queue")
_COMMON = slice(_OWN, None)
_AT = ClaimedJob._fields.index("run_at")
_ID, _RUN_AT, _PAYLOAD = map(attrgetter, ClaimedJob._fields[:_OWN])


class SentJob(ClaimedJob):
    """A claimed job in an executor. Its ``run_at`` travels as seconds since 1970; few jobs ask for it."""

    __slots__ = ()

    @property
    def run_at(self) -> datetime:
        """The instant at which it was due, in UTC."""
        seconds: Any = self[_AT]
        return datetime.fromtimestamp(seconds, UTC)


class SentRun(RunControl):
    """A run in its executor, which may not start after ``start_by``."""

    def __init__(self, job: ClaimedJob, run: int, start_by: float) -> None:
        self.job = job
        self.run = run
        self.start_by = start_by


def groups_of(runs: Iterable[HeldRun]) -> list[list[object]]:
    """Return runs in their order, in groups of neighbours that differ in number, id, due instant and payload only.

    A group: these four as columns, then the other values of their jobs, whether they run on the event loop, and
    whether they are cancelled.
    """
    groups: list[list[HeldRun]] = []
    common = None
    for run in runs:
        if (of_run := (run.job[_COMMON], run.is_async, run.cancelled)) != common:
            common = of_run
            groups.append([])
        groups[-1].append(run)
    return list(map(_group, groups))


def _group(runs: list[HeldRun]) -> list[object]:
    jobs, first = [run.job for run in runs], runs[0]
    # A body does not see how the attempt before it failed.
    like = first.job if first.job.ending is not None or not first.job.error else first.job._replace(error="")
    return [
        [run.run for run in runs],
        list(map(_ID, jobs)),
        list(map(datetime.timestamp, map(_RUN_AT, jobs))),
        list(map(_PAYLOAD, jobs)),
        like[_COMMON],
        first.is_async,
        first.cancelled,
    ]


def sent_runs(group: Sequence[Any], start_by: float) -> tuple[list[SentRun], bool]:
    """Return the runs of a group, as their executor keeps them, and whether they are for the event loop."""
    numbers, ids, run_ats, payloads, common, is_async, cancelled = group
    jobs = map(tuple.__new__, repeat(SentJob), zip(ids, run_ats, payloads, *map(repeat, common), strict=False))
    runs = list(map(SentRun, jobs, numbers, repeat(start_by)))
    for run in runs if cancelled else ():
        run.requested = True
    return runs, is_async
