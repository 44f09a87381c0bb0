"""The sources of jobs: how each queue stores one that waits."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core import signing

from django_pgjobs.definition.keys import Sequence as JobSequence
from django_pgjobs.definition.keys import Unique
from django_pgjobs.importing.pickles import Named, read_pickle
from django_pgjobs.store import importing
from django_pgjobs.store.importing import SourceTables

BEHIND = "another one of its lock runs there, or is left before it"

UNREADABLE = (
    ValueError, TypeError, AttributeError, KeyError, ArithmeticError, SyntaxError, RecursionError, MemoryError, OSError,
    EOFError, zlib.error,
)  # fmt: skip
"""Errors of a row that cannot be read: a nesting too deep, an instant beyond the calendar, and the like."""

LONGEST_ID = 1000
"""In bytes: the index of the notes has no place for much more."""

NO_UUID = "00000000-0000-0000-0000-000000000000"


@dataclass(slots=True)
class Waiting:
    """A job that waits in another queue.

    ``options``: what it would be registered with here, as in ``using``. ``lost``: what it has there and not here.
    ``unreadable``: why it cannot be read, or taken. ``former``: the job here that it has become before.
    """

    id: str
    name: str = ""
    args: Sequence[object] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    queue: str = ""
    priority: int = 0
    attempts: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    lost: Sequence[str] = ()
    unreadable: str = ""
    former: int | None = None
    turn: str | None = None
    """The order that it keeps with others: it is left if one before it is."""


@dataclass(frozen=True, slots=True)
class OtherQueue:
    """A queue in the same database. ``first``: an id below all others; ``queue``: the name of its default queue."""

    name: str
    tables: SourceTables
    first: str
    queue: str
    waiting: Callable[..., Waiting]


def _instant(seconds: float | None) -> dict[str, object]:
    return {} if seconds is None else {"run_at": datetime.fromtimestamp(seconds, UTC)}


def _of_procrastinate(
    name: str,
    args: str,
    queue: str,
    priority: int,
    start: float | None,
    attempts: int,
    lock: str | None,
    queueing_lock: str | None,
    behind: bool,
) -> Waiting:
    options = _instant(start)
    if queueing_lock is not None:
        options["unique"] = Unique(queueing_lock, until="started")
    if lock is not None:
        options["sequence"] = JobSequence(lock, on_abandon="skip")
    found = Waiting("", name, (), json.loads(args), queue, priority, attempts, options, turn=lock)
    found.unreadable = BEHIND if behind else ""
    return found


def _of_tasks_db(name: str, arguments: str, queue: str, priority: int, start: float | None) -> Waiting:
    found = json.loads(arguments)
    return Waiting("", name, found["args"], found["kwargs"], queue, priority, 0, _instant(start))


def _of_ox(name: str, args: str, kwargs: str, queue: str, priority: int, start: float | None, attempts: int) -> Waiting:
    return Waiting("", name, json.loads(args), json.loads(kwargs), queue, priority, attempts, _instant(start))


class _Pickled:
    """The serializer of django-q2, which reads as data what that would run."""

    def loads(self, data: bytes) -> Any:
        return read_pickle(data)


def of_q2(cluster: str, package: str, held: bool = False) -> Waiting:
    """Return the job in a package that django-q2 has signed."""
    name = (getattr(settings, "Q_CLUSTER", None) or {}).get("name", "default")
    try:
        stored = signing.loads(package, salt=name, serializer=_Pickled)  # type: ignore[arg-type]  # it writes nothing
    except signing.BadSignature:
        raise ValueError("SECRET_KEY and the name in Q_CLUSTER are not those that signed it") from None
    func, args = stored["func"], stored["args"]
    found = Waiting(str(stored["id"]), func.name if isinstance(func, Named) else str(func), args, stored["kwargs"])
    found.queue = "default" if cluster == name else cluster
    found.lost = [each for each in ("hook", "group", "cached") if stored.get(each)]
    if stored.get("chain") or stored.get("iter_count"):
        found.unreadable = "it is one of a chain or of an iteration, which continues there"
    elif held:
        found.unreadable = "a worker there has it, or tries it again later"
    return found


def _of_dj_queue(
    name: str, payload: str, queue: str, priority: int, start: float | None, concurrency: str | None, failed: bool
) -> Waiting:
    arguments = json.loads(payload)
    found = Waiting("", name, arguments["args"], arguments["kwargs"], queue, priority, 0, _instant(start))
    found.lost = [] if concurrency is None else [f"concurrency key {concurrency!r}"]
    found.unreadable = "it has failed there, and is tried again there" if failed else ""
    return found


SOURCES: Mapping[str, OtherQueue] = {
    source.name: source
    for source in (
        OtherQueue("procrastinate", importing.PROCRASTINATE, "-1", "default", _of_procrastinate),
        OtherQueue("django-tasks-db", importing.TASKS_DB, NO_UUID, "default", _of_tasks_db),
        OtherQueue("django-ox", importing.OX, NO_UUID, "default", _of_ox),
        OtherQueue("django-q2", importing.Q2_JOBS, "-1", "default", of_q2),
        OtherQueue("dj-queue", importing.DJ_QUEUE, NO_UUID, "default", _of_dj_queue),
    )
}


def storable(found: Waiting, member: bytes) -> Waiting:
    """Return the job of a message; its id and name are text that the database and every client can write."""
    found.name = found.name.encode(errors="backslashreplace").decode()
    written = found.id.encode(errors="surrogatepass")
    if b"\0" in written or len(written) > LONGEST_ID or written != found.id.encode(errors="replace"):
        found.id, found.unreadable = hashlib.sha1(member, usedforsecurity=False).hexdigest(), "its id cannot be stored"
    return found


def waiting_of(source: OtherQueue, row: Sequence[Any]) -> Waiting:
    """Return the job in a row that the source's ``read`` returned: its id, what it has become, and the rest."""
    try:
        found = source.waiting(*row[2:])
    except UNREADABLE as error:
        found = Waiting("", str(row[2]), unreadable=f"cannot be read: {str(error) or type(error).__name__}")
    found.id, found.former = str(row[0]), row[1]
    return found
