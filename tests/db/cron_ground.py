"""What tests of cron entries share: an entry as code would bring it in, and the leader's look at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing
from django_pgjobs.store.database import Database, Params, Rows
from django_pgjobs.store.firing import DeclaredCron
from django_pgjobs.values import schedule
from tests.plugins.fix_db import RawDatabase

MINUTE = timedelta(minutes=1)

PLAIN = {
    "queue": "night", "priority": 3, "max_attempts": 4, "timeout_seconds": 60.0, "description": "", "key": None,
    "key_scope": "", "idempotency_key": None, "limit_key": None,
}  # fmt: skip


def clean() -> None: ...


def declare(db: Database, name: str = "clean", **changes: Any) -> None:
    """Bring an entry into its row as code would; ``options`` are changes to ``PLAIN``."""
    options = json.dumps({**PLAIN, **changes.pop("options", {})})
    facts = {
        "name": name, "job_name": "test.clean", "expression": "*/10 * * * *", "zone": "UTC",
        "payload": '{"args": [1], "kwargs": {}}', "options": options, "misfire": "once", "overlap": "allow", **changes,
    }  # fmt: skip
    firing.declare_cron(db, DeclaredCron(**facts), overwrite=True, fresh_seconds=0)


def entry(name: str = "clean") -> CronEntry:
    return CronEntry.objects.get(pk=name)


def put(raw: RawDatabase, name: str = "clean", **columns: Any) -> None:
    """Put values into columns of an entry: how a test moves time, and how a hand edits a row."""
    sets = ", ".join(f"{column} = %s" for column in columns)
    raw.query(f"UPDATE pgjobs_cron_entry SET {sets} WHERE name = %s", [*columns.values(), name])


def ago(raw: RawDatabase, **span: float) -> datetime:
    """Return an instant so long ago by the database's clock."""
    now: datetime = raw.value("SELECT statement_timestamp()")
    return now - timedelta(**span)


def latest(raw: RawDatabase, expression: str = "*/10 * * * *") -> datetime:
    """Return the last fire until now."""
    found = schedule.Schedule(expression, "UTC").latest(ago(raw))
    assert found is not None
    return found


def tick(db: Database) -> None:
    """Look as a new leader does."""
    Firer()(db)


def fires() -> list[datetime | None]:
    return list(Job.objects.order_by("pk").values_list("fire_at", flat=True))


@contextmanager
def statements(raw: RawDatabase) -> Iterator[list[str]]:
    """Note the names of what is asked."""
    asked: list[str] = []
    fetch = raw.fetch

    def noted(name: str, params: Params) -> Rows:
        asked.append(name)
        return fetch(name, params)

    raw.fetch = noted  # type: ignore[method-assign]
    yield asked
    raw.fetch = fetch  # type: ignore[method-assign]
