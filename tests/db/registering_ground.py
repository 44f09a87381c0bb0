"""Jobs to register, and their rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from django_pgjobs import job
from django_pgjobs.models import Job

on_disk = pytest.mark.django_db(transaction=True)


@job
def pay(user_id: int, *, note: str = "") -> None: ...


@job
def total(ids: list[int], factor: int = 1) -> None:
    """One that takes something that can be changed."""


@job(queue="mail", priority=7, max_attempts=2, timeout=30)
def send(address: str) -> None: ...


@job
def anything(*args: Any, **kwargs: Any) -> None: ...


def stored(job_: Job) -> dict[str, Any]:
    return dict(Job.objects.filter(pk=job_.pk).values().get())


def as_django_reads(when: datetime) -> datetime:
    return when if settings.USE_TZ else timezone.make_naive(when)
