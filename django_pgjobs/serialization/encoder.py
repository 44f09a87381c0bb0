"""Python values → JSON that survives a jsonb column; ``decoder`` reverses it.

Layer 0: no database, no settings. A decoded value equals the encoded one; values for which that is impossible are
refused. Nothing is ever stored approximately.

JSON has no dates and jsonb keeps numbers as decimals, so some values travel as an object of one key that
begins with ``$``::

    {"$datetime": "2026-03-29T02:30:00+02:00[Europe/Berlin]"}   the offset, and the zone if it has a name
    {"$date": "2026-03-29"}          {"$time": "02:30:00"}          {"$timedelta": [days, seconds, microseconds]}
    {"$decimal": "1.10"}             {"$uuid": "…"}                 {"$bytes": "base64"}
    {"$tuple": [1, 2]}               {"$float": "1e+16"}            {"$dict": [["$x", 1]]}
    {"$result": 17}                  the result of job 17, which takes its place before the job runs
    {"$unstored": "why"}             a result that could not be stored, which reads as None

``$float`` is for floats that jsonb would change: from 1e16 on they would come back as ``int``, and -0.0 would lose its
sign. ``$dict`` is for a caller's own object that looks like one of these. jsonb does not keep the order of an object's
keys, so a dict comes back equal but in another order. An Enum comes back as its value, a dataclass as a dict of its
fields, a time zone without a name as its offset.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.utils.functional import LazyObject, Promise

from django_pgjobs.serialization.references import TAG, ResultOf

CODEC_VERSION = 1
"""Part of every job's fingerprint: code with another codec tries parked jobs again."""

MAX_DEPTH = 100
"""Maximum depth of nested containers; a fixed number, so that every stored value can be read again."""

INT_DIGITS = 4300
"""``int()`` of a longer text raises, unless the interpreter is set otherwise."""

INT_BITS = 14_284
"""Every integer of so many bits has at most INT_DIGITS digits; counting the digits would cost a conversion."""

PLAIN_INT = 10**18
"""Below it no integer is too long."""

FIRST_INTEGRAL_FLOAT = 1e16
"""From here on ``repr`` writes an exponent, and jsonb would keep the number without a decimal point."""


class Refused(Exception):
    """A value cannot be stored. The message says what it is and what to do instead, without its path."""


class TooDeep(Refused):
    """Containers are nested too deep; no single value inside is to blame."""


def write(value: object, depth: int = 0) -> tuple[str, int]:
    """Return the JSON text of ``value`` and its size in bytes of UTF-8.

    ``depth`` is how many containers are already around it. Raises Refused, also for exceptions of the value's own
    methods.
    """
    try:
        text = _dump(_lower(value, depth))
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"a value that raised {type(error).__name__}: {error}") from error
    return text, size_of(text)


def size_of(text: str) -> int:
    """Return the size of JSON text in bytes of UTF-8. Raises Refused for text that jsonb would reject."""
    if "\\u0000" in text and _NUL.search(text):
        raise Refused("a text with a NUL character, which PostgreSQL cannot store")
    return _size(text)


