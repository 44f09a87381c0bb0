"""COPY of many jobs in the binary format, which costs the server a seventh less than text.

A COPY knows no ON CONFLICT: one key that is taken fails it. We ask before whether keys are taken, and leave the jobs to
the INSERT if some are, or if another transaction takes one in the meantime.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, repeat
from operator import itemgetter
from struct import Struct, pack

from django.db import IntegrityError, OperationalError, connections

from django_pgjobs.states import FlowFlag
from django_pgjobs.store import database
from django_pgjobs.store.database import DEADLOCK, at_read_committed, on, sqlstate_of
from django_pgjobs.store.keys import are_keys_taken
from django_pgjobs.store.new_jobs import NewJob, NewJobs

KEYS_AT_ONCE = 10_000
"""Keys that one question names."""

COPY_ROWS = 500
"""Rows sent at once, so that a million of them are not one text in memory."""


def reserve_ids(using: str, count: int) -> list[int]:
    """Take ids for jobs to insert, ascending. Those that are not used are gaps."""
    return _reserved(using, count)[0]


def _reserved(using: str, count: int) -> tuple[list[int], datetime]:
    """Take ids, and read the server's clock, in UTC."""
    ids, now = on(using).fetch("reserve_ids", {"count": count})[0]
    return list(ids), now.replace(tzinfo=UTC)


def copy_if_free(using: str, new: Sequence[NewJobs], count: int) -> list[int] | None:
    """Insert jobs of any kind if their keys are free; return their ids. Return None if the INSERT must do it.

    The index decides here, too: the look before only saves the rows that a COPY writes in vain, for the server to clean
    up. If it fails, its savepoint leaves nothing behind, and the INSERT finds the same.
    """
    if not all(_uncopied(some.first) == _NONE_UNCOPIED for some in new):
        return None
    try:
        with at_read_committed(using):
            taken = any(are_keys_taken(on(using), queue, keys) for queue, keys in _portions(new))
            return None if taken else copy_jobs(using, new, count, special=True)
    except (IntegrityError, OperationalError) as error:
        if isinstance(error, OperationalError) and sqlstate_of(error) != DEADLOCK:
            raise
        return None


def _portions(new: Sequence[NewJobs]) -> Iterator[tuple[str, list[str]]]:
    """Yield the keys of each queue, so many at once as one question may name."""
    all_keys: dict[str, list[str]] = {}
    for some in new:
        if some.first.key is not None:
            given = some.keys or [some.first.key]
            all_keys.setdefault(some.first.queue, []).extend([key for key in given if key is not None])
    for queue, keys in all_keys.items():
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            yield queue, keys[begin : begin + KEYS_AT_ONCE]


_COPIED = {
    "name", "payload", "queue", "priority", "max_attempts", "timeout_seconds", "headers", "description", "run_at",
    "delay_seconds", "limit_key", "key", "key_scope", "idempotency_key", "tags", "deadline", "expires_at",
    "expires_seconds", "options", "flow", "parent_id", "target_id", "on_conflict",
}  # fmt: skip

_uncopied = itemgetter(*(at for at, name in enumerate(NewJob._fields) if name not in _COPIED))
"""Returns what a COPY does not write: such a job takes a window or waits for others, or its id is known."""

_NONE_UNCOPIED = _uncopied(NewJob("", ""))


def copy_jobs(
    using: str, new: Sequence[NewJobs], count: int, parent_id: int | None = None, *, special: bool = False
) -> list[int]:
    """Insert the jobs; return their ids, ascending in input order. ``parent_id``: all are members of this batch.

    ``special``: some may have a key or another value that few jobs have. They are inserted in the order of their keys;
    a key that is taken, or that two of them have, is an ``IntegrityError``.
    """
    special = special or parent_id is not None
    ids, now = _reserved(using, count)
    rows = _Rows(now, connections[using].connection.info.encoding, parent_id)
    written = rows.special(new, iter(ids)) if special else rows.plain(new, iter(ids))
    # Django does not wrap the errors of a COPY; without this, their class would depend on the number of jobs.
    errors = connections[using].wrap_database_errors
    statement = database.statement("copy_special_jobs") if special else database.statement("copy_jobs")
    with errors, connections[using].cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(_COPY_BEGINS)
        while some := b"".join(islice(written, COPY_ROWS)):
            copy.write(some)
        copy.write(_COPY_ENDS)
    return ids


_shared = itemgetter(
    *(at for at, name in enumerate(NewJob._fields) if name not in ("payload", "key", "idempotency_key", "on_conflict"))
)
"""Returns the fields that the jobs of a call usually share."""


# The binary format (PostgreSQL manual, COPY): a row is the number of its columns, then each column after its size.

COPY_COLUMNS = 12
SPECIAL_COLUMNS = 23
_COPY_BEGINS = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_ENDS = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_JSONB = 1  # the version that begins each value

_size = Struct(">i").pack
_payload_begins = Struct(">iB").pack


