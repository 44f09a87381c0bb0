"""The keys of log lines: from the code which lines have them, from ``_data/log_keys.toml`` what they mean."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from from_code import log_calls
from markdown_of import DATA, PACKAGE, code, table

KEYS: dict[str, dict[str, Any]] = tomllib.loads((DATA / "log_keys.toml").read_text(encoding="utf-8"))
"""Key → ``says``, and ``label`` and ``span`` where metrics and spans have it."""

_KEY = re.compile(r"\b([a-z_]+)=")

SHOWN_LINES = 2

OF_ATTEMPTS = "facts_of_attempt"
"""The function that makes the facts of every line about an attempt."""


def keys_of(line: str) -> list[str]:
    """Return the keys of a line, as the code has it."""
    return _KEY.findall(line)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def built_facts() -> Iterator[tuple[str, str]]:
    """(function, text) of each text that becomes a part of a line by ``logs.facts``."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _called(node) == "facts" and node.args:
                    texts = (part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant))
                    yield from ((function.name, text) for text in texts if isinstance(text, str))


def lines_by_key() -> dict[str, list[str]]:
    """Key → the phrases of the lines that have it; of facts that are built elsewhere, the lines say ``%s``."""
    found: dict[str, list[str]] = {}
    for _, _, line, _ in log_calls():
        phrase = _KEY.split(line, maxsplit=1)[0].strip()
        for key in keys_of(line):
            found.setdefault(key, []).append(phrase)
    for function, text in built_facts():
        for key in keys_of(text):
            found.setdefault(key, []).append("every line about an attempt" if function == OF_ATTEMPTS else "")
    return found


def log_keys() -> str:
    """Every key of a log line."""
    lines = lines_by_key()
    rows = []
    for key, about in KEYS.items():
        marks = [f"metric label `{key}`"] if about.get("label") else []
        marks += [f"span attribute `pgjobs.{key}`"] if about.get("span") else []
        rows.append((f"`{key}`", about["says"], _where(lines[key]), "<br>".join(marks)))
    return table(("key", "meaning", "in", "also a"), rows)


def _where(phrases: list[str]) -> str:
    known = sorted({phrase for phrase in phrases if phrase})
    if "every line about an attempt" in known:
        return "every line about an attempt"
    shown = [code(re.sub(r"%[-.\d]*[a-z]", "…", phrase)) for phrase in known[:SHOWN_LINES]]
    return (
        "<br>".join([*shown, *([f"and {len(known) - SHOWN_LINES} more"] * (len(known) > SHOWN_LINES))]) or "some lines"
    )
