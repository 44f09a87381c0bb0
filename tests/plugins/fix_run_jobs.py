"""What every test of ``run_jobs`` begins with."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from django_pgjobs import signals


@pytest.fixture
def nothing_said() -> Iterator[None]:
    """The jobs of ``run_jobs_ground`` have done nothing yet."""
    from tests.db.run_jobs_ground import said  # here, since it declares jobs: only where they are tested

    said.clear()
    yield
    said.clear()


@pytest.fixture
def receivers_as_before() -> Iterator[None]:
    known = [signals.job_started, signals.job_finished, signals.job_retried, signals.lease_lost, signals.attempt_ended]
    before = [list(signal.receivers) for signal in known]
    yield
    for signal, receivers in zip(known, before, strict=True):
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "django_pgjobs")
