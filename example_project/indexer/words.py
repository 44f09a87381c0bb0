"""Splitting names and questions into words, the same way on both sides. Knows no database."""

from __future__ import annotations

import re

MOST_TERMS = 8
LONGEST_TERM = 64

_RUN = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def clean(text: str) -> str:
    """Return ``text`` without what PostgreSQL cannot store: NUL and lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def words(name: str) -> str:
    """Return the words of a name, in lower case: ``TemporaryFile`` is three (it, and its two parts)."""
    found: dict[str, None] = {}
    for run in _RUN.findall(name):
        for word in (run, *_HUMP.findall(run)):
            found[word.lower()[:LONGEST_TERM]] = None
    return clean(" ".join(found))


def terms(question: str) -> str:
    """Return a question as a tsquery that asks for all of its words' beginnings; empty when it has no words."""
    runs = (run[:LONGEST_TERM] for run in _RUN.findall(question[: MOST_TERMS * LONGEST_TERM]))
    asked = [word.lower() for run in runs for word in _HUMP.findall(run) or [run]]
    return " & ".join(f"'{word[:LONGEST_TERM]}':*" for word in asked[:MOST_TERMS])
