"""The words of a search: ``error:Declined queue:mail since:1h order 17`` is three filters and a text.

A value with blanks stands in quotes. A word that is no filter is a part of the text, as in *http://example.org*.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from django_pgjobs.presentation import filters
from django_pgjobs.values.setting_rules import MOST_SECONDS

NO_ERROR = "-"
"""The error of jobs that were abandoned without one, as an operator does."""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

TERM_LIMIT = 1000
"""Characters of a search term: a key has up to 200, an error's class more."""

_AGE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([smhdw]?)", re.ASCII)


class Searched(NamedTuple):
    """A search term taken apart: the rest of the text, and the values by word; a quoted error is exact."""

    text: str
    values: dict[str, str]
    exact_error: bool
    argument: tuple[str, str] | None


def taken_apart(term: str) -> Searched:
    """Return words and text of a search term. Of a repeated word the last counts."""
    values: dict[str, str] = {}
    exact, argument = False, None
    pattern = _pattern()
    for word, raw in pattern.findall(term):
        value = raw.strip('"')
        if word.startswith("arg."):
            argument = (word.removeprefix("arg."), raw)
        else:
            values[word] = value
            exact = raw.startswith('"') if word == "error" else exact
    return Searched(" ".join(pattern.sub(" ", term).split()) if values or argument else term, values, exact, argument)


def _pattern() -> re.Pattern[str]:
    named = "|".join(each.name for each in filters.FILTERS if each.is_word and each.kind != "argument")
    return re.compile(rf'(?<!\S)({named}|arg\.\w{{1,100}}):("[^"]*"|\S*)')


def age(text: str) -> float | None:
    """Return an age in seconds, *90s* or *36h*; a number without unit means seconds. None for anything else."""
    found = _AGE.fullmatch(text)
    seconds = float(found[1]) * UNITS[found[2] or "s"] if found else -1.0
    return seconds if 0 <= seconds <= MOST_SECONDS else None


def moment(text: str) -> datetime | None:
    """Return an instant such as *2026-11-24T15:41Z*, in UTC if it names no zone; None for anything else.

    None also for one within a day of the calendar's ends: in another zone it would lie beyond them.
    """
    try:
        found = parse_datetime(text)
        if found is None:
            return None
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        in_utc = found.astimezone(UTC)
        _ends = in_utc - timedelta(days=1), in_utc + timedelta(days=1)
    except (ValueError, OverflowError):
        return None
    return found


def too_long(term: str) -> str:
    """Return that a search term is too long, in words; empty if it is not."""
    if len(term) <= TERM_LIMIT:
        return ""
    return _("A search has at most %(most)s characters, not %(count)s.") % {"most": TERM_LIMIT, "count": len(term)}


def complaint_of(searched: Searched) -> str:
    """Return what is wrong with the values, in words; empty if nothing is."""
    for each in filters.FILTERS:
        value = searched.values.get(each.name)
        words = {"word": each.name, "value": (value or "")[:100]}
        if each.kind == "age" and value is not None and age(value) is None and moment(value) is None:
            return _("%(word)s: takes 90s, 30m, 36h, 7d or 2026-11-24T15:41Z, not “%(value)s”.") % words
        if each.kind == "id" and value and not value.isdecimal():
            return _("%(word)s: takes the number of an action, not “%(value)s”.") % words
        if value and each.choices and value not in each.choices:
            words["choices"] = " or ".join(each.choices)
            return _("%(word)s: takes %(choices)s, not “%(value)s”.") % words
    empty = [word for word, value in searched.values.items() if not value]
    if empty:
        return _("%(word)s: needs a value.") % {"word": empty[0]}
    return ""
