"""The error for an invalid option; a module of its own, so that modules of single options need not import the rest."""

from __future__ import annotations


class InvalidOption(ValueError):
    """An option is invalid; the message is a sentence without the job's name."""


def abridged(value: object) -> str:
    """Return a value as a refusal shows it: of a long text, the beginning and its length."""
    if isinstance(value, str) and len(value) > 60:
        return f"{value[:60]!r}… of {len(value)} characters"
    return repr(value)
