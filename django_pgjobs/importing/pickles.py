"""Pickles of other queues, read as data: nothing that they name is imported, and nothing of it is called."""

from __future__ import annotations

import io
import pickle
import pickletools
import zlib
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

PLAIN: dict[tuple[str, str], Any] = {
    **{("datetime", each.__name__): each for each in (date, datetime, time, timedelta, timezone)},
    ("uuid", "UUID"): UUID,
    ("decimal", "Decimal"): Decimal,
}
"""The classes whose instances are read, beside text, numbers, bytes, tuples, lists, dicts and sets."""


MOST = 16 << 20
"""The bytes of a message, packed or not, and of the text that its value would make."""

EACH = 16
"""The bytes that any value counts for, beside its text."""


class Named:
    """A function or class that a pickle names. Not callable: what it would make of its arguments is never made."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        raise ValueError(f"{self.name} has a state")


class _Reader(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, more: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(data)
        self.names: list[str] = []
        self.known = {**PLAIN, **more}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.known:
            return self.known[module, name]
        self.names.append(f"{module}.{name}")
        return Named(self.names[-1])


NOTHING: Mapping[tuple[str, str], Any] = {}


def inflate(data: bytes) -> bytes:
    """Return the content of zlib's or gzip's data. Raises ``ValueError`` and ``zlib.error``."""
    packed = zlib.decompressobj(zlib.MAX_WBITS | 32)
    found = packed.decompress(data, MOST + 1)
    if len(found) > MOST:
        raise ValueError("it is too large")
    if not packed.eof or packed.unused_data:
        raise ValueError("it is cut off, or has more than it should")
    return found


def _check_size(data: bytes) -> None:
    """Raise ``ValueError`` for a pickle whose instructions reserve more memory than it has bytes."""
    if len(data) > MOST:
        raise ValueError("it is too large")
    for code, arg, _ in pickletools.genops(data):  # reads no more bytes than there are
        if code.name in ("PUT", "LONG_BINPUT") and not 0 <= (arg or 0) <= len(data):
            raise ValueError("it names a place that it cannot need")


def _check_value(value: object) -> None:
    """Raise ``ValueError`` for what is small as it refers to its parts often, and large once it is written."""
    size, left = 0, [value]
    while left:
        each = left.pop()
        size += EACH
        if isinstance(each, dict):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset)):
            left += each
        elif isinstance(each, (str, bytes, bytearray)):
            size += len(each)
        elif isinstance(each, int):
            size += each.bit_length() >> 3
        elif isinstance(each, Decimal):
            size += len(str(each))
        else:
            left += getattr(each, "parts", {}).values()
        if size + EACH * len(left) > MOST:
            raise ValueError("it is too large once it is written")


def read_pickle(data: bytes, more: Mapping[tuple[str, str], Any] = NOTHING) -> Any:
    """Return the value of a pickle, which may name one function: it is ``Named``. Raises ``ValueError``.

    ``more``: what stands for other classes.
    """
    stream = io.BytesIO(data)
    reader = _Reader(stream, more)
    try:
        _check_size(data)
        found = reader.load()
    except Exception as error:  # whatever bytes make of it
        if reader.names:
            raise ValueError(f"it has an object of {reader.names[-1]}: register it with its key") from error
        raise ValueError(f"is no pickle: {error}") from error
    if stream.read(1):
        raise ValueError("more than a pickle, such as a signature")
    if len(reader.names) > 1:
        raise ValueError(f"its arguments name {reader.names[-1]}")
    _check_value(found)
    return found
