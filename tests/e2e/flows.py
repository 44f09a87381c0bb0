"""Members of batches, and what comes after them, for the end-to-end tests."""

from __future__ import annotations

import time

from django.contrib.auth.models import User

from django_pgjobs import Backoff, job
from tests.e2e import stage


@job(name="flows.member", max_attempts=20, backoff=Backoff(0))
def member(n: int) -> None: ...


@job(name="flows.after", max_attempts=5, backoff=Backoff(0))
def after(key: str) -> None:
    stage.here().note("after", key)


@job(name="flows.pays", atomic=True, max_attempts=5, backoff=Backoff(0))
def pays(n: int) -> None:
    User.objects.filter(username=f"payer {n}").exists()


@job(name="flows.seen", max_attempts=1, timeout=2)
def seen(key: str) -> None:
    """Last until the supervisor has seen on the board that it has started."""
    stage.here().note("start", key)
    time.sleep(1)


@job(name="flows.slow", max_attempts=1)
def slow(key: str) -> str:
    stage.here().note("start", key)
    stage.here().wait(key)
    stage.here().note("done", key)
    return key
