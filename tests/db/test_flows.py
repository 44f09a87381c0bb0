"""Flows: nodes that need each other, results as arguments, refusals, retries; chain, group and chord."""

from __future__ import annotations

import asyncio
import json
import pickle
from datetime import date
from typing import Any, cast

import pytest
from django.db import transaction

from django_pgjobs import Flow, JobContext, job
from django_pgjobs.canvas import chain, chord, group
from django_pgjobs.exceptions import InvalidJob, UnreadablePayload
from django_pgjobs.maintenance.gates import Recount
from django_pgjobs.models import Job
from django_pgjobs.models.gates import Gate, Link
from django_pgjobs.serialization import decoder, encoder
from django_pgjobs.serialization.payload import decode_payload
from django_pgjobs.serialization.references import ResultOf, filled, named
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import RawDatabase

pytestmark = pytest.mark.usefixtures("committed")

ran: list[object] = []
failing: set[str] = set()


@job(name="flows.rows", max_attempts=1)
def rows(shop: str) -> dict[str, object]:
    ran.append(shop)
    if shop in failing:
        raise ValueError(f"{shop} is closed")
    return {"shop": shop, "day": date(2026, 5, 1)}


@job(name="flows.merge", max_attempts=1)
def merge(month: str, parts: list[dict[str, object]], *, first: object = None) -> str:
    ran.append((month, parts, first))
    return f"{month}: {len(parts)}"


@job(name="flows.say", max_attempts=1)
def say(text: object) -> None:
    ran.append(text)


untyped: Any = say


@job(name="flows.pair")
def pair(one: object, other: object) -> None:
    ran.append((one, other))


@job(name="flows.silent", store_result=False)
def silent() -> int:
    return 1


@job(name="flows.vague")
def vague() -> object:
    return object()


@job(name="flows.asynchronous")
async def asynchronous(value: object) -> object:
    return value


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()
    failing.clear()


def report(key: str | None = None) -> tuple[Flow, Job]:
    """Rows of three shops, merged, and published; somebody is told if one of them fails."""
    flow = Flow("monthly report", key=key)
    parts = [flow.add(rows.bind(shop)) for shop in ("north", "south", "west")]
    total = flow.add(merge.bind("May", [part.result for part in parts], first=parts[0].result))
    flow.add(say.bind(total.result))
    flow.add(say.bind("alarm"), after=parts, when="failed")
    return flow, flow.register()


def outcomes(flow: Job) -> dict[str, int]:
    found: dict[str, int] = {}
    for outcome in Job.objects.filter(parent_id=flow.pk).values_list("outcome", flat=True):
        found[str(outcome)] = found.get(str(outcome), 0) + 1
    return found


def test_results_are_passed_to_the_nodes_that_take_them() -> None:
    _, job = report()
    run_jobs()
    part = {"shop": "north", "day": date(2026, 5, 1)}
    month, parts, first = next(each for each in ran if isinstance(each, tuple))
    assert (month, first) == ("May", part)
    assert [each["shop"] for each in parts] == ["north", "south", "west"]
    assert ran[-1] == "May: 3"
    job.refresh_from_db()
    assert (job.outcome, outcomes(job)) == ("succeeded", {"succeeded": 5, "cancelled": 1})


def test_a_node_does_not_run_with_nothing_instead_of_a_result_that_could_not_be_stored() -> None:
    flow = Flow("f")
    source = flow.add(vague.bind())
    takes, needs = flow.add(say.bind(source.result)), flow.add(say.bind("after"), after=[source])
    flow.register()
    run_jobs()
    made = {job.pk: job for job in Job.objects.all()}
    found = made[takes.job_id or 0]
    text = f"It takes the result of job {source.job_id}, which could not be stored."
    assert (found.outcome, found.error) == ("abandoned", f"UnreadablePayload: {text}")
    assert {made[node.job_id or 0].outcome for node in (source, needs)} == {"succeeded"}
    assert ran == ["after"]


def test_a_node_that_is_not_needed_does_no_harm() -> None:
    _, job = report()
    run_jobs()
    alarm = Job.objects.get(parent_id=job.pk, outcome="cancelled")
    assert alarm.cancel_by == "pgjobs:not_needed"
    gate = Gate.objects.get(pk=job.pk)
    assert (gate.total, gate.pending, gate.unmet, gate.cancelled) == (6, 0, 0, 1)


def test_a_node_that_fails_ends_what_needs_it_and_the_flow_and_a_retry_heals_both() -> None:
    failing.update(("north", "south", "west"))
    _, job = report()
    run_jobs()
    job.refresh_from_db()
    assert job.outcome == "abandoned"
    assert outcomes(job) == {"abandoned": 3, "cancelled": 2, "succeeded": 1}
    assert "alarm" in ran
    failing.clear()
    Job.objects.filter(parent_id=job.pk, outcome="abandoned").retry()
    run_jobs()
    job.refresh_from_db()
    assert job.outcome == "succeeded"
    assert outcomes(job) == {"succeeded": 6}
    assert ran[-1] == "May: 3"


