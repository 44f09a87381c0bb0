"""Jobs for ``run_jobs``, which say what they did."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from django_pgjobs import Backoff, current_context
from django_pgjobs import job as define
from django_pgjobs.testing import Ran

in_a_test_case = pytest.mark.django_db
"""A transaction around the test, as in ``TestCase``."""

said: list[object] = []
"""What the jobs of this module did, in order."""


@define(name="run.says", max_attempts=1)
def says(value: object = None) -> object:
    said.append(value)
    return value


@define(name="run.makes_user", max_attempts=1)
def makes_user(name: str) -> int:
    return User.objects.create(username=name).pk


@define(name="run.fails", max_attempts=3, backoff=Backoff(0))
def fails(text: str = "no") -> None:
    said.append(current_context().attempt)
    raise ValueError(text)


@define(name="run.ahooks", max_attempts=1)
async def asynchronous(name: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    user = await User.objects.acreate(username=name)
    says_so = await says.aregister(name)
    current_context().progress(1, 2, "half")
    thread = await sync_to_async(threading.get_ident)()
    return {"user": user.pk, "job": says_so.pk, "in": current_context().id, "thread": thread}


def outcomes(ran: Ran) -> dict[str, list[int]]:
    """The headings of a summary that have something under them."""
    return {name: ids for name in Ran.__slots__ if name not in ("ran", "errors") and (ids := getattr(ran, name))}
