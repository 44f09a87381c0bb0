"""Read all that waits, in slices, for code that has to accept it: ``diagnosis.in_flight`` judges it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django_pgjobs.states import FlowFlag
from django_pgjobs.store.database import Database

SLICE = 20_000
SAMPLES = 100
"""Jobs of a group whose values are decoded, of each slice."""


class WaitingJobs(NamedTuple):
    """Unfinished jobs of one slice that are alike. ``limited``: *own*, *keyed* or empty; ``seconds``: of the oldest.

    ``args``, ``kwargs``: the number of positional and the names of keyword arguments; None if the payload has another
    form. ``tagged``: their values have to be decoded to know more. ``ids``: the first. ``remembering``: all that have
    memos.
    """

    name: str
    queue: str
    hold: str
    ending: str | None
    limited: str
    args: int | None
    kwargs: list[str] | None
    tagged: bool
    headed: bool
    jobs: int
    seconds: float
    ids: list[int]
    remembering: list[int]


class WaitingMemos(NamedTuple):
    """Memos of unfinished jobs that are alike: ``memo`` is their name without turn and key; see ``WaitingJobs``.

    ``kind``: that of the memo, or *each*. ``undo``: the name of the job that would undo the step, with its arguments.
    """

    name: str
    queue: str
    kind: str
    memo: str
    ended: bool
    undo: str | None
    args: int | None
    kwargs: list[str] | None
    tagged: bool | None
    jobs: int
    seconds: float | None
    ids: list[int]


class JobSample(NamedTuple):
    """The values of a job's row, as text."""

    id: int
    payload: str
    headers: str | None
    limit_key: str | None


def survey_jobs(db: Database, *, most: int | None = None) -> Iterator[list[WaitingJobs]]:
    """Yield the groups of each slice, up to ``most`` jobs in all.

    Held ones come first: those that are let go in the meantime come again, rather than never.
    """
    left = most
    for held in (True, False):
        after: tuple[object, ...] = ("", -32767, "", "-infinity", 0)
        while left is None or left > 0:
            size = SLICE if left is None else min(left, SLICE)
            keys = dict(zip(("queue", "priority", "hold", "run_at", "id"), after, strict=True))
            rows = db.fetch("survey_jobs", {**keys, "held": held, "most": size, "samples": SAMPLES})
            found = [WaitingJobs._make((*row[:12], _remembering(*row[12:15]))) for row in rows]
            if found:
                yield found
                after = rows[0][15:]
            seen = sum(each.jobs for each in found)
            left = None if left is None else left - seen
            if seen < size:
                break


def _remembering(ids: Sequence[int] | None, flows: Sequence[int] | None, undone: Sequence[int] | None) -> list[int]:
    kept = [each for each, flow in zip(ids or (), flows or (), strict=True) if flow & FlowFlag.REMEMBERS]
    return [*kept, *(undone or ())]


def survey_memos(db: Database, ids: Sequence[int]) -> list[WaitingMemos]:
    """Return what these jobs remember."""
    return [WaitingMemos._make(row) for row in db.fetch("survey_memos", {"ids": list(ids), "samples": SAMPLES})]


def read_samples(db: Database, ids: Sequence[int]) -> list[JobSample]:
    """Return the stored values of these jobs."""
    return [JobSample._make(row) for row in db.fetch("read_samples", {"ids": list(ids)})]
