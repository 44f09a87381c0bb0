"""Reading one source file. Knows no database."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from example_project.indexer.words import clean

LONGEST_SUMMARY = 200
LONGEST_NAME = 200
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

# What the parser says about somebody else's code is nobody's business here. A filter for good, set at import:
# warnings.catch_warnings() is not safe in threads. The module of such a warning is the name given to ast.parse.
FILENAME = "indexed by example_project"
warnings.filterwarnings("ignore", module=FILENAME)


class CannotBeParsed(Exception):
    """The file is not Python, or not in an encoding that can be read."""


@dataclass(frozen=True, slots=True)
class Found:
    """A class or function: its name with those it is nested in, what it is, its line, its docstring's first line."""

    name: str
    kind: str
    line: int
    summary: str


@dataclass(frozen=True, slots=True)
class Source:
    """What a file says."""

    lines: int
    imports: int
    summary: str
    found: list[Found]

    def count(self, *kinds: str) -> int:
        """Return how many definitions of these kinds there are."""
        return sum(one.kind in kinds for one in self.found)


def parse(path: Path) -> Source:
    """Read and parse a file. Raises CannotBeParsed with a readable reason, or OSError."""
    text = path.read_bytes()
    try:
        tree = ast.parse(text, FILENAME)
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        raise CannotBeParsed(f"{error.msg}{where}") from error
    except ValueError as error:  # NUL bytes, before Python 3.12
        raise CannotBeParsed(str(error)) from error
    statements = list(_statements(tree))
    return Source(
        lines=text.count(b"\n") + (not text.endswith(b"\n") and text != b""),
        imports=sum(isinstance(node, (ast.Import, ast.ImportFrom)) for node, _, _ in statements),
        summary=summary_of(tree),
        found=sorted((_found(*one) for one in statements if isinstance(one[0], Definition)), key=lambda one: one.line),
    )


def _statements(tree: ast.Module) -> Iterator[tuple[ast.AST, str, bool]]:
    """(statement, prefix of names it defines, whether it stands in a class), in no order.

    A stack and not recursion: an ``elif`` chain nests as deep as it is long.
    """
    stack: list[tuple[ast.AST, str, bool]] = [(tree, "", False)]
    while stack:
        node, prefix, in_class = stack.pop()
        yield node, prefix, in_class
        if isinstance(node, Definition):
            prefix, in_class = f"{prefix}{node.name}.", isinstance(node, ast.ClassDef)
        stack += [(child, prefix, in_class) for child in ast.iter_child_nodes(node) if isinstance(child, STATEMENTS)]


def _found(node: ast.AST, prefix: str, in_class: bool) -> Found:
    assert isinstance(node, Definition)  # noqa: S101  for mypy
    kind = "class" if isinstance(node, ast.ClassDef) else "method" if in_class else "function"
    return Found(clean(prefix + node.name)[-LONGEST_NAME:], kind, node.lineno, summary_of(node))


def summary_of(node: ast.Module | Definition) -> str:
    """Return the first line of the docstring, shortened."""
    lines = (ast.get_docstring(node) or "").strip().splitlines()
    return clean(lines[0])[:LONGEST_SUMMARY] if lines else ""
