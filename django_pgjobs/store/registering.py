"""Insert jobs in the caller's transaction. Waking workers after its commit is the task of ``waking``."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from django_pgjobs.store.database import Database, WrapperDatabase, on
from django_pgjobs.store.new_jobs import SPECIAL, NewJob, NewJobs

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

COPY_FROM_JOBS = 300
"""From this many rows on a COPY saves more than its round trips cost (benchmarks/lines/register_many.py)."""

SPECIAL_AT_ONCE = 5000
"""Rows per statement that inserts jobs with keys or limits."""

TEXT_AT_ONCE = 16 * 2**20
"""Characters of payloads and headers in one INSERT: PostgreSQL refuses a parameter of 1 GiB."""

LOCK_CLASS = 0x706A71
"""The first half of our advisory locks' numbers ("pjq"), so that they collide with no other lock."""

_COLUMNS = ("payload", "limit_key", "key", "idempotency_key", "sequence", "id")
"""The fields in which jobs usually differ if they do not share all but their payloads."""

_shared = itemgetter(*(at for at, name in enumerate(NewJob._fields) if name not in (*_COLUMNS, "on_conflict", "needs")))
"""Returns the fields that belong to a *kind* of jobs."""


class Registered(NamedTuple):
    """The values that the database gave to a registered job."""

    id: int
    run_at: datetime
    created_at: datetime
    expires_at: datetime | None = None


def register_plain(connection: BaseDatabaseWrapper, new: NewJob) -> Registered:
    """Insert one job that ``is_plain`` in the caller's transaction. Wakes no worker: see ``waking``.

    It sends no values that most jobs lack: each costs client and server microseconds.
    """
    [(job_id, text)] = WrapperDatabase(connection).fetch("register_plain", _plain(new))
    instant = _instant(text, connection)
    return Registered(job_id, instant, instant)


def register_job(using: str, new: NewJob) -> Registered | None:
    """Insert one job of any kind, as ``register_plain``.

    Return None and change nothing if its key is taken. Blocks while another transaction inserts a job with that key.
    """
    connection = connections[using]
    if new.window_seconds is not None or new.is_in_flow:
        [job_id], inserted, *texts = _insert_special(using, _Columns([NewJobs.of(new)]), [0])
        return Registered(job_id, *_Instants(connection).of(texts)) if inserted else None
    params = {
        **_plain(new),
        **_special(new),
        "headers": new.headers,
        "description": new.description,
        "run_at": new.run_at and new.run_at.isoformat(),
        "delay": new.delay_seconds or 0.0,
        "tags": json.dumps(new.tags) if new.tags else None,
        "options": json.dumps(new.options) if new.options else None,
    }
    rows = WrapperDatabase(connection).fetch("register_job", params)
    return Registered(rows[0][0], *_Instants(connection).of(rows[0][1:])) if rows else None


def _special(new: NewJob) -> dict[str, object]:
    """Return the fields that few jobs have, as JSON can represent them."""
    values = {name: getattr(new, name) for name in NewJob._fields[SPECIAL]}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


