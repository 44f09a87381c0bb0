"""Claim ready jobs, and read what a claimer needs for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple, NotRequired, TypedDict, Unpack
from uuid import UUID

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import Facts, facts_of_attempt
from django_pgjobs.states import BODY, CALLBACK_OF, gate_of
from django_pgjobs.store.database import Database, Rows, array_of
from django_pgjobs.store.instants import instant
from django_pgjobs.values.backoff import LONGEST_SECONDS

INLINE_PAYLOAD_BYTES = 65_536
"""Larger payloads do not travel through the channel; the executor reads them under the fence."""

MOST_CHARS = 4 * 1024 * 1024
"""Maximum text of one job in a frame, whose bytes are up to six times as many. The claim cuts longer texts
to one character more than this, so that no row can make its claim too slow."""

OPTION_BYTES = 1000
"""Maximum length of the options of a job, as JSON text. For longer ones, which no registration writes, a claim returns
true: Python may be unable to read them."""


class ClaimedJob(NamedTuple):
    """A job as the claim returns it, on its whole way to the body.

    ``payload`` is JSON text, or None if it is too big for the channel. ``ending``: the outcome that is written after
    its callback, which is all that is left to run.

    ``extras``: None, or those of these values that the job has: ``limit_key``, ``idempotency_key``, ``cron_entry``,
    ``fire_at`` as ISO text, ``suspect`` if the job may have ended the process of this attempt, ``until`` when its
    deadline passes and ``expires`` after when it is not started, both by ``clock.monotonic()``, its ``options``, and
    ``gate`` if its end counts in one: which, 0 for others. ``database``: the alias of its home, empty in a worker that
    serves one only; another alias may have a job of its number.
    """

    # First what differs from job to job of one claim: see ``run_groups``.
    id: int
    run_at: datetime
    payload: str | None
    queue: str
    priority: int
    name: str
    attempt: int
    max_attempts: int
    timeout_seconds: float | None
    headers: str | None
    claim_id: str
    description: str = ""
    ending: str | None = None
    ending_attempt: int = 0
    cancelled: bool = False
    error: str = ""
    extras: dict[str, Any] | None = None
    database: str = ""

    @property
    def fence(self) -> tuple[int, str]:
        """The fence that every write made for it must match."""
        return self.id, self.claim_id

    @property
    def facts(self) -> Facts:
        """The facts that every log line about this attempt carries, in their order."""
        about = (self.name, self.id, self.attempt, self.max_attempts, self.claim_id, self.queue)
        return facts_of_attempt(*about, database=self.database)

    @property
    def kind(self) -> str:
        """The name of the function to call: ``body``, or a callback."""
        return CALLBACK_OF.get(self.ending or "", BODY)

    @property
    def timeout(self) -> float | None:
        """Number of seconds that this function may take, None for unlimited; a callback has its own limit."""
        return self.timeout_seconds if self.ending is None else get_conf().callback_seconds

    @property
    def until(self) -> float | None:
        """The instant of ``clock.monotonic()`` at which the job's own deadline passes, None without one."""
        return None if self.extras is None else self.extras.get("until")

    @property
    def expires(self) -> float | None:
        """The instant of ``clock.monotonic()`` after which the job is not started, None for never."""
        return None if self.extras is None else self.extras.get("expires")

    @property
    def limit_key(self) -> str | None:
        """The key of its limits, empty if they have none; None if no limit counts it."""
        return None if self.extras is None else self.extras.get("limit_key")

    @property
    def idempotency_key(self) -> str | None:
        """Its idempotency key, None without one."""
        return None if self.extras is None else self.extras.get("idempotency_key")

    @property
    def is_suspect(self) -> bool:
        """True if it may have ended the process of the start before this one, which was released."""
        return self.extras is not None and bool(self.extras.get("suspect"))

    @property
    def target(self) -> int | None:
        """The job that it undoes, or a part of; None if it undoes nothing."""
        target = self.option("target")
        return int(target[0]) if isinstance(target, list) and target else None

    @property
    def soft_limit(self) -> float | None:
        """Number of seconds after which ``SoftDeadlinePassed`` is raised in the body; None for never."""
        seconds = self.option("soft_timeout") if self.ending is None else None
        # A number beyond the floats, which no registration writes, would raise.
        return float(seconds) if isinstance(seconds, int | float) and seconds <= LONGEST_SECONDS else None

    @property
    def memory_limit(self) -> int | None:
        """Megabytes by which its body may let its process grow; None for any number."""
        most = self.option("memory") if self.ending is None else None
        return most if type(most) is int and most > 0 else None

    def option(self, name: str) -> object:
        """Return one of its ``options``, None if it has none of that name."""
        options = None if self.extras is None else self.extras.get("options")
        return options.get(name) if isinstance(options, dict) else None


