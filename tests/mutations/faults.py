"""What a one-line fault is, and which ones a file can have.

Python is changed by its syntax tree, SQL by its words. A fault replaces a part of one line and nothing else, so the
report shows it whole. Comments, docstrings, annotations, decorators, imports, texts and ``log.debug`` are left alone: a
fault in them changes nothing that anybody could notice. So are the attributes of ``__init__``: everything would.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ENGINE = ("django_pgjobs/sql", "django_pgjobs/worker", "django_pgjobs/maintenance")
AROUND = (
    "django_pgjobs/admin", "django_pgjobs/celery_bridge", "django_pgjobs/checks", "django_pgjobs/definition",
    "django_pgjobs/diagnosis", "django_pgjobs/doctor", "django_pgjobs/ends", "django_pgjobs/execution",
    "django_pgjobs/flows", "django_pgjobs/importing", "django_pgjobs/inspection", "django_pgjobs/jobs",
    "django_pgjobs/management", "django_pgjobs/metrics", "django_pgjobs/models", "django_pgjobs/notifying",
    "django_pgjobs/presentation", "django_pgjobs/queues", "django_pgjobs/registering", "django_pgjobs/running",
    "django_pgjobs/serialization", "django_pgjobs/steering", "django_pgjobs/store", "django_pgjobs/tasks",
    "django_pgjobs/telemetry", "django_pgjobs/testing", "django_pgjobs/values", "django_pgjobs/*.py",
)  # fmt: skip
FOLDERS = (*ENGINE, *AROUND)
"""Half of the faults are drawn in the first three, half in all others. Without migrations and the embedded server."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
SUMS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}

SQL_WORDS = (
    (r"<=", "<"),
    (r">=", ">"),
    (r"(?<![<>!])<(?![=>])", "<="),
    (r"(?<![<>!=])>(?!=)", ">="),
    (r"\bIS NOT NULL\b", "IS NULL"),
    (r"\bIS NULL\b", "IS NOT NULL"),
    (r"\bNOT EXISTS\b", "EXISTS"),
    (r"(?<!NOT )\bEXISTS\b", "NOT EXISTS"),
    (r" SKIP LOCKED\b", ""),
    (r"\bNO KEY UPDATE\b", "UPDATE"),
    (r"\bleast\b", "greatest"),
    (r"\bgreatest\b", "least"),
    (r"\bmin\(", "max("),
    (r"\bmax\(", "min("),
    (r"(?<!BETWEEN )\bAND\b", "OR"),
    (r"\bOR\b", "AND"),
    (r"\bDESC\b", "ASC"),
    (r"\bLEFT JOIN\b", "JOIN"),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r"(?<![\w$.%'])\d+(?![\w.'])", "number"),
    (r"'[a-z_]+'(?!\))", "word"),
)
PREDICATE = re.compile(r"\s*(WHERE|AND|OR|ON|HAVING)\b")


@dataclass(frozen=True)
class Fault:
    """A line of a file, and what stands there instead."""

    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n    - {self.before.strip()}\n    + {self.after.strip()}"

    def apply(self, text: str) -> str:
        """Return the file's text with the fault in it; raises ValueError if the line is not there any more.

        A line that has moved since the fault was chosen is found, if it is still the only one that reads so.
        """
        lines = text.splitlines(keepends=True)
        place = self.line - 1
        if place >= len(lines) or lines[place].rstrip("\n") != self.before:
            places = [number for number, line in enumerate(lines) if line.rstrip("\n") == self.before]
            if len(places) != 1:
                raise ValueError(f"{self.file} has no such line any more: {self.before.strip()}")
            place = places[0]
        lines[place] = f"{self.after}\n"
        return "".join(lines)


def faults_of(file: str, text: str) -> list[Fault]:
    """Return every fault that this file can have."""
    lines = text.splitlines()
    found = _python(ast.parse(text), lines) if file.endswith(".py") else _sql(lines)
    faults = [Fault(file, number, lines[number - 1], after) for number, after in dict.fromkeys(found)]
    return [fault for fault in faults if fault.after != fault.before]


def files_of(folder: str, root: Path = ROOT) -> list[Path]:
    """Return the files of a folder, or of a pattern, that can have faults."""
    found = root.glob(folder) if "*" in folder else (root / folder).rglob("*")
    return sorted(path for path in found if path.suffix in (".py", ".sql"))


