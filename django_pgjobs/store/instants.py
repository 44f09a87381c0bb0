"""Reading instants for which Python has no ``datetime``: infinity, the years BC and from 10000 on.

None comes from this package, but SQL can write one, and a single such row must not stop a list or a duty of the
leader. psycopg refuses it when the rows are fetched. They are at hand then: they are read once more, and what Python
cannot tell becomes ``clock.EARLIEST`` or ``clock.LATEST``. Where no such row is, this costs nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import psycopg
from psycopg.adapt import Loader, Transformer
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzBinaryLoader

from django_pgjobs.clock import EARLIEST, LATEST

OID = psycopg.adapters.types["timestamptz"].oid


def read_again(cursor: Any) -> list[tuple[Any, ...]]:
    """Return the rows of the result that ``cursor`` is at, Django's cursor or psycopg's, instants within bounds."""
    text = cast("type[Loader]", cursor.adapters.get_loader(OID, Format.TEXT))
    for loader in (_bounded_text(text), _BoundedBinary):
        cursor.adapters.register_loader(OID, loader)
    # The cursor's own transformer has the loaders that it began with.
    transformer = Transformer(cursor)
    transformer.set_pgresult(cursor.pgresult)
    return cast("list[tuple[Any, ...]]", transformer.load_rows(0, cursor.pgresult.ntuples, tuple))


def _bounded_text(loader: type[Loader]) -> type[Loader]:
    class Bounded(loader):  # type: ignore[misc, valid-type]
        """Django's loader, which knows the connection's zone, within bounds."""

        def load(self, data: Any) -> Any:
            """Return the instant, or the bound that it is beyond."""
            try:
                return super().load(data)
            except (psycopg.DataError, OverflowError):
                text = bytes(data)
                bound = EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST
                return bound.replace(tzinfo=getattr(self, "timezone", EARLIEST.tzinfo))

    return Bounded


class _BoundedBinary(TimestamptzBinaryLoader):
    def load(self, data: Any) -> datetime:
        try:
            return super().load(data)
        except (psycopg.DataError, OverflowError):
            return EARLIEST if bytes(data)[0] & 0x80 else LATEST