def is_flat(args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
    """Return whether all arguments are plain values, not containers."""
    return _FLAT.issuperset(map(type, args)) and (not kwargs or _FLAT.issuperset(map(type, kwargs.values())))


def write_flat(args: tuple[object, ...], kwargs: dict[str, object]) -> str | None:
    """Return the JSON text of a payload of a few plain values, at little more than the cost of ``json.dumps``.

    Return None if ``write`` must encode it: a value is not plain, or not ASCII, or looks like a tag, or the text is
    long enough to hide an integer that is too long.
    """
    if not is_flat(args, kwargs):
        return None
    try:
        text = _dump({"args": args, "kwargs": kwargs}) if kwargs else f'{{"args":{_dump(args)},"kwargs":{{}}}}'
    except ValueError:
        return None
    plain = len(text) < INT_DIGITS and text.isascii() and "$" not in text and "\\u0000" not in text
    return text if plain else None


def write_flat_rows(calls: Sequence[tuple[tuple[object, ...], dict[str, object]]]) -> list[str] | None:
    """Return what ``write_flat`` returns for each call, at a third of its cost; None if it cannot take one of them.

    The caller must pass flat calls only. All become one text, ``[[[7],{"a":1}],[[8],{}]]`` with newlines instead of
    commas. JSON strings escape their newlines, so ``}]\\n[[`` only stands between two calls, and ``]\\n{`` between the
    two parts of one.
    """
    if write_flat(*calls[0]) is None:
        return None  # the others are likely to be as long
    try:
        text = _dump_lines(calls)
    except ValueError:
        return None
    if len(text) > INT_DIGITS * len(calls) or not text.isascii() or "$" in text or "\\u0000" in text:
        return None
    payloads = f'{{"args":[{text[3:-2]}}}'.replace("}]\n[[", '}}\r{"args":[').replace("]\n{", '],"kwargs":{')
    flat = payloads.replace("\n", ",").split("\r")
    return flat if max(map(len, flat)) < INT_DIGITS else None


def write_plain(value: Any) -> str | None:
    """Return the JSON text of a plain value, at little more than the cost of ``repr``; None if ``write`` must do it."""
    kind = type(value)
    if kind is int:
        return int.__repr__(value) if -PLAIN_INT < value < PLAIN_INT else None
    if kind is str:
        return _dump(value) if value.isascii() and "\0" not in value else None
    return ("true" if value else "false") if kind is bool else None


def blame(arguments: Iterable[tuple[str, object]], refusal: Refused) -> str:
    """Return the refusal with the path of the innermost value that is refused by itself."""
    path, reason, candidates = "The arguments", refusal, arguments
    while found := _first_refused(candidates):
        path, value, reason = found
        # In a container that contains itself every inner container is refused too, without end.
        candidates = () if isinstance(reason, TooDeep) else children(path, value)
    return f"{path} cannot be stored: it is {reason}."


def _first_refused(candidates: Iterable[tuple[str, object]]) -> tuple[str, object, Refused] | None:
    try:
        for path, value in candidates:
            if (refusal := _refusal(value)) is not None:
                return path, value, refusal
    except Exception:
        # The container cannot be iterated: its own refusal is the best message.
        return None
    return None


def _refusal(value: object) -> Refused | None:
    try:
        write(value)
    except Refused as refusal:
        return refusal
    return None


def children(path: str, value: Any) -> Iterator[tuple[str, object]]:
    """Yield the values directly inside ``value`` as ``write`` sees it, each with its path."""
    kind = type(value)
    if issubclass(kind, Enum):
        yield path, value.value
    elif is_dataclass(kind):
        yield from ((f"{path}.{field.name}", getattr(value, field.name, None)) for field in fields(kind))
    elif issubclass(kind, dict):
        yield from ((f"{path}{_step(key)}", item) for key, item in dict.items(value))
    elif issubclass(kind, (list, tuple)):
        yield from ((f"{path}[{i}]", item) for i, item in enumerate(value))


def _step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_PLAIN = frozenset({str, bool, type(None)})
_FLAT = _PLAIN | {int}


def _made_once(between: str) -> Callable[[object], str]:
    """Return an ``encode`` that uses one C encoder, made now; the standard one makes a new one for each value.

    If this Python has no C encoder, or makes it differently, return the standard ``encode``.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(between, ":"))
    try:
        chunks = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, encoder.default, json.encoder.encode_basestring, None, ":", between, False, False, False
        )
        if "".join(chunks([1, {"a": None}], 0)) == f'[1{between}{{"a":null}}]':
            return lambda value: "".join(chunks(value, 0))
    except (AttributeError, TypeError):
        pass
    return encoder.encode


_dump, _dump_lines = _made_once(","), _made_once("\n")


def _size(text: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise Refused("a text with a lone surrogate, which is not valid Unicode") from None


def _lower(value: object, depth: int) -> object:
    """Return what ``json`` writes for ``value``: exact JSON types and tagged objects only."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    lower = _LOWER.get(kind)
    return lower(value, depth) if lower else _lower_other(value, depth)


def _lower_int(value: int, depth: int) -> int:
    if value.bit_length() > INT_BITS:
        raise Refused(f"an integer of more than {INT_DIGITS} digits")
    return value


def _lower_float(value: float, depth: int) -> object:
    if -FIRST_INTEGRAL_FLOAT < value < FIRST_INTEGRAL_FLOAT and (value or math.copysign(1, value) > 0):
        return value
    if not math.isfinite(value):
        raise Refused(f"{value!r}, which JSON does not have; pass None")
    return {"$float": float.__repr__(value)}


def _lower_list(value: list[Any], depth: int) -> list[object]:
    deeper = _deeper(depth)
    kinds = set(map(type, value))
    if kinds <= _PLAIN:
        return value
    if kinds == {int}:
        _lower_int(max(value), depth)
        _lower_int(min(value), depth)
        return value
    return [_lower(item, deeper) for item in value]


def _lower_dict(value: dict[Any, Any], depth: int) -> object:
    deeper = _deeper(depth)
    lowered = {
        key if type(key) is str else _key(key): item if type(item) in _PLAIN else _lower(item, deeper)
        for key, item in value.items()
    }
    if len(lowered) == 1 and next(iter(lowered)).startswith("$"):
        return {"$dict": [list(item) for item in lowered.items()]}
    return lowered


def _key(key: object) -> str:
    if not issubclass(type(key), str) or issubclass(type(key), Promise):
        raise Refused(f"a dict with a key of type {_name(type(key))}; keys must be texts")
    return str.__str__(key)


def _deeper(depth: int) -> int:
    # Count, instead of waiting for RecursionError: that depends on the stack, so a worker deeper in its stack could
    # not read a payload that was registered near the top of another. It also stops a container that contains itself.
    if depth >= MAX_DEPTH:
        raise TooDeep(f"nested deeper than {MAX_DEPTH} levels, or contains itself")
    return depth + 1


def _lower_datetime(value: datetime, depth: int) -> dict[str, str]:
    return {"$datetime": datetime.isoformat(value) + _zone_suffix(value)}


def _lower_time(value: time, depth: int) -> dict[str, str]:
    return {"$time": time.isoformat(value) + _zone_suffix(value)}


def _zone_suffix(value: datetime | time) -> str:
    """``[Europe/Berlin]`` for a named zone, ``[fold]`` where nothing else tells the second of two equal times."""
    zone = value.tzinfo
    name = zone.key if isinstance(zone, ZoneInfo) else None
    fold = "[fold]" if value.fold and (zone is None or value.utcoffset() is None) else ""
    return fold + (f"[{name}]" if name else "")


def _lower_decimal(value: Decimal, depth: int) -> dict[str, str]:
    if not value.is_finite():
        raise Refused(f"Decimal {value}, which is no finite number; pass None")
    return {"$decimal": Decimal.__str__(value)}


_LOWER: dict[type, Callable[[Any, int], object]] = {
    int: _lower_int,
    float: _lower_float,
    list: _lower_list,
    dict: _lower_dict,
    OrderedDict: _lower_dict,
    tuple: lambda value, depth: {"$tuple": _lower_list(list(value), depth)},
    datetime: _lower_datetime,
    date: lambda value, depth: {"$date": date.isoformat(value)},
    time: _lower_time,
    timedelta: lambda value, depth: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    Decimal: _lower_decimal,
    UUID: lambda value, depth: {"$uuid": str(value)},
    bytes: lambda value, depth: {"$bytes": b64encode(value).decode("ascii")},
    ResultOf: lambda value, depth: _lower_reference(value),
}


def _lower_reference(value: ResultOf) -> dict[str, int]:
    if value.job_id is None:
        raise Refused("the result of a node; only nodes of the same flow may take it")
    return {TAG: value.job_id}


def _lower_other(value: Any, depth: int) -> object:
    """Lower an Enum, a dataclass or a harmless subclass; refuse the rest."""
    # type(value), never isinstance(): a lazy object answers isinstance() by running its query.
    kind = type(value)
    if issubclass(kind, Enum):
        return _lower(value.value, depth)
    if issubclass(kind, (Promise, LazyObject)):
        raise Refused("a lazy object; pass str(…) of a text, the primary key of a model instance")
    if is_dataclass(kind):
        return _lower_dict({field.name: getattr(value, field.name) for field in fields(value)}, depth)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, ResultOf):
        raise Refused("the result of a job; only a node of a flow may take one")
    for base in (float, int, list, dict, UUID, datetime, date, Decimal):
        if issubclass(kind, base):
            return _lower_subclass(value, base, depth)
    raise Refused(_describe(kind))


