"""The numbers by which the house is judged each month: ``make rubric``. It prints, and fails nothing."""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "django_pgjobs"
FILES = {p: p.read_text() for p in sorted(PACKAGE.rglob("*.py")) if "migrations" not in p.parts}
TREES = {path: ast.parse(text) for path, text in FILES.items()}
NODES = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree)]
FUNCTIONS = [(path, node) for path, node in NODES if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
SQL = {path.stem: path.read_text() for path in sorted((PACKAGE / "sql").glob("*.sql"))}
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())


def say(row: int, name: str, *facts: str) -> None:
    print(f"{row:>2}  {name:<12} {' · '.join(facts)}")  # noqa: T201  it is for that


def short(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def comments(room: str) -> str:
    text = "".join(text for path, text in FILES.items() if path.is_relative_to(PACKAGE / room))
    found = sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline))
    return f"{100 * found / text.count(chr(10)):.1f}"


def circles() -> list[int]:
    """Sizes of the circles in which modules import one another, imports for types included."""
    graph = grimp.build_graph("django_pgjobs", exclude_type_checking_imports=False, cache_dir=None)
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}
    members = {m: frozenset({m} | {n for n in above[m] if m in above[n]}) for m in above}
    return sorted((len(circle) for circle in set(members.values()) if len(circle) > 1), reverse=True)


def main() -> None:
    fenced = [name for name, text in SQL.items() if "-- Fence: required" in text]
    whole = [n for n in fenced if all(re.search(rf"\b{word}\b.*-- fence", SQL[n]) for word in ("claim_id", "outcome"))]
    lines = sum(text.count("-- fence") for text in SQL.values())
    say(1, "fence", f"{len(fenced)} statements, {len(whole)} name claim_id and outcome", f"{lines} lines sabotaged")
    heads = sum(bool(re.match(r"(-- [\w ]+: .*\n)+", t)) and t.count("\n-- ") >= 3 for t in SQL.values())
    runs = {path for path, node in NODES if isinstance(node, ast.Attribute) and node.attr in ("execute", "executemany")}
    strays = [short(path) for path in sorted(runs) if not {"store", "operations.py", "embedded"} & set(path.parts)]
    say(
        2, "SQL room", f"{len(SQL)} files", f"{heads} with a header", f"run outside the store: {', '.join(strays) or 0}"
    )
    modules = sorted(text.count("\n") for text in FILES.values() if text.strip())
    sizes = sorted(length(node) for _, node in FUNCTIONS)
    large = [short(path) for path, text in FILES.items() if text.count("\n") > 400]
    say(3, "sizes", f"{len(modules)} modules, median {statistics.median(modules):g}, max {modules[-1]}",
        f"over 400: {', '.join(large) or 'none'}", f"{len(list(PACKAGE.glob('*.py')))} at the root",
        f"functions {statistics.median(sizes):g} / {sizes[int(len(sizes) * 0.95)]} / {sizes[-1]}")  # fmt: skip
    contracts = CONFIG["tool"]["importlinter"]["contracts"]
    excepted = sum(len(each.get("ignore_imports", [])) for each in contracts)
    say(4, "direction", f"circles with types: {', '.join(map(str, circles())) or 0}",
        f"{len(contracts)} contracts, {excepted} exceptions")  # fmt: skip
    types = [n.name for _, n in NODES if isinstance(n, ast.ClassDef) and n.name not in ("Meta", "Command")]
    twice = sorted(name for name, number in Counter(types).items() if number > 1)
    say(5, "words", f"{len(twice)} type names in more than one place: {', '.join(twice)}")
    public = [node for _, node in FUNCTIONS if not node.name.startswith("_")]
    told = 100 * sum(ast.get_docstring(node) is not None for node in public) / len(public)
    say(6, "why", f"comments per 100 lines: worker {comments('worker')}, maintenance {comments('maintenance')}",
        f"docstrings of public functions {told:.1f} %")  # fmt: skip
    guards = sum(path.read_text().count("\ndef test_") for path in (ROOT / "tests" / "docs").glob("test_*.py"))
    pages = [path.read_text() for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    left_out = sum(len(re.findall(r"<!-- skip: .*-->\n```(?:python|pycon)", page)) for page in pages)
    blocks = sum(len(re.findall(r"^```(?:python|pycon)", page, re.MULTILINE)) for page in pages)
    say(9, "docs", f"{guards} tests of {len(pages)} pages", f"{blocks} blocks of Python, {left_out} not run")
    ids = set(re.findall(r"pgjobs\.[EW]\d{3}", "".join(t for p, t in FILES.items() if "checks" in str(p))))
    exported = re.search(r"__all__ = \[(.*?)\]", FILES[PACKAGE / "__init__.py"], re.DOTALL)
    say(10, "guest", f"{(exported[1] if exported else '').count(',')} names", f"{len(ids)} checks")
    text = "\n".join(FILES.values())
    ignored, bare = len(re.findall(r"# type: ignore\[", text)), len(re.findall(r"# type: ignore(?!\[)", text))
    loose = len({(path, n.lineno) for path, n in NODES if isinstance(n, ast.Name) and n.id == "Any"})
    floor = re.findall(r"--cov-fail-under=(\d+)", (ROOT / ".ci" / "run").read_text())
    branches = "with" if CONFIG["tool"]["coverage"]["run"]["branch"] else "without"
    say(11, "hygiene", f"{ignored} coded ignores, {bare} bare", f"{len(re.findall('# noqa', text))} noqa",
        f"{loose} lines with Any", f"coverage {branches} branches, floor {', '.join(floor)} %")  # fmt: skip


if __name__ == "__main__":
    main()
