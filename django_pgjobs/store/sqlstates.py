"""The server's error codes that this package acts on."""

from __future__ import annotations

SERIALIZATION_FAILURE = "40001"
DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
UNIQUE_VIOLATION = "23505"
