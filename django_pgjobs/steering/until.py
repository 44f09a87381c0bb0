"""Check the words of a pause: who pauses, why, and until when."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.serialization.failures import clean
from django_pgjobs.values.setting_rules import MOST_SECONDS

REASON_CHARS = 500
"""Maximum length of the reason for a pause."""

Until = datetime | timedelta | float | None
"""End of a pause by itself: an aware instant; seconds or a timedelta from the database's now; None for never."""


def end_of(until: Until) -> tuple[datetime | None, float | None]:
    """Return the end as (instant, None) or (None, seconds from now); both None for never. Raises ``InvalidJob``."""
    if until is None:
        return None, None
    if isinstance(until, datetime):
        if settings.USE_TZ and timezone.is_naive(until):
            raise InvalidJob(f"until must be an aware datetime, since USE_TZ is on; {until!r} has no time zone.")
        return (until if timezone.is_aware(until) else timezone.make_aware(until)), None
    seconds = until.total_seconds() if isinstance(until, timedelta) else until
    if type(seconds) not in (int, float) or not 0 < seconds <= MOST_SECONDS:
        raise InvalidJob(f"until must be an aware datetime, or a time from now of at most ten years, not {until!r}.")
    return None, float(seconds)


def reason_of(author: str, reason: object) -> str:
    """Return the reason of a pause as text, none as an empty one.

    Raises ``InvalidJob`` for an author or a reason that no column can store, and for a reason that is too long.
    """
    reason = str("" if reason is None else reason)
    for what, text in (("author", author), ("reason", reason)):
        if text != clean(text):
            raise InvalidJob(f"The {what} of a pause must not contain NUL characters or lone surrogates: {text!r}.")
    if len(reason) > REASON_CHARS:
        raise InvalidJob(f"The reason for a pause may have at most {REASON_CHARS} characters, not {len(reason)}.")
    return reason
