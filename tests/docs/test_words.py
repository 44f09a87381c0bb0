"""One word per idea: no identifier, statement, log key or JSON key has a word that the glossary replaced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_pgjobs

PACKAGE = Path(django_pgjobs.__file__).parent

REPLACED = {
    "tell tells told telling teller untold": "notify; log, show or report",
    "look looks looked looking": "poll, scan, check or read",
    "sweep sweeps swept sweeping": "scan; expire or prune",
    "forget forgets forgot forgotten forgetting forgetter": "expire, prune or remove",
    "stir stirs stirred stirring": "wake",
    "hear hears heard hearing unheard": "on_notify; beat",
    "strike strikes struck striking": "interrupt",
    "place places": "slot, group or position",
    "ack acks acked acker": "finalise",
    "numbered": "default backoff",
    "remark remarks": "message",
    "aside": "hold; stderr",
    "wish wishes": "request",
}
"""Words of earlier versions, and those of the glossary that stand in their place."""

PHRASES = {
    "let_in": "admit",
    "lets_in": "admit",
    "give_back": "release",
    "given_back": "release",
    "hand_back": "release",
    "handed_back": "release",
    "take_back": "release or rescue",
    "left_out": "skipped",
    "by_numbers": "default backoff",
    "numeric_delay": "default backoff",
    "want_of": "out of",
}

ALLOWED = {
    "forget_misses": "the registry's memory is no row that expires",
    "forget_found": "the registry's memory is no row that expires",
    "_forget": "a hook of Celery's result backends",
    **dict.fromkeys(("ACKS_LATE", "TASK_ACKS_LATE"), "settings of Celery"),
    "numbered": "rows that a statement has numbered",
    "places": "the slots of a worker that a queue may take: the option --places and the setting PLACES",
    "PLACES": "the setting itself",
    "MOST_PLACES": "the largest number of these",
    "_places": "what reads these",
    "_check_places": "what refuses some of these",
    "shown_places": "the field of the admin that shows these",
}
"""Whole identifiers that may have such a word, and why."""

WORDS = {word: instead for words, instead in REPLACED.items() for word in words.split()}


def words_of(identifier: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", identifier)]


def cure(identifier: str) -> str | None:
    """Return what the identifier should say instead of a word that was replaced; None if it has none."""
    parts = words_of(identifier)
    flat = f"_{'_'.join(parts)}_"
    found = [WORDS[part] for part in parts if part in WORDS]
    found += [instead for phrase, instead in PHRASES.items() if f"_{phrase}_" in flat]
    return "; ".join(found) or None


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of what a module defines, of keys in its dicts, and of keys in its log lines."""
    for node in ast.walk(ast.parse(text)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield line, node.name
        elif isinstance(node, ast.arg):
            yield line, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield line, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield line, node.attr
        elif isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            yield from ((line, key) for key in keys if isinstance(key, str) and key.isidentifier())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((line, key) for key in re.findall(r"\b([a-z_]+)=%", node.value))


def of_sql(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of a statement's file, tables, aliases, columns and parameters."""
    yield 1, path.stem
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        code = re.sub(r"'[^']*'", "", line.partition("--")[0])
        yield from ((number, name) for name in re.findall(r"[a-z_]{2,}", code))


def found() -> list[tuple[str, str, str]]:
    """Return place, identifier and cure of each identifier with a replaced word."""
    everything = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "migrations" not in path.parts:
            everything += [(path, *each) for each in of_python(path.read_text(encoding="utf-8"))]
    for path in sorted(PACKAGE.rglob("*.sql")):
        everything += [(path, *each) for each in of_sql(path)]
    return [
        (f"{path.relative_to(PACKAGE.parent)}:{line}", name, instead)
        for path, line, name in everything
        if name not in ALLOWED and (instead := cure(name)) is not None
    ]


def test_no_identifier_has_a_word_that_the_glossary_replaced() -> None:
    assert [f"{where} {name}: say {cure}" for where, name, cure in found()] == []


@pytest.mark.parametrize(
    "line",
    [
        "def sweep(): ...",
        "async def sweep(): ...",
        "class Sweep: ...",
        "def f(sweep): ...",
        "sweep = 1",
        "self.sweep = 1",
        "{'sweep': 1}",
        "log.info('all done sweep=%d', 1)",
    ],
)
def test_a_replaced_word_is_found_wherever_python_names_something(line: str) -> None:
    assert [name for _, name in of_python(line) if cure(name)]


def test_a_replaced_word_is_found_in_the_name_and_the_code_of_a_statement(tmp_path: Path) -> None:
    """What PostgreSQL does not read as a name, a comment or a literal, may have any word."""
    statement = tmp_path / "sweep.sql"
    statement.write_text("-- sweep\nSELECT 'sweep'\nFROM jobs AS sweep\n", encoding="utf-8")
    assert [line for line, name in of_sql(statement) if cure(name)] == [1, 3]


@pytest.mark.parametrize(
    ("identifier", "instead"),
    [("look_at_claims", "poll"), ("ToldOf", "notify"), ("LET_IN", "admit"), ("_handed_back", "release")],
)
def test_a_replaced_word_is_found_in_any_part_of_an_identifier(identifier: str, instead: str) -> None:
    assert instead in str(cure(identifier))
    assert cure("overlook") is None
    assert cure("outlet_input") is None
