"""Which files there are, by names that mean the same on every machine. Knows no database.

A name is the path below the interpreter's standard library, with ``/``. Some distributions leave out the library's
tests: half of its files, and all that cannot be parsed. So Django's own source is read where the library is small,
under ``django/``, and everywhere a few files of ours that nobody can parse, under ``unreadable examples/``.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import django

LIBRARY = Path(sysconfig.get_path("stdlib"))
DJANGO = Path(django.__file__).resolve().parent
DJANGO_PREFIX = "django/"
EXAMPLES = Path(__file__).resolve().parent / "fixtures_unreadable"
EXAMPLES_PREFIX = "unreadable examples/"
SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__"})
ENOUGH = 1000


def source_files(limit: int | None = None) -> list[str]:
    """Return the names of all source files, our unreadable ones first; at most ``limit`` of them."""
    examples = sorted(EXAMPLES_PREFIX + path.name for path in EXAMPLES.glob("*.py.txt"))
    names = sorted(_below(LIBRARY))
    if len(names) < ENOUGH:
        names += sorted(DJANGO_PREFIX + name for name in _below(DJANGO))
    return [*examples, *names][:limit]


def _below(root: Path) -> Iterator[str]:
    for path in (found.relative_to(root) for found in root.rglob("*.py")):
        if not SKIPPED.intersection(path.parts):
            yield path.as_posix()


def locate(name: str) -> Path:
    """Return the file of a name, on the machine that asks."""
    if name.startswith(EXAMPLES_PREFIX):
        return EXAMPLES / name.removeprefix(EXAMPLES_PREFIX)
    if name.startswith(DJANGO_PREFIX):
        return DJANGO / name.removeprefix(DJANGO_PREFIX)
    return LIBRARY / name


def package_of(name: str) -> str:
    """Return the top-level package a file belongs to; modules without one are together in ``(modules)``."""
    top, slash, _ = name.partition("/")
    return top if slash else "(modules)"


def dotted(name: str) -> str:
    """Return the module's name as it is imported."""
    return name.removesuffix(".txt").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
