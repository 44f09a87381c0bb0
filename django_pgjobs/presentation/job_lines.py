"""The lines that a job has logged, as pages and the shell read them: in their order, texts cut, or hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Left
from django.utils.translation import gettext as _

from django_pgjobs.models import Job, LogLine
from django_pgjobs.presentation.sight import Fact, Hidden, may_see
from django_pgjobs.values.setting_rules import LEVELS

SHOWN = 200
"""Number of lines on a page, the latest."""

TEXT_CHARS, NAME_CHARS = 10_000, 200

if TYPE_CHECKING:
    from datetime import datetime

    from django_pgjobs.presentation.job_rows import LineRow

_NAMES = {number: name for name, number in LEVELS.items()}


class Position(NamedTuple):
    """The position of a line among those of its job: by claim, then by number."""

    claimed_at: datetime
    number: int


def level_name(level: int) -> str:
    """Return the name of a level, or its number."""
    return _NAMES.get(level, str(level))


def latest(job: Job, *, reveal: bool) -> tuple[list[LineRow], bool] | Hidden:
    """Return the latest lines in their order, and whether there are earlier ones; ``Hidden`` as ``sight`` says."""
    rows = list(_of(job).order_by("-claimed_at", "-number")[: SHOWN + 1])
    if rows and not may_see(Fact.LINES, job.name, reveal=reveal):
        return Hidden(_("hidden"))
    return rows[SHOWN - 1 :: -1] if len(rows) > SHOWN else rows[::-1], len(rows) > SHOWN


def after(job: Job, position: Position | None, most: int, *, attempt: int | None = None) -> list[LineRow]:
    """Return the next lines in their order."""
    rows = _of(job) if attempt is None else _of(job).filter(attempt=attempt)
    if position is not None:
        later = Q(claimed_at=position.claimed_at, number__gt=position.number) | Q(claimed_at__gt=position.claimed_at)
        rows = rows.filter(later, claimed_at__gte=position.claimed_at)
    return list(rows.order_by("claimed_at", "number")[:most])


def position_of(row: LineRow) -> Position:
    """Return the position of a line."""
    return Position(row.claimed_at, row.number)


def _of(job: Job) -> QuerySet[LineRow]:
    rows = LogLine.objects.using(job._state.db).filter(job_id=job.pk).defer("message", "logger")
    cut = rows.annotate(text=Left(F("message"), TEXT_CHARS), whose=Left(F("logger"), NAME_CHARS))
    return cast("QuerySet[LineRow]", cut)
