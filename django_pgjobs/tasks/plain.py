"""Arguments and results as the contract has them: plain JSON, so tuples are lists, and a ``datetime`` is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django_pgjobs.definition.next_step import Next
from django_pgjobs.exceptions import UnstorableResult
from django_pgjobs.serialization.payload import is_flat

AS_THEY_ARE = frozenset({type(None), bool, int, str})
"""The types of results that come back from JSON unchanged."""


def plain_arguments(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments as they come back from JSON. Raises ``TypeError``, or ``ValueError`` for binary text.

    What JSON takes and PostgreSQL does not, such as NaN, passes: registering refuses it, and names its path.
    """
    flat, named = tuple(args), dict(kwargs)
    if is_flat(flat, named):
        return flat, named
    flat, named = _plain([flat, named])
    return tuple(flat), named


def plain_result(value: object) -> object:
    """Return what a task returned as it comes back from JSON; a next step passes. Raises ``UnstorableResult``."""
    if type(value) in AS_THEY_ARE or type(value) is Next:
        return value
    try:
        return _plain(value)
    except (TypeError, ValueError) as error:
        raise UnstorableResult(f"The result of a task must be JSON: {error}") from error


def _plain(value: object) -> Any:
    try:
        normal = normalize_json(value)
    except RecursionError:
        return value  # the codec refuses it, and says where
    try:
        return json.loads(json.dumps(normal))
    except (RecursionError, ValueError):
        return normal  # likewise: an integer that is too long


def normalize_json(value: object) -> object:
    """Return ``value`` made of what JSON has, as Django's function of this name does, of which no family's is public.

    Raises ``TypeError`` naming the type of what JSON does not have, ``ValueError`` for bytes that are no text.
    """
    match value:
        case Mapping():
            return {normalize_json(key): normalize_json(item) for key, item in value.items()}
        case bytes():
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"Unsupported value: {type(value)}") from None
        case str() | int() | float() | bool() | None:
            return value
        case Sequence():
            return [normalize_json(item) for item in value]
        case _:
            raise TypeError(f"Unsupported type: {type(value)}")
