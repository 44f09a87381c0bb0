"""Whatever a job leaves on the session of its connection, the next job of the same thread finds none of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_pgjobs.models import Job
from tests.e2e import decorated, jobs, sessions
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 1}
"""Only the number of threads differs from what a project gets: connections are kept as by default."""


def tell() -> dict[str, Any]:
    (job,) = ended(sessions.tells_its_session.register())
    assert job.outcome == "succeeded", job.error
    assert Job.objects.get(pk=job.pk).description == "written", "what it wrote was rolled back"
    return dict(job.result or {})


@pytest.mark.parametrize("how", sorted(sessions.LEFT))
def test_the_next_job_finds_a_session_as_new(shared_worker: WorkerProcess, how: str) -> None:
    """Settings, roles, locks, channels, temporary tables, cursors, prepared statements, transactions."""
    before = tell()
    (left,) = ended(sessions.leaves_behind.register(how))
    assert left.outcome == "succeeded", left.error
    assert tell() == before
    if how.partition(" ")[0] in ("transaction", "failed"):
        shared_worker.wait_for_log(rf"job left a transaction open, rolled back .* job={left.pk}")


def test_a_session_that_was_reset_is_kept(shared_worker: WorkerProcess) -> None:
    backends = {job.result for job in ended(*[sessions.leaves_behind.register("own setting") for _ in range(5)])}
    assert len(backends) == 1


FUNCTION = """CREATE FUNCTION sets_tenant(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN PERFORM set_config('app.tenant', 'other', false); RETURN $1; END $$"""
TRIGGER = """CREATE FUNCTION sets_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('app.tenant', 'other', false); RETURN NEW; END $$"""
HIDDEN = {
    "view": ["CREATE VIEW hidden_view AS SELECT 1 AS id, sets_tenant('other') AS name"],
    "trigger": [
        TRIGGER,
        "CREATE TRIGGER sets BEFORE UPDATE ON hidden_trigger FOR EACH ROW EXECUTE FUNCTION sets_tenant()",
    ],
    "check": ["ALTER TABLE hidden_check ADD CHECK (sets_tenant(name) <> 'never')"],
    "index": ["CREATE INDEX ON hidden_index (sets_tenant(name))"],
    "generated": ["ALTER TABLE hidden_generated ADD other text GENERATED ALWAYS AS (sets_tenant(name)) STORED"],
    "domain": [
        "CREATE DOMAIN hidden AS text CHECK (sets_tenant(VALUE) <> 'never')",
        "ALTER TABLE hidden_domain ALTER name TYPE hidden",
    ],
    "column": ["CREATE FUNCTION tenant(hidden_column) RETURNS text LANGUAGE sql AS $$SELECT sets_tenant('other')$$"],
}
"""Where code of a project may stand that the text of a statement does not show, by kind; the table is hidden_KIND."""


@pytest.fixture
def hidden(committed: None, request: pytest.FixtureRequest) -> Iterator[str]:
    kind: str = request.param
    table = f"CREATE TABLE hidden_{kind} AS SELECT 1 AS id, 'old' AS name"
    with connection.cursor() as cursor:
        for text in (FUNCTION, *([] if kind == "view" else [table]), *HIDDEN[kind]):
            cursor.execute(text)
    yield kind
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION sets_tenant(text) CASCADE")
        cursor.execute("DROP FUNCTION IF EXISTS sets_tenant() CASCADE")
        cursor.execute(f"DROP TABLE IF EXISTS hidden_{kind} CASCADE")
        cursor.execute("DROP DOMAIN IF EXISTS hidden")


@pytest.mark.parametrize("hidden", sorted(HIDDEN), indirect=True)
def test_code_that_a_statement_does_not_show_leaves_nothing(shared_worker: WorkerProcess, hidden: str) -> None:
    """The text of each statement is one that the ORM writes; code behind its table changes the session."""
    texts = {
        "view": 'SELECT "hidden_view"."name" FROM "hidden_view" WHERE "hidden_view"."id" = 1',
        "column": 'SELECT "hidden_column"."tenant" FROM "hidden_column"',
    }
    update = f'UPDATE "hidden_{hidden}" SET "name" = "hidden_{hidden}"."name" WHERE "hidden_{hidden}"."id" = 1'
    before = tell()
    ended(sessions.sends.register(texts.get(hidden, update)))
    assert tell() == before


PLAIN_READ = 'SELECT "django_content_type"."id" FROM "django_content_type" WHERE "django_content_type"."id" = 0'


@pytest.mark.parametrize(
    ("text", "last"), [(PLAIN_READ, PLAIN_READ), ("SELECT 1", "SET SESSION AUTHORIZATION DEFAULT")]
)
def test_a_job_that_cannot_have_changed_its_session_costs_no_reset(
    shared_worker: WorkerProcess, raw: RawDatabase, text: str, last: str
) -> None:
    """The server shows what it was sent last: the job's own statement, or the reset."""
    for _ in range(2):  # the first has to ask about its table
        (job,) = ended(sessions.sends.register(text))

    def is_last() -> bool:
        return str(raw.value(f"SELECT query FROM pg_stat_activity WHERE pid = {job.result}")).startswith(last)

    wait_until(is_last, 10, f"{last} is the last statement of the session")


def test_a_session_that_the_server_has_ended_is_no_fault_of_the_executor(shared_worker: WorkerProcess) -> None:
    before = tell()
    (lost,) = ended(sessions.loses_its_session.register())
    assert lost.outcome == "succeeded", lost.error
    assert tell() == before
    assert not [line for line in shared_worker.log.splitlines() if " ERROR " in line and f"job={lost.pk}" in line]


def test_a_job_that_a_temporary_table_would_have_swallowed_is_stored(shared_worker: WorkerProcess) -> None:
    """A job registers another after one has made a temporary table that hides the jobs."""
    ended(sessions.leaves_behind.register("temporary table"))
    before = Job.objects.count()
    ended(jobs.no_op.register())
    assert Job.objects.count() == before + 1


@pytest.mark.parametrize("where", ["before", "in"])
def test_nothing_is_remembered_in_a_transaction_that_sql_has_begun(shared_worker: WorkerProcess, where: str) -> None:
    """The memo would be rolled back with it, and the step would run again."""
    (job,) = ended(sessions.remembers_after_begin.register(where))
    assert job.outcome == "abandoned"
    assert "transaction that the job has begun by SQL" in job.error


def test_what_a_body_returns_is_awaited_and_of_a_plain_step_refused(shared_worker: WorkerProcess) -> None:
    """A plain decorator hides that a function is async: its body runs all the same."""
    body, step = ended(decorated.awaited.register(4), decorated.has_a_hidden_step.register(4))
    assert (body.outcome, body.result) == ("succeeded", 5), body.error
    assert step.outcome == "abandoned"
    assert "a coroutine that is never awaited" in step.error
