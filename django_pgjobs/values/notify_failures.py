"""The setting ``NOTIFY_FAILURES``: whom to notify of abandoned jobs, how often, and of which.

Layer 0. ``conf`` reads the setting by the rule here, ``maintenance.notices`` and ``notifying`` act on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

MAIL_ADMINS = "mail_admins"

MOST_GROUPS = 100
MOST_SECONDS = 7 * 86_400.0
MOST_CHARS = 2000
"""The longest URL or path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyFailures:
    """Whom to notify of abandoned jobs, how often in seconds, with how many groups, and of which queues and names."""

    to: str
    every_seconds: float = 900.0
    at_most: int = 20
    queues: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    site: str = ""
    """Beginning of links: ``https://shop.example``."""

    url: str = ""
    """URL to which the shipped webhook posts; it may hold a secret, so it is not shown."""

    def __repr__(self) -> str:
        """As it is written in the settings, without the URL."""
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        return repr({**shown, "url": "…"} if self.url else shown)


def read_notify_failures(value: Any) -> NotifyFailures:
    """Return the setting as ``Conf`` keeps it. Raises TypeError or ValueError, as a rule does."""
    if isinstance(value, NotifyFailures):
        return value
    if not isinstance(value, Mapping):
        raise TypeError('a dict such as {"to": "mail_admins"}')
    known = [each.name for each in fields(NotifyFailures)]
    if "to" not in value or not set(value) <= set(known):
        raise ValueError(f'a dict with the key "to" and no others than {", ".join(known)}')
    return NotifyFailures(**{key: _RULES[key](given) for key, given in value.items()})


def _to(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > MOST_CHARS:
        raise ValueError('a dict whose "to" is "mail_admins" or the dotted path of a callable')
    return value


def _every_seconds(value: Any) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 1 <= number <= MOST_SECONDS:
        raise ValueError(f'a dict whose "every_seconds" is from 1 to {MOST_SECONDS:.0f} seconds, or a timedelta')
    return float(number)


def _at_most(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_GROUPS:
        raise ValueError(f'a dict whose "at_most" is a whole number from 1 to {MOST_GROUPS}')
    return value


def _texts(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    # Refuse a bare text: read as a list it would be one name per letter.
    if not isinstance(value, (list, tuple, set, frozenset)) or not value:
        raise ValueError('a dict whose "queues" and "names" are lists of names, or None for all')
    if not all(isinstance(name, str) and 0 < len(name) <= 200 and "\0" not in name for name in value):
        raise ValueError('a dict whose "queues" and "names" hold names of 1 to 200 characters')
    return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)


def _url(value: Any) -> str:
    if value == "":
        return value  # type: ignore[no-any-return]
    if not isinstance(value, str) or len(value) > MOST_CHARS or not is_web_address(value):
        raise ValueError('a dict whose "url" and "site" begin with https:// or http:// and name a host')
    return value


def is_web_address(text: str) -> bool:
    """Return whether a text is an address that ``https`` or ``http`` can ask: ``file:`` would read this machine's."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    clean = text.isprintable() and text.isascii() and " " not in text
    return clean and parts.scheme in ("https", "http") and bool(parts.hostname) and port != 0


_RULES: dict[str, Any] = {
    "to": _to,
    "every_seconds": _every_seconds,
    "at_most": _at_most,
    "queues": _texts,
    "names": _texts,
    "site": _url,
    "url": _url,
}
