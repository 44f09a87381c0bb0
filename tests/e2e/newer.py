"""Jobs that only newer code knows: imported where ``PGJOBS_TEST_NEWER`` is set."""

from __future__ import annotations

from django_pgjobs import job
from tests.e2e import stage


@job(name="e2e.newer")
def newer(key: str) -> str:
    stage.here().note("newer", key)
    return key
