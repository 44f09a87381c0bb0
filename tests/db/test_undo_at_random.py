"""Sagas, batches and flows that fail, under operators and deaths at random: in the end each part is undone once."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from threading import Event
from typing import Any

import pytest
from django.db import connection

from django_pgjobs import Abandon, Batch, Flow, JobContext, job
from django_pgjobs.exceptions import BatchClosed
from django_pgjobs.maintenance import mending
from django_pgjobs.maintenance.gates import Recount, open_due_gates
from django_pgjobs.maintenance.mending import Mender
from django_pgjobs.models import Job, Memo
from django_pgjobs.states import FlowFlag as Bits
from django_pgjobs.testing import crash_at, run_jobs
from django_pgjobs.testing.crashing import rescue
from tests.plugins.fix_db import Background, RawDatabase

pytestmark = pytest.mark.usefixtures("committed")

TURNS = 20
luck = random.Random()


@job(name="random.seat", max_attempts=2)
def seat(number: int) -> int:
    return number


@seat.undo(max_attempts=2)
def free(context: JobContext, number: int) -> None:
    if luck.random() < 0.3:
        raise ValueError("not now")


@job(name="random.fails", max_attempts=1)
def fails(value: object = None) -> None:
    raise ValueError("broken")


@job(name="random.saga", takes_context=True, max_attempts=2)
def saga(context: JobContext, numbers: list[int]) -> None:
    for number in numbers:
        context.step.using(key=number, undo=free)(seat, number)
    raise Abandon("refused")


@job(name="random.gathers", takes_context=True, max_attempts=5)
def gathers(context: JobContext, numbers: list[int]) -> int:
    return sum(context.gather([seat.bind(number) for number in numbers]))


def _register(dice: random.Random) -> None:
    numbers = list(range(dice.randint(1, 3)))
    kind = dice.randint(0, 3)
    if kind == 0:
        saga.register(numbers)
    elif kind == 1:
        gathers.register(numbers)
    elif kind == 2:
        with Batch("seats", undo=True, fail_fast=dice.random() < 0.5) as batch:
            batch.add_many([*(seat.bind(number) for number in numbers), fails.bind()])
    else:
        flow = Flow("seats", undo=True)
        last: Any = flow.add(seat.bind(1))
        for _ in numbers:
            last = flow.add(seat.bind(last.result))
        flow.add(fails.bind(last.result))
        flow.register()


SERVANTS = ("pgjobs.wake", "pgjobs.undo", "pgjobs.cancel_members")


def _lose(dice: random.Random) -> None:
    """Let a row of ours be gone, or ended, as somebody with a SQL shell may."""
    with connection.cursor() as cursor:
        if dice.random() < 0.5:
            text = "DELETE FROM pgjobs_job WHERE id = ("
        else:
            text = "UPDATE pgjobs_job SET outcome = 'abandoned', finished_at = now(), unique_key = NULL WHERE id = ("
        cursor.execute(
            f"{text} SELECT id FROM pgjobs_job WHERE name = ANY (%s) AND finished_at IS NULL AND claim_id IS NULL"
            " ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED) AND claim_id IS NULL RETURNING id",
            [list(SERVANTS)],
        )
        cursor.execute("DELETE FROM pgjobs_memo WHERE job_id NOT IN (SELECT id FROM pgjobs_job)")


def _operate(seed: int, over: Event, raw: RawDatabase) -> None:
    dice, mender = random.Random(seed), Mender()
    undos, compensations = Job.objects.filter(name="pgjobs.undo"), Job.objects.filter(name="random.seat.undo")
    while not over.is_set():
        act = dice.randint(0, 7)
        if act == 0:
            undos.filter(pk__in=undos.order_by("?").values("pk")[:1]).cancel(by="anna")
        elif act == 1:
            undos.retry(by="anna")
        elif act == 2:
            compensations.filter(outcome="abandoned").retry(by="anna")
        elif act == 3:
            Job.objects.filter(name__in=["random.saga", "random.fails", "random.gathers"]).retry(by="anna")
        elif act == 4:
            some = Job.objects.filter(name__in=["random.saga", "pgjobs.batch", "pgjobs.flow"], finished_at=None)
            some.filter(pk__in=some.order_by("?").values("pk")[:1]).cancel(by="anna")
        elif act == 5:
            _lose(dice)
        else:
            mender.rest_until = 0.0
            mender(raw)


def _settle(raw: RawDatabase) -> None:
    """Let everything come to its end, as operators would who take up again what is not undone."""
    luck.random = lambda: 1.0  # type: ignore[method-assign]
    for claim_id in Job.objects.filter(finished_at=None, claim_id__isnull=False).values_list("claim_id", flat=True):
        rescue(raw, "default", str(claim_id))  # somebody had locked the row as its process died
    for _ in range(60):
        Recount()(raw)
        open_due_gates(raw)
        Mender()(raw)
        run_jobs(include_scheduled=True)
        begun = Job.objects.filter(flow__gte=Bits.UNDONE.value).values("pk")
        undos = Job.objects.filter(name="pgjobs.undo", target__in=begun)
        left = undos.order_by("target", "-pk").distinct("target").values_list("pk", "outcome")
        again = [pk for pk, outcome in left if outcome != "succeeded"]
        if not again and not Job.objects.filter(finished_at=None).exists():
            return
        Job.objects.filter(pk__in=again).retry(by="anna")
    raise AssertionError(list(Job.objects.filter(finished_at=None).values_list("pk", "name", "state", "run_at")))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_part_is_undone_once_and_none_is_forgotten(
    background: Background, raw: RawDatabase, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread of its own an operator cancels and retries, and loses rows of ours, while jobs run and die."""
    monkeypatch.setattr(mending, "CANCEL_SECONDS", 0.0)
    monkeypatch.setattr(luck, "random", random.Random(seed).random)
    dice, over = random.Random(seed), Event()
    operator = background(_operate, seed, over, raw)
    try:
        for _ in range(TURNS):
            with suppress(BatchClosed):  # somebody has cancelled it just then
                _register(dice)
            point = dice.choice(["before_settle", "before_suspend", "after_memo:parts"])
            with suppress(AssertionError), crash_at(point):
                run_jobs(limit=dice.randint(1, 8), include_scheduled=True)
    finally:
        over.set()
    operator.result()
    _settle(raw)

    undone = Counter(
        tuple((options or {})["target"])
        for options in Job.objects.filter(name="random.seat.undo", outcome="succeeded").values_list(
            "options", flat=True
        )
    )
    begun = list(Job.objects.filter(flow__gte=Bits.UNDONE.value).values_list("pk", flat=True))
    assert begun != []
    memos = Memo.objects.filter(job__in=begun, undo__isnull=False, error="", finished_at__isnull=False)
    members = Job.objects.filter(parent__in=begun, name="random.seat", outcome="succeeded")
    parts = [*memos.values_list("job_id", "name"), *((pk, "") for pk in members.values_list("pk", flat=True))]
    assert undone == Counter(parts)
    assert not Job.objects.filter(flow__gte=Bits.UNDOING.value).exists()
