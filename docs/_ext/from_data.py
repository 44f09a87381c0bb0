"""What ``_data`` says of promised behaviours, of faults, and of Django's tests that do not pass."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from markdown_of import DATA, ROOT, escaped, table

# Coverage

ROW_ID = re.compile(r"\b([CDAWPX])(\d{1,2})(?:(?:\s*[–-]\s*|\s+to\s+)\1?(\d{1,2}))?\b")


def rows() -> dict[str, Any]:
    """Return ``_data/rows.toml``: the behaviours promised so far and those that do not apply."""
    return tomllib.loads((DATA / "rows.toml").read_text(encoding="utf-8"))


def cited_rows() -> dict[str, list[str]]:
    """Row id → tests (``path::function``) whose docstring cites it; a module's docstring counts for the module."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            where = name if isinstance(node, ast.Module) else f"{name}::{node.name}"
            for row in _ids(text):
                found.setdefault(row, []).append(where)
    return found


def _ids(text: str) -> Iterator[str]:
    for letter, first, last in ROW_ID.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"


SHOWN_TESTS = 3


def _readable(where: str) -> str:
    """``tests/e2e/test_x.py::test_a_fact`` as file and sentence."""
    path, _, name = where.removeprefix("tests/").partition("::")
    return f"`{path}` {name.removeprefix('test_').replace('_', ' ')}".strip()


def coverage() -> str:
    """Row → tests → note."""
    cited = cited_rows()
    lines = []
    for id_, row in rows()["rows"].items():
        tests = [_readable(where) for where in cited.get(id_, [])]
        shown = "<br>".join(tests[:SHOWN_TESTS])
        if len(tests) > SHOWN_TESTS:
            shown += f"<br>and {len(tests) - SHOWN_TESTS} more"
        lines.append((id_, row["says"], shown or "none yet", row.get("note", "")))
    return table(("row", "behaviour", "shown by", "note"), lines)


def not_applicable() -> str:
    """Rows that do not apply, with the reason."""
    return table(("row", "reason"), [(id_, text) for id_, text in rows()["not_applicable"].items()])


# Faults


def faults_data() -> dict[str, Any]:
    """Return ``_data/faults.toml``: what is survived by which test, and what was not tested."""
    return tomllib.loads((DATA / "faults.toml").read_text(encoding="utf-8"))


def faults() -> str:
    """Fault → invariants → test → measured recovery."""
    return table(
        ("fault", "what holds", "test", "recovery"),
        [
            (escaped(f["fault"]), ", ".join(f["keeps"]), _readable(f["test"]), escaped(f["recovery"]))
            for f in faults_data()["faults"]
        ],
    )


def untested_faults() -> str:
    """What was not tested, and why."""
    return table(("fault", "why not"), [(escaped(f["fault"]), f["why"]) for f in faults_data()["untested"]])


# Django's tests of tasks


def contract() -> str:
    """Test → versions of Django → why it does not pass."""
    data = tomllib.loads((DATA / "contract.toml").read_text(encoding="utf-8"))
    return table(
        ("test", "Django", "why it does not pass"),
        [
            (f"`{name.replace('.', '` `')}`", ", ".join(entry["django"]), entry["reason"])
            for name, entry in data["tests"].items()
        ],
    )