class _Instants(dict[Any, Any]):
    """text → instant, None → None. The jobs of a statement usually have the same two."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        super().__init__({None: None})
        self.connection = connection

    def __missing__(self, text: str) -> datetime:
        instant = self[text] = _instant(text, self.connection)
        return instant

    def of(self, texts: Iterable[str | None]) -> map[Any]:
        """Return the instant of each text."""
        return map(self.__getitem__, texts)


def _instant(text: str, connection: BaseDatabaseWrapper) -> datetime:
    """Return the instant as Django's cursor would load it, which takes it a quarter of the registration's own time."""
    instant = datetime.fromisoformat(text)
    if connection.timezone is not None:
        return instant.astimezone(connection.timezone)
    # Without USE_TZ: by the clock of the session, whose repeated hour ``fold`` tells apart.
    return instant.astimezone(connection.connection.info.timezone).replace(tzinfo=None)


def _plain(new: NewJob) -> dict[str, object]:
    return {
        "name": new.name,
        "queue": new.queue,
        "priority": new.priority,
        "max_attempts": new.max_attempts,
        "timeout": new.timeout_seconds,
        "payload": new.payload,
    }


def register_jobs(
    using: str, new: Sequence[NewJobs], *, limited: bool = False, parent_id: int | None = None
) -> list[int]:
    """Insert many jobs in the caller's transaction, by COPY from ``COPY_FROM_JOBS`` on; ids in input order.

    None may be special: see ``register_special_jobs``. ``limited``: some may have a limit key, the one exception.
    ``parent_id``: all are members of this batch.
    """
    if not new:
        return []
    count = sum([len(some.payloads) for some in new])
    copied = limited or parent_id is not None or count >= COPY_FROM_JOBS or sum(map(_text, new)) > TEXT_AT_ONCE
    if not copied:
        return _insert_jobs(using, new)
    from django_pgjobs.store.copying import copy_jobs  # here for start-up time

    return copy_jobs(using, new, count, parent_id)


def _text(some: NewJobs) -> int:
    return sum(map(len, some.payloads)) + len(some.first.headers or "") * len(some.payloads)


def register_special_jobs(using: str, new: Sequence[NewJobs]) -> list[int | None]:
    """Insert many jobs, some of them special; return their ids in input order.

    It is None for a job whose key is taken, also if another job of the same call took it. Keys are inserted in the
    order of their code points, those of windows first: concurrent callers wait for each other, but never in a circle.
    """
    columns = _Columns(new)
    stored: list[int | None] = [None] * len(columns.payloads)
    for some in columns.portions():
        ids, inserted, *_ = _insert_special(using, columns, some)
        if len(inserted) < len(ids):
            known = set(inserted)
            ids = [job_id if job_id in known else None for job_id in ids]
        for at, job_id in zip(some, ids, strict=True):
            stored[at] = job_id
    return stored


def _insert_special(using: str, columns: _Columns, some: Sequence[int]) -> tuple[Any, ...]:
    """Insert the jobs at these positions; return the row of the statement."""
    [row] = on(using).fetch("register_special_jobs", columns.params(some))
    return row


class _Columns:
    """Many jobs as ``register_special_jobs.sql`` takes them: the columns in which they differ, and their *kinds*."""

    def __init__(self, new: Sequence[NewJobs]) -> None:
        self.payloads: list[str] = []
        self.keys: list[str | None] = []
        self.idempotency_keys: list[str | None] = []
        self.limit_keys: list[str | None] = []
        self.sequences: list[str | None] = []
        self.ids: list[int | None] = []
        self.kind_of: list[int] = []
        self.kinds: list[str] = []
        self._turns: list[tuple[bool, str]] = []
        known: dict[str, int] = {}
        before: tuple[object, ...] = ()
        kind = 0
        for some in new:
            first, count = some.first, len(some.payloads)
            if (same := _shared(first)) != before:  # most jobs differ only in the columns
                before, kind = same, known.setdefault(_kind(first), len(known))
                if kind == len(self.kinds):
                    self.kinds.append(next(reversed(known)))
                    self._turns.append((first.window_seconds is None, first.queue))
            self.payloads += some.payloads
            self.keys += some.keys or [first.key] * count
            self.idempotency_keys += some.idempotency_keys or [first.idempotency_key] * count
            self.limit_keys += [first.limit_key] * count
            self.sequences += [first.sequence] * count
            self.ids += [first.id] * count
            self.kind_of += [kind] * count

    def portions(self) -> Iterator[Sequence[int]]:
        """Cut the positions into portions for one statement each: bounded rows and text, at least one row."""
        order: Sequence[int] = range(len(self.payloads))
        text = sum(map(len, self.payloads)) + sum(map(len, self.kinds))
        if len(order) <= SPECIAL_AT_ONCE and text <= TEXT_AT_ONCE:
            if order:
                yield order
            return
        order = sorted(order, key=lambda at: (self._turns[self.kind_of[at]], self.keys[at] or ""))
        begin = text = 0
        used: set[int] = set()
        for number, at in enumerate(order):
            kind = self.kind_of[at]
            added = len(self.payloads[at])
            text += added if kind in used else added + len(self.kinds[kind])
            if number > begin and (number - begin == SPECIAL_AT_ONCE or text > TEXT_AT_ONCE):
                yield order[begin:number]
                begin, text = number, added + len(self.kinds[kind])
                used.clear()
            used.add(kind)
        yield order[begin:]

    def params(self, some: Sequence[int]) -> dict[str, str]:
        """Return the parameters of the statement that inserts the jobs at these positions, each a JSON array."""
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys([self.kind_of[at] for at in some]), 1)}
        return {
            "kinds": f"[{','.join([self.kinds[kind] for kind in kinds])}]",
            "payloads": f"[{','.join([self.payloads[at] for at in some])}]",
            "keys": _array([self.keys[at] for at in some]),
            "idempotency_keys": _array([self.idempotency_keys[at] for at in some]),
            "limit_keys": _array([self.limit_keys[at] for at in some]),
            "sequences": _array([self.sequences[at] for at in some]),
            "ids": _array([self.ids[at] for at in some]),
            "kind_of": _array([kinds[self.kind_of[at]] for at in some] if len(kinds) > 1 else []),
        }


def _array(values: Sequence[object]) -> str:
    """Return JSON; the statement takes an empty array for one of nulls."""
    return "[]" if values.count(None) == len(values) else json.dumps(values)


def _kind(new: NewJob) -> str:
    special = {name: value for name, value in _special(new).items() if name not in _COLUMNS and value is not None}
    return f"{_begin_of_json(new, {**special, 'tags': new.tags or None})}}}"


def _insert_jobs(using: str, new: Sequence[NewJobs]) -> list[int]:
    jobs = ",".join([job for some in new for job in _as_json(some)])
    rows = on(using).fetch("register_jobs", {"jobs": f"[{jobs}]"})
    return [row[0] for row in rows]


def _as_json(some: NewJobs) -> list[str]:
    begins = _begin_of_json(some.first, {})
    return [f'{begins}, "payload": {payload}}}' for payload in some.payloads]


def _begin_of_json(new: NewJob, special: Mapping[str, object]) -> str:
    """Return a JSON object without its end: what a job writes but for its payload."""
    fields = json.dumps(
        {
            "name": new.name,
            "queue": new.queue,
            "priority": new.priority,
            "max_attempts": new.max_attempts,
            "timeout": new.timeout_seconds,
            "description": new.description,
            "run_at": new.run_at.isoformat() if new.run_at else None,
            "delay": new.delay_seconds or 0.0,
            **special,
        }
    )
    return f'{fields[:-1]}, "headers": {new.headers or "null"}'


# A queue with a capacity, for its producers


def lock_queues(db: Database, queues: Iterable[str]) -> str:
    """Lock registering into these queues until the transaction ends; return its isolation level.

    Blocks while another transaction holds one of these locks.
    """
    # Two queues may share a number. Sorted by number, not by name, all transactions lock in one order.
    keys = sorted({_signed(zlib.crc32(queue.encode())) for queue in queues})
    return str(db.fetch("lock_queues", {"class": LOCK_CLASS, "keys": keys})[0][1])


def count_unfinished(db: Database, queues: Iterable[str], *, most: int) -> dict[str, int]:
    """Return how many unfinished jobs each queue has, exact up to ``most``; beyond that, ``most`` or more."""
    return dict(db.fetch("count_unfinished", {"queues": sorted(queues), "most": most}))


def _signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number
