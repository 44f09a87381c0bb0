"""Insert jobs in the caller's transaction. Waking workers after its commit is the task of ``waking``."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, islice
from operator import itemgetter
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from django.db import connections

from django_pgjobs.states import FlowFlag, Rule
from django_pgjobs.store import database
from django_pgjobs.store.database import WrapperDatabase, on

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

COPY_FROM_JOBS = 300
"""From this many rows on a COPY saves more than its round trips cost (benchmarks/lines/register_many.py)."""

SPECIAL_AT_ONCE = 5000
"""Rows per statement that inserts jobs with keys or limits."""

TEXT_AT_ONCE = 16 * 2**20
"""Characters of payloads and headers in one INSERT: PostgreSQL refuses a parameter of 1 GiB."""

COPY_ROWS = 500
"""Rows sent at once, so that a million of them are not one text in memory."""


class NewJob(NamedTuple):
    """The row that a registration writes: ``payload`` and ``headers`` as JSON text, durations in seconds, UTC instants.

    The fields from ``limit_key`` to ``waits`` are those that few jobs have; a new one needs its column in the two
    statements that write them. ``on_conflict`` is not stored: it says what the caller does if the key is taken.
    """

    name: str
    payload: str
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    timeout_seconds: float | None = None
    headers: str | None = None
    description: str = ""
    run_at: datetime | None = None
    delay_seconds: float | None = None
    limit_key: str | None = None
    key: str | None = None
    key_scope: str = ""
    window_seconds: float | None = None
    """Goes with the scope ``window``."""
    idempotency_key: str | None = None
    cron_entry: str | None = None
    fire_at: datetime | None = None
    tags: tuple[str, ...] = ()
    deadline: datetime | None = None
    expires_at: datetime | None = None
    expires_seconds: float | None = None
    """Counted from the start that the registration asks for; only one of the two is set."""
    options: dict[str, Any] | None = None
    flow: int = 0
    parent_id: int | None = None
    target_id: int | None = None
    """The job that it undoes, or a part of."""
    waits: bool = False
    """True if it waits until its gate opens."""
    on_conflict: str = "existing"
    needs: tuple[tuple[int, Rule], ...] = ()
    """The jobs that it needs, and which end of each: links and its gate say so."""
    id: int | None = None
    """Its id, if ``reserve_ids`` has taken one for it."""

    @property
    def wakes(self) -> tuple[str, int | None]:
        """Its (queue, priority), to wake the workers that claim it; a priority of None wakes the queue's admitters."""
        return self.queue, self.priority if self.limit_key is None else None

    @property
    def is_plain(self) -> bool:
        """True if it starts at once and has only arguments, as most jobs."""
        return self[_PLAIN] == _ALL_PLAIN

    @property
    def is_special(self) -> bool:
        """True if it has a key, a limit, a tag or another value that few jobs have: its own statement writes it."""
        return self[_SPECIAL] != _NONE_SPECIAL

    @property
    def is_in_flow(self) -> bool:
        """True if it waits for others, or others for it."""
        return self.flow != 0 or self.waits


_PLAIN = slice(NewJob._fields.index("headers"), NewJob._fields.index("waits") + 1)
_ALL_PLAIN = NewJob("", "")[_PLAIN]
_SPECIAL = slice(NewJob._fields.index("limit_key"), NewJob._fields.index("waits") + 1)
_NONE_SPECIAL = NewJob("", "")[_SPECIAL]
_UNKNOWN = ("window_seconds", "expires_at", "expires_seconds", "waits")
SPECIAL_COLUMNS = tuple(name for name in NewJob._fields[_SPECIAL] if name not in _UNKNOWN)
"""The columns that few jobs have and whose values the registration knows: the database computes the expiry."""

_COLUMNS = ("payload", "limit_key", "key", "idempotency_key", "id")
"""The fields in which jobs usually differ if they do not share all but their payloads."""

_shared = itemgetter(*(at for at, name in enumerate(NewJob._fields) if name not in (*_COLUMNS, "on_conflict", "needs")))
"""Returns the fields that belong to a *kind* of jobs."""

_others = itemgetter(slice(NewJob._fields.index("queue"), NewJob._fields.index("limit_key") + 1))
"""Returns the fields that a COPY writes, except name and payload."""


class NewJobs(NamedTuple):
    """Jobs that differ only in payloads and keys: the first job, the payloads of all, and the keys where it has one."""

    first: NewJob
    payloads: Sequence[str]
    keys: Sequence[str | None] = ()
    idempotency_keys: Sequence[str | None] = ()

    @classmethod
    def of(cls, job: NewJob) -> NewJobs:
        """Return one job alone."""
        return cls(job, (job.payload,))

    def job(self, at: int) -> NewJob:
        """Return the job at this position."""
        if not at:
            return self.first
        new = self.first._replace(payload=self.payloads[at])
        if not self.keys:
            return new
        return new._replace(key=self.keys[at], idempotency_key=self.idempotency_keys[at])


class NewJobList(Sequence[NewJob]):
    """All jobs of some ``NewJobs`` by their positions, each made when it is asked for."""

    def __init__(self, groups: Sequence[NewJobs]) -> None:
        self.groups = groups
        self._ends = list(accumulate(len(some.payloads) for some in groups))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> NewJob: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[NewJob]: ...
    def __getitem__(self, at: int | slice) -> NewJob | Sequence[NewJob]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        group = bisect_right(self._ends, at)
        return self.groups[group].job(at - (self._ends[group - 1] if group else 0))

    def only(self, positions: Sequence[int]) -> Sequence[NewJobs]:
        """Return the jobs at these positions, ascending."""
        return self.groups if len(positions) == len(self) else [NewJobs.of(self[at]) for at in positions]


