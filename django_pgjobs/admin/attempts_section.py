"""The attempts of a job: those that did not succeed, the one that runs, and the one that succeeded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from django.utils.text import capfirst
from django.utils.translation import gettext as _

from django_pgjobs.admin.display import person, short, when
from django_pgjobs.models import Heartbeat, Step
from django_pgjobs.presentation import job_lines
from django_pgjobs.presentation.job_rows import ATTEMPTS, peaks_of, stacks_of, step_at
from django_pgjobs.presentation.sight import Hidden
from django_pgjobs.presentation.wording import STATE_LABELS, links_of, problem_of_stack, seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import JobState, Outcome

if TYPE_CHECKING:
    from datetime import datetime

    from django_pgjobs.presentation.job_rows import AttemptRow, JobRow


def attempt_rows(
    job: JobRow, rows: Sequence[AttemptRow], steps: list[Step], worker: Heartbeat | None
) -> list[dict[str, object]]:
    """Return the attempts for the page, latest first; equal ones that follow each other are one row.

    ``worker``: the one that has claimed the job, or ended it.
    """
    waits, peaks = _waits(job, rows), peaks_of(job)
    shown = [
        _row(job, row, steps, wait) | {"peak": _peak(peaks.get(row.number))}
        for row, wait in zip(rows[:ATTEMPTS], waits, strict=False)
    ]
    folded = []
    for _key, group in groupby(shown, key=lambda each: (each["cause"], each["step"], each["links"], each["release"])):
        equal = list(group)
        first = equal[0]
        numbers = f"{equal[-1]['number']}–{first['number']}" if len(equal) > 1 else first["number"]
        folded.append({**first, "number": numbers, "times": len(equal) if len(equal) > 1 else 0})
    if folded:
        folded[0]["open"] = True
    return [each | {"peak": _peak(peaks.get(job.attempt))} for each in _without_row(job, rows, worker)] + folded


def _peak(peak: tuple[int, int] | None) -> str:
    """Return how much memory its process had when it began, and at most; empty if it was not measured."""
    return _("{start} → {peak} MB").format(start=peak[0], peak=peak[1]) if peak else ""


def stack_rows(job: JobRow) -> list[dict[str, object]]:
    """Return the stacks that were asked for, latest first."""
    return [
        {
            "number": row.number,
            "asked": when(row.asked_at),
            "who": person(row.who),
            "reason": short(row.words, 500),
            "answered": when(row.answered_at),
            "problem": problem_of_stack(row, job),
            "stack": visible(row.text),
        }
        for row in stacks_of(job)
    ]


def line_rows(job: JobRow) -> dict[str, object] | None:
    """Return what the page shows of the lines that the job logged; None if there are none."""
    found = job_lines.latest(job, reveal=job.reveal)
    if isinstance(found, Hidden):
        return {"hidden": found.reason}
    rows, more = found
    shown = [
        {
            "number": row.attempt,
            "logged": when(row.logged_at),
            "level": job_lines.level_name(row.level),
            "logger": visible(row.whose),
            "text": visible(row.text),
        }
        for row in rows
    ]
    return {"rows": shown, "more": more} if shown else None


def awaits_its_turn(job_id: int, worker: Heartbeat | None) -> bool:
    """Tell whether the job waits in its worker to run again, as an executor died with it."""
    pending = worker.suspects.get("pending") if worker is not None and isinstance(worker.suspects, dict) else None
    return isinstance(pending, list) and job_id in pending


def _row(job: JobRow, row: AttemptRow, steps: list[Step], waited: float | None) -> dict[str, object]:
    return {
        "cause": visible(capfirst(row.get_cause_display())),
        "number": row.number,
        "step": visible(step_at(job, steps, row.ended_at)),
        "worker": visible(row.worker_name[:200]),
        "release": visible(row.release[:100]),
        "started": when(row.started_at),
        "waited": seconds(waited),
        "took": seconds(row.duration_seconds),
        "links": [tuple(map(visible, link)) for link in links_of(row.chain_text, row.exception, row.words)],
        "traceback": visible(row.trace),
    }


def _waits(job: JobRow, rows: Sequence[AttemptRow]) -> list[float | None]:
    """Return the time that each attempt waited since the one before, or since the registration."""
    ends = [row.ended_at for row in rows[1:]] + ([job.created_at] if len(rows) <= ATTEMPTS else [])
    return [_between(end, row.started_at) for row, end in zip(rows, ends, strict=False)]


def _between(first: datetime | None, second: datetime | None) -> float | None:
    return None if first is None or second is None else max((second - first).total_seconds(), 0.0)


def _without_row(job: JobRow, rows: Sequence[AttemptRow], worker: Heartbeat | None) -> list[dict[str, object]]:
    """The attempt that has no row of its own: the one that runs, or that succeeded."""
    succeeded = job.outcome == Outcome.SUCCEEDED and job.worker is not None
    if job.claimed_at is None or not (succeeded or job.state == JobState.RUNNING):
        return []
    before = rows[0].ended_at if rows else job.created_at
    # An executor may have died with it under this claim.
    began = job.claimed_at if succeeded or not rows else max(job.claimed_at, before)
    took = job.duration_seconds if succeeded else _between(began, job.now)
    cause = STATE_LABELS[Outcome.SUCCEEDED.value if succeeded else JobState.RUNNING.value]
    if not succeeded and awaits_its_turn(job.pk, worker):
        cause, took = _("waits to run again, apart"), None
    return [
        {
            "cause": capfirst(str(cause)),
            "number": job.attempt,
            "step": visible(job.name),
            "worker": visible(worker.name[:200]) if worker else "",
            "release": visible(worker.release[:100]) if worker else "",
            "started": when(began),
            "waited": seconds(_between(before, began)),
            "took": seconds(took),
            "links": [],
            "traceback": "",
        }
    ]
