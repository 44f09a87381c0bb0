"""A job's state without a column: queries compute it, and the SQL function ``state`` computes it for everybody else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections, models
from django.db.models import Count, Exists, F, OuterRef, Q, Subquery, Window
from django.db.models.functions import Length, RowNumber, Upper
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgjobs.models import Attempt, Job
from django_pgjobs.states import Hold, JobState
from django_pgjobs.store.database import on
from django_pgjobs.store.explaining import read_why
from django_pgjobs.store.steering import read_states
from tests.db.test_state_lookups import make_one_of_each, model_that_points_to_jobs
from tests.docs.pages import DOCS, blocks
from tests.plugins.fix_db import RawDatabase, register

FUNCTION = "state(pgjobs_job)"
FORGED = [
    {"outcome": outcome, "claim_id": claim_id, "hold": hold}
    for outcome in (None, "succeeded", "limbo")
    for claim_id in (None, "00000000-0000-0000-0000-000000000001")
    for hold in (None, "parked", "limbo")
]
"""Every combination of the columns that make the state, with words of later code among them."""


@pytest.fixture
def mixed(raw: RawDatabase) -> None:
    make_one_of_each(raw)


@pytest.fixture
def without_function(mixed: None, raw: RawDatabase) -> Iterator[None]:
    """Tables as ``MIGRATION_MODULES = {"pgjobs": None}`` makes them, or a copy of the table alone."""
    [(definition,)] = raw.query(f"SELECT pg_get_functiondef('{FUNCTION}'::regprocedure)")
    raw.query(f"DROP FUNCTION {FUNCTION}")
    yield
    raw.query(definition)


def states_of(found: models.QuerySet[Any]) -> dict[int, str]:
    return dict(found.values_list("pk", "state"))


def in_sql(raw: RawDatabase) -> dict[int, str]:
    return dict(raw.query("SELECT j.id, j.state FROM pgjobs_job AS j"))


def test_sql_and_queries_agree_on_the_state_of_any_row(raw: RawDatabase) -> None:
    forged = dict(zip(register(len(FORGED)), FORGED, strict=True))
    for pk, columns in forged.items():
        Job.objects.filter(pk=pk).update(**columns)
    expected = {
        pk: row["outcome"] or (row["claim_id"] and "running") or row["hold"] or "ready" for pk, row in forged.items()
    }
    field: Any = Job._meta.get_field("state")
    by_expression = Job.objects.annotate(word=field.expression)
    assert in_sql(raw) == expected
    assert states_of(Job.objects.all()) == expected
    assert dict(by_expression.values_list("pk", "word")) == expected
    assert {job.pk: job.state for job in Job.objects.all()} == expected
    assert {pk: word for pk, (word, _) in read_states(on("default"), list(forged)).items()} == expected
    facts = {pk: read_why(on("default"), pk, silent_seconds=10, stale_seconds=30) for pk in forged}
    assert {pk: fact and fact.state for pk, fact in facts.items()} == expected


@pytest.mark.usefixtures("mixed")
def test_no_column_of_the_table_holds_the_state(raw: RawDatabase) -> None:
    asked = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'pgjobs_job'::regclass AND attname = 'state'"
    assert raw.value(asked) == 0


@pytest.mark.usefixtures("mixed")
def test_attribute_notation_reads_the_state_in_sql(raw: RawDatabase) -> None:
    """As older code and reports write it; and RETURNING, and a trigger's row."""
    expected = Counter(states_of(Job.objects.all()).values())
    assert Counter(raw.query('SELECT "pgjobs_job"."state" FROM "pgjobs_job"')) == Counter(
        {(state,): count for state, count in expected.items()}
    )
    assert (
        dict(raw.query("SELECT j.state, count(*) FROM pgjobs_job AS j GROUP BY j.state ORDER BY j.state")) == expected
    )
    updated = "UPDATE pgjobs_job SET claim_id = NULL WHERE pgjobs_job.state = 'running' RETURNING pgjobs_job.state"
    assert raw.query(updated) == [("ready",)] * expected["running"]


@pytest.mark.usefixtures("mixed")
def test_a_reader_of_the_documented_view_needs_no_right_on_the_table(raw: RawDatabase) -> None:
    """Nor may it see arguments."""
    texts = [block.text for block in blocks(DOCS / "how-to" / "query-in-sql.md") if block.language == "sql"]
    query, view, grant = (each.strip() for text in texts for each in text.split(";") if each.strip())
    raw.query("CREATE ROLE reporting")
    try:
        raw.query(view)
        raw.query(grant)
        expected = Counter(states_of(Job.objects.all()).values())
        reported: Counter[str] = Counter()
        for _, state, number in raw.query(query):
            reported[state] += number
        assert reported == expected
        raw.query("SET ROLE reporting")
        assert dict(raw.query("SELECT state, count(*) FROM report_jobs GROUP BY state")) == expected
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            raw.query("SELECT payload FROM pgjobs_job")
    finally:
        raw.query("RESET ROLE")
        raw.query("DROP VIEW IF EXISTS report_jobs")
        raw.query("DROP ROLE reporting")


