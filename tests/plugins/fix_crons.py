"""What every test of cron entries begins with."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from django_pgjobs.definition.registry import registry
from tests.plugins.fix_db import RawDatabase


@pytest.fixture
def no_other_entries() -> Iterator[None]:
    """Nothing is declared but what the test declares."""
    with registry.isolated():
        yield


@pytest.fixture
def steady(raw: RawDatabase) -> None:
    """Begin no test just before ten minutes are over: it looks at the clock twice."""
    now: datetime = raw.value("SELECT statement_timestamp()")
    if now.minute % 10 == 9 and now.second >= 50:
        raw.query("SELECT pg_sleep(%s)", [61 - now.second])
