"""Check a value against a type annotation, as far as values that are stored as JSON need it.

Layer 0: no Django, no I/O. Knows the types that JSON has, their unions, ``Literal``, ``TypedDict`` and classes. What
it does not know it lets pass: a refusal must be right.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

_ABOUT = (Annotated, Required, NotRequired)


def problem_of(value: object, kind: object, where: str) -> str:
    """Return what is wrong with a value for ``kind``, and where; empty if nothing is.

    ``where``: what to call the value. *payload['approved'] is 'yes', where Verdict has bool*.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in _ABOUT:
        return problem_of(value, arguments[0], where)
    if origin in (Union, types.UnionType):
        problems = [problem_of(value, each, where) for each in arguments]
        return "" if "" in problems else _not(value, kind, where)
    if origin is Literal:
        fits = any(type(value) is type(each) and value == each for each in arguments)
        return "" if fits else _not(value, kind, where)
    if is_typeddict(kind):
        return _of_typed_dict(value, kind, where)
    if kind is None or kind is types.NoneType:
        return "" if value is None else _not(value, None, where)
    container = origin if isinstance(origin, type) else kind
    if not isinstance(container, type):
        return ""
    if not _is_a(value, container):
        return _not(value, kind, where)
    if arguments and isinstance(value, Mapping) and len(arguments) == 2:
        return _first(problem_of(each, arguments[1], f"{where}[{key!r}]") for key, each in value.items())
    if arguments and isinstance(value, list) and len(arguments) == 1:
        return _first(problem_of(each, arguments[0], f"{where}[{n}]") for n, each in enumerate(value))
    return ""


def _of_typed_dict(value: object, kind: object, where: str) -> str:
    if not isinstance(value, dict):
        return _not(value, kind, where)
    try:
        required, optional = _fields(kind)
    except Exception:  # a name that is known to type checkers only
        return ""
    if missing := sorted(required.keys() - value.keys()):
        return f"{where} lacks {missing[0]!r}, which {named(kind)} has as {named(required[missing[0]])}"
    fields = required | optional
    for key in value:
        if key not in fields:
            close = get_close_matches(str(key), fields, 1)
            meant = f" (did you mean {close[0]!r}?)" if close else ""
            return f"{where} has {key!r}, which {named(kind)} does not know{meant}"
    return _first(problem_of(each, fields[key], f"{where}[{key!r}]") for key, each in value.items())


def _fields(kind: Any) -> tuple[dict[str, object], dict[str, object]]:
    """Return the fields of a ``TypedDict`` that a value must have, and the others: name → type."""
    plain = get_type_hints(kind)
    # Postponed annotations: ``__required_keys__`` does not see what they say.
    said = {name: get_origin(each) for name, each in get_type_hints(kind, include_extras=True).items()}
    optional = {name for name in plain if said[name] is NotRequired}
    optional |= {name for name in kind.__optional_keys__ if said[name] is not Required}
    return (
        {name: each for name, each in plain.items() if name not in optional},
        {name: each for name, each in plain.items() if name in optional},
    )


def _is_a(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind in (bool, object)
    if kind is float:
        return isinstance(value, int | float)
    if kind in (Sequence, Iterable, list, tuple):
        # JSON has one kind of list.
        return isinstance(value, list | tuple)
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol
        return True


def _not(value: object, kind: object, where: str) -> str:
    shown = repr(value)
    shown = f"{shown[:80]}…" if len(shown) > 80 else shown
    return f"{where} is {shown}, not {named(kind)}"


def _first(problems: Iterable[str]) -> str:
    return next(filter(None, problems), "")


def named(kind: object) -> str:
    """Return a type as people write it."""
    if kind is None or kind is types.NoneType:
        return "None"
    return str(kind.__name__ if isinstance(kind, type) and not get_args(kind) else kind).replace("typing.", "")


def described(kind: object) -> str:
    """Return a type with what it consists of: *Verdict: {'approved': bool, 'note': str}*."""
    if not is_typeddict(kind):
        return named(kind)
    required, optional = _fields(kind)
    fields = [f"{name!r}: {named(each)}" for name, each in {**required, **optional}.items()]
    less = f", where {', '.join(map(repr, optional))} may be missing" if optional else ""
    return f"{named(kind)}: {{{', '.join(fields)}}}{less}"
