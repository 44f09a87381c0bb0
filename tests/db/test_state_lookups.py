"""``filter(state=…)`` means what the computed state says, and is answered from indexes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pytest
from django.db import connection, models
from django.db.models import F, Q, Value
from django.db.models.functions import Upper
from django.test.utils import CaptureQueriesContext, isolate_apps

from django_pgjobs.models import Attempt, Job
from django_pgjobs.states import Hold, JobState
from django_pgjobs.store import finalising
from tests.plugins.explaining import nodes
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, from_the_beginning, register

STATES = [str(state) for state in JobState]


@contextmanager
def model_that_points_to_jobs() -> Iterator[Any]:
    """A table of the project's own, whose rows may have no job."""
    with isolate_apps("tests"):

        class Note(models.Model):
            objects: models.Manager[Any] = models.Manager()
            job = models.ForeignKey(Job, models.DO_NOTHING, null=True, db_constraint=False, related_name="+")

            class Meta:
                app_label = "tests"

        with connection.schema_editor() as editor:
            editor.create_model(Note)
        try:
            yield Note
        finally:
            with connection.schema_editor() as editor:
                editor.delete_model(Note)


def make_one_of_each(raw: RawDatabase, count: int = 1) -> None:
    """Jobs in every state, ``count`` each, made by the real statements, with every trace that these leave."""
    for hold in Hold:
        Job.objects.filter(pk__in=register(count, queue="held")).update(hold=str(hold))
    ends: list[Callable[[Any], Any]] = [
        lambda claimed: finalising.finalise_success(raw, claimed.ends(), AUTHOR),
        lambda claimed: finalising.finalise_end(raw, claimed.ends(outcome="cancelled"), AUTHOR),
        lambda claimed: finalising.finalise_end(raw, claimed.ends(outcome="abandoned"), AUTHOR),
        lambda claimed: finalising.finalise_retry(
            raw, claimed.ends(delay=60.0, cause="failed", failure=FAILURE), AUTHOR
        ),
        lambda claimed: finalising.finalise_snooze(raw, claimed.ends(delay=60.0)),
        lambda claimed: claimed,
    ]
    for end in ends:
        register(count)
        end(claim(raw, count))
    register(count)
    register(count, queue="never held but cancelled")
    Job.objects.filter(queue="never held but cancelled").cancel()


def by_state(wanted: set[str]) -> set[int]:
    return {pk for pk, state in Job.objects.values_list("pk", "state") if state in wanted}


def ids(found: models.QuerySet[Job]) -> set[int]:
    return set(found.values_list("pk", flat=True))


@pytest.fixture
def mixed(raw: RawDatabase) -> None:
    make_one_of_each(raw)
    assert set(Job.objects.values_list("state", flat=True)) == set(STATES)


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("state", STATES)
def test_exact_and_its_negations_say_what_the_state_says(state: str) -> None:
    there = by_state({state})
    rest = by_state(set(STATES) - {state})
    assert there
    assert ids(Job.objects.filter(state=state)) == there
    assert ids(Job.objects.filter(state=Job.State(state))) == there
    assert ids(Job.objects.filter(state=JobState(state))) == there
    assert ids(Job.objects.exclude(state=state)) == rest
    assert ids(Job.objects.filter(~Q(state=state))) == rest
    assert ids(Job.objects.exclude(~Q(state=state))) == there


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("pair", [list(pair) for pair in combinations(STATES, 2)], ids=" ".join)
def test_in_and_its_negation_say_what_the_state_says(pair: list[str]) -> None:
    assert ids(Job.objects.filter(state__in=pair)) == by_state(set(pair))
    assert ids(Job.objects.exclude(state__in=pair)) == by_state(set(STATES) - set(pair))


@pytest.mark.usefixtures("mixed")
def test_lookups_combine_as_others_do() -> None:
    either = Q(state="ready") | Q(state="running")
    assert ids(Job.objects.filter(either, queue="default")) == by_state({"ready", "running"})
    assert ids(Job.objects.filter(state__in=STATES)) == by_state(set(STATES))
    assert ids(Job.objects.filter(state__in=(state for state in ("ready", "parked")))) == by_state({"ready", "parked"})
    assert ids(Job.objects.filter(state__in=[])) == set()
    counted = Job.objects.aggregate(ready=models.Count("pk", filter=Q(state="ready")))
    assert counted["ready"] == len(by_state({"ready"}))
    worded = Job.objects.annotate(word=models.Case(models.When(state="running", then=Value("now")), default=Value("")))
    assert ids(worded.filter(word="now")) == by_state({"running"})


