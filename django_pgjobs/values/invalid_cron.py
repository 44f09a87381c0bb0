"""The error of a schedule's values."""

from __future__ import annotations


class InvalidCron(ValueError):
    """An expression, a zone or a policy is invalid; the message is a sentence without the entry's name."""