_EXTRAS = (
    "limit_key", "idempotency_key", "cron_entry", "fire_at", "suspect", "until", "expires", "options", "gate",
)  # fmt: skip
"""The values of ``rare`` behind the first four, in their order; ``gate`` is made of the last two."""

_PLAIN = tuple(ClaimedJob._field_defaults.values())[1:-1]
"""Values of nearly all jobs, behind the description and before the home."""

_AGE = attrgetter("run_at", "id")
_PRIORITY = attrgetter("priority")

Spot = tuple[datetime, int]
"""The position of a row in its pair: (run_at, id)."""


class Pair(NamedTuple):
    """A queue at one priority, the position where its claim begins and, with ``until``, where it ends."""

    queue: str
    priority: int
    run_at: datetime
    id: int
    until: Spot | None = None


LineKey = bool | tuple[bool, str]
"""A line: the jobs of this colour; or, of one queue that has places of its own, those of this colour there."""


class Line(NamedTuple):
    """Place where a claim scans for jobs of one colour, and the maximum number that it takes."""

    pairs: Sequence[Pair]
    limit: int


class ClaimReply(NamedTuple):
    """The claimed jobs, in the order in which they start, and when the claim scanned, by the database's clock."""

    jobs: list[ClaimedJob]
    scanned_at: datetime | None


class ClaimTerms(TypedDict):
    """Terms of one claim, in seconds; ``database``: what the jobs say of their home.

    ``claim_id`` must be new for each call, even for a repetition after a lost answer: it is the fence.
    """

    claim_id: UUID
    worker: UUID
    lease_seconds: float
    allowance_seconds: float
    grace_seconds: float
    database: NotRequired[str]


def claim_jobs(db: Database, pairs: Sequence[Pair], *, limit: int, **terms: Unpack[ClaimTerms]) -> list[ClaimedJob]:
    """Claim up to ``limit`` ready jobs, best pair first, and return them in the order in which they start."""
    return claim_lines(db, {False: Line(pairs, limit)}, (), **terms).jobs


def claim_lines(
    db: Database,
    lines: Mapping[LineKey, Line],
    async_names: Collection[str],
    *,
    most: int | None = None,
    **terms: Unpack[ClaimTerms],
) -> ClaimReply:
    """Claim as ``claim_jobs``, from lines of jobs for the event loop (True) and from lines of all others (False).

    ``async_names``: the jobs that run on the loop; a callback runs in a thread regardless of its job's name. ``most``:
    how many jobs all lines give together; beyond that, the last line gives fewer.
    """
    reply = _claim(db, terms, lines, async_names, most)
    reply.jobs.sort(key=_AGE)
    reply.jobs.sort(key=_PRIORITY, reverse=True)  # keeps the order of equals
    return reply


def claim_one(db: Database, job_id: int, **terms: Unpack[ClaimTerms]) -> ClaimReply:
    """Claim this job and no other, as ``claim_lines`` would; no job if it cannot be claimed now."""
    return _claim(db, terms, {}, (), None, job_id)


def _claim(
    db: Database,
    terms: ClaimTerms,
    lines: Mapping[LineKey, Line],
    async_names: Collection[str],
    most: int | None,
    job_id: int | None = None,
) -> ClaimReply:
    """Claim from these lines and the job ``job_id``; return the jobs in no order."""
    asked_at = clock.monotonic()
    params = {
        "lines": array_of(map(on_loop, lines)),
        "limits": array_of(line.limit for line in lines.values()),
        "pair_lines": array_of(number for number, line in enumerate(lines.values(), 1) for _ in line.pairs),
        "async_names": array_of(async_names),
        "most": most,
        "id": job_id,
        **_beginnings([pair for line in lines.values() for pair in line.pairs]),
        "claim_id": terms["claim_id"],
        "worker": terms["worker"],
        "lease": terms["lease_seconds"],
        "allowance": terms["allowance_seconds"],
        "grace": terms["grace_seconds"],
        "inline": INLINE_PAYLOAD_BYTES,
        "chars": MOST_CHARS + 1,
        "bytes": OPTION_BYTES,
    }
    return _claimed(db.fetch("claim_jobs", params), str(terms["claim_id"]), asked_at, terms.get("database", ""))


