"""Read from the source of a function which keys the dicts have that it returns.

A check must not call a project's ``capture``: that may ask a database, or need a request. What the source does not
show, registering refuses.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from textwrap import dedent


def returned_keys(function: Callable[..., object]) -> frozenset[str]:
    """Return the keys of the dicts that ``function`` returns as literals; none if its source cannot be read."""
    try:
        tree = ast.parse(dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    returned = [value for node in tree.body for value in _returned(node)]
    return frozenset(key for value in returned for key in _keys(value))


def _returned(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what the function of this statement returns; what functions inside of it return is another matter."""
    if isinstance(node, ast.FunctionDef):
        yield from _of_body(node)
    else:
        # ``factory.capture = lambda: {…}``
        yield from (found.body for found in ast.walk(node) if isinstance(found, ast.Lambda))


def _of_body(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return) and child.value is not None:
            yield child.value
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _of_body(child)


def _keys(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Dict):
        yield from (key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
        yield from (keyword.arg for keyword in value.keywords if keyword.arg is not None)
