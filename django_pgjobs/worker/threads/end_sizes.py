"""Size of one statement of ends: it takes no job twice, and not too much text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django_pgjobs.store.finalising import End


def sizes_of(ends: Iterable[End]) -> list[int]:
    """Return how many characters each end has, as far as they may be many."""
    return [
        len(end.result or end.columns) if end.failure is None else len(end.failure.traceback) + len(end.failure.message)
        for end in ends
    ]


def fitting(ids: Sequence[int], sizes: Sequence[int], limit: int) -> int:
    """Return how many of the first ends fit a statement: up to the one that passes ``limit``, before a job's second."""
    if len(set(ids)) == len(ids) and sum(sizes) <= limit:
        return len(ids)
    seen: set[int] = set()
    size = 0
    for job_id, more in zip(ids, sizes, strict=True):
        if job_id in seen or size > limit:
            break
        seen.add(job_id)
        size += more
    return len(seen)
