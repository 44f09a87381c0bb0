"""Admission of jobs that limits hold: which there are, the one transaction that admits, and what holds a job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django_pgjobs.store.database import Database, Transacting
from django_pgjobs.store.keys import Expired

LOCK_CLASS = 0x706A61
"""The first half of our advisory lock's number ("pja"), so that it meets nobody else's."""

Group = tuple[str, str]
"""The jobs of one queue with one name."""

Lane = tuple[str, int]
"""Limit key and priority: jobs of a group that wait for each other."""


class Bounds(NamedTuple):
    """What holds for a queue, a job's name or a key of it; None is without bound. ``per`` is seconds."""

    concurrency: int | None = None
    rate: int | None = None
    per: float | None = None


class Terms(NamedTuple):
    """What the code says of a group, and behind which lane the scan begins.

    ``job`` is the name that its limit counts under, ``names`` are all names it has, aliases included.
    """

    queue: str
    name: str
    job: str
    names: Sequence[str]
    of_queue: Bounds = Bounds()
    of_job: Bounds = Bounds()
    of_key: Bounds = Bounds()
    after: Lane | None = None

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
    """What came of one group: how many jobs were admitted at which priorities, and the last lane among them.

    ``closed``: there is no room in its queue or for its name. ``cut``: there are more lanes than were scanned, the
    last of which is ``scanned``. ``turned``: the scan came to the last lane and continued at the first. ``due``: some
    of those had due jobs. ``seconds``: until the next is due.
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
    scanned_key: str | None
    scanned_priority: int | None
    seconds: float | None


def list_limited(db: Database, *, after: Group, limit: int) -> list[Group]:
    """Return the groups with jobs that a limit holds, in order, those after ``after``."""
    params = {"after_queue": after[0], "after_name": after[1], "limit": limit}
    return [(row[0], row[1]) for row in db.fetch("list_limited", params)]


def admit_jobs(
    db: Transacting,
    terms: Sequence[Terms],
    *,
    rates: Sequence[StartRate] = (),
    lanes: int,
    limit: int,
    lookahead: int,
    notify: bool,
) -> list[Admitted] | None:
    """Admit up to ``limit`` due jobs, scanning about ``lanes`` lanes; None while another process is admitting.

    Before that it dates the starts anew that ``rates`` count and nobody has claimed, and revokes what an admission
    that had not seen a pause admitted. Of a queue and priority at most ``lookahead`` jobs are admitted and not
    claimed. Paused groups are not in the answer. May be repeated.
    """
    params = {
        "terms": json.dumps([each.as_json(position) for position, each in enumerate(terms)]),
        "lanes": lanes,
        "limit": limit,
        "lookahead": lookahead,
        "notify": notify,
    }
    [[locked]], *answers = db.fetch_together(
        [
            ("lock_admission", {"class": LOCK_CLASS}),
            ("revoke_admissions", {"limit": limit}),
            *([("date_starts", {"rates": json.dumps([each._asdict() for each in rates])})] if rates else []),
            *([("admit_jobs", params)] if terms else []),
        ]
    )
    admitted = answers[-1] if terms else []
    return [Admitted._make(row[:13]) for row in admitted] if locked == "true" else None


class Blocking(NamedTuple):
    """What takes up the room in a job's queue, under its name or under its key (``kind``).

    ``jobs`` are admitted, ``ids`` are some of them, ``starts`` are those that the window holds.
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
    """Return what a job that a limit holds may be waiting for; nothing for one that no limit holds.

    ``job`` and ``names`` as of ``Terms``; ``per`` has the window's seconds by kind; returns up to ``limit`` ids.
    """
    params = {"id": job_id, "job": job, "names": list(names), "limit": limit}
    params |= {f"{kind}_per": per.get(kind, 0.0) for kind in ("queue", "job", "key")}
    return [Blocking._make(row) for row in db.fetch("read_blockers", params)]


def admit_one(db: Database, job_id: int) -> bool:
    """Admit one job, whatever its limits say; return whether one held it. For tests."""
    return bool(db.fetch("admit_one", {"id": job_id}))


def delete_admissions(db: Database, *, after: str, limit: int) -> Expired:
    """Delete starts whose windows are over, at most so many, oldest first from ``after`` on."""
    [(count, until)] = db.fetch("delete_admissions", {"after": after, "limit": limit})
    return Expired(count, until or after)
