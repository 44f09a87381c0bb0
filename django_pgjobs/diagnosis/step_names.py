"""The names under which a durable function remembers things, as far as its text says them; nothing is called.

Followed are the functions, definitions and constants of the same project that it names. A name that is made only when
the function runs, such as an f-string or a parameter, cannot be known: ``Spoken.open`` is True then.
"""

from __future__ import annotations

import ast
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType

MOST_VALUES = 1000
PAUSES = ("sleep", "gather", "each")
"""Calls of a context that have a name of their own if they are given none."""

_NAMED = {*PAUSES, *(f"a{pause}" for pause in PAUSES), "using"}
_FIRST = {"version", "wait_for", "await_for", "step", "astep"}


@dataclass(slots=True)
class Spoken:
    """``words``: every name and text of the functions. ``pauses``: calls in them without a name of their own."""

    words: set[str] = field(default_factory=set)
    pauses: set[str] = field(default_factory=set)
    open: bool = False

    def has(self, kind: str, memo: str) -> bool:
        """Return whether something may be remembered under this name."""
        if memo == kind and kind in PAUSES:
            return kind in self.pauses
        name = memo.removeprefix("job:").replace("\\", "")
        return name in self.words or name.rpartition(".")[2] in self.words


def spoken_by(func: Callable[..., object]) -> Spoken:
    """Return what a function, and those that it names, say."""
    found, seen = Spoken(), set[int]()
    waiting: list[object] = [func]
    home = getattr(inspect.unwrap(func), "__module__", "").partition(".")[0]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        try:
            waiting += _followed(value, home, found)
        except Exception:  # what a module has may raise at any question, as a lazy object does
            found.open = True
        if len(seen) > MOST_VALUES * 10:
            found.open = True
            break
    return found


def _followed(value: object, home: str, found: Spoken) -> Iterable[object]:
    """Return what else a value names, and note its words."""
    if isinstance(value, str):
        found.words.add(value)
    elif isinstance(value, list | tuple | set | frozenset):
        return list(value)[:MOST_VALUES]
    elif isinstance(value, dict):
        return [*value.keys(), *value.values()][: 2 * MOST_VALUES]
    elif callable(value) or hasattr(value, "name"):
        _name(value, found)
        body = inspect.unwrap(getattr(value, "func", value)) if callable(value) else value
        if _is_ours(body, home):
            if isinstance(body, FunctionType):
                return list(_named_by(body, found))
            if isinstance(body, type):
                return [*body.__bases__, *(getattr(each, "__func__", each) for each in vars(body).values())]
            return [type(body)]
    elif _is_ours(type(value), home):
        return [type(value)]
    return ()


def _is_ours(value: object, home: str) -> bool:
    """Return whether code of the project made it, rather than an installed package."""
    module = getattr(value, "__module__", None) or ""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = tuple(sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib"))
    return module.partition(".")[0] == home or (bool(file) and not file.startswith(installed))


def _name(value: object, found: Spoken) -> None:
    for attribute in ("name", "__qualname__"):
        if isinstance(name := getattr(value, attribute, None), str):
            found.words |= {name, name.rpartition(".")[2]}


def _named_by(func: FunctionType, found: Spoken) -> Iterator[object]:
    """Yield what the names in a function stand for, and note its words."""
    codes = list(_codes(func.__code__))
    names = {name for code in codes for name in code.co_names}
    found.words |= names
    known = {**func.__globals__, **_closure(func)}
    for name in {*names, *func.__code__.co_freevars} & known.keys():
        value = known[name]
        if isinstance(value, ModuleType):
            yield from _of_module(value, names)
        else:
            yield value
    for code in codes:
        yield from (each for each in code.co_consts if isinstance(each, str | tuple))
    yield from (func.__defaults__ or ())
    _read(func, {name for code in codes for name in code.co_varnames}, found)


def _of_module(module: ModuleType, names: set[str]) -> Iterator[object]:
    """Yield what a module, and modules in it, have under these names."""
    for value in (getattr(module, each) for each in names if hasattr(module, each)):
        if isinstance(value, ModuleType):
            if value.__name__.startswith(f"{module.__name__}."):
                yield from _of_module(value, names)
        else:
            yield value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _closure(func: FunctionType) -> dict[str, object]:
    try:
        return {name: cell.cell_contents for name, cell in zip(func.__code__.co_freevars, func.__closure__ or ())}  # noqa: B905
    except ValueError:  # a cell that is still empty
        return {}


def _read(func: FunctionType, local: set[str], found: Spoken) -> None:
    """Note calls without a name, and whether the names of others can be known."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(func)))
    except (OSError, SyntaxError, TypeError):
        found.open, found.pauses = True, {*PAUSES}
        return
    found.open = found.open or any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        callee = call.func.func if isinstance(call.func, ast.Call) else call.func
        called = callee.attr if isinstance(callee, ast.Attribute) else ""
        named = [each.value for each in call.keywords if each.arg in ("name", None)]
        pause, steps = called.removeprefix("a"), called == "using" and isinstance(call.func, ast.Call)
        if pause in PAUSES and all(getattr(each, "value", None) == pause for each in named):
            found.pauses.add(pause)
        given = named if called in _NAMED and not steps else []
        given += call.args[:1] if called in _FIRST or steps else []
        found.open = found.open or any(not _is_plain(each, local) for each in given)


def _is_plain(value: ast.expr, local: set[str]) -> bool:
    """Return whether the text alone says which value this is."""
    if isinstance(value, ast.Name):
        return value.id not in local
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Attribute) and _is_plain(value.value, local))
