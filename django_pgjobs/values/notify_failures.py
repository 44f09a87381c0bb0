"""The setting ``NOTIFY_FAILURES``: whom to notify of abandoned jobs, how often, and of which.

Layer 0. ``conf`` reads the setting by the rule here, ``maintenance.notices`` and ``notifying`` act on it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from urllib.parse import urlsplit

from django_pgjobs.values import setting_rules as rules
from django_pgjobs.values.setting_rules import part

MAIL_ADMINS = "mail_admins"

MOST_GROUPS = 100
MOST_SECONDS = 7 * 86_400.0
MOST_CHARS = 2000
"""The longest URL or path."""


def _recipient(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > MOST_CHARS:
        raise ValueError('"mail_admins" or the dotted path of a callable')
    return value


def _names(value: object) -> tuple[str, ...]:
    names = rules.texts(value)
    if not names or not all(0 < len(name) <= 200 and "\0" not in name for name in names):
        raise ValueError("names of 1 to 200 characters")
    return names


def _url(value: object) -> str:
    if value == "":
        return ""
    if not isinstance(value, str) or len(value) > MOST_CHARS or not is_web_address(value):
        raise ValueError("an address that begins with https:// or http:// and names a host")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyFailures:
    """Whom to notify of abandoned jobs, how often in seconds, with how many groups, and of which queues and names."""

    to: str = part(MISSING, _recipient)
    every_seconds: float = part(900.0, rules.seconds(1, MOST_SECONDS))
    at_most: int = part(20, rules.whole(1, MOST_GROUPS))
    queues: tuple[str, ...] | None = part(None, rules.or_none(rules.queues))
    names: tuple[str, ...] | None = part(None, rules.or_none(_names))
    site: str = part("", _url)
    """Beginning of links: ``https://shop.example``."""

    url: str = part("", _url)
    """URL to which the shipped webhook posts; it may hold a secret, so it is not shown."""

    def __repr__(self) -> str:
        """As it is written in the settings, without the URL."""
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        return repr({**shown, "url": "…"} if self.url else shown)


def is_web_address(text: str) -> bool:
    """Return whether a text is an address that ``https`` or ``http`` can ask: ``file:`` would read this machine's."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    clean = text.isprintable() and text.isascii() and " " not in text
    return clean and parts.scheme in ("https", "http") and bool(parts.hostname) and port != 0
