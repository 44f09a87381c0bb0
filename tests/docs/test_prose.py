"""The prose of the documentation and of the package: turns of phrase that readers stumble over do not come back."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT

CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *(page for page in sorted(DOCS.rglob("*.md")) if not {"adr", "_build"} & set(page.parts)),
]
PROSE = "\n\n".join(CODE.sub("X", page.read_text(encoding="utf-8")) for page in PAGES)


def strings(path: Path) -> Iterator[tuple[bool, str]]:
    """Yield the strings of a module, those of attributes too; the first value is True for a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield id(node) in alone, node.value


def comments(path: Path) -> Iterator[str]:
    """Yield the comments of a module, one a line."""
    with path.open("rb") as module:
        for token in tokenize.tokenize(module.readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("# ")


PACKAGE = [found for path in sorted((ROOT / "django_pgjobs").rglob("*.py")) for found in strings(path)]
DOCSTRINGS = "\n\n".join(text for is_docstring, text in PACKAGE if is_docstring)
MESSAGES = "\n\n".join(text for is_docstring, text in PACKAGE if not is_docstring)
COMMENTS = "\n\n".join(text for path in sorted((ROOT / "django_pgjobs").rglob("*.py")) for text in comments(path))
TEMPLATES = "\n\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "django_pgjobs" / "templates").rglob("*.html"))
)
STATEMENTS = "\n\n".join(
    line.partition("--")[2]
    for path in sorted((ROOT / "django_pgjobs" / "sql").glob("*.sql"))
    for line in path.read_text(encoding="utf-8").splitlines()
)

PATTERNS = {
    "an unnamed agent": r"(?i)\b(?:some|no|any|every)body\b|\bwhoever\b",
    "to go on": r"(?i)\bgo(?:es|ing)? on\b|\bwent on\b|\bgone on\b",
    "dated adverbs": r"(?i)\b(?:anew|for ever|meanwhile|mostly)\b",
    "a sentence that begins with So": r"(?:^|[.:] )So [a-z]",
    "a clause as a subject": r"(?:^|[.] )(?:What|Whatever|Whoever|That which) [a-z]+ (?!is\b[^.]*\?)[^?\n]*?[.]",
    "a docstring that begins with a clause": r"\A(?:What|How|Whether|Which|Who|Whose|Where|When|Of)\b",
}
"""Name → the turn of phrase. Name the role that acts, write *continue*, and begin with a noun or a verb."""

LEFT = {
    "the documentation": (PROSE, {}),
    "docstrings": (DOCSTRINGS, {"an unnamed agent": 2}),  # the account called nobody
    "messages": (MESSAGES, {"an unnamed agent": 2}),  # the same
    "comments": (COMMENTS, {}),
    "templates": (TEMPLATES, {}),
    "statements": (STATEMENTS, {}),
}
"""Where → the text, and how often a pattern is left there if at all. Do not raise a number."""


@pytest.mark.parametrize("where", LEFT)
@pytest.mark.parametrize("what", list(PATTERNS)[:-1])
def test_a_turn_of_phrase_becomes_no_more_frequent(what: str, where: str) -> None:
    text, left = LEFT[where]
    found = [
        text[max(0, m.start() - 40) : m.end() + 40].strip() for m in re.finditer(PATTERNS[what], text, re.MULTILINE)
    ]
    assert len(found) <= left.get(what, 0), "\n".join(found)


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    pattern = PATTERNS["a docstring that begins with a clause"]
    assert [text[:80] for is_docstring, text in PACKAGE if is_docstring and re.search(pattern, text)] == []


def test_the_patterns_find_what_they_are_for() -> None:
    """A test that counts cannot be red by itself."""
    for words, what in {
        "Nobody waits": "an unnamed agent",
        "it goes on": "to go on",
        "It begins anew.": "dated adverbs",
        "It fails. So it stops.": "a sentence that begins with So",
        "What must not be missed belongs there.": "a clause as a subject",
        "Whether it is due.": "a docstring that begins with a clause",
    }.items():
        assert re.search(PATTERNS[what], words, re.MULTILINE), what


def test_the_texts_are_those_of_the_package() -> None:
    """Each text has a sentence that stands in its part of the repository, so none is empty or another."""
    assert "At least once" in PROSE
    assert "Register a job" in DOCSTRINGS
    assert "Let blocked jobs" in MESSAGES
    assert "here for start-up time" in COMMENTS
    assert "{% translate" in TEMPLATES
    assert "claim_jobs:" in STATEMENTS
