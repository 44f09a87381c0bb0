"""The room of SQL: one statement per file, named like its function in ``store``, read once.

Each file starts with four lines: what it does, its fence, what its rows mean, which clock it reads. A line that
is part of a fence ends in ``-- fence``, so that a test can strip it and see a safety test go red. If two statements
share a clause, ``tests/unit/test_sql_twins.py`` lists it and keeps both copies equal. Only ``store`` imports this.
"""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def statement(name: str) -> str:
    """Return the text of ``name``.sql without its header. Raises ``FileNotFoundError`` if there is no such file."""
    text = resources.files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def names() -> list[str]:
    """Return the names of all statements, sorted."""
    found = resources.files(__name__).iterdir()
    return sorted(entry.name.removesuffix(".sql") for entry in found if entry.name.endswith(".sql"))
