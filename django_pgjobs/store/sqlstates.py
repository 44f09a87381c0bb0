"""The server's error codes that this package acts on, read from Django's or psycopg's errors."""

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
"""The class of errors that a trigger raises."""

LINK_LOST = ("08", "57P")
"""Codes that a server or a pooler sends when it ends a connection, regardless of the statement."""

LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

NOT_ALLOWED = ("42",)
"""The class of a missing privilege."""


def sqlstate_of(error: BaseException) -> str:
    """Return the server's code for this error; empty if it does not come from the server."""
    return getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None) or ""


def class_of(error: BaseException) -> str:
    """Return the class of the server's code, its first two characters; empty if the error has no code."""
    return sqlstate_of(error)[:2]


def is_answer(error: BaseException) -> bool:
    """Return whether the server has given a statement up, so that nothing of it was committed."""
    code = sqlstate_of(error)
    return bool(code) and not code.startswith(LINK_LOST)


def is_data_trouble(error: BaseException) -> bool:
    """Return whether a row's own data made a statement fail, in the server or before it was sent."""
    return isinstance(error, psycopg.DataError | UnicodeError) or class_of(error) in ROWS_DATA


def is_objection(error: BaseException) -> bool:
    """Return whether a DELETE may raise this: besides data errors, an objecting trigger or a missing right."""
    return is_data_trouble(error) or class_of(error) in (*TRIGGERS, *NOT_ALLOWED)


def refusal_of(error: BaseException) -> str:
    """Return in one line why the server refuses a row, without the details, which contain its values."""
    diag = getattr(error, "diag", None) or getattr(error.__cause__, "diag", None)
    return one_line(getattr(diag, "message_primary", None) or error)
