"""Which tables run no code of a project when rows of them are read or updated."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgjobs.store import sessions
from django_pgjobs.store.database import WrapperDatabase
from django_pgjobs.worker.executor.plain import is_plain

pytestmark = pytest.mark.django_db

FUNCTION = "CREATE FUNCTION kept(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN $1; END$$"
TRIGGER = "CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$"
TABLE = "CREATE TABLE tried (id integer PRIMARY KEY, name text NOT NULL CHECK (name <> ''), other text UNIQUE)"
REFERS = "CREATE TABLE refers (id integer PRIMARY KEY, tried_id integer REFERENCES tried {})"
CODE: dict[str, list[str]] = {
    "missing": [],
    "view": ["CREATE VIEW tried AS SELECT 1 AS id"],
    "temporary": ["CREATE TEMP TABLE tried (id integer)"],
    "partitioned": ["CREATE TABLE tried (id integer) PARTITION BY LIST (id)"],
    "a partition": [
        "CREATE TABLE whole (id integer) PARTITION BY LIST (id)",
        "CREATE TABLE tried PARTITION OF whole DEFAULT",
    ],
    "rule": [TABLE, "CREATE RULE also AS ON UPDATE TO tried DO ALSO SELECT 1"],
    "policy": [TABLE, "ALTER TABLE tried ENABLE ROW LEVEL SECURITY"],
    "with heirs": [TABLE, "CREATE TABLE heir () INHERITS (tried)"],
    "trigger": [
        TABLE, TRIGGER, "CREATE TRIGGER kept BEFORE UPDATE ON tried FOR EACH STATEMENT EXECUTE FUNCTION kept()",
    ],
    "cascade": [TABLE, REFERS.format("ON UPDATE CASCADE")],
    "check": [TABLE, FUNCTION, "ALTER TABLE tried ADD CHECK (kept(name) <> '')"],
    "generated": [TABLE, FUNCTION, "ALTER TABLE tried ADD more text GENERATED ALWAYS AS (kept(name)) STORED"],
    "index": [TABLE, FUNCTION, "CREATE INDEX ON tried (kept(name))"],
    "part of an index": [TABLE, FUNCTION, "CREATE INDEX ON tried (id) WHERE kept(name) = 'a'"],
    "domain": ["CREATE DOMAIN checked AS text CHECK (VALUE <> '')", "CREATE TABLE tried (name checked)"],
    "domains": ["CREATE DOMAIN checked AS text CHECK (VALUE <> '')", "CREATE TABLE tried (name checked[])"],
    "enum": ["CREATE TYPE colour AS ENUM ('red')", "CREATE TABLE tried (name colour)"],
}  # fmt: skip


def found(*texts: str) -> dict[str, frozenset[str]]:
    with connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text)
    return sessions.list_codeless_tables(WrapperDatabase(connection), ['"tried"'])


@pytest.mark.parametrize("kind", CODE)
def test_a_table_that_may_run_code_is_not_listed(kind: str) -> None:
    assert found(*CODE[kind]) == {}


def test_an_ordinary_table_is_listed_with_its_columns() -> None:
    """Constraints, indexes and references of PostgreSQL's own are no code; a column that was dropped is none."""
    listed = found(
        TABLE, REFERS.format("DEFERRABLE INITIALLY DEFERRED"), "CREATE INDEX ON tried (upper(name))",
        "ALTER TABLE tried ADD gone text", "ALTER TABLE tried DROP gone",
    )  # fmt: skip
    assert listed == {'"tried"': frozenset({"id", "name", "other"})}


def test_statements_are_judged_together() -> None:
    """One that is not plain, or whose text is unknown, or one column that is none: all of them may have."""
    found(TABLE.replace("tried", "judged"))
    plain = 'SELECT "judged"."id" FROM "judged"'
    assert is_plain(connection, [plain, plain])
    assert is_plain(connection, ['SELECT "public"."judged"."id" FROM "public"."judged"'])
    assert not is_plain(connection, [plain, None])
    assert not is_plain(connection, [plain, "SELECT 1"])
    assert not is_plain(connection, [plain] * 9)
    assert not is_plain(connection, ['SELECT "judged"."wipe" FROM "judged"'])
    assert not is_plain(connection, [plain, 'SELECT "nowhere"."id" FROM "nowhere"'])
