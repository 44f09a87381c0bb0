"""Texts of rows and errors, bounded and harmless, for tools that other people look at.

``strip`` takes out of an event what a job keeps to itself; it knows the shape of events, and no SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

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


_reported: ContextVar[BaseException | None] = ContextVar("django_pgjobs_reported", default=None)
"""The latest exception that an event of this job reported."""


def remember(exc_info: object) -> None:
    """Note that an event reports this exception."""
    if exc_info and isinstance(exc_info, tuple):
        _reported.set(exc_info[1])


def is_known(error: BaseException) -> bool:
    """Return whether the latest event of this job reported ``error``."""
    return _reported.get() is error


def strip(event: dict[str, Any]) -> None:
    """Take out values of variables and parameters of queries; bound the texts of exceptions."""
    for stack in _stacks(event):
        for frame in stack.get("frames") or ():
            frame.pop("vars", None)
    for found in _values(event, "exception"):
        found["type"] = line(found.get("type"))
        found["value"] = lines(found.get("value") or "", TEXT_LIMIT)
    for crumb in _values(event, "breadcrumbs"):
        if crumb.get("category") == "query":
            crumb.pop("data", None)


def _stacks(event: dict[str, object]) -> Iterator[dict[str, Any]]:
    for holder in (*_values(event, "exception"), *_values(event, "threads"), event):
        stack = holder.get("stacktrace")
        if isinstance(stack, dict):
            yield stack


def _values(event: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the entries below ``key``, whichever of its forms an event has."""
    held = event.get(key)
    held = getattr(held, "value", held)  # the SDK notes how many it has left out
    found = held.get("values") if isinstance(held, dict) else held
    found = getattr(found, "value", found)
    return [each for each in found or () if isinstance(each, dict)]
