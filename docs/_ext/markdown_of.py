"""Markdown from Python's values and docstrings; where code and data stand."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import django_pgjobs

PACKAGE = Path(django_pgjobs.__file__).parent

ROOT = PACKAGE.parent

DATA = Path(__file__).resolve().parent.parent / "_data"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Text as code within a table's cell."""
    return f"`{escaped(text)}`" if "`" not in text else f"`` {escaped(text)} ``"


def prose(text: str) -> str:
    """A docstring's reStructuredText as Markdown: only double backquotes are used in ours."""
    return " ".join(inspect.cleandoc(text).replace("``", "`").split())


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines) + "\n"


def documented_names(path: Path, within: str = "") -> Iterator[tuple[str, str]]:
    """(name, text) of assignments that are followed by a docstring, in a module or in one of its classes."""
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    if within:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == within)
    for node, after in pairwise(body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield target.id, str(after.value.value)
