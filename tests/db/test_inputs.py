"""What a job learns of the jobs that it needed."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs import Batch, Flow, JobContext, job
from django_pgjobs.context import Inputs
from django_pgjobs.flows.batch import Figures
from django_pgjobs.models import Job
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import RawDatabase

pytestmark = pytest.mark.usefixtures("committed")

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@job(name="inputs.halve", max_attempts=1)
def halve(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n // 2


@job(name="inputs.look", takes_context=True)
def look(context: JobContext) -> None:
    inputs = context.inputs
    seen.append([(each.pk, each.outcome, each.result) for each in inputs.jobs])
    seen.append(list(inputs.members.values_list("pk", flat=True)))
    seen.append([(each.pk, each.error) for each in inputs.failed()])


@job(name="inputs.look_async", takes_context=True)
async def look_async(context: JobContext) -> None:
    seen.append([each.outcome async for each in context.inputs.jobs])


@job(name="inputs.figures", takes_context=True)
def figures(context: JobContext) -> None:
    seen.append(Batch.of(context.inputs.jobs.get()).figures)


def test_what_comes_after_a_batch_sees_the_batch_and_its_members() -> None:
    with Batch("halves", failed=look.bind(), settled=figures.bind(), succeeded=look.bind()) as batch:
        batch.add_many(halve.bind(n) for n in range(4))
    members = list(Job.objects.filter(parent_id=batch.job.pk).order_by("pk").values_list("pk", flat=True))
    with Batch("another") as other:
        other.add(halve.bind(1))
    run_jobs()
    assert Figures(4, 2, 2, 0, 0) in seen
    seen.remove(Figures(4, 2, 2, 0, 0))
    assert seen == [
        [(batch.job.pk, "abandoned", None)],
        members,
        [(members[1], "ValueError: 1 is odd"), (members[3], "ValueError: 3 is odd")],
    ]


def test_a_node_sees_what_it_needed_however_it_ended() -> None:
    flow = Flow()
    parts = [flow.add(halve.bind(n)) for n in (4, 5)]
    flow.add(look.bind(), after=parts, when="settled")
    flow.add(look_async.bind(), after=parts, when="settled")
    flow.register()
    run_jobs()
    even, odd = (part.job_id for part in parts)
    assert sorted(seen, key=str) == sorted(
        [
            [(even, "succeeded", 2), (odd, "abandoned", None)],
            [],
            [(odd, "ValueError: 5 is odd")],
            ["succeeded", "abandoned"],
        ],
        key=str,
    )


def test_a_node_that_nobody_needed_has_not_failed() -> None:
    parent = halve.register(2)
    unneeded = look.using(after=parent, when="failed").register()
    look.using(after=[parent, unneeded], when="settled").register()
    run_jobs()
    assert Job.objects.get(pk=unneeded.pk).outcome == "cancelled"
    assert seen == [[(parent.pk, "succeeded", 1), (unneeded.pk, "cancelled", None)], [], []]


def test_a_job_that_needed_nothing_has_no_inputs() -> None:
    look.register()
    run_jobs()
    assert seen == [[], [], []]


def test_failed_members_are_found_along_the_index_of_members(raw: RawDatabase) -> None:
    """Not by reading the table, whatever else is in it."""
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, outcome, finished_at, parent_id)"
        " SELECT 'x', '{}', 'succeeded', now(), n / 100 + 1 FROM generate_series(1, 50000) AS n"
    )
    raw.query("ANALYZE pgjobs_job, pgjobs_link")

    inputs = Inputs(17, None)
    for jobs in (inputs.jobs, inputs.members, inputs.failed()):
        assert "Seq Scan on pgjobs_job" not in jobs.explain()
