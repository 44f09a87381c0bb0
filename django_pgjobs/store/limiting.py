"""Limits that operators set in place of the code's numbers: written, read, and ended (ADR-0052)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.admitting import Bounds
from django_pgjobs.store.database import Database


class Override(NamedTuple):
    """A limit as an operator has set it. ``kind``: *queue*, *job* or *key* (each key of a job of this name).

    A number that is None is the code's; ``rate`` and ``per`` go together. ``until``: None until it is restored.
    """

    id: int
    kind: str
    name: str
    concurrency: int | None
    rate: int | None
    per: float | None
    set_at: datetime
    set_by: str
    reason: str
    until: datetime | None


def override_limit(
    db: Database,
    kind: str,
    names: Sequence[str],
    bounds: Bounds,
    *,
    by: str,
    reason: str,
    until: datetime | None = None,
    seconds: float | None = None,
) -> list[Override]:
    """Set the limit until an instant, or for ``seconds`` from now; write nothing if it would be over already.

    It replaces all of an earlier one.
    """
    params = {
        "kind": kind, "names": list(names), **bounds._asdict(), "by": by, "reason": reason, "until": until,
        "seconds": seconds,
    }  # fmt: skip
    return [Override._make(row[:10]) for row in db.fetch("override_limit", params)]


def restore_limit(db: Database, kind: str, names: Sequence[str]) -> list[str]:
    """Let the code's numbers apply again; return the names for which others were in force."""
    return [row[0] for row in db.fetch("restore_limit", {"kind": kind, "names": list(names)})]


def read_limits(db: Database) -> list[Override]:
    """Return those in force, by the database's clock: queues first, by name."""
    return [Override._make(row[:10]) for row in db.fetch("read_limits", {})]


def limit_running(db: Database, names: Sequence[str], *, limit: int) -> int:
    """Count up to ``limit`` running jobs of these names in limits that were set after their registration.

    Returns how many.

    Repeatable, also by several at once.
    """
    return len(db.fetch("limit_running", {"limit": limit, "names": list(names)}))


def expire_limits(db: Database, *, kept_seconds: float) -> list[tuple[str, str]]:
    """Delete limits that ended more than ``kept_seconds`` ago; return (kind, name) of each."""
    return [(row[0], row[1]) for row in db.fetch("expire_limits", {"kept": kept_seconds})]


def found_for(overrides: Iterable[Override], kind: str, names: Sequence[str]) -> Override | None:
    """Return the override that applies: that of the first of these names that has one, as the admission finds it."""
    known = {each.name: each for each in overrides if each.kind == kind}
    return next((known[name] for name in names if name in known), None)


def merged(code: Bounds, override: Override | None) -> Bounds:
    """Return the numbers in force."""
    if override is None:
        return code
    concurrency = code.concurrency if override.concurrency is None else override.concurrency
    if override.rate is None:
        return code._replace(concurrency=concurrency)
    return Bounds(concurrency, override.rate, override.per)