@pytest.mark.usefixtures("mixed")
def test_what_is_no_literal_state_compares_the_computed_state() -> None:
    assert ids(Job.objects.filter(state="no such state")) == set()
    assert ids(Job.objects.filter(state__in=["ready", "no such state"])) == by_state({"ready"})
    assert ids(Job.objects.filter(state=F("state"))) == by_state(set(STATES))
    assert ids(Job.objects.filter(state=F("outcome"))) == by_state({"succeeded", "cancelled", "abandoned"})
    assert ids(Job.objects.filter(state__in=Job.objects.filter(hold="parked").values("hold"))) == by_state({"parked"})
    assert ids(Job.objects.filter(state__startswith="par")) == by_state({"parked"})
    assert ids(Job.objects.annotate(loud=Upper("state")).filter(loud="READY")) == by_state({"ready"})
    assert ids(Job.objects.filter(state__isnull=True)) == set()


@pytest.mark.usefixtures("mixed")
def test_lookups_go_through_a_relation_and_a_subquery() -> None:
    failed = set(Attempt.objects.values_list("job_id", flat=True))
    assert set(Attempt.objects.filter(job__state="ready").values_list("job_id", flat=True)) == failed
    assert not Attempt.objects.exclude(job__state="ready").exists()
    assert ids(Job.objects.filter(pk__in=Job.objects.filter(state="running"))) == by_state({"running"})


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize("state", STATES)
def test_a_row_of_another_model_without_a_job_has_a_job_in_no_state(state: str) -> None:
    """An outer join yields columns that are all null, and so is much of a ready job."""
    with model_that_points_to_jobs() as note:
        without = note.objects.create(job=None)
        within = note.objects.create(job_id=min(by_state({state})))
        either = note.objects.filter(Q(job__state=state) | Q(pk=0))
        assert list(either) == [within]
        assert list(note.objects.exclude(job__state=state)) == [without]


@pytest.mark.parametrize("where", [Q(state="bogus"), Q(state__in=["bogus", "also"]), Q(state="Ready")])
def test_a_word_that_is_no_state_is_answered_without_a_query(raw: RawDatabase, where: Q) -> None:
    """It compared the state itself, which is in no index: seconds at two million rows."""
    register()
    with CaptureQueriesContext(connection) as asked:
        assert list(Job.objects.filter(where)) == []
    assert len(asked) == 0
    assert Job.objects.exclude(where).count() == 1
    assert Job.objects.filter(state__in=["bogus", "ready"]).count() == 1
    assert Job.objects.filter(where | Q(queue="default")).count() == 1


def plan_of(found: models.QuerySet[Any]) -> list[dict[str, Any]]:
    explained = json.loads(found.explain(format="json"))
    return list(nodes(explained[0]["Plan"]))


@pytest.fixture
def seeded(raw: RawDatabase) -> None:
    """50,000 jobs: nearly all succeeded, some in each other state; analysed."""
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, queue, outcome, finished_at) "
        "SELECT 'shop.pay', '{}', 'past', 'succeeded', statement_timestamp() - n * interval '1 second' "
        "FROM generate_series(1, 49000) AS n"
    )
    make_one_of_each(raw, 100)
    register(100, queue="claimed", priority=1)
    claim(raw, 100, from_the_beginning(("claimed", 1)))
    raw.query("ANALYZE pgjobs_job, pgjobs_claim")


@pytest.mark.usefixtures("seeded")
def test_the_states_are_found_by_indexes_on_a_big_table() -> None:
    """A comparison of the state itself is a sequential scan: seconds at millions of rows."""
    queries: dict[str, models.QuerySet[Any]] = {
        state: Job.objects.filter(state=state) for state in STATES if state != "succeeded"
    }
    queries["unfinished"] = Job.objects.filter(state__in=["ready", "running", "parked"])
    queries["latest successes"] = Job.objects.filter(state="succeeded").order_by("-finished_at")[:50]
    scanned = {
        name: node["Node Type"]
        for name, found in queries.items()
        for node in plan_of(found)
        if node.get("Relation Name") == "pgjobs_job" and node["Node Type"] == "Seq Scan"
    }
    assert scanned == {}
    # The twin: without the lookups of StateField there is nothing but a scan.
    computed = Job.objects.annotate(bare=models.ExpressionWrapper(F("state"), models.TextField())).filter(bare="parked")
    assert [node for node in plan_of(computed) if node["Node Type"] == "Seq Scan"]
