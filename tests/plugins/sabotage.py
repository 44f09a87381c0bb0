"""Taking a line out of a statement, to see that a test notices."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from django_pgjobs import sql

FENCE = "-- fence"


def lines_of(marker: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (statement, line) for each line that holds ``marker``."""
    return [(name, line) for name in names for line in sql.statement(name).splitlines() if marker in line]


def fence_lines() -> list[tuple[str, str]]:
    """Return every (statement, line) of every fence there is."""
    return lines_of(FENCE, sql.names())


def line_id(value: str) -> str:
    """Word a statement or a line of a fence for a test's id."""
    return " ".join(value.split()).removesuffix(f" {FENCE}")


def sabotage(monkeypatch: pytest.MonkeyPatch, name: str, line: str, instead: str = "") -> None:
    """Take ``line`` out of the text that the store runs, or put another one in its place."""
    whole = sql.statement

    def statement(asked: str) -> str:
        lines = whole(asked).splitlines()
        if asked == name:
            assert line in lines
            lines[lines.index(line)] = instead
        return "\n".join(lines)

    monkeypatch.setattr(sql, "statement", statement)