def choose(seed: int, count: int, root: Path = ROOT) -> list[Fault]:
    """Choose that many different lines at random, and of each one of its faults; the same seed chooses the same.

    The halves take turns, so a run that is cut short has tried as many of each.
    """
    chance = random.Random(seed)
    engine = _draw(chance, ENGINE, count - count // 2, root)
    around = _draw(chance, AROUND, count - len(engine), root)
    return [fault for pair in zip_longest(engine, around) for fault in pair if fault]


def _draw(chance: random.Random, folders: tuple[str, ...], count: int, root: Path) -> list[Fault]:
    by_line: dict[tuple[str, int], list[Fault]] = {}
    for path in (path for folder in folders for path in files_of(folder, root)):
        name = path.relative_to(root).as_posix()
        for fault in faults_of(name, path.read_text(encoding="utf-8")):
            by_line.setdefault((name, fault.line), []).append(fault)
    places = chance.sample(list(by_line), min(count, len(by_line)))
    return [chance.choice(by_line[place]) for place in places]


# Python


def _python(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, str]]:
    for node in _live(tree):
        start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if not start or start != end:
            if isinstance(node, ast.If | ast.While) and node.test.lineno == node.test.end_lineno:
                yield _put(lines, node.test, f"not ({ast.unparse(node.test)})")
            continue
        for instead in _instead(node):
            yield _put(lines, node, instead)


def _live(node: ast.AST) -> Iterator[ast.AST]:
    """Walk over what runs: no annotation, docstring, import, or debug line."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "bases", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.JoinedStr) or (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            ):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Call) and ast.unparse(child.func) in ("log.debug", "Protocol", "TypeVar"):
                continue
            if isinstance(child, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in child.bases):
                continue
            if not (getattr(node, "name", "") == "__init__" and isinstance(child, ast.Assign)):
                yield child
            yield from _live(child)


def _put(lines: list[str], node: ast.expr | ast.stmt | ast.AST, instead: str) -> tuple[int, str]:
    number = int(getattr(node, "lineno", 0))
    last = int(getattr(node, "end_lineno", number))
    raw = lines[number - 1].encode()
    begin = int(getattr(node, "col_offset", 0))
    end = int(getattr(node, "end_col_offset", 0)) if last == number else len(raw)
    return number, (raw[:begin] + instead.encode() + raw[end:]).decode()


def _instead(node: ast.AST) -> Iterator[str]:
    """Yield what could stand in this node's place."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            was, becomes = COMPARISONS[type(operator)]
            left = ast.unparse(node.left)
            yield f"{left} {becomes} {ast.unparse(node.comparators[0])}"
            if was in ("<", ">", "<=", ">="):
                yield f"{left} {'>' if '<' in was else '<'} {ast.unparse(node.comparators[0])}"
        case ast.BoolOp(values=values):
            word = " or " if isinstance(node.op, ast.And) else " and "
            yield word.join(f"({ast.unparse(value)})" for value in values)
            for left_out in values:
                rest = [value for value in values if value is not left_out]
                whole = (" and " if isinstance(node.op, ast.And) else " or ").join(
                    f"({ast.unparse(value)})" for value in rest
                )
                yield whole
        case ast.UnaryOp(op=ast.Not()):
            yield f"bool({ast.unparse(node.operand)})"
        case ast.BinOp() if type(node.op) in SUMS and not _is_text(node):
            yield f"(({ast.unparse(node.left)}) {SUMS[type(node.op)][1]} ({ast.unparse(node.right)}))"
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() | float() as value):
            yield str(value + 1) if not value or isinstance(value, int) else str(value * 10)
            if value:
                yield "0" if isinstance(value, int) else "0.0"
        case ast.Call(func=ast.Name(id=name)) if name in TWINS:
            yield ast.unparse(node).replace(name, TWINS[name], 1)
        case ast.Call(args=[ast.Name(id=first), ast.Name(id=second)], keywords=[]) if first != second:
            yield f"{ast.unparse(node.func)}({second}, {first})"
        case ast.IfExp():
            yield f"({ast.unparse(node.body)})"
            yield f"({ast.unparse(node.orelse)})"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"
        case ast.Raise() | ast.AugAssign() | ast.Delete():
            yield "pass"
        case ast.Expr(value=ast.Call() as call) if ast.unparse(call.func) != "log.debug":
            yield "pass"
        case ast.Assign(targets=[ast.Attribute()]):
            yield "pass"


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (node.left, node.right))


# SQL


def _sql(lines: list[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        code, dashes, comment = line.partition("--")
        if not code.strip():
            continue
        rest = f"{dashes}{comment}"
        for pattern, word in SQL_WORDS:
            for found in re.finditer(pattern, code):
                yield number, f"{code[: found.start()]}{_sql_word(found[0], word)}{code[found.end() :]}{rest}"
        if PREDICATE.match(code):
            for found in re.finditer(r" = ", code):
                yield number, f"{code[: found.start()]} <> {code[found.end() :]}{rest}"
            if (without := _without(code)) is not None:
                yield number, without + rest
        elif re.fullmatch(r"\s+\w+ = [^()]+,\s*", code):
            yield number, rest


def _sql_word(found: str, word: str) -> str:
    if word == "number":
        return str(int(found) + 1)
    if word == "word":
        return f"{found[:-1]}_'"
    return word


def _without(code: str) -> str | None:
    """Drop a predicate, or let a clause that must say something say true; None where a bracket goes on below."""
    if code.count("(") != code.count(")"):
        return None
    word = code.split()[0]
    return "" if word in ("AND", "OR") else f"{code[: len(code) - len(code.lstrip())]}{word} true"
