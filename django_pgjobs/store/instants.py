"""Read instants for which Python has no ``datetime``: infinity, the years BC and from 10000 on.

This package writes none, but SQL can, and a single such row must not stop a list or a duty of the leader. psycopg
refuses it at the fetch. The cursor still holds the rows then, so we read them again, and an instant beyond Python's
range becomes ``clock.EARLIEST`` or ``clock.LATEST``. Without such a row this costs nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg.adapt import Loader, Transformer
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzBinaryLoader

from django_pgjobs.clock import EARLIEST, LATEST

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper


OID = psycopg.adapters.types["timestamptz"].oid


def instant(text: str) -> datetime:
    """Return the instant that PostgreSQL writes so into JSON, or the bound if it is beyond that."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return EARLIEST if text.startswith("-") or text.endswith("BC") else LATEST


def read_again(cursor: CursorWrapper) -> list[tuple[object, ...]]:
    """Return the rows of the cursor's current result, instants within bounds; ``cursor`` is Django's or psycopg's."""
    text = cast("type[Loader]", cursor.adapters.get_loader(OID, Format.TEXT))
    for loader in (_bounded_text(text), _BoundedBinary):
        cursor.adapters.register_loader(OID, loader)
    # The cursor's own transformer keeps the loaders it began with.
    transformer = Transformer(cursor)
    transformer.set_pgresult(cursor.pgresult)
    return cast("list[tuple[Any, ...]]", transformer.load_rows(0, cursor.pgresult.ntuples, tuple))


def _bounded_text(loader: type[Loader]) -> type[Loader]:
    class BoundedText(loader):  # type: ignore[misc, valid-type]
        """Django's loader, which knows the connection's zone, within bounds."""

        def load(self, data: Any) -> object:
            """Return the instant, or the bound if it is beyond that."""
            try:
                return super().load(data)
            except (psycopg.DataError, OverflowError):
                text = bytes(data)
                bound = EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST
                return bound.replace(tzinfo=getattr(self, "timezone", EARLIEST.tzinfo))

    return BoundedText


class _BoundedBinary(TimestamptzBinaryLoader):
    def load(self, data: Any) -> datetime:
        try:
            return super().load(data)
        except (psycopg.DataError, OverflowError):
            return EARLIEST if bytes(data)[0] & 0x80 else LATEST
