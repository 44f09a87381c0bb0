"""Every write made for an attempt, fenced by (id, claim_id).

Each returns the ids it recorded. A missing id is a normal answer: *busy* (another session holds the row), *lost* (the
claim is no longer ours), *done* (recorded before) or *cancelled* in the meantime; ``read_fences`` tells which.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django_pgjobs.decisions import Failure
from django_pgjobs.states import Hold, is_counted
from django_pgjobs.store.database import Database
from django_pgjobs.store.passing import with_results


@dataclass(frozen=True, slots=True)
class Author:
    """The worker that writes: its id, its label, and the release of the code it runs."""

    worker: UUID
    name: str = ""
    release: str = ""


@dataclass(slots=True)
class End:
    """The end of an attempt, as a fenced statement takes it; set only the fields that the statement reads.

    Not frozen: every job makes one, and a frozen one costs four times as much.
    """

    id: int
    claim_id: str
    seconds: float | None = None
    result: str | None = None
    delay: float = 0.0
    outcome: str = ""
    cause: str | None = None
    reason: str = ""
    fingerprint: str = ""
    failure: Failure | None = None
    suspect: bool = False
    columns: str = ""
    """Columns that a next step writes, as a JSON object."""
    events: tuple[str, ...] = ()
    """Events that a suspended job waits for."""

    def as_json(self, *keys: str) -> str:
        """Return a JSON object with the fence and ``keys``."""
        fields: dict[str, object] = {"id": self.id, "claim_id": self.claim_id}
        fields.update((key, getattr(self, key)) for key in keys)
        return json.dumps(fields)

    def with_failure(self, *keys: str) -> str:
        """Return the same with the failure's columns, all null if there was no failure."""
        failure = self.failure
        fields: dict[str, object] = {"id": self.id, "claim_id": self.claim_id}
        fields.update((key, getattr(self, key)) for key in keys)
        if failure is not None:
            fields |= {
                "error": failure.summary,
                "exception": failure.kind,
                "message": failure.message,
                "chain": failure.chain,
                "traceback": failure.traceback,
            }
        return json.dumps(fields)


def read_failure(db: Database, job_id: int) -> Failure | None:
    """Return how the latest attempt in the job's history failed; None if no attempt is kept."""
    rows = db.fetch("read_failure", {"id": job_id})
    if not rows:
        return None
    kind, message, chain, traceback = rows[0]
    return Failure(kind, message, tuple((one, words) for one, words in json.loads(chain)), traceback)


def as_array(objects: Iterable[str]) -> str:
    """Return JSON objects as one JSON array."""
    return "[" + ",".join(objects) + "]"


def _author(author: Author) -> dict[str, object]:
    return {"worker": author.worker, "worker_name": author.name, "release": author.release}


def finalise_success(
    db: Database, ends: Sequence[End], author: Author, *, remember: bool = False, settled: bool = False
) -> list[int]:
    """End jobs whose bodies returned; ``result`` is JSON text, stored unchecked. Skips locked rows.

    With ``remember``, also store the results of jobs that have an idempotency key under that key. ``settled``: also end
    jobs whose ends count in a gate; the caller calls ``settle_ends`` in the same transaction.
    """
    return list(_successes(db, ends, author, remember=remember, settled=settled))


def finalise_success_fast(db: Database, ends: Sequence[End], author: Author) -> list[int]:
    """Do what ``finalise_success`` does for three quarters of its CPU time, unless a row is locked. Stores no result
    under an idempotency key.

    Waits for a locked row: 50 ms at most, then it raises ``LockNotAvailable``, or ``DeadlockDetected`` before that, and
    has written nothing. Not for a caller's transaction, which would keep the lock timeout and lose what it has done.
    """
    return list(_successes_fast(db, ends, author, settled=False))


def finalise_settled(
    db: Database, ends: Sequence[End], author: Author, *, remember: bool = False, fast: bool = False
) -> dict[int, int | None]:
    """Do what ``finalise_success`` does with ``settled``, or ``finalise_success_fast``.

    Return for each id the batch whose gate is the only one in which this end counts; None if it counts in others.
    """
    if fast:
        return _successes_fast(db, ends, author, settled=True)
    return _successes(db, ends, author, remember=remember, settled=True)


def _successes(
    db: Database, ends: Sequence[End], author: Author, *, remember: bool, settled: bool
) -> dict[int, int | None]:
    items = as_array(
        [
            f'{{"id":{end.id},"claim_id":"{end.claim_id}",'
            f'"result":{end.result or "null"},"seconds":{end.seconds or 0.0:.6f}}}'
            for end in ends
        ]
    )
    params = {"items": items, "worker": author.worker, "settled": settled}
    rows = db.fetch("finalise_success_keyed", params) if remember else db.fetch("finalise_success", params)
    return {row[0]: row[2] for row in rows}


def _successes_fast(db: Database, ends: Sequence[End], author: Author, *, settled: bool) -> dict[int, int | None]:
    results = [end.result or "null" for end in ends] if any(end.result for end in ends) else []
    params = {
        **_fences(ends),
        "micros": _literal([round((end.seconds or 0.0) * 1e6) for end in ends]),
        "results": as_array(results),
        "worker": author.worker,
        "settled": settled,
    }
    return {row[0]: row[2] for row in db.fetch("finalise_success_fast", params)}


