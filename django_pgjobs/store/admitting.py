"""Letting in what limits hold back: what there is, the one transaction that does it, and what holds a job back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django_pgjobs.store.database import Database, Transacting
from django_pgjobs.store.keys import Forgotten

LOCK_CLASS = 0x706A61
"""The first half of our advisory lock's number ("pja"), so that it meets nobody else's."""

Place = tuple[str, str]
"""Queue and name of jobs."""

Group = tuple[str, int]
"""Key and priority: jobs of a place that wait in one line."""


class Bounds(NamedTuple):
    """What holds for a queue, a job's name or a key of it; None is without bound. ``per`` is seconds."""

    concurrency: int | None = None
    rate: int | None = None
    per: float | None = None


class Terms(NamedTuple):
    """What the code says of the jobs of one name in one queue, and behind which group the walk begins.

    ``job`` is what their limit counts under, ``names`` are all names it has, aliases included.
    """

    queue: str
    name: str
    job: str
    names: Sequence[str]
    of_queue: Bounds = Bounds()
    of_job: Bounds = Bounds()
    of_key: Bounds = Bounds()
    after: Group | None = None

    def as_json(self, position: int) -> dict[str, Any]:
        """Return the object that the statement reads."""
        fields: dict[str, Any] = {
            "queue": self.queue,
            "name": self.name,
            "job": self.job,
            "names": list(self.names),
            "position": position,
        }
        for kind, bounds in (("queue", self.of_queue), ("job", self.of_job), ("key", self.of_key)):
            fields |= {f"{kind}_{field}": value for field, value in bounds._asdict().items() if value is not None}
        if self.after is not None:
            fields |= {"after_key": self.after[0], "after_priority": self.after[1]}
        return fields


class StartRate(NamedTuple):
    """A limit of starts in ``per`` seconds, of a queue ("*" is every one not named; None of it has no rate) or a name.

    ``subject`` is what they are counted under; a queue's name is added to it and, where it is ``keyed``, a key.
    """

    subject: str
    per: float | None
    queue: str | None = None
    name: str | None = None
    keyed: bool = False


class Admitted(NamedTuple):
    """What came of one place: how many were let in at which priorities, and the last group among them.

    ``closed``: there is no room in its queue or for its name. ``cut``: there are more groups than were looked at, the
    last of which is ``looked``. ``turned``: the walk came to the last group and went on at the first. ``due``: some of
    those had jobs whose time has come. ``seconds``: until the next is.
    """

    queue: str
    name: str
    jobs: int
    priorities: list[int] | None
    last_key: str | None
    last_priority: int | None
    closed: bool
    cut: bool | None
    turned: bool
    due: bool
    looked_key: str | None
    looked_priority: int | None
    seconds: float | None


def list_limited(db: Database, *, after: Place, limit: int) -> list[Place]:
    """Return the queues and names that have jobs held back by a limit, in order, those after ``after``."""
    params = {"after_queue": after[0], "after_name": after[1], "limit": limit}
    return [(row[0], row[1]) for row in db.fetch("list_limited", params)]


def admit_jobs(
    db: Transacting,
    terms: Sequence[Terms],
    *,
    rates: Sequence[StartRate] = (),
    groups: int,
    limit: int,
    ahead: int,
    notify: bool,
) -> list[Admitted] | None:
    """Let in up to ``limit`` due jobs, looking at about ``groups`` groups; None while somebody else is at it.

    Before, what ``rates`` count and nobody has claimed is dated anew, and what an admission let in that had not seen a
    pause gives its place back. Of a queue and priority no more than ``ahead`` may be let in and not claimed. Places
    that are paused are not in the answer. May be repeated.
    """
    params = {
        "terms": json.dumps([each.as_json(position) for position, each in enumerate(terms)]),
        "groups": groups,
        "limit": limit,
        "ahead": ahead,
        "notify": notify,
    }
    [[locked]], *answers = db.fetch_together(
        [
            ("lock_admission", {"class": LOCK_CLASS}),
            ("give_back", {"limit": limit}),
            *([("date_starts", {"rates": json.dumps([each._asdict() for each in rates])})] if rates else []),
            *([("admit_jobs", params)] if terms else []),
        ]
    )
    admitted = answers[-1] if terms else []
    return [Admitted._make(row[:13]) for row in admitted] if locked == "true" else None


class Blocking(NamedTuple):
    """What takes up the room in a job's queue, under its name or under its key (``kind``).

    ``jobs`` are let in, ``ids`` are some of them, ``starts`` are those that the window holds.
    """

    kind: str
    queue: str
    key: str
    jobs: int
    ids: list[int] | None
    starts: int


def read_blockers(
    db: Database, job_id: int, *, job: str, names: Sequence[str], per: Mapping[str, float], limit: int
) -> list[Blocking]:
    """Return what a job that a limit holds back may be waiting for; nothing for one that none does.

    ``job`` and ``names`` as of ``Terms``; ``per`` has the window's seconds by kind, up to ``limit`` ids are told.
    """
    params = {"id": job_id, "job": job, "names": list(names), "limit": limit}
    params |= {f"{kind}_per": per.get(kind, 0.0) for kind in ("queue", "job", "key")}
    return [Blocking._make(row) for row in db.fetch("read_blockers", params)]


def let_in(db: Database, job_id: int) -> bool:
    """Let one job in, whatever its limits say; return whether one held it back. For tests."""
    return bool(db.fetch("let_in", {"id": job_id}))


def delete_admissions(db: Database, *, after: str, limit: int) -> Forgotten:
    """Delete starts whose windows are over, at most so many, oldest first from ``after`` on."""
    [(count, until)] = db.fetch("delete_admissions", {"after": after, "limit": limit})
    return Forgotten(count, until or after)
