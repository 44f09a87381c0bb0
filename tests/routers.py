"""Routers of the test project."""

from __future__ import annotations


class EverythingOnDefault:
    """Reads and writes go to ``default``; nothing is refused on ``other``, so migrations run on both."""

    def db_for_read(self, model: type, **hints: object) -> str:
        return "default"

    def db_for_write(self, model: type, **hints: object) -> str:
        return "default"
