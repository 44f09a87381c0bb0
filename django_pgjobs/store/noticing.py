"""Notices of failures: which abandoned jobs are news, and the one row that says how far notices have reached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django_pgjobs.store.database import Database

if TYPE_CHECKING:
    from django_pgjobs.store.new_jobs import NewJob

NEWS_SECONDS = 86_400.0
"""Failures longer ago are no news: no worker led, or notices were off."""

MARGIN_SECONDS = 1.0
"""Maximum time from the start of a statement to its lock on the table of jobs."""


class NoticeReached(NamedTuple):
    """The point that notices have reached; instants as text."""

    finished_at: str
    notified_at: str | None
    since: str
    """From when on failures are news: ``finished_at``, or a day ago."""
    notified_seconds: float | None
    """Age of the last notice; None if there was none."""
    delivering: bool
    """True if the last notice is still to be delivered."""
    problems: list[list[str]]
    """The code and the subject of each known problem."""
    news: bool
    """True if a job was abandoned since."""


class Writers(NamedTuple):
    """The transactions that write jobs now.

    Jobs that ended before ``since`` are visible, except those that one of these transactions has ended.
    """

    since: str
    transactions: frozenset[str]


class FailedGroup(NamedTuple):
    """Abandoned jobs of one name and error class, which is empty if an operator abandoned them."""

    name: str
    error_class: str
    jobs: int
    first_at: datetime
    last_at: datetime
    ids: list[int]
    releases: list[str]


class AbandonedGroup(NamedTuple):
    """Jobs of one name that were abandoned with one error class, which is empty if an operator abandoned them."""

    name: str
    error_class: str
    jobs: int
    last_seconds: float
    """Age of the last one."""
    last_id: int
    release: str


class Failures(NamedTuple):
    """Abandoned jobs: how many were read, whether there may be more, the largest groups, and figures of all groups."""

    read: int
    more: bool
    groups: list[FailedGroup]
    jobs: int = 0
    all_groups: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None


def read_notice(db: Database) -> NoticeReached:
    """Return how far notices have reached; now, if there has never been one."""
    while not (rows := db.fetch("read_notice", {"most": NEWS_SECONDS})):
        db.fetch("begin_notice", {})
    finished_at, notified_at, since, notified_seconds, delivering, problems, news = rows[0]
    return NoticeReached(finished_at, notified_at, since, notified_seconds, delivering, json.loads(problems), news)


def list_writers(db: Database) -> Writers:
    """Return the transactions that are writing jobs, or wait to, in this database."""
    since, transactions = db.fetch("list_writers", {"margin": MARGIN_SECONDS})[0]
    return Writers(since, frozenset(transactions))


def read_failures(
    db: Database,
    *,
    after: str,
    until: str,
    queues: Sequence[str] | None,
    names: Sequence[str] | None,
    groups: int,
    most: int,
) -> Failures:
    """Return the largest groups of jobs that were abandoned from ``after`` until before ``until``.

    ``queues``, ``names``: of these only. Reads at most ``most`` jobs, the oldest.
    """
    params = {
        "after": after,
        "until": until,
        "queues": None if queues is None else list(queues),
        "names": None if names is None else list(names),
        "groups": groups,
        "most": most,
    }
    rows = db.fetch("read_failures", params)
    read = rows[0][0]
    if rows[0][1] is None:
        return Failures(read, read >= most, [])
    return Failures(read, read >= most, [FailedGroup._make(row[1:8]) for row in rows], *rows[0][8:])


def list_failures(db: Database, *, seconds: float, groups: int, most: int) -> tuple[list[AbandonedGroup], int]:
    """Return the largest groups of jobs that were abandoned within ``seconds``, and how many jobs were read.

    Reads at most ``most``, the latest.
    """
    rows = db.fetch("list_failures", {"seconds": seconds, "groups": groups, "most": most})
    return [AbandonedGroup._make(row[:6]) for row in rows], rows[0][6] if rows else 0


def write_notice(
    db: Database,
    reached: NoticeReached,
    *,
    until: str,
    problems: Sequence[Sequence[str]],
    delivery: NewJob | None,
    notify: bool,
) -> tuple[bool, int | None]:
    """Let notices reach ``until`` and know these problems, and register ``delivery``; both or neither.

    Return whether it was written, and the id of the delivery. Nothing is written if another has since.
    """
    params: dict[str, object] = {
        "finished_at": reached.finished_at,
        "notified_at": reached.notified_at,
        "until": until,
        "problems": json.dumps(problems),
        "notify": notify,
        **_columns(delivery),
    }
    rows = db.fetch("write_notice", params)
    return (True, rows[0][0]) if rows else (False, None)


def _columns(new: NewJob | None) -> dict[str, object]:
    if new is None:
        return dict.fromkeys(("name", "queue", "priority", "max_attempts", "timeout", "payload"))
    return {
        "name": new.name,
        "queue": new.queue,
        "priority": new.priority,
        "max_attempts": new.max_attempts,
        "timeout": new.timeout_seconds,
        "payload": new.payload,
    }
