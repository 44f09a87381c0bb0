"""Replay: run today's code with what a durable function remembers, to see whether a deploy would surprise it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections, router

from django_pgjobs import decisions as decide
from django_pgjobs import middleware
from django_pgjobs.context import JobContext, activate, deactivate
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import JobSuspended
from django_pgjobs.execution.durable import DurableMemory
from django_pgjobs.execution.prepared import UNGUARDED, Prepared, RunControl
from django_pgjobs.models import Job, Memo
from django_pgjobs.states import MemoKind, Outcome
from django_pgjobs.store import passing
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.database import on
from django_pgjobs.store.memos import StoredMemo
from django_pgjobs.testing.transactions import rolled_back


@dataclass(frozen=True, slots=True)
class StoppedAt:
    """The point at which a job that has not succeeded would continue: ``kind`` is step, sleep, event, gather or
    version."""

    name: str
    kind: str


def replay(job: Job) -> Any:
    """Run the function of a job with what the job remembers, and return what it returns; nothing is remembered.

    No step is called: each must be remembered, or the replay is over. For a job that has not succeeded it returns
    ``StoppedAt``, if it arrives where the job would continue: then everything that the job remembers was asked for.
    Code outside of steps runs, as whenever a job continues; what it writes to the database of the jobs is rolled back.
    Raises ``AssertionError``, which names the first step, sleep or wait that the job does not remember although it
    should, or what it remembers and the code no longer asks for; and what the function raises. Reads only, so it suits
    a copy of production as well as a test.
    """
    using = job._state.db or router.db_for_write(Job)
    stored = Job.objects.using(using).get(pk=job.pk)
    with ExitStack() as stack:
        inside = {c.alias for c in connections.all(initialized_only=True) if c.in_atomic_block}
        for each in sorted({using, *inside}):
            stack.enter_context(rolled_back(each))
        prepared = _prepared(stored, using)
        memory = ReplayMemory(prepared, using)
        prepared.memories = _Always(memory)
        try:
            result = _call(prepared)
            memory.check_not_swallowed()
        except JobSuspended:
            return _stop(stored, memory)
        memory.load()
        _check_nothing_left(stored, memory.left())
        return result


_ADVICE = "If a step was renamed, give its old name: using(name=…), or name=… of a sleep or gather."


class ReplayMemory(DurableMemory):
    """Remembers what the job does, and nothing new: it stops where the job would."""

    def __init__(self, prepared: Prepared, using: str) -> None:
        super().__init__(prepared, using)
        self.asked: set[str] = set()
        self.stop: StoppedAt | None = None

    def known(self, name: str, kind: MemoKind) -> StoredMemo | None:
        """Return the finished memo of this name; stop if there is none."""
        memo = super().known(name, kind)
        self.asked.add(name)
        if memo is None or not memo.finished:
            self.stop = self.stop or StoppedAt(name, kind)
            self.suspend(decide.Suspended(name, kind, 0.0))
        return memo

    def _gathered(self, calls: Sequence[object], name: str, *, settled: bool) -> list[object]:
        """Return what is remembered; of no calls nothing is."""
        if calls:
            return super()._gathered(calls, name, settled=settled)
        self.asked.add(name)
        return []

    def remembers(self, name: str) -> bool:
        """Return whether the job remembers something under this name, be it unfinished."""
        return name in (self._memos or {})

    def left(self) -> list[StoredMemo]:
        """Return what was not asked for, in the order in which it began, without what a step machine has put apart."""
        memos = Memo.objects.using(self.using).filter(job_id=self.prepared.job.id)
        earlier = {name for pk, name in memos.values_list("pk", "name") if name.endswith(f"\xa0@{pk}")}
        return [memo for memo in (self._memos or {}).values() if memo.name not in self.asked | earlier]


@dataclass(frozen=True, slots=True)
class _Always:
    memory: DurableMemory

    @property
    def using(self) -> str:
        return self.memory.using

    def of(self, prepared: Prepared) -> DurableMemory:
        return self.memory


def _stop(job: Job, memory: ReplayMemory) -> StoppedAt:
    stop = memory.stop
    if stop is None:
        raise RuntimeError(f"Job {job.pk} ({job.name}) raised JobSuspended by itself.")
    left = memory.left()
    if memory.remembers(stop.name):  # it sleeps, waits, or tries a step again
        _check_nothing_left(job, left)
    elif job.outcome == Outcome.SUCCEEDED or left:
        also = f" It remembers {_listed(left)}, not asked for so far." if left else ""
        raise AssertionError(
            f"Job {job.pk} ({job.name}) asks for the {stop.kind} {stop.name!r}, which it does not remember.{also} "
            f"{_ADVICE}"
        )
    return stop


def _check_nothing_left(job: Job, left: list[StoredMemo]) -> None:
    if left:
        raise AssertionError(
            f"Job {job.pk} ({job.name}) remembers {_listed(left)}, which the code no longer asks for. {_ADVICE}"
        )


def _listed(memos: list[StoredMemo]) -> str:
    return ", ".join(f"the {memo.kind} {memo.name!r}" for memo in memos[:5]) + (", …" if memos[5:] else "")


def _prepared(job: Job, using: str) -> Prepared:
    definition = registry.resolve(job.name)
    payload = passing.with_results(on(using), job.pk, json.dumps(job.payload))
    args, kwargs = definition._load(payload)
    extras = {"options": job.options, "cron_entry": job.cron_entry, "fire_at": job.fire_at and job.fire_at.isoformat()}
    claimed = ClaimedJob(
        id=job.pk,
        run_at=job.run_at,
        payload=payload,
        queue=job.queue,
        priority=job.priority,
        name=job.name,
        attempt=max(job.attempt, 1),
        max_attempts=job.max_attempts,
        timeout_seconds=job.timeout_seconds,
        headers=None,
        claim_id="00000000-0000-4000-8000-000000000000",
        description=job.description,
        error=job.error,
        extras=extras,
    )
    prepared = Prepared(definition, claimed, args, kwargs, RunControl(), UNGUARDED, lambda _: _say_nothing)
    prepared.headers = dict(job.headers or {})
    prepared.outer_blocks = len(connections[using].atomic_blocks)
    return prepared


def _say_nothing(n: float, total: float | None, message: str) -> None:
    pass


def _call(prepared: Prepared) -> Any:
    definition = prepared.definition
    given = (prepared.context,) if definition.takes_context else ()
    body = partial(definition.func, *given, *prepared.args, **prepared.kwargs)

    async def abody(context: JobContext) -> object:
        return await body()

    token = activate(prepared)
    try:
        if definition.is_async:
            return async_to_sync(middleware.async_chain(abody))(prepared.context)
        return middleware.chain(lambda _: body())(prepared.context)
    finally:
        deactivate(token)
