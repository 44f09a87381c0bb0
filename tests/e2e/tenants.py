"""Jobs that note the tenant of the docs' middleware, in ``shop.middleware``. Loaded with ``tests.e2e``."""

from __future__ import annotations

import sys
from typing import Any

from django_pgjobs import JobContext, job
from django_pgjobs.notifying.notice import FailureNotice
from tests.e2e import stage


def note(*words: object) -> None:
    stage.here().note("tenant", *words, sys.modules["shop.middleware"].current_tenant.get("nobody"))


@job(name="tenancy.member", max_attempts=1)
def member(n: int) -> None:
    note("member", n)


@member.undo()
def unmember(context: JobContext, n: int) -> None:
    note("undo", n)


@job(name="tenancy.amember", max_attempts=1)
async def amember(n: int) -> None:
    note("amember", n)


@job(name="tenancy.fails", max_attempts=1)
def fails() -> None:
    raise ValueError("no")


@job(name="tenancy.gathers", takes_context=True, max_attempts=1)
def gathers(context: JobContext) -> None:
    context.gather([member.bind(7), amember.bind(8)])


@job(name="tenancy.scheduled", schedulable=True, takes_context=True, max_attempts=1)
def scheduled(context: JobContext) -> None:
    """Works for each tenant, as the docs say."""
    note("scheduled", context.has_origin)
    current: Any = sys.modules["shop.middleware"].current_tenant
    token = current.set("initech")
    member.register(9)
    current.reset(token)


def deliver(notice: FailureNotice) -> None:
    note("notice", notice.jobs)
