"""The server's error codes that this package acts on, and what an error says of itself, Django's or psycopg's."""

from __future__ import annotations

import psycopg

from django_pgjobs.serialization.escapes import one_line

SERIALIZATION_FAILURE = "40001"
DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
UNIQUE_VIOLATION = "23505"

ROWS_DATA = ("22", "23", "54", "XX")
"""Classes that a row's own data can cause (PostgreSQL manual, appendix A)."""

TRIGGERS = ("P0",)
"""The class of a trigger that objects."""

NOT_ALLOWED = ("42",)
"""The class of a right that is missing."""


def sqlstate_of(error: BaseException) -> str:
    """Return the server's code of this error; empty where the server has said none."""
    return getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None) or ""


def class_of(error: BaseException) -> str:
    """Return the class of the server's code, its first two characters; empty where the server has said none."""
    return sqlstate_of(error)[:2]


def is_data_trouble(error: BaseException) -> bool:
    """Whether a row's own data made a statement fail, by the server's word or before it was sent."""
    return isinstance(error, psycopg.DataError | UnicodeError) or class_of(error) in ROWS_DATA


def refusal_of(error: BaseException) -> str:
    """Return in one line why the server refuses a row, without the details, which hold its values."""
    diag = getattr(error, "diag", None) or getattr(error.__cause__, "diag", None)
    return one_line(getattr(diag, "message_primary", None) or error)
