"""JSON → the Python values that ``encoder`` wrote, tagged objects included."""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django_pgjobs.serialization.references import TAG, UNSTORED, ResultOf, StoredResultOf, is_id

UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
"""Exceptions that ``read`` and ``revive`` raise for JSON that ``encoder`` did not write."""


def read(text: str) -> Any:
    """Return the value of a JSON text. Raises one of UNREADABLE."""
    if "$" not in text and "\\u" not in text:
        # Without a tag, or an escape that may hide one, skip the object hook: it takes half the time.
        try:
            value, end = _scan(text, 0)
        except StopIteration:
            return _load(text)
        if end == len(text):
            return value
    return _load(text)


def read_positional(text: str) -> list[object] | None:
    """Return the arguments of a payload without keyword arguments, as jsonb writes it, at half the cost of ``read``.

    Return None for any other payload, which ``read`` must decode.
    """
    if text.endswith(_NO_KWARGS) and text.startswith(_ARGS) and "$" not in text and "\\u" not in text:
        try:
            args, end = _scan(text, len(_ARGS) - 1)
        except (StopIteration, ValueError, RecursionError):
            return None
        # If the array ends right before the tail, the text is one object with these two keys.
        if end == len(text) - len(_NO_KWARGS):
            return args  # type: ignore[no-any-return]
    return None


def revive(stored: object) -> Any:
    """Return the value of parsed JSON. Raises one of UNREADABLE."""
    if isinstance(stored, list):
        return [revive(item) for item in stored]
    if isinstance(stored, dict):
        return _raise_tag({key: revive(item) for key, item in stored.items()})
    return stored


_ARGS, _NO_KWARGS = '{"args": [', ', "kwargs": {}}'
_ZONED = re.compile(r"([^\[]*)(\[fold\])?(?:\[([^\[\]]+)\])?")


def _raise_tag(stored: dict[str, object]) -> object:
    """Return the value that a tagged object stands for, any other object as it is. Inner values are revived already."""
    if len(stored) != 1:
        return stored
    ((tag, value),) = stored.items()
    if not tag.startswith("$"):
        return stored
    if tag not in _RAISE:
        raise ValueError(f"unknown kind of value {tag[:50]!r}; newer code may have written it")
    kind, made = _RAISE[tag]
    if type(value) is not kind:
        raise ValueError(f"{tag} of {type(value).__name__}, not of {kind.__name__}")
    try:
        return made(value)
    except Exception:
        # Without the value, which may be secret: this is shown to all users who may see jobs.
        raise ValueError(f"{tag} holds no {tag[1:]}") from None


def _raise_datetime(text: str) -> datetime:
    plain, fold, zone = _parts(text)
    value = datetime.fromisoformat(plain)
    if not zone:
        return value.replace(fold=1) if fold else value
    try:
        return _in_zone(value, ZoneInfo(zone))
    except (LookupError, ValueError, OSError, OverflowError):
        # This host does not know the zone. The offset gives the right instant.
        return value


def _in_zone(value: datetime, zone: ZoneInfo) -> datetime:
    """Return ``value`` in ``zone``: the same wall time if the zone still has that offset, else the same instant."""
    for fold in (0, 1):
        local = value.replace(tzinfo=zone, fold=fold)
        if local.utcoffset() == value.utcoffset():
            return local
    return value.astimezone(zone)


def _raise_time(text: str) -> time:
    plain, fold, zone = _parts(text)
    value = time.fromisoformat(plain)
    return value.replace(fold=1 if fold else 0, tzinfo=ZoneInfo(zone) if zone else value.tzinfo)


def _parts(text: str) -> tuple[str, str | None, str | None]:
    found = _ZONED.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no date and time")
    return found[1], found[2], found[3]


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _raise_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("JSON has no such number")
    return value


def _raise_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError("JSON has no such number")
    return value


def _raise_dict(items: list[Any]) -> dict[str, object]:
    value = dict(items)
    if not all(type(key) is str for key in value):
        raise ValueError("keys are texts")
    return value


def _raise_result(job_id: int) -> ResultOf:
    if not is_id(job_id):
        raise ValueError("no id of a job")
    return StoredResultOf(job_id)


_RAISE: dict[str, tuple[type, Callable[[Any], object]]] = {
    "$datetime": (str, _raise_datetime),
    "$date": (str, date.fromisoformat),
    "$time": (str, _raise_time),
    "$timedelta": (list, lambda value: timedelta(*value)),
    "$decimal": (str, _raise_decimal),
    "$uuid": (str, UUID),
    "$bytes": (str, lambda value: b64decode(value, validate=True)),
    "$tuple": (list, tuple),
    "$float": (str, _raise_float),
    "$dict": (list, _raise_dict),
    TAG: (int, _raise_result),
    UNSTORED: (str, lambda why: None),
}
"""Tag → the type of what it holds in JSON, and how that becomes the value."""

_load = json.JSONDecoder(object_hook=_raise_tag, parse_constant=_refuse_constant).decode
_scan = json.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]
