"""Batches and flows under ``run_jobs`` in a plain ``TestCase``: no worker, no commit, followed to their ends."""

from __future__ import annotations

from typing import Any

from django.test import TestCase

from django_pgjobs import Batch, Flow, job
from django_pgjobs.canvas import chord
from django_pgjobs.models import Job
from django_pgjobs.testing import run_jobs

seen: list[Any] = []


@job(name="testcase.double")
def double(number: int) -> int:
    return number * 2


@job(name="testcase.add")
def add(numbers: list[int]) -> int:
    return sum(numbers)


@job(name="testcase.fail", max_attempts=1)
def fail() -> None:
    raise ValueError("no")


@job(name="testcase.say")
def say(what: object) -> None:
    seen.append(what)


class FlowTestCase(TestCase):
    def setUp(self) -> None:
        seen.clear()

    def test_a_flow_passes_its_results_on_to_the_end(self) -> None:
        flow = Flow()
        parts = [flow.add(double.bind(number)) for number in (1, 2, 3)]
        total = flow.add(add.bind([part.result for part in parts]))
        flow.add(say.bind(total.result))
        made = flow.register()
        run_jobs()
        made.refresh_from_db()
        assert (seen, made.outcome) == ([12], "succeeded")

    def test_what_fails_cancels_what_needs_it_and_runs_what_waits_for_that(self) -> None:
        parent = fail.register()
        needs = say.using(after=parent).register("never")
        say.using(after=needs, when="failed").register("sorry")
        run_jobs()
        assert (seen, Job.objects.get(pk=needs.pk).outcome) == (["sorry"], "cancelled")

    def test_a_batch_is_retried_and_its_callback_runs_once(self) -> None:
        with Batch(succeeded=say.bind("all"), failed=say.bind("some"), settled=say.bind("over")) as batch:
            batch.add_many([double.bind(1), fail.bind()])
        chord([double.bind(1)], say.bind("chord")).register()
        run_jobs()
        assert sorted(seen) == ["chord", "over", "some"]
        assert batch.retry().changed == 1
        run_jobs()
        assert sorted(seen) == ["chord", "over", "some"]
        assert (batch.figures.abandoned, batch.job.outcome) == (1, "abandoned")
