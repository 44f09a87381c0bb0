"""Cron entries: declared by code, fired by the leader, steered by operators."""

from __future__ import annotations

from typing import NamedTuple


class DeclaredCron(NamedTuple):
    """What code says of a cron entry. ``payload`` and ``options`` are JSON text."""

    name: str
    job_name: str
    expression: str
    zone: str
    payload: str
    options: str
    misfire: str
    overlap: str