def test_a_key_finds_the_flow_again_and_registers_nothing() -> None:
    _, first = report(key="report:May")
    flow, again = report(key="report:May")
    assert again.pk == first.pk
    assert Job.objects.filter(parent_id=first.pk).count() == 6
    assert flow.nodes[0].job_id is None


def test_an_empty_flow_ends_at_once() -> None:
    job = Flow().register()
    run_jobs()
    job.refresh_from_db()
    assert job.outcome == "succeeded"


def test_nodes_on_the_event_loop_take_results_too() -> None:
    flow = Flow()
    first = flow.add(asynchronous.bind([1, 2]))
    flow.add(asynchronous.bind({"a": first.result}))
    flow.register()
    run_jobs()
    assert [job.value() for job in Job.objects.filter(name="flows.asynchronous").order_by("pk")] == [
        [1, 2],
        {"a": [1, 2]},
    ]


def test_nodes_keep_their_options() -> None:
    flow = Flow()
    node = flow.add(say.using(queue="web", priority=7, tags=["x"], delay=3600, on_crash="abandon").bind(1))
    flow.register()
    made = Job.objects.get(pk=node.job_id or 0)
    assert (made.queue, made.priority, made.tags, made.options) == ("web", 7, ("x",), {"on_crash": "abandon"})


def test_nothing_remains_of_a_flow_that_is_refused() -> None:
    flow = Flow()
    flow.add(say.bind(1))
    flow.add(say.bind(object()))
    with transaction.atomic():
        with pytest.raises(InvalidJob, match=r"^node 1: job 'flows.say'"):
            flow.register()
        say.register(2)
    assert [job.name for job in Job.objects.all()] == ["flows.say"]
    assert (Gate.objects.count(), Link.objects.count()) == (0, 0)