def test_a_trigger_calls_the_function_with_its_row(raw: RawDatabase) -> None:
    raw.query("CREATE TABLE seen (was text, became text)")
    raw.query(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO seen VALUES (state(OLD), state(NEW)); RETURN NULL; END $$"
    )
    raw.query("CREATE TRIGGER see AFTER UPDATE ON pgjobs_job FOR EACH ROW EXECUTE FUNCTION see()")
    try:
        [one] = register()
        Job.objects.filter(pk=one).update(hold="parked")
        assert raw.query("SELECT * FROM seen") == [("ready", "parked")]
    finally:
        raw.query("DROP FUNCTION see CASCADE")
        raw.query("DROP TABLE seen")


def test_where_an_outer_join_finds_no_job_there_is_no_state(raw: RawDatabase) -> None:
    """Every other column of such a row is null, and so is much of a ready job."""
    assert raw.query("SELECT j.state FROM (VALUES (1)) AS v LEFT JOIN pgjobs_job AS j ON false") == [(None,)]
    with model_that_points_to_jobs() as note:
        note.objects.create(job=None)
        note.objects.create(job_id=register()[0])
        assert list(note.objects.order_by("pk").values_list("job__state", flat=True)) == [None, "ready"]
        assert note.objects.filter(job__state__isnull=True).get().job is None
        assert [found.job and found.job.state for found in note.objects.order_by("pk").select_related("job")] == [
            None,
            "ready",
        ]


def explained(raw: RawDatabase, text: str) -> str:
    return json.dumps(raw.value(f"EXPLAIN (VERBOSE, FORMAT JSON) {text}"))


def test_the_planner_inlines_the_function(raw: RawDatabase) -> None:
    """Else each row would be built anew and handed to an interpreter; the twin shows how that looks."""
    for text in (
        "SELECT j.state, count(*) FROM pgjobs_job AS j GROUP BY j.state",
        "SELECT j.id FROM pgjobs_job AS j WHERE j.state = 'parked'",
        "SELECT a.id FROM pgjobs_attempt AS a LEFT JOIN pgjobs_job AS j ON j.id = a.job_id WHERE j.state IS NULL",
    ):
        plan = explained(raw, text)
        assert "COALESCE(j.outcome, CASE WHEN (j.claim_id IS NOT NULL)" in plan
        assert "j.*" not in plan
    raw.query("CREATE FUNCTION slow(job pgjobs_job) RETURNS varchar LANGUAGE plpgsql AS 'BEGIN RETURN job.hold; END'")
    try:
        assert "slow(j.*)" in explained(raw, "SELECT j.slow FROM pgjobs_job AS j")
    finally:
        raw.query("DROP FUNCTION slow(pgjobs_job)")


@pytest.mark.usefixtures("without_function")
def test_queries_need_no_function() -> None:
    """A test run without migrations has none, and a hardened database may deny it."""
    assert set(states_of(Job.objects.all()).values()) == set(JobState)
    everything = Job.objects.values("state").annotate(number=Count("pk")).order_by("state")
    counted = {row["state"]: row["number"] for row in everything}
    assert set(counted) == set(JobState)
    assert sum(counted.values()) == Job.objects.count()
    assert list(Job.objects.order_by("state", "pk").values_list("state", flat=True)) == sorted(
        states_of(Job.objects.all()).values()
    )
    assert list(Job.objects.order_by("state").distinct("state").values_list("state", flat=True)) == sorted(counted)
    [first] = Job.objects.filter(state="parked").only("pk")
    assert first.get_deferred_fields() > {"state"}
    assert first.state == "parked"
    assert Job.objects.defer("state").get(pk=first.pk).state == "parked"
    first.refresh_from_db(fields=["state"])
    assert first.state == "parked"
    assert Job.objects.only("state").get(pk=first.pk).state == "parked"
    assert Job.objects.filter(Q(state=F("outcome")) | Q(state__startswith="par")).count() == 1 + sum(
        counted[ended] for ended in ("succeeded", "cancelled", "abandoned")
    )
    loud = Job.objects.annotate(loud=Upper("state"), long=Length("state")).filter(loud="PARKED")
    assert list(loud.values_list("loud", "long")) == [("PARKED", len("parked"))]
    same = Job.objects.filter(state=OuterRef("state")).order_by("pk").values("pk")[:1]
    assert Job.objects.annotate(same=Subquery(same)).filter(same__isnull=True).count() == 0
    assert Job.objects.filter(state="ready").union(Job.objects.filter(state="parked")).count() == counted["ready"] + 1
    assert set(Attempt.objects.values_list("job__state", flat=True)) <= set(counted)
    assert {attempt.job.state for attempt in Attempt.objects.select_related("job")} <= set(counted)
    assert Job.objects.filter(state__in=["ready", "parked"]).update(priority=1) == counted["ready"] + 1
    assert Job.objects.filter(state=F("hold")).update(description=F("state")) == len(Hold)
    assert Job.objects.get(pk=first.pk).description == "parked"
    assert Job.objects.aggregate(parked=Count("pk", filter=Q(state="parked")))["parked"] == 1