def _lower_subclass(value: Any, base: type, depth: int) -> object:
    """Lower a subclass as its base, unless it would lose something: nanoseconds, several values per key."""
    kind = type(value)
    if base is dict and getattr(kind, "items", None) is not dict.items:
        raise Refused(f"a {_name(kind)}; pass a plain dict")
    if base is datetime and value.isoformat() != datetime.isoformat(value):
        raise Refused(f"a {_name(kind)} that a datetime cannot hold exactly")
    if base in (int, float, list):
        value = base(value)
    return _LOWER[base](value, depth)


_ADVICE: tuple[tuple[Callable[[type], bool], str], ...] = (
    (lambda kind: hasattr(kind, "_meta") and hasattr(kind, "pk"), "a model instance; pass its primary key"),
    (
        lambda kind: issubclass(kind, (set, frozenset)),
        "a set, which has no order; pass sorted(…) or list(…) of it",
    ),
    (lambda kind: hasattr(kind, "_fields"), "a named tuple; pass ._asdict() or tuple(…) of it"),
    (lambda kind: hasattr(kind, "model_dump"), "a pydantic model; pass .model_dump() of it"),
    (
        lambda kind: hasattr(kind, "dtype") and hasattr(kind, "item"),
        "a numpy value; pass .item() or .tolist() of it",
    ),
    (lambda kind: issubclass(kind, (bytearray, memoryview)), "a buffer; pass bytes(…) of it"),
    (
        lambda kind: hasattr(kind, "query") and hasattr(kind, "iterator"),
        "a queryset; pass a list of primary keys",
    ),
)


def _describe(kind: type) -> str:
    for matches, words in _ADVICE:
        if matches(kind):
            return f"{words} ({_name(kind)})"
    return f"of type {_name(kind)}, which JSON does not have"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