class Registered(NamedTuple):
    """The values that the database gave to a registered job."""

    id: int
    run_at: datetime
    created_at: datetime
    expires_at: datetime | None = None


def register_plain(using: str, new: NewJob) -> Registered:
    """Insert one job that ``is_plain`` in the caller's transaction. Wakes no worker: see ``waking``.

    It sends no values that most jobs lack: each costs client and server microseconds.
    """
    connection = connections[using]
    [(job_id, text)] = WrapperDatabase(connection).fetch("register_plain", _plain(new))
    instant = _instant(text, connection)
    return Registered(job_id, instant, instant)


def register_job(using: str, new: NewJob) -> Registered | None:
    """Insert one job of any kind, as ``register_plain``.

    Return None and change nothing if its key is taken. Blocks while another transaction inserts a job with that key.
    """
    if new.window_seconds is not None or new.is_in_flow:
        [job_id], inserted, *texts = _insert_special(using, _Columns([NewJobs.of(new)]), [0])
        return Registered(job_id, *_Instants(connections[using]).of(texts)) if inserted else None
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
    rows = on(using).fetch("register_job", params)
    return Registered(rows[0][0], *_Instants(connections[using]).of(rows[0][1:])) if rows else None


def _special(new: NewJob) -> dict[str, Any]:
    """Return the fields that few jobs have, as JSON can represent them."""
    values = {name: getattr(new, name) for name in NewJob._fields[_SPECIAL]}
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


def reserve_ids(using: str, count: int) -> list[int]:
    """Take ids for jobs to insert, ascending. Those that are not used are gaps."""
    return _reserved(using, count)[0]


def _reserved(using: str, count: int) -> tuple[list[int], datetime]:
    """Take ids, and read the server's clock, in UTC."""
    ids, now = on(using).fetch("reserve_ids", {"count": count})[0]
    return list(ids), now.replace(tzinfo=UTC)


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
    if parent_id is not None:
        return _copy_jobs(using, new, count, parent_id)
    copied = limited or count >= COPY_FROM_JOBS or sum(map(_text, new)) > TEXT_AT_ONCE
    return _copy_jobs(using, new, count) if copied else _insert_jobs(using, new)


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


def _begin_of_json(new: NewJob, special: Mapping[str, Any]) -> str:
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


def _copy_jobs(using: str, new: Sequence[NewJobs], count: int, parent_id: int | None = None) -> list[int]:
    """COPY the jobs in the binary format, which costs the server a seventh less than text."""
    statement, more = database.statement("copy_jobs"), b""
    if parent_id is not None:
        statement = database.statement("copy_members")
        more = _sized(pack(">h", FlowFlag.MEMBER)) + _sized(pack(">q", parent_id))
    ids, now = _reserved(using, count)
    encoding = connections[using].connection.info.encoding
    rows = _binary_rows(new, iter(ids), now, encoding, more)
    # Django does not wrap the errors of a COPY; without this, their class would depend on the number of jobs.
    errors = connections[using].wrap_database_errors
    with errors, connections[using].cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(_COPY_BEGINS)
        while some := b"".join(islice(rows, COPY_ROWS)):
            copy.write(some)
        copy.write(_COPY_ENDS)
    return ids


# The binary format (PostgreSQL manual, COPY): a row is the number of its columns, then each column after its size.

COPY_COLUMNS = 12
MEMBER_COLUMNS = 2
_COPY_BEGINS = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_ENDS = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_row_begins = Struct(">hiq").pack


def _binary_rows(
    new: Iterable[NewJobs], ids: Iterator[int], now: datetime, encoding: str, more: bytes
) -> Iterator[bytes]:
    """Yield the rows; ``more``: the columns of a member, between the others and the payload."""
    columns = COPY_COLUMNS + (MEMBER_COLUMNS if more else 0)
    before: tuple[object, ...] = ()
    middle = b""
    for some in new:
        # Most jobs differ only in their arguments: the rest of the row repeats the one before.
        if (same := (some.first.name, *_others(some.first))) != before:
            before, middle = same, _middle(some.first, now, encoding) + more
        for payload in some.payloads:
            yield _row_begins(columns, 8, next(ids)) + middle + _sized(_jsonb(payload, encoding))


def _middle(job: NewJob, now: datetime, encoding: str) -> bytes:
    """Return the columns between id and payload."""
    run_at = (job.run_at or now) + timedelta(seconds=job.delay_seconds or 0.0)
    columns = (
        job.name.encode(encoding),
        job.queue.encode(encoding),
        pack(">h", job.priority),
        pack(">i", job.max_attempts),
        None if job.timeout_seconds is None else pack(">d", job.timeout_seconds),
        None if job.headers is None else _jsonb(job.headers, encoding),
        job.description.encode(encoding),
        pack(">q", (run_at - _EPOCH) // timedelta(microseconds=1)),
        None if job.limit_key is None else job.limit_key.encode(encoding),
        None if job.limit_key is None else b"limited",
    )
    return b"".join([_NULL if column is None else _sized(column) for column in columns])


def _sized(column: bytes) -> bytes:
    return len(column).to_bytes(4, "big") + column


def _jsonb(text: str, encoding: str) -> bytes:
    return b"\1" + text.encode(encoding)
