"""Texts of strangers made harmless to look at. Whoever may register a job chooses its texts, and with a mark that turns
the direction of what follows, or an escape sequence, they would choose what the reader believes to see."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"
"""They turn nothing around, and Persian, Hindi and families of emoji are not to be read without them."""


def one_line(text: object) -> str:
    """Return a text in one line, each run of white space as one space: nobody's text writes a log line of its own."""
    return " ".join(str(text).split())


def plain(text: object, *, keep: str = "") -> str:
    """Return a text in which everything that a terminal might obey is written as its number; but ``keep``."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() or char in keep else _number(char) for char in shown)


def visible(text: object) -> str:
    """Return a text in which what a browser obeys and nobody sees is written as its number; lines and tabs stay."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(_number(char) if _obeyed(char) else char for char in shown)


def _obeyed(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\n\r\t" + JOINERS


def _number(char: str) -> str:
    return char.encode("unicode_escape").decode()
