"""The schema as PostgreSQL's catalog describes it: ``python -m tests.migrations.schema`` writes it to ``schema.txt``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("schema.txt")

_TABLES = """
SELECT oid, relname, array_to_string(ARRAY(SELECT unnest(reloptions) ORDER BY 1), ', ') FROM pg_class
WHERE relkind = 'r' AND relname LIKE 'pgjobs\\_%%' AND relnamespace = current_schema()::regnamespace ORDER BY relname
"""
_COLUMNS = """
SELECT format('  %%s %%s%%s%%s%%s%%s', attname, format_type(atttypid, atttypmod),
    CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END,
    ' DEFAULT ' || pg_get_expr(adbin, adrelid),
    CASE attidentity WHEN '' THEN '' ELSE ' IDENTITY ' || attidentity::text END,
    CASE WHEN attstorage = typstorage THEN '' ELSE ' STORAGE ' || attstorage::text END)
FROM pg_attribute JOIN pg_type AS t ON t.oid = atttypid
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_CONSTRAINTS = """
SELECT format('  CONSTRAINT %%s %%s', conname, pg_get_constraintdef(oid)) FROM pg_constraint
WHERE conrelid = %s AND contype <> 'n' ORDER BY conname
"""
_INDEXES = """
SELECT '  ' || regexp_replace(pg_get_indexdef(c.oid), '^CREATE | ON [^ ]+', '', 'g')
FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid WHERE indrelid = %s ORDER BY relname
"""
_FUNCTIONS = """
SELECT pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = current_schema()::regnamespace AND proargtypes[0] = to_regtype('pgjobs_job') ORDER BY proname
"""


def read_schema(cursor: Any) -> str:
    """Return tables with their columns in order, constraints, indexes, storage parameters and functions, as text."""
    lines = []
    cursor.execute(_TABLES, [])
    for oid, name, options in cursor.fetchall():
        lines.append(f"{name} ({options})" if options else name)
        for query in (_COLUMNS, _CONSTRAINTS, _INDEXES):
            cursor.execute(query, [oid])
            lines += [line for [line] in cursor.fetchall()]
        lines.append("")
    cursor.execute(_FUNCTIONS, [])
    lines += [line.replace("public.", "").strip() for [line] in cursor.fetchall()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the schema of the database that the settings name, after ``migrate``."""
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        FILE.write_text(read_schema(cursor), encoding="utf-8")


if __name__ == "__main__":
    main()
