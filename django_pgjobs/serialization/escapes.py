"""Untrusted texts made harmless to display.

The code that registers a job chooses its texts. With a mark that reverses the direction of text, or with an escape
sequence, they could make the reader see something else.
"""

from __future__ import annotations

import re
import unicodedata

JOINERS = "\u200c\u200d"
"""These marks reverse nothing, and Persian, Hindi and joined emoji are unreadable without them."""

_BARE = re.compile(r"""[^\s=,"'\\]*[^\s=,:"'\\]""")
"""A value that needs no quotes: what follows it, a space, a comma or a colon, cannot be taken for a part of it."""


def one_line(text: object) -> str:
    """Return a text in one line, each run of white space as one space, so that no text can forge a log line."""
    return " ".join(str(text).split())


def plain(text: object, *, keep: str = "") -> str:
    """Return a text with every character that a terminal might obey as its number, except those in ``keep``."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() or char in keep else _number(char) for char in shown)


def bounded(text: object, limit: int) -> str:
    """Return the first ``limit`` characters of a text, made ``plain``, and ``…`` if there are more."""
    shown = str(text)
    return plain(shown) if len(shown) <= limit else f"{plain(shown[:limit])}…"


def quoted(text: object, limit: int) -> str:
    """Return a text as the value of a ``key=value``: in double quotes if it could end there, or begin another.

    Only the first ``limit`` characters, and ``…`` if there are more.
    """
    shown = str(text)
    if len(shown) <= limit and _BARE.fullmatch(shown) and shown.isprintable():
        return shown
    more = "…" if len(shown) > limit else ""
    escaped = plain(shown[:limit].replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{escaped}{more}"'


def visible(text: object) -> str:
    """Return a text with invisible characters that a browser obeys as their numbers; line breaks and tabs stay."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(_number(char) if _obeyed(char) else char for char in shown)


def _obeyed(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\n\r\t" + JOINERS


def _number(char: str) -> str:
    return char.encode("unicode_escape").decode()
