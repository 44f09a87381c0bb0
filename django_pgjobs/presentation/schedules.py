"""Schedules in words, for the admin and the shell."""

from __future__ import annotations

from typing import Any

from django.utils import formats
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from django_pgjobs.values import interval
from django_pgjobs.values.invalid_cron import InvalidCron

LENGTHS: dict[str, Any] = {
    "week": ngettext_lazy("Every week", "Every %d weeks"),
    "day": ngettext_lazy("Every day", "Every %d days"),
    "hour": ngettext_lazy("Every hour", "Every %d hours"),
    "minute": ngettext_lazy("Every minute", "Every %d minutes"),
    "second": ngettext_lazy("Every second", "Every %d seconds"),
}


def in_words(expression: str, zone: str) -> str:
    """Return what an interval means: its length, how it counts, and from when; empty for anything else."""
    if not interval.is_interval(expression):
        return ""
    try:
        schedule = interval.Interval(expression, zone)
    except InvalidCron:
        return ""
    number, unit = interval.length_of(expression)
    words = {
        "length": LENGTHS[unit] % number,
        "time": formats.time_format(schedule.anchor, "H:i:s" if schedule.anchor.second else "H:i"),
        "day": formats.date_format(schedule.anchor, "l, j F Y"),
        "zone": schedule.zone.key,
    }
    if schedule.by_the_clocks:
        return str(_("%(length)s at %(time)s by the clocks of %(zone)s, counted from %(day)s") % words)
    return str(_("%(length)s of elapsed time, counted from %(day)s, %(time)s in %(zone)s") % words)
