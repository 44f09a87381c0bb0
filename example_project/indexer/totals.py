"""The totals of an edition, counted by the database, and of its files, counted without it."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypedDict

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from example_project.indexer.models import Edition, Module, Symbol
from example_project.indexer.parsing import FILENAME
from example_project.indexer.sources import locate

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where a statement keeps others."""


class Totals(TypedDict):
    """What is compared: every file is either read or unreadable."""

    files: int
    unreadable: int
    lines: int
    imports: int
    classes: int
    functions: int


class Sums(NamedTuple):
    """What a package is summed up to."""

    files: int
    unreadable: int
    lines: int


def count(modules: QuerySet[Module]) -> Sums:
    """Sum these files up, in one statement."""
    sums = modules.aggregate(
        files=Count("pk"), unreadable=Count("pk", filter=~Q(problem="")), lines=Coalesce(Sum("lines"), 0)
    )
    return Sums(**sums)


def totals_of(edition: Edition) -> Totals:
    """Count what the jobs of an edition have written: classes and functions by their own rows."""
    modules = edition.read()
    symbols = Symbol.objects.filter(module__edition=edition)
    files, unreadable, lines = count(modules)
    return Totals(
        files=files,
        unreadable=unreadable,
        lines=lines,
        imports=modules.aggregate(sum=Coalesce(Sum("imports"), 0))["sum"],
        classes=symbols.filter(kind=Symbol.Kind.CLASS).count(),
        functions=symbols.exclude(kind=Symbol.Kind.CLASS).count(),
    )


def direct(paths: Iterable[str]) -> Iterator[Totals]:
    """Count the same in this process, without jobs and database; yield the totals so far after each file.

    Meanwhile nobody looks for cyclic garbage: trees have none, and looking takes a third of the time.
    """
    gc.disable()
    try:
        yield from _direct(paths)
    finally:
        gc.enable()


def _direct(paths: Iterable[str]) -> Iterator[Totals]:
    totals = Totals(files=0, unreadable=0, lines=0, imports=0, classes=0, functions=0)
    for path in paths:
        totals["files"] += 1
        try:
            with locate(path).open("rb") as file:
                lines = file.readlines()
            tree = ast.parse(b"".join(lines), FILENAME)
        except (SyntaxError, ValueError, OSError):
            totals["unreadable"] += 1
        else:
            totals["lines"] += len(lines)
            _add(totals, tree)
        yield totals


def _add(totals: Totals, tree: ast.Module) -> None:
    """Count statements, block by block: expressions hold none."""
    blocks: list[ast.AST] = [tree]
    for block in blocks:
        match block:
            case ast.Import() | ast.ImportFrom():
                totals["imports"] += 1
            case ast.ClassDef():
                totals["classes"] += 1
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                totals["functions"] += 1
        for name in BLOCKS:
            blocks += getattr(block, name, ())