def strange() -> object:
    other = Flow()
    return other.add(rows.bind("x"))


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (lambda flow: flow.add(say), "a flow takes calls"),
        (lambda flow: flow.add(say.bind(1), [strange()]), "after takes nodes of this flow"),
        (lambda flow: flow.add(say.bind(strange().result)), "results of another flow's nodes"),  # type: ignore[attr-defined]
        (lambda flow: flow.add(say.bind(1), when="done"), "when must be 'succeeded', 'settled', 'failed', not 'done'"),
        (lambda flow: flow.add(say.bind(1), when="failed"), "when='failed' without after: say whose failure it needs"),
        (lambda flow: flow.add(say.bind(1), [], when="failed"), "when='failed' without after"),
        (lambda flow: flow.add(say.using(unique="k").bind(1)), "a node takes no key: the flow may have one"),
        (lambda flow: flow.add(say.using(after=1).bind(1)), r"a node takes no after: say what it needs in add\(\)"),
        (lambda flow: flow.add(say.using(bypass=True).bind(1)), "a node takes no bypass"),
        (lambda flow: flow.add(say.bind(flow.add(silent.bind()).result)), r"stores no result \(store_result=False\)"),
    ],
)
def test_bad_nodes_are_refused_with_their_number(add: object, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        add(Flow())  # type: ignore[operator]


def test_a_flow_has_bounds_and_is_registered_once(settings: object) -> None:
    settings.PGJOBS = {"BOUNDS": {"nodes": 2, "needs": 1}}  # type: ignore[attr-defined]
    flow = Flow()
    nodes = [flow.add(say.bind(n)) for n in range(2)]
    with pytest.raises(InvalidJob, match=r"BOUNDS\['nodes'\]"):
        flow.add(say.bind(3))
    wide = Flow()
    settings.PGJOBS = {"BOUNDS": {"nodes": 9, "needs": 1}}  # type: ignore[attr-defined]
    both = [wide.add(say.bind(n)) for n in range(2)]
    with pytest.raises(InvalidJob, match=r"node 2 needs 2 others, and at most 1 \(BOUNDS\['needs'\]\)"):
        wide.add(say.bind(1), both)
    flow.register()
    with pytest.raises(InvalidJob, match="registered already"):
        flow.register()
    with pytest.raises(InvalidJob, match="takes no more nodes"):
        flow.add(say.bind(1))
    assert nodes[0].job_id is not None


def test_a_result_outside_of_a_flow_cannot_be_registered() -> None:
    node = Flow().add(rows.bind("x"))
    with pytest.raises(InvalidJob, match="the result of a node"):
        say.register(node.result)


def test_chain_group_and_chord() -> None:
    one = chain(say.bind(1), say.bind(2), say.bind(3), description="in order").register()
    two = group(say.bind(n) for n in (4, 5)).register()
    three = chord([say.bind(6), say.bind(7)], say.bind(8)).register()
    run_jobs()
    assert [each for each in ran if each in (1, 2, 3)] == [1, 2, 3]
    assert ran.index(8) > max(ran.index(6), ran.index(7))
    for each in (one, two, three):
        each.refresh_from_db()
    assert [each.outcome for each in (one, two, three)] == ["succeeded"] * 3
    assert one.description == "in order"


def needs_of(flow: Job) -> dict[object, set[object]]:
    """What each node of the flow needs, by the argument of ``say``."""
    said = {each.pk: each.payload["args"][0] for each in Job.objects.filter(parent_id=flow.pk)}
    links = [each for each in Link.objects.all() if each.job_id in said]
    return {said[pk]: {said[each.parent_id] for each in links if each.job_id == pk} for pk in said}


def test_canvases_are_parts_of_others() -> None:
    pages = group([chain(say.bind(2), say.bind(3)), say.bind(4)])
    both = chord([pages, group([])], chain(group([]), say.bind(5)))
    flow = chain(say.bind(1), both, say.bind(6)).register()
    assert needs_of(flow) == {1: set(), 2: {1}, 3: {2}, 4: {1}, 5: {3, 4}, 6: {5}}
    run_jobs()
    assert ran[0] == 1
    assert ran[-2:] == [5, 6]
    flow.refresh_from_db()
    assert flow.outcome == "succeeded"


def test_a_canvas_is_a_value_and_stores_nothing_until_it_is_registered() -> None:
    steps = chain(say.bind(1), say.bind(2))
    with pytest.raises(AttributeError, match=r"a canvas has no apply_async\(\): write register\(\)"):
        steps.apply_async()  # type: ignore[attr-defined]
    assert Job.objects.count() == 0
    assert steps == chain(say.bind(1), say.bind(2)) == pickle.loads(pickle.dumps(steps))
    one, two = steps.register(), asyncio.run(steps.aregister())
    assert Job.objects.filter(parent_id__in=[one.pk, two.pk]).count() == 4


def test_a_loop_may_add_to_a_canvas() -> None:
    steps, pages = chain(), group([])
    for number in range(1100):
        steps, pages = chain(steps, say.bind(number)), group([pages, say.bind(number)])
    assert steps == chain(*(say.bind(number) for number in range(1100)))
    flow = chain(steps, pages).register()
    assert Job.objects.filter(parent_id=flow.pk).count() == 2200


def test_a_canvas_is_stored_as_a_whole_or_not_at_all() -> None:
    with pytest.raises(InvalidJob, match=r"^node 1: .*key"):
        chain(say.bind(1), say.using(unique="x").bind(2)).register()
    assert Job.objects.count() == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: chain(say.bind(1), untyped), r"a chain takes calls, .* not <job flows.say>: write say\.bind\(…\)$"),
        (lambda: chain(say.bind(1), cast("Any", 2)), r"a chain takes calls, made by a definition's bind\(…\), not 2$"),
        (lambda: group([say.bind(1), cast("Any", say.register(2))]), r"a group takes calls"),
        (lambda: group(untyped.bind(1)), r"pass a list of calls"),
        (
            lambda: group(cast("Any", chain(say.bind(1)))),
            r"pass a list of calls, not a chain alone: put it into a list",
        ),
        (lambda: chord(cast("Any", group([])), say.bind(1)), r"pass a list of calls, not a group alone"),
        (lambda: chord([say.bind(1)], untyped), r"a chain takes calls, .*: write say\.bind\(…\)$"),
    ],
)
def test_parts_of_a_canvas_are_calls(wrong: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        wrong()


def test_async_callers_have_the_same() -> None:
    async def make() -> Job:
        flow = Flow()
        flow.add(say.bind(1))
        return await flow.aregister()

    made = asyncio.run(make())
    run_jobs()
    made.refresh_from_db()
    assert made.outcome == "succeeded"


# References


def test_a_reference_survives_and_a_callers_own_object_is_none() -> None:
    text, _ = encoder.write({"a": [ResultOf(7)], "b": {"$result": 8}})
    assert decoder.read(text) == {"a": [ResultOf(7)], "b": {"$result": 8}}
    assert named(text) == {7}
    assert decoder.read(filled(text, {7: '{"$date": "2026-05-01"}'})) == {"a": [date(2026, 5, 1)], "b": {"$result": 8}}
    assert decoder.read(filled(text, {7: None})) == {"a": [None], "b": {"$result": 8}}
    with pytest.raises(UnreadablePayload, match="result of job 7, which it takes, is gone"):
        filled(text, {})


@pytest.mark.parametrize("padding", [0, 100_000])
def test_no_job_reads_the_result_of_one_that_it_does_not_need(padding: int) -> None:
    """Whoever types arguments as JSON, or writes rows, may name any job; large payloads are read apart from the row."""
    secret = rows.register("north")
    run_jobs()
    payload = {"args": [{"$result": secret.pk}, "x" * padding], "kwargs": {}}
    forged, flagged = pair.register(1, 2), pair.register(1, 2)
    Job.objects.update(payload=payload)
    Job.objects.filter(pk=flagged.pk).update(options={"results": True})
    run_jobs()
    for each in (forged, flagged):
        each.refresh_from_db()
        assert each.outcome != "succeeded"
        assert f"the result of job {secret.pk}" in (each.hold_reason + each.error).lower()
    assert ran == ["north"]


@pytest.mark.parametrize("typed", [{"$result": 1}, [{"$result": 1}], {"a": {"$result": 2**63}}, {"$result": 10**23}])
def test_what_people_type_as_arguments_refers_to_no_result(typed: object) -> None:
    """The schedule forms and the shell decode what was typed; the override of a cron entry is checked as it stands."""
    text = json.dumps({"args": [typed], "kwargs": {}})
    with pytest.raises(UnreadablePayload, match="result"):
        say._load(text)
    with pytest.raises((UnreadablePayload, InvalidJob), match="result"):
        say.register(*decode_payload(text)[0])


def test_a_node_that_is_registered_again_brings_along_what_it_took() -> None:
    _, job = report()
    run_jobs()
    merged = Job.objects.get(parent_id=job.pk, name="flows.merge")
    ran.clear()
    again = merged.register_again()
    assert "$result" not in json.dumps(again.payload)
    run_jobs()
    [call] = ran
    assert isinstance(call, tuple)
    assert call[0] == "May"
    assert call[2] == {"shop": "north", "day": date(2026, 5, 1)}
    again.refresh_from_db()
    assert again.outcome == "succeeded"
    Job.objects.filter(pk=merged.pk).update(payload={"args": ["May", [{"$result": job.pk}]], "kwargs": {}})
    merged.refresh_from_db()
    with pytest.raises(InvalidJob, match=f"cannot be registered again: The result of job {job.pk}"):
        merged.register_again()


@pytest.mark.parametrize("nodes", [12_000])
def test_a_large_flow_is_retried_whole(raw: RawDatabase, nodes: int) -> None:
    """As long as it may be: what its first node kept from running waits again, in one transaction."""
    flow = Flow("large")
    first = flow.add(say.bind("first"))
    for number in range(nodes - 1):
        flow.add(say.bind(number), after=first)
    job = flow.register()
    # As it ends: the first is abandoned, and that cancels the others before they begin.
    raw.query("UPDATE pgjobs_job SET outcome = 'abandoned', finished_at = now(), hold = NULL")
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'cancelled', cancel_by = 'pgjobs:flow' WHERE parent_id > 0 AND id <> %s",
        [first.job_id],
    )
    raw.query("UPDATE pgjobs_job SET attempt = 1 WHERE id = %s", [first.job_id])
    raw.query("UPDATE pgjobs_gate SET pending = 0, abandoned = 1, unmet = 1, opened_at = now()")
    raw.query("UPDATE pgjobs_gate SET cancelled = %s, unmet = %s WHERE job_id = %s", [nodes - 1, nodes, job.pk])
    assert Job.objects.filter(pk=first.job_id or 0).retry().changed == 1
    assert Job.objects.filter(state="blocked").count() == nodes
    assert Job.objects.get(pk=first.job_id or 0).state == "ready"
    assert Recount()(raw) == 0


@job(name="flows.break", max_attempts=1)
def breaks() -> int:
    raise ValueError("it breaks")


@job(name="flows.takes", takes_context=True, max_attempts=1)
def takes(context: JobContext, good: dict[str, object], bad: int) -> None:
    ran.append("the body")


@takes.on_cancel
@takes.on_abandon
def given_up(context: JobContext, good: dict[str, object], bad: int | None) -> None:
    ran.append((good, bad))


def test_the_callback_of_a_node_runs_though_what_it_takes_has_failed() -> None:
    """Cancelled by the flow, and abandoned after somebody has retried it all the same."""
    flow = Flow("f")
    node = flow.add(takes.bind(flow.add(rows.bind("x")).result, flow.add(breaks.bind()).result))
    flow.register()
    run_jobs()
    given = ({"shop": "x", "day": date(2026, 5, 1)}, None)
    assert ran == ["x", given]
    assert Job.objects.filter(pk=node.job_id or 0).retry().changed == 1
    run_jobs()
    assert ran == ["x", given, given]
    assert Job.objects.get(pk=node.job_id or 0).outcome == "abandoned"