def _fences(ends: Sequence[End]) -> dict[str, object]:
    """Return each claim once, and for each end its job and the number of its claim, from 1."""
    index: dict[str, int] = {}
    claims = [index.setdefault(end.claim_id, len(index) + 1) for end in ends]
    return {
        "ids": _literal([end.id for end in ends]),
        "claims": _literal(claims),
        "claim_ids": "{" + ",".join(index) + "}",
    }


def _literal(numbers: list[int]) -> str:
    """Return an array as its text, which costs psycopg nothing: a list costs it 0.8 µs a job."""
    return "{" + repr(numbers)[1:-1] + "}"


class Rescheduled(NamedTuple):
    """A job that is ready again, and its new ``run_at``."""

    id: int
    run_at: datetime
    queue: str
    priority: int


def finalise_retry(db: Database, ends: Sequence[End], author: Author) -> list[Rescheduled]:
    """Record failed attempts whose jobs run again after ``delay`` seconds."""
    items = as_array(end.with_failure("delay", "cause", "seconds") for end in ends)
    rows = db.fetch("finalise_retry", {"items": items, **_author(author)})
    return [Rescheduled._make(row) for row in rows]


STEPS = 100
"""Number of finished steps of a job that are kept, the latest ones; its first is kept beside them."""


class SteppedJob(NamedTuple):
    """A job that has become its next step; ``priority`` is None if a limit holds it.

    ``due``: at once. ``refused``: its key is taken in the queue of that step, so a worker is about to abandon it.
    """

    id: int
    run_at: datetime
    queue: str
    priority: int | None
    due: bool
    refused: bool


def next_step(db: Database, ends: Sequence[End], author: Author, *, hurried: bool = False) -> list[SteppedJob]:
    """Turn rows into the next steps of their jobs, and keep the finished steps.

    Waits while another transaction takes the key of a job in the queue of its next step. ``hurried``: 50 ms at most,
    then it raises ``LockNotAvailable`` and has written nothing; not for a caller's transaction.
    """
    items = as_array(
        [
            f'{{"id":{end.id},"claim_id":"{end.claim_id}","seconds":{end.seconds or 0.0:.6f},{end.columns[1:]}'
            for end in ends
        ]
    )
    params = {"items": items, "worker": author.worker, "worker_name": author.name, "most": STEPS}
    params["lock_timeout"] = "50ms" if hurried else None
    return [SteppedJob._make(row) for row in db.fetch("next_step", params)]


def finalise_snooze(db: Database, ends: Sequence[End]) -> list[Rescheduled]:
    """Make snoozed jobs ready again after ``delay`` seconds, uncharged."""
    rows = db.fetch("finalise_snooze", {"items": as_array(end.as_json("delay") for end in ends)})
    return [Rescheduled._make(row) for row in rows]


def finalise_end(db: Database, ends: Sequence[End], author: Author, *, settled: bool = False) -> list[int]:
    """End jobs as ``outcome`` (abandoned or cancelled); with ``cause``, keep the attempt in the history.

    ``settled`` as in ``finalise_success``.
    """
    items = as_array(end.with_failure("outcome", "cause", "seconds", "reason") for end in ends)
    return [row[0] for row in db.fetch("finalise_end", {"items": items, "settled": settled, **_author(author)})]


def finalise_delete(db: Database, ends: Sequence[End], *, remember: bool = False) -> list[int]:
    """End jobs that leave no row by deleting them; a job that others wait for stays as it is.

    ``remember`` as in ``finalise_success``.
    """
    if remember:
        items = as_array(
            f'{{"id":{end.id},"claim_id":"{end.claim_id}","result":{end.result or "null"},'
            f'"succeeded":{"false" if end.outcome else "true"}}}'
            for end in ends
        )
        return [row[0] for row in db.fetch("finalise_delete_keyed", {"items": items})]
    params = {"ids": [end.id for end in ends], "claim_ids": [end.claim_id for end in ends]}
    return [row[0] for row in db.fetch("finalise_delete", params)]


def finalise_delete_fast(db: Database, ends: Sequence[End]) -> list[int]:
    """Do what ``finalise_delete`` does for 0.7 of its CPU time; wait and raise as ``finalise_success_fast`` does."""
    return [row[0] for row in db.fetch("finalise_delete_fast", _fences(ends))]


def mark_ending(db: Database, ends: Sequence[End], author: Author, *, allowance_seconds: float) -> list[int]:
    """Mark jobs whose callback alone is left (``outcome`` names it); the same claim continues with it.

    It also stores the result of a success, under the idempotency key too, if the job has one.
    """
    items = as_array(end.with_failure("outcome", "cause", "seconds", "reason", "result") for end in ends)
    rows = db.fetch("mark_ending", {"items": items, "allowance": allowance_seconds, **_author(author)})
    return [row[0] for row in rows]


