"""Which files there are, by names that mean the same on every machine. Knows no database.

A name is the path below the interpreter's standard library, with ``/``. A few files of our own that nobody can
parse come under ``unreadable examples/``, because some distributions leave the standard library's tests out.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

LIBRARY = Path(sysconfig.get_path("stdlib"))
EXAMPLES = Path(__file__).resolve().parent / "fixtures_unreadable"
EXAMPLES_PREFIX = "unreadable examples/"
SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__"})


def source_files(limit: int | None = None) -> list[str]:
    """Return the names of all source files, our unreadable ones first; at most ``limit`` of them."""
    examples = sorted(EXAMPLES_PREFIX + path.name for path in EXAMPLES.glob("*.py.txt"))
    found = (path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.py"))
    names = sorted(path.as_posix() for path in found if not SKIPPED.intersection(path.parts))
    return [*examples, *names][:limit]


def locate(name: str) -> Path:
    """Return the file of a name, on the machine that asks."""
    if name.startswith(EXAMPLES_PREFIX):
        return EXAMPLES / name.removeprefix(EXAMPLES_PREFIX)
    return LIBRARY / name


def package_of(name: str) -> str:
    """Return the top-level package a file belongs to; modules without one are together in ``(modules)``."""
    top, slash, _ = name.partition("/")
    return top if slash else "(modules)"


def dotted(name: str) -> str:
    """Return the module's name as it is imported."""
    return name.removesuffix(".txt").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
