"""Parts of the sentences about jobs: durations, instants, numbers, quotations."""

from __future__ import annotations

import re
from datetime import datetime

from django.utils import formats, timezone
from django.utils.translation import ngettext

from django_pgjobs.serialization.escapes import one_line

_USER = re.compile(r"\w+\.\w+:\S+ (.+)", re.DOTALL)


def span(seconds: float) -> str:
    """Return a duration in one rounded unit: 40 s, 5 min, 3 h, 4 days."""
    seconds = max(seconds, 0.0)
    if seconds < 119.5:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    if seconds < 7170:
        return f"{seconds / 60:.0f} min"
    if seconds < 171_000:
        return f"{seconds / 3600:.0f} h"
    days = round(seconds / 86_400)
    return ngettext("%(days)d day", "%(days)d days", days) % {"days": days}


def clock_time(instant: datetime) -> str:
    """Return an instant in the local time zone, to the second; with its offset in an hour that a night has twice."""
    local = timezone.localtime(instant) if timezone.is_aware(instant) else instant
    twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    offset = f"{local:%z}" if twice else ""
    return f"{local:%Y-%m-%d %H:%M:%S}{f' {offset[:3]}:{offset[3:5]}' if offset else ''}"


def grouped(number: int) -> str:
    """Format 10000 as 10,000, in the reader's language."""
    return formats.number_format(number, force_grouping=True)


def name_of(who: str) -> str | None:
    """Return the name of a user who is stored as *auth.User:1 anna*; None for any other text."""
    user = _USER.fullmatch(who)
    return user[1] if user else None


def quoted(text: str | None) -> str:
    """Return an untrusted text as the end of a sentence."""
    words = one_line(text or "")
    return f": {words.rstrip('.')}" if words else ""
