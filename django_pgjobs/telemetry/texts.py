"""Texts of rows and errors, bounded and harmless, for tools that other people look at."""

from __future__ import annotations

from django_pgjobs.serialization.escapes import one_line, plain, visible
from django_pgjobs.serialization.failures import shortened

LINE_LIMIT = 200
"""Characters of a name, a queue or a message; Sentry drops longer tags."""

TEXT_LIMIT = 20_000
"""Characters of a text of several lines, such as a traceback."""


def line(text: object, limit: int = LINE_LIMIT) -> str:
    """Return a text as one line of at most ``limit`` characters, with invisible ones as their numbers."""
    shown = plain(one_line(str(text)[: 4 * limit]))
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def lines(text: object, limit: int = TEXT_LIMIT) -> str:
    """Return a text with its line breaks, invisible characters as their numbers; about ``limit`` characters of it."""
    return shortened(visible(shortened(str(text), limit)), limit)
