"""Admission of jobs that limits hold: find their groups, admit in one transaction, explain what holds a job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django_pgjobs.store.database import Database, Transacting
from django_pgjobs.store.keys import Expired

LOCK_CLASS = 0x706A61
"""The first half of our advisory lock's number ("pja"), so that it collides with no other lock."""

Group = tuple[str, str]
"""The jobs of one queue with one name."""

Lane = tuple[str, int]
"""Limit key and priority: jobs of a group that wait for each other."""


class Bounds(NamedTuple):
    """The limits of a queue, a job's name or one of its keys; None means no limit. ``per`` is in seconds."""

    concurrency: int | None = None
    rate: int | None = None
    per: float | None = None


class Terms(NamedTuple):
    """A group's limits in this code, and the lane after which its scan begins.

    ``job``: the name under which its limit counts. ``names``: all its names, aliases included.
    """

    queue: str
    name: str
    job: str
    names: Sequence[str]
    of_queue: Bounds = Bounds()
    of_job: Bounds = Bounds()
    of_key: Bounds = Bounds()
    after: Lane | None = None

    def as_json(self, position: int) -> dict[str, object]:
        """Return the object that the statement reads."""
        fields = {
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
    """A limit of starts in ``per`` seconds, for a queue ("*": each one not named; None: it has no rate) or a name.

    ``subject``: the prefix under which starts are counted; a queue's name follows and, if ``keyed``, a key.
    """

    subject: str
    per: float | None
    queue: str | None = None
    name: str | None = None
    keyed: bool = False
    names: Sequence[str] = ()
    """All names of the job, under any of which an operator may have set another rate."""


class Admitted(NamedTuple):
    """The result for one group: how many jobs were admitted at which priorities, and the last lane among them.

    ``closed``: its queue or its name has no room. ``cut``: there are more lanes than the scan covered; ``scanned`` is
    the last it covered. ``turned``: the scan reached the last lane and continued at the first. ``due``: some of these
    lanes had due jobs. ``seconds``: until the next job is due.
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
    """Return the first ``limit`` groups after ``after`` that have jobs held by a limit, in order."""
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
    """Admit up to ``limit`` due jobs, scanning about ``lanes`` lanes; None while another process admits.

    First it re-dates starts that ``rates`` count and no worker has claimed, and revokes admissions that had missed a
    pause. At most ``lookahead`` jobs of a queue and priority are admitted and unclaimed. The result leaves out paused
    groups. May be repeated.
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
    """The jobs that occupy the slots of a job's queue, name or key (``kind``).

    ``jobs``: how many are admitted; ``ids``: some of them; ``starts``: how many starts the window holds.
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
    """Return what a job held by a limit may be waiting for; nothing if no limit holds it.

    ``job`` and ``names``: as in ``Terms``. ``per``: the window's seconds by kind. Each kind lists up to ``limit`` ids.
    """
    params = {"id": job_id, "job": job, "names": list(names), "limit": limit}
    params |= {f"{kind}_per": per.get(kind, 0.0) for kind in ("queue", "job", "key")}
    return [Blocking._make(row) for row in db.fetch("read_blockers", params)]


def admit_one(db: Database, job_id: int) -> bool:
    """Admit one job regardless of its limits; return whether one held it. For tests."""
    return bool(db.fetch("admit_one", {"id": job_id}))


def delete_admissions(db: Database, *, after: str, limit: int) -> Expired:
    """Delete up to ``limit`` starts whose windows are over, oldest first, from ``after`` on."""
    [(count, until)] = db.fetch("delete_admissions", {"after": after, "limit": limit})
    return Expired(count, until or after)
