"""The statements that move jobs to another database; ``steering.moving`` says in which order, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from django_pgjobs.store.database import Database
from django_pgjobs.store.notifying import Notification, scan_behind, wake_up
from django_pgjobs.store.steering import read_states

LOCK_CLASS = 0x706A6D

BATCH, BATCH_BYTES = 1000, 16 * 1024 * 1024
"""Number of jobs, and of their bytes, more or less, that are copied together."""


def lock_moving(db: Database) -> None:
    """Wait until no other mover moves jobs to this database, and keep others from it until the transaction ends."""
    db.fetch("lock_moving", {"class": LOCK_CLASS})


def commit_durably(db: Database) -> None:
    """Have the open transaction wait for the disk when it commits."""
    db.fetch("commit_durably", {})


def mark_moving(db: Database, ids: Sequence[int], *, target: str, token: str | None, words: str) -> dict[int, str]:
    """Hold locked jobs for their move, or only judge them if there is no token; return id → why it stays, or empty."""
    rows = db.fetch("mark_moving", {"ids": list(ids), "target": target, "token": token, "words": words})
    return {job_id: stays or "" for job_id, stays in rows}


def take_moving(db: Database, *, target: str, token: str) -> dict[int, str]:
    """Take over some jobs that are held for their move to ``target``; return id → all its rows, as JSON."""
    return dict(db.fetch("take_moving", {"target": target, "token": token, "limit": BATCH, "bytes": BATCH_BYTES}))


def arrive_jobs(db: Database, jobs: Sequence[str], *, source: str, words: str) -> list[int]:
    """Insert jobs that ``take_moving`` returned; return those whose key is taken here, by their former ids."""
    taken: list[int] = []
    for some in _portions(jobs):
        rows = db.fetch("arrive_jobs", {"rows": f"[{','.join(some)}]", "source": source, "words": words})
        taken += [row[0] for row in rows]
    return taken


def _portions(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut them: a statement gets one, or as many as have no more text than it may. As stored they were compressed."""
    begin = text = 0
    for at, job in enumerate(jobs):
        if at > begin and text + len(job) > BATCH_BYTES:
            yield jobs[begin:at]
            begin, text = at, 0
        text += len(job)
    yield jobs[begin:]


def list_arrivals(db: Database, source: str) -> dict[int, int]:
    """Return the jobs that have arrived from ``source`` and wait to be given away there: former id → id."""
    return dict(db.fetch("list_arrivals", {"source": source}))


def give_away(db: Database, ids: Sequence[int], token: str) -> list[int]:
    """Delete jobs that have arrived elsewhere; return those that were still held under this token."""
    return [row[0] for row in db.fetch("give_away", {"ids": list(ids), "token": token})]


def list_existing(db: Database, ids: Sequence[int]) -> set[int]:
    """Return those of these jobs that are here, whatever has become of them."""
    return set(read_states(db, ids))


def keep_jobs(db: Database, ids: Sequence[int], token: str) -> list[Notification]:
    """Hold jobs as before their move; return the notices for workers."""
    rows = db.fetch("keep_jobs", {"ids": list(ids), "token": token})
    return _notices((queue, priority) for _, queue, priority in rows)


def land_jobs(
    db: Database, ids: Sequence[int], *, source: str, alias: str
) -> tuple[list[tuple[int, int]], list[Notification]]:
    """Let arrived jobs run; return (former id, id) of each, and the notices for workers."""
    rows = db.fetch("land_jobs", {"ids": list(ids), "source": source, "alias": alias})
    return [row[:2] for row in rows], _notices(row[2:] for row in rows if row[2] is not None)


def _notices(pairs: Iterable[tuple[str, int | None]]) -> list[Notification]:
    unique = set(pairs)
    return [wake_up(*pair) for pair in unique] + [scan_behind(queue) for queue, _ in unique]
