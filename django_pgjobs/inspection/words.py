"""Parts of the sentences about jobs: durations, instants, numbers, names, quotations; and a whole reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils import formats, timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgjobs.serialization.escapes import one_line

if TYPE_CHECKING:
    from django_pgjobs.store.explaining import WhyFacts

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


def since(facts: WhyFacts, instant: datetime | None) -> str:
    """Return how long ago an instant was when the facts were read."""
    return "?" if instant is None else span((facts.now - instant).total_seconds())


def by_whom(who: str | None) -> str:
    """Name who did something; for a user, stored as *auth.User:1 anna*, only the name."""
    return " " + _("by %(who)s") % {"who": name_of(who) or who} if who else ""


def tries(facts: WhyFacts) -> str:
    """Return *attempt 2 of 5*."""
    return _("attempt %(attempt)d of %(most)d") % {"attempt": facts.attempt, "most": facts.max_attempts}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job is in its state: a ``code`` for programs, ``text`` for people, and ``advice`` or nothing."""

    code: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        """Return text and advice."""
        return f"{self.text} {self.advice}".rstrip()