def on_loop(line: LineKey) -> bool:
    """Return whether a line is of jobs for the event loop."""
    return line if isinstance(line, bool) else line[0]


def next_claimable(
    db: Database, pairs: Sequence[Pair], *, is_async: bool = False, async_names: Collection[str] = ()
) -> int | None:
    """Return the job that ``claim_lines`` with a limit of one would take from this line, None if nothing is ready."""
    params = {**_beginnings(pairs), "is_async": is_async, "async_names": array_of(async_names)}
    rows = db.fetch("next_claimable", params)
    return int(rows[0][0]) if rows else None


def _claimed(rows: Rows, claim_id: str, asked_at: float, database: str) -> ClaimReply:
    """Make jobs from rows that hold those of one kind in columns; nearly all have neither headers nor what is rare.

    What is rare is often the same in all: of members of one batch, for example.
    """
    jobs: list[ClaimedJob] = []
    scanned_at: datetime | None = None
    # A third of the cost of _make. The names are local, as every job passes here.
    new, job = tuple.__new__, ClaimedJob
    for *common, ids, run_ats, payloads, headers, rares, descriptions, now in rows:
        scanned_at = now
        if common[0] is None:
            continue
        each = zip(json.loads(ids), map(instant, json.loads(run_ats)), _texts(payloads), strict=True)
        column = rares.split("\n")
        known = {rare: (*_rare(rare, asked_at), database) for rare in set(column)}
        if descriptions is None and len(known) == 1 and not headers.strip("\n"):
            rest = (*common, None, claim_id, "", *known[column[0]])
            jobs += [new(job, own + rest) for own in each]
            continue
        named = repeat(None) if descriptions is None else json.loads(descriptions)
        jobs += [
            new(job, (*own, *common, header, claim_id, description or "", *known[rare]))
            for own, header, rare, description in zip(each, _texts(headers), column, named, strict=False)
        ]
    return ClaimReply(jobs, scanned_at)


def _texts(column: str) -> list[str | None]:
    return [text or None for text in column.split("\n")]


def _rare(rare: str, asked_at: float) -> tuple[object, ...]:
    """Return the values from ``ending`` to ``extras``; jobs share them, so ``extras`` is never changed in place."""
    if not rare:
        return _PLAIN
    ending, ending_attempt, cancelled, error, *others, flow, parent_id = json.loads(rare)
    others.append(gate_of(flow, parent_id))
    extras = {name: value for name, value in zip(_EXTRAS, others, strict=True) if value is not None}
    for name in ("until", "expires"):
        if name in extras:  # as seconds from the claim
            extras[name] = asked_at + float(extras[name])
    return ending, ending_attempt, cancelled, error, extras or None


def _beginnings(pairs: Sequence[Pair]) -> dict[str, object]:
    return {
        "queues": array_of(pair.queue for pair in pairs),
        "priorities": array_of(pair.priority for pair in pairs),
        "run_ats": array_of(pair.run_at for pair in pairs),
        "ids": array_of(pair.id for pair in pairs),
        "until_run_ats": array_of(pair.until and pair.until[0] for pair in pairs),
        "until_ids": array_of(pair.until and pair.until[1] for pair in pairs),
    }


def list_pairs(db: Database) -> list[tuple[str, int]]:
    """Return every (queue, priority) that has a claimable or running job."""
    return [(row[0], row[1]) for row in db.fetch("list_pairs", {})]


def next_due(db: Database, pairs: Sequence[tuple[str, int]]) -> float | None:
    """Return the seconds until the next job of ``pairs`` is due, by the database's clock; None if none is scheduled."""
    rows = db.fetch("next_due", {"queues": array_of(p[0] for p in pairs), "priorities": array_of(p[1] for p in pairs)})
    return None if rows[0][0] is None else float(rows[0][0])


def read_claim(db: Database, claim_id: UUID) -> list[int]:
    """Return the ids of the jobs that carry this claim, if the answer of its statement was lost."""
    return [row[0] for row in db.fetch("read_claim", {"claim_id": claim_id})]


def park_unclaimable(db: Database, job_id: int, reason: str, fingerprints: Mapping[str, str]) -> list[int]:
    """Park this job, whose data makes its claim fail, unless another worker has claimed it in the meantime.

    ``fingerprints`` (name → fingerprint) identify the code that could not claim it; other code will try again.
    """
    params = {
        "id": job_id,
        "reason": reason,
        "names": list(fingerprints),
        "fingerprints": list(fingerprints.values()),
    }
    return [row[0] for row in db.fetch("park_unclaimable", params)]
