"""The rooms of the package: few modules at its root, a purpose for each, and the paths that documentation names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import django_pgjobs

PACKAGE = Path(django_pgjobs.__file__).parent
ROOT = PACKAGE.parent
ROOMS = [path.parent for path in sorted(PACKAGE.rglob("__init__.py")) if "migrations" not in path.parts]
NAMED = re.compile(r"(?<![\w./])django_pgjobs(?:\.[A-Za-z_]\w*)+")
LONGEST_MODULE = 400
NOT_PATHS = {"django_pgjobs.job", "django_pgjobs.duties"}
"""Loggers, which are no modules."""


def test_few_modules_stand_at_the_root() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 20


def test_no_module_is_long() -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
        if "migrations" not in path.parts
    }
    assert {path: count for path, count in lines.items() if count > LONGEST_MODULE} == {}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(ROOT).as_posix())
def test_every_room_says_what_it_is_for(room: Path) -> None:
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))


def imports_in_functions() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", text.splitlines()[node.lineno - 1]


def test_an_import_inside_a_function_says_why_it_is_there() -> None:
    """None may hide a circle: it keeps what few processes need out of the others, or waits for the models."""
    unmarked = {
        place: line for place, line in imports_in_functions() if not re.search(r"  # here(:| for start-up)", line)
    }
    assert unmarked == {}


def named_in_documentation() -> list[str]:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    texts = (page.read_text(encoding="utf-8") for page in pages if "_build" not in page.parts)
    return sorted({path for text in texts for path in NAMED.findall(text)} - NOT_PATHS)


@pytest.mark.parametrize("path", named_in_documentation())
def test_what_documentation_names_can_be_imported(path: str) -> None:
    parts = path.split(".")
    found: object = django_pgjobs
    for at, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            import_module(".".join(parts[:at]))
        found = getattr(found, part)


def types_by_name() -> dict[str, set[str]]:
    """Return the modules of each type, including classes inside others, except Django's ``Meta``."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "migrations" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    names = [node.name]
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                    targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
                    names = [name for name in targets if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name)]
                else:
                    names = []
                for name in names:
                    found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return {name: paths for name, paths in found.items() if name != "Meta"}


def test_a_type_has_a_name_of_its_own() -> None:
    """``Command`` is Django's name for a command."""
    twice = {name: paths for name, paths in types_by_name().items() if len(paths) > 1}
    assert list(twice) == ["Command"]


# The way through the modules

LONGEST = 18


def imported_at_start(path: Path) -> set[str]:
    """Modules of the package that a module imports when it is loaded."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)
    return found


def test_no_chain_of_imports_is_long() -> None:
    """A newcomer who follows imports from any module down meets at most so many."""
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
        if "migrations" not in path.parts
    }
    imports = {name: imported_at_start(path) & paths.keys() - {name, "django_pgjobs"} for name, path in paths.items()}
    known: dict[str, list[str]] = {}

    def chain(name: str, above: tuple[str, ...] = ()) -> list[str]:
        if name not in known:
            below = [chain(each, (*above, name)) for each in imports[name] if each not in above]
            known[name] = [name, *max(below, key=len, default=[])]
        return known[name]

    longest = max((chain(name) for name in paths), key=len)
    assert len(longest) <= LONGEST, " → ".join(longest)
