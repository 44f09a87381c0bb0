"""Which texts of statements cannot have changed a session, as far as a text can say it."""

from __future__ import annotations

import pytest

from django_pgjobs.worker.executor.plain import touched

OF_THE_ORM = {
    'SELECT "a"."id", "a"."name" FROM "a" WHERE "a"."id" = %s LIMIT 21': '"a"',
    'SELECT COUNT(*) AS "__count" FROM "a"': '"a"',
    'SELECT 1 AS "a" FROM "b" WHERE ("b"."c" >= %s AND NOT ("b"."d" IS NULL)) LIMIT 1': '"b"',
    'SELECT "a"."id" FROM "a" INNER JOIN "b" ON ("a"."b_id" = "b"."id") WHERE "b"."c" IN (%s, %s)': '"a" "b"',
    'SELECT "a"."id" FROM "a" LEFT OUTER JOIN "b" ON ("a"."b_id" = "b"."id") ORDER BY "a"."id" DESC': '"a" "b"',
    'SELECT (SELECT "z"."q" FROM "z" WHERE "z"."id" = ("x"."id") LIMIT 1) AS "k" FROM "x"': '"z" "x"',
    'SELECT "s"."a"."id" FROM "s"."a"': '"s"."a"',
    'UPDATE "a" SET "n" = %s, "m" = NULL WHERE "a"."id" = %s': '"a"',
}
OTHERS = [
    "SET app.tenant = 'x'",
    "BEGIN",
    "SELECT 1",
    "SELECT now()",
    "SELECT set_config(%s, %s, %s)",
    'SELECT "set_config"(%s, %s, %s) FROM "a"',
    'SELECT "set_config" (%s, %s, %s) FROM "a"',
    'SELECT "s"."leaves"("a"."id") FROM "a"',
    'SELECT LEFT("a"."b") FROM "a"',
    'SELECT "a"."b" <-> %s FROM "a"',
    'SELECT "a"."b" =+ %s FROM "a"',
    'SELECT "a"."b"::hidden FROM "a"',
    'SELECT "a"."b" FROM "a", "leaves"(%s)',
    'SELECT "a"."b" FROM "a", "b"',
    'SELECT "a"."b" FROM "a" INNER JOIN  "b" ON ("a"."id" = "b"."id")',
    'SELECT "a"."b" FROM "a" INNER JOIN\n"b" ON ("a"."id" = "b"."id")',
    'SELECT "a"."b" FROM "a""b"',
    'SELECT "a"."b" FROM "a" T3',
    'SELECT "a"."b" FROM "a" FOR UPDATE',
    'SELECT "a"."b" INTO TEMP "c" FROM "a"',
    'SELECT "a"."b" FROM "a"; SET ROLE "b"',
    'SELECT "a"."b" FROM "a" -- SET ROLE "b"',
    'SELECT "a"."b" /* "b" */ FROM "a"',
    "SELECT \"a\".\"b\" FROM \"a\" WHERE \"a\".\"b\" = 'x'",
    'UPDATE "a" SET "n" = DEFAULT',
    'INSERT INTO "a" ("n") VALUES (%s)',
    'DELETE FROM "a"',
    'DECLARE "x" CURSOR FOR SELECT "a"."b" FROM "a"',
    "",
]  # fmt: skip


@pytest.mark.parametrize("text", OF_THE_ORM)
def test_a_plain_text_names_its_tables(text: str) -> None:
    found = touched(text)
    assert found is not None
    assert " ".join(found.tables) == OF_THE_ORM[text]


@pytest.mark.parametrize("text", OTHERS)
def test_any_other_text_may_change_its_session(text: str) -> None:
    assert touched(text) is None
