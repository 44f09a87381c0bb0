"""What tests of schedules made at run time share: a job that people may schedule, and a schedule of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from django_pgjobs import job
from django_pgjobs.models import CronEntry
from django_pgjobs.store.finalising import Author

NAME = "report:acme"
OTHER = Author(UUID(int=9), "other")


def report(tenant_id: int, kind: str = "daily") -> None: ...


def wider(tenant_id: int, language: str, kind: str = "daily") -> None: ...


@pytest.fixture(autouse=True)
def definition(no_other_entries: None) -> Any:
    return job(name="shop.report", queue="slow", schedulable=True, tags=["reports"])(report)


def schedule(definition: Any, expression: str | None = "*/10 * * * *", **options: Any) -> CronEntry:
    made: CronEntry = definition.schedule(expression, **{"name": NAME, "tz": "UTC", **options}).register(tenant_id=7)
    return made
