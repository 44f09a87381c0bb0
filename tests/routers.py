"""Routers of the test project."""

from __future__ import annotations

from typing import Any


class EverythingOnDefault:
    """Reads and writes go to ``default``; nothing is refused on ``other``, so migrations run on both."""

    def db_for_read(self, model: type, **hints: object) -> str:
        return "default"

    def db_for_write(self, model: type, **hints: object) -> str:
        return "default"


class OursOnJobs:
    """The tables of this package are on the alias ``jobs``."""

    def db_for_read(self, model: Any, **hints: object) -> str | None:
        return "jobs" if model._meta.app_label == "pgjobs" else None

    db_for_write = db_for_read