@pytest.mark.usefixtures("without_function")
def test_queries_within_queries_find_the_columns_of_the_state() -> None:
    """Where Django reads from a query instead of the table, the columns of the row have other names or none."""
    everything = Job.objects.order_by("pk")
    assert everything[:3].aggregate(n=Count("state"))["n"] == 3
    assert Job.objects.values("state").distinct().count() == len(JobState)
    assert Job.objects.distinct().aggregate(n=Count("state", distinct=True))["n"] == len(JobState)
    numbered = Job.objects.annotate(n=Window(RowNumber(), partition_by="state", order_by="pk")).filter(n=1)
    assert sorted(numbered.order_by("state").values_list("state", flat=True)) == sorted(JobState)
    both = Job.objects.filter(state="ready").values("state").union(Job.objects.filter(state="parked").values("state"))
    assert [row["state"] for row in both.order_by("state")] == ["parked", "ready"]
    latest = Attempt.objects.filter(job=OuterRef("pk"), job__state=OuterRef("state"))
    assert set(Job.objects.filter(Exists(latest)).values_list("state", flat=True)) == {"ready"}
    assert Job.objects.filter(pk__in=everything.filter(state="parked")[:1]).get().state == "parked"
    assert Job.objects.exclude(attempts__job__state="ready").filter(state="ready").exists()


@pytest.mark.usefixtures("without_function")
def test_admin_shell_and_steering_need_no_function(admin_client: Client, capsys: Any) -> None:
    one = Job.objects.filter(state="parked").get()
    for page in ("", f"{one.pk}/change/", "?state=parked"):
        assert admin_client.get(f"/admin/pgjobs/job/{page}").status_code == 200
    for words in (["list"], ["show", str(one.pk)], ["why", str(one.pk)]):
        call_command("pgjobs", *words)
        assert "parked" in capsys.readouterr().out
    assert one.why().code == "parked"
    assert Job.objects.filter(state="succeeded").cancel().skipped == {"succeeded": 1}


def test_a_job_inserted_by_the_orm_reads_its_state_from_the_database(raw: RawDatabase) -> None:
    """Test factories do that; the insertion returns no state."""
    [one] = Job.objects.bulk_create([Job(name="shop.pay", payload={}, hold="parked")])
    assert one.state == "parked"
    with pytest.raises(AttributeError, match="from an unsaved model"):
        _ = Job(name="shop.pay", payload={}).state


def test_the_state_has_no_parameters_which_group_by_would_number_anew(raw: RawDatabase) -> None:
    """With ``server_side_binding`` the server sees another parameter in GROUP BY than in SELECT."""
    register(2)
    grouped = Job.objects.values("state").annotate(number=Count("pk"))
    assert grouped.query.sql_with_params()[1] == ()
    with CaptureQueriesContext(connections["default"]) as asked:
        assert list(grouped) == [{"state": "ready", "number": 2}]
    assert "GROUP BY" in asked[0]["sql"]


def test_a_raw_query_adds_the_state_by_its_name(raw: RawDatabase) -> None:
    register()
    [job] = Job.objects.raw("SELECT j.*, j.state FROM pgjobs_job AS j")
    with CaptureQueriesContext(connection) as asked:
        assert job.state == "ready"
    assert len(asked) == 0


def test_validation_of_constraints_knows_the_state(raw: RawDatabase) -> None:
    job = Job.objects.get(pk=register()[0])
    job.validate_constraints()
    job.unique_key = "k"
    models.UniqueConstraint(fields=["queue"], condition=Q(state="parked"), name="u").validate(Job, job)
