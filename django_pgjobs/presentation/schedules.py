"""Schedules in words, for the admin and the shell."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.models.expressions import Combinable
from django.utils import formats
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_pgjobs.models import CronEntry
from django_pgjobs.values import interval
from django_pgjobs.values.zones import InvalidCron


def next_fire(entry: CronEntry) -> datetime | None:
    """Return when an entry fires next; None for one that is paused, missing, broken, off or at its end."""
    return next(iter(entry.next_fires(1)), None) if entry.status == "on" else None


def in_each_database() -> Combinable:
    """Return the condition of entries that code declares for each database; see ``Cron``."""
    return ExpressionWrapper(Q(declared_options__has_key="each_database"), BooleanField())


def meaning(entry: CronEntry) -> str:
    """Return what the expression of an entry means; empty if it is too special for a sentence."""
    return in_words(entry.effective_expression, entry.effective_zone)


LENGTHS: dict[str, Any] = {
    "week": ngettext_lazy("Every week", "Every %(count)d weeks", "count"),
    "day": ngettext_lazy("Every day", "Every %(count)d days", "count"),
    "hour": ngettext_lazy("Every hour", "Every %(count)d hours", "count"),
    "minute": ngettext_lazy("Every minute", "Every %(count)d minutes", "count"),
    "second": ngettext_lazy("Every second", "Every %(count)d seconds", "count"),
}


def in_words(expression: str, zone: str) -> str:
    """Return what an expression means; empty if it is too special for a sentence.

    For an interval: its length, how it counts, and from when.
    """
    if not interval.is_interval(expression):
        return _cron_in_words(ALIASES.get(expression.strip().lower(), expression))
    try:
        schedule = interval.Interval(expression, zone)
    except InvalidCron:
        return ""
    number, unit = interval.length_of(expression)
    words = {
        "length": LENGTHS[unit] % {"count": number},
        "time": formats.time_format(schedule.anchor, "H:i:s" if schedule.anchor.second else "H:i"),
        "day": formats.date_format(schedule.anchor, "l, j F Y"),
        "zone": schedule.zone.key,
    }
    if schedule.by_the_clocks:
        return str(_("%(length)s at %(time)s by the clocks of %(zone)s, counted from %(day)s") % words)
    return str(_("%(length)s of elapsed time, counted from %(day)s, %(time)s in %(zone)s") % words)


ALIASES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}  # fmt: skip

DAYS = (
    _("Sunday"), _("Monday"), _("Tuesday"), _("Wednesday"), _("Thursday"), _("Friday"), _("Saturday"), _("Sunday"),
)  # fmt: skip
_SHORT = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_STEP = re.compile(r"\*/([0-9]{1,2})")
_NUMBER = re.compile(r"[0-9]{1,2}")


def _cron_in_words(expression: str) -> str:
    fields = expression.split()
    if len(fields) != 5:
        return ""
    minute, hour, day, month, weekday = fields
    if month != "*":
        return ""
    if hour == day == weekday == "*" and not _NUMBER.fullmatch(minute):
        return _every(minute, 60, "minute")
    if not _NUMBER.fullmatch(minute):
        return ""
    if day == weekday == "*" and not _times(minute, hour):
        length = _every(hour, 24, "hour")
        return str(_("%(length)s at minute %(minute)s") % {"length": length, "minute": int(minute)}) if length else ""
    return _on_days(_times(minute, hour), day, weekday)


def _every(field: str, whole: int, unit: str) -> str:
    """*Every 5 minutes*; empty if the step does not divide the ``whole``, since it is shorter then at its end."""
    step = _STEP.fullmatch(field)
    number = 1 if field == "*" else int(step[1]) if step else 0
    return str(LENGTHS[unit] % {"count": number}) if number and whole % number == 0 else ""


def _times(minute: str, hour: str) -> str:
    hours = hour.split(",")
    if not all(map(_NUMBER.fullmatch, hours)):
        return ""
    return ", ".join(f"{int(each):02}:{int(minute):02}" for each in hours)


def _on_days(times: str, day: str, weekday: str) -> str:
    if not times:
        return ""
    if day == weekday == "*":
        return str(_("Every day at %(times)s") % {"times": times})
    if weekday == "*" and _NUMBER.fullmatch(day):
        return str(_("On day %(day)d of each month at %(times)s") % {"day": int(day), "times": times})
    names = _weekdays(weekday) if day == "*" else ""
    return str(_("%(days)s at %(times)s") % {"days": names, "times": times}) if names else ""


def _weekdays(field: str) -> str:
    """*Monday to Friday*, or *Monday, Thursday*; empty for anything else."""
    first, dash, last = field.partition("-")
    if dash:
        ends = [_weekday(first), _weekday(last)]
        return str(_("%(first)s to %(last)s") % {"first": ends[0], "last": ends[1]}) if all(ends) else ""
    names = [_weekday(each) for each in field.split(",")]
    return ", ".join(names) if all(names) else ""


def _weekday(text: str) -> str:
    if text.lower() in _SHORT:
        return str(DAYS[_SHORT.index(text.lower())])
    return str(DAYS[int(text)]) if text in set("01234567") else ""
