"""The room of SQL: one statement per file, named like its function in ``store``, read once.

Each file starts with four lines: what it does, its fence, what its rows mean, which clock it reads. A line that
is part of a fence ends in ``-- fence``, so that a test can strip it and see a safety test go red. If two statements
share a clause, ``tests/unit/test_sql_twins.py`` lists it and keeps both copies equal. Only ``store`` imports this.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_COMMENT = re.compile(r"\s*--(?! fence$).*")


@cache
def statement(name: str) -> str:
    """Return the text of ``name``.sql without comments, except the marks of fences, and without indentation.

    psycopg remembers what it made of a text, but only up to 4,096 bytes; it parses a longer one at each execution.
    Raises ``FileNotFoundError`` if there is no such file.
    """
    lines = (_COMMENT.sub("", line).strip() for line in source(name).splitlines())
    return "\n".join(line for line in lines if line)


def source(name: str) -> str:
    """Return ``name``.sql as it is written, to be read. Raises ``FileNotFoundError`` if there is no such file."""
    return resources.files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def names() -> list[str]:
    """Return the names of all statements, sorted."""
    found = resources.files(__name__).iterdir()
    return sorted(entry.name.removesuffix(".sql") for entry in found if entry.name.endswith(".sql"))