def park_jobs(db: Database, ends: Sequence[End], author: Author | None = None) -> list[int]:
    """Hold jobs that this code cannot run, uncharged, with ``reason`` and the ``fingerprint`` of the code.

    The reason names the ``author``, so that people find the worker with other code.
    """
    if author is not None:
        release = f"release {author.release}" if author.release else "without a release"
        for end in ends:
            end.reason = f"{end.reason} Parked by worker {author.name}, {release}.".lstrip()
    return _hold(db, Hold.PARKED, [end.as_json("reason", "fingerprint") for end in ends])


def hold_jobs(db: Database, ends: Sequence[End]) -> list[int]:
    """Hold jobs whose name is paused, uncharged, with ``reason``; those whose ``outcome`` says so by limits instead."""
    limited = [end for end in ends if end.outcome == Hold.LIMITED]
    paused = [end for end in ends if end.outcome != Hold.LIMITED] if limited else ends
    return [
        *_hold(db, Hold.PAUSED, [end.as_json("reason", "suspect") for end in paused]),
        *_hold(db, Hold.LIMITED, [end.as_json("reason", "suspect") for end in limited]),
    ]


def _hold(db: Database, hold: Hold, ends: Sequence[str]) -> list[int]:
    if not ends:
        return []
    return [row[0] for row in db.fetch("hold_jobs", {"hold": hold, "items": as_array(ends)})]


class ReleasedJob(NamedTuple):
    """A released job; ``times``: how many attempts it lost that way while it ran, including this one."""

    id: int
    queue: str
    priority: int
    times: int = 0


def release_jobs(db: Database, ends: Sequence[End], author: Author) -> list[ReleasedJob]:
    """Release jobs, uncharged; with ``cause`` (the job had started), keep the attempt in the history.

    A ``suspect`` stays one for the next worker that claims it.
    """
    items = as_array(end.with_failure("cause", "seconds", "suspect") for end in ends)
    rows = db.fetch("release_jobs", {"items": items, **_author(author)})
    return [ReleasedJob._make(row) for row in rows]


RunReport = tuple[int, str, dict[str, str]]
"""(id, claim_id, JSON texts) of a running job: its ``progress``, its ``peaks`` of memory, or both."""


def write_progress(db: Database, reports: Sequence[RunReport]) -> list[int]:
    """Store reports of running jobs; return the ids of those written."""
    items = as_array(
        f'{{"id":{job},"claim_id":"{claim}","progress":{of.get("progress", "null")},"peaks":{of.get("peaks", "null")}}}'
        for job, claim, of in reports
    )
    return [row[0] for row in db.fetch("write_progress", {"items": items})]


RunLines = tuple[int, str, bool, str]
"""(id, claim_id, whether they are the first ones of the run, lines as JSON text) of a running job."""


def write_lines(db: Database, logged: Sequence[RunLines]) -> list[int]:
    """Store what jobs logged. Skips locked rows; return the jobs of the others."""
    items = as_array(
        f'{{"id":{job},"claim_id":"{claim}","first":{"true" if first else "false"},"lines":{text}}}'
        for job, claim, first, text in logged
    )
    return [row[0] for row in db.fetch("write_lines", {"items": items})]


def delete_claims(db: Database, claim_ids: Sequence[str]) -> int:
    """Delete ledger rows whose last job has ended; return how many."""
    return len(db.fetch("delete_claims", {"claim_ids": list(claim_ids)}))


def list_claims(db: Database, worker: UUID) -> list[str]:
    """Return the claims of a worker that still have a ledger row. Reads the whole ledger."""
    return [str(row[0]) for row in db.fetch("list_claims", {"worker": worker})]


class FenceReading(NamedTuple):
    """The state of a job whose fenced write matched no row; ``recorded``: the cause kept under this claim.

    It is "lost" whenever a rescue wrote it, also for a deadline. ``ours``: the row carries our claim; ``claimed``: it
    carries some claim; ``counted``: its end counts in a gate. Read without a lock.
    """

    id: int
    ours: bool
    ended: bool
    recorded: str | None
    ending: bool
    cancelled: bool
    claimed: bool
    counted: bool


def read_fences(db: Database, fences: Sequence[tuple[int, str]]) -> dict[int, FenceReading]:
    """Read the state of these (id, claim_id), without a lock; the result leaves out jobs that are gone."""
    params = {"ids": [job for job, _ in fences], "claim_ids": [claim for _, claim in fences]}
    return {row[0]: FenceReading._make((*row[:-1], is_counted(row[-1]))) for row in db.fetch("read_fences", params)}


def read_payload(db: Database, job_id: int, claim_id: str, *, partly: bool = False) -> str | None:
    """Return the payload of a claimed job as JSON text, with results in the places of references to them.

    None if the claim is lost. Raises ``UnreadablePayload`` if a job has no result, as it did not succeed; ``partly``:
    then null stands for it, as for a callback, which runs because of that.
    """
    rows = db.fetch("read_payload", {"id": job_id, "claim_id": claim_id})
    if not rows:
        return None
    return with_results(db, job_id, str(rows[0][0]), partly=partly)
