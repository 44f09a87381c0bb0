"""Read how jobs went so far, for those that asked for their results: one statement, however many jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django_pgjobs.store.database import Database

MOST_ATTEMPTS = 1000
"""Number of attempts of a job that are read, the latest: an operator may retry one forever."""


class ReadAttempt(NamedTuple):
    """An attempt that did not succeed. ``chain``: class and message of the exception and of what caused it."""

    number: int
    cause: str
    worker: UUID | None
    started_at: datetime | None
    ended_at: datetime
    exception: str
    message: str
    chain: tuple[tuple[str, str], ...]
    traceback: str


class ResultFacts(NamedTuple):
    """A job as its row, its history and its claim tell of it. ``payload``, ``headers``, ``result``: JSON text.

    ``state``: *running* also while only a callback runs. ``ending``: not None once only the callback is left.
    ``attempt``: charged starts so far. ``duration_seconds``: of the last attempt that ended. ``worker``: who wrote the
    last end or retry, ``claimed_by``: who has it now. ``first_started_at``: of the oldest charged attempt that did not
    succeed. ``attempts``: the oldest first, at most the latest ``MOST_ATTEMPTS``.
    """

    id: int
    name: str
    queue: str
    priority: int
    state: str
    outcome: str | None
    ending: str | None
    ending_attempt: int
    hold: str | None
    claim_id: UUID | None
    attempt: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None
    payload: str
    headers: str | None
    result: str | None
    error: str
    error_class: str | None
    cancel_requested_at: datetime | None
    cancel_by: str
    cancel_reason: str
    worker: UUID | None
    claimed_by: UUID | None
    first_started_at: datetime | None
    attempts: tuple[ReadAttempt, ...]


_OF_ATTEMPTS = len(ReadAttempt._fields)


def read_result(db: Database, ids: Sequence[int]) -> list[ResultFacts]:
    """Return the facts about those of these jobs that exist, in no order."""
    rows = db.fetch("read_result", {"ids": list(ids), "most": MOST_ATTEMPTS})
    return [ResultFacts._make([*row[:-_OF_ATTEMPTS], _attempts(row[-_OF_ATTEMPTS:])]) for row in rows]


def _attempts(columns: Sequence[Sequence[object] | None]) -> tuple[ReadAttempt, ...]:
    rows = zip(*(column or () for column in columns), strict=True)
    made = (ReadAttempt._make([*row[:-2], _chain(row[-2]), row[-1]]) for row in rows)
    # By their ends: the death of an executor is written a moment later, and jobs beside it may have ended before that.
    return tuple(sorted(made, key=lambda one: one.ended_at))


def _chain(text: str) -> tuple[tuple[str, str], ...]:
    """Return the links of a stored chain; what others have written there and is none is left out."""
    try:
        links = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    pairs = [link for link in links if isinstance(link, list) and len(link) == 2] if isinstance(links, list) else []
    return tuple((str(kind), str(message)) for kind, message in pairs)