class _Rows:
    """Writes the rows of a COPY: the id, the columns that many jobs share, those of the keys, the payload."""

    def __init__(self, now: datetime, encoding: str, parent_id: int | None) -> None:
        self._now = now
        self._encoding = encoding
        self._parent_id = parent_id
        self._before: tuple[object, ...] = ()
        self._written = b""

    def plain(self, new: Iterable[NewJobs], ids: Iterator[int]) -> Iterator[bytes]:
        """Yield the rows of ``copy_jobs``."""
        for some in new:
            yield from self._alike(COPY_COLUMNS, self._once(some.first, self._usual), some.payloads, ids)

    def special(self, new: Sequence[NewJobs], ids: Iterator[int]) -> Iterator[bytes]:
        """Yield the rows of ``copy_special_jobs``, in the order of their keys."""
        if any(some.first.key or some.first.idempotency_key for some in new):
            yield from self._keyed(new, ids)
            return
        for some in new:
            shared = self._once(some.first, self._all) + 3 * _NULL
            yield from self._alike(SPECIAL_COLUMNS, shared, some.payloads, ids)

    def _alike(self, columns: int, shared: bytes, payloads: Iterable[str], ids: Iterator[int]) -> Iterator[bytes]:
        """Yield rows that differ in id and payload only."""
        row_begins, encoding = Struct(f">hiq{len(shared)}siB").pack, self._encoding
        for payload, job_id in zip(payloads, ids):  # noqa: B905 - there are ids for further rows
            encoded = payload.encode(encoding)
            yield row_begins(columns, 8, job_id, shared, len(encoded) + 1, _JSONB) + encoded

    def _keyed(self, new: Iterable[NewJobs], ids: Iterator[int]) -> Iterator[bytes]:
        rows: list[tuple[str, str, int, bytes, str | None, str]] = []
        for some in new:
            first, count = some.first, len(some.payloads)
            keys = [key or "" for key in some.keys] or [first.key or ""] * count
            shared = self._once(first, self._all)
            once = some.idempotency_keys or [first.idempotency_key] * count
            rows += zip(repeat(first.queue), keys, islice(ids, count), repeat(shared), once, some.payloads)
        rows.sort(key=itemgetter(1))
        rows.sort(key=itemgetter(0))
        row_begins, encoding = Struct(">hiq").pack, self._encoding
        for _, key, job_id, shared, idempotency_key, payload in rows:
            taken = _sized(key.encode(encoding)) if key else _NULL
            given = _NULL if idempotency_key is None else _sized(idempotency_key.encode(encoding))
            text = payload.encode(encoding)
            columns = row_begins(SPECIAL_COLUMNS, 8, job_id) + shared + taken + taken + given
            yield columns + _payload_begins(len(text) + 1, _JSONB) + text

    def _once(self, job: NewJob, write: Callable[[NewJob], bytes]) -> bytes:
        """Return the columns that jobs share. Most repeat those of the job before and differ only in the others."""
        if (same := _shared(job)) != self._before:
            self._before, self._written = same, write(job)
        return self._written

    def _usual(self, job: NewJob) -> bytes:
        """Return the columns of ``copy_jobs`` between id and payload."""
        columns = (
            self._text(job.name),
            self._text(job.queue),
            pack(">h", job.priority),
            pack(">i", job.max_attempts),
            None if job.timeout_seconds is None else pack(">d", job.timeout_seconds),
            self._json(job.headers),
            self._text(job.description),
            _instant(self._start(job)),
            self._text(job.limit_key),
            None if job.limit_key is None else b"limited",
        )
        return b"".join(map(_sized, columns))

    def _all(self, job: NewJob) -> bytes:
        """Return the columns of ``copy_special_jobs`` between id and keys."""
        parent_id, flow = job.parent_id, job.flow
        if self._parent_id is not None:
            parent_id, flow = self._parent_id, flow | FlowFlag.MEMBER
        expires_at = job.expires_at
        if job.expires_seconds is not None:
            expires_at = self._start(job) + timedelta(seconds=job.expires_seconds)
        columns = (
            self._json(json.dumps(job.tags) if job.tags else None),
            None if job.deadline is None else _instant(job.deadline),
            None if expires_at is None else _instant(expires_at),
            self._json(json.dumps(job.options) if job.options else None),
            pack(">h", flow),
            None if parent_id is None else pack(">q", parent_id),
            None if job.target_id is None else pack(">q", job.target_id),
            self._text(job.key_scope),
        )
        return self._usual(job) + b"".join(map(_sized, columns))

    def _start(self, job: NewJob) -> datetime:
        return (job.run_at or self._now) + timedelta(seconds=job.delay_seconds or 0.0)

    def _text(self, text: str | None) -> bytes | None:
        return None if text is None else text.encode(self._encoding)

    def _json(self, text: str | None) -> bytes | None:
        return None if text is None else bytes((_JSONB,)) + text.encode(self._encoding)


def _instant(instant: datetime) -> bytes:
    return pack(">q", (instant - _EPOCH) // timedelta(microseconds=1))


def _sized(column: bytes | None) -> bytes:
    return _NULL if column is None else _size(len(column)) + column
