"""A job's life as a picture: what it waited for, its attempts, the time between them, and when it is tried next.

Widths grow with the logarithm of the time: an attempt of a millisecond and a backoff of a day are both seen. The exact
times are in the titles, and in a list for those who do not see the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import log10
from typing import TYPE_CHECKING, NamedTuple

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgjobs.admin.display import format_html, format_html_join, when
from django_pgjobs.models import Attempt, Step
from django_pgjobs.models.attempts import CAUSES
from django_pgjobs.presentation.wording import seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import Ended, JobState, Outcome

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import JobRow


WIDTH, HEIGHT = 600, 30

KINDS: dict[str, object] = {
    "waited": gettext_lazy("waited"),
    "backoff": gettext_lazy("waited to be tried again"),
    "earlier": gettext_lazy("earlier attempts"),
    "step": gettext_lazy("finished step"),
    "tail": gettext_lazy("waits for its time"),
    Ended.SUCCEEDED.value: gettext_lazy("succeeded"),
    JobState.RUNNING.value: gettext_lazy("running"),
    **dict(CAUSES),
}


class Piece(NamedTuple):
    """A part of a job's life: what it was, a name, and from when until when."""

    kind: str
    name: str
    begins: datetime
    ends: datetime

    @property
    def lasted(self) -> float:
        """Its duration in seconds; 0 if a clock went back."""
        return max((self.ends - self.begins).total_seconds(), 0.0)

    @property
    def words(self) -> str:
        """*failed, attempt 2: 1.5 s*."""
        name = f", {self.name}" if self.name else ""
        return f"{KINDS.get(self.kind, self.kind)}{name}: {seconds(self.lasted)}"


def pieces(
    job: JobRow, attempts: Sequence[Attempt], steps: Sequence[Step], *, more: bool, is_waiting: bool = False
) -> list[Piece]:
    """Return the parts of a job's life in order; ``attempts`` and ``steps`` latest first, ``more``: not all of them.

    ``is_waiting``: a worker has it, and it waits there to run again, apart from other jobs.
    """
    found: list[Piece] = []
    known = [_of_attempt(each) for each in attempts]
    known += [
        Piece("step", visible(step.name), _began(step.finished_at, step.duration_seconds), step.finished_at)
        for step in steps[: len(attempts) + 10]
    ]
    known += _last(job, attempts, is_waiting=is_waiting)
    at = job.created_at
    for piece in sorted(known, key=lambda each: (each.begins, each.ends)):
        gap = "waited" if not found else "backoff"
        if not found and more:
            gap = "earlier"
        found += [Piece(gap, "", at, piece.begins)] if piece.begins > at else []
        found.append(piece)
        at = max(at, piece.ends)
    return found + _tail(job, at, ran=bool(found))


def _of_attempt(row: Attempt) -> Piece:
    begins = row.started_at or _began(row.ended_at, row.duration_seconds)
    name = _("attempt %(number)d") % {"number": row.number}
    return Piece(row.cause, name, min(begins, row.ended_at), row.ended_at)


def _began(ended: datetime, lasted: float | None) -> datetime:
    return datetime.fromtimestamp(ended.timestamp() - (lasted or 0.0), ended.tzinfo) if lasted else ended


def _last(job: JobRow, attempts: Sequence[Attempt], *, is_waiting: bool) -> list[Piece]:
    """The attempt that has no row: the one that runs, or that succeeded."""
    if job.claimed_at is None:
        return []
    name = _("attempt %(number)d") % {"number": job.attempt}
    if job.outcome == Outcome.SUCCEEDED and job.finished_at is not None and job.worker:
        begins = _began(job.finished_at, job.duration_seconds)
        return [Piece(Ended.SUCCEEDED.value, name, max(begins, job.claimed_at), job.finished_at)]
    if job.state == JobState.RUNNING:
        # An executor may have died with it under this claim.
        begins = max(job.claimed_at, attempts[0].ended_at) if attempts else job.claimed_at
        return [Piece("backoff" if is_waiting else JobState.RUNNING.value, name, begins, max(job.now, begins))]
    return []


def _tail(job: JobRow, at: datetime, *, ran: bool) -> list[Piece]:
    """Return the spans after the last attempt: the wait until now or until the end, and until the next try."""
    if job.state == JobState.RUNNING:
        return []
    until = job.finished_at if job.outcome else job.now
    if until is None or (job.outcome and ran):
        return []
    found = [Piece("backoff" if ran else "waited", "", at, until)] if until > at else []
    if not job.outcome and job.run_at > job.now:
        found.append(Piece("tail", "", job.now, job.run_at))
    return found


def drawing(found: Sequence[Piece]) -> SafeString | str:
    """Return the picture with a list for readers; nothing without a part."""
    if not found:
        return ""
    widths = [1 + log10(1 + piece.lasted * 100) for piece in found]
    unit = WIDTH / sum(widths)
    positions = [sum(widths[:at]) * unit for at in range(len(found))]
    bars = format_html_join(
        "",
        '<rect class="pgjobs-time-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        (
            (
                piece.kind, f"{x:.1f}", 12 if _is_wait(piece) else 4, f"{max(width * unit - 1, 1):.1f}",
                6 if _is_wait(piece) else 22, piece.words,
            )
            for piece, x, width in zip(found, positions, widths, strict=True)
        ),
    )  # fmt: skip
    title = _("Timeline: %(words)s") % {"words": "; ".join(piece.words for piece in found)}
    picture = format_html(
        '<svg class="pgjobs-timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}</svg>",
        WIDTH, HEIGHT, title[:2000], bars,
    )  # fmt: skip
    rows = format_html_join(
        "", '<li><span class="pgjobs-when">{}</span> {}</li>', ((when(piece.begins), piece.words) for piece in found)
    )
    return format_html(
        '{}<p class="pgjobs-legend">{}</p><details id="pgjobs-timelist"><summary>{}</summary><ol>{}</ol></details>',
        picture, _legend(found), _("Widths grow with the logarithm of the time. As a list"), rows,
    )  # fmt: skip


def _legend(found: Sequence[Piece]) -> SafeString:
    """Return the meaning of each colour, and how long all of it lasted."""
    lasted: dict[str, float] = {}
    for piece in found:
        lasted[piece.kind] = lasted.get(piece.kind, 0.0) + piece.lasted
    return format_html_join(
        " ",
        '<span class="pgjobs-key pgjobs-time-{}">{} {}</span>',
        ((kind, KINDS.get(kind, kind), seconds(time)) for kind, time in lasted.items()),
    )


def _is_wait(piece: Piece) -> bool:
    return piece.kind in ("waited", "backoff", "tail", "earlier")
