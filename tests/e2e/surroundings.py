"""Jobs that leave something in their thread's context, and some that tell what they find. In ``tests.e2e.jobs``."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asgiref.local import Local
from asgiref.sync import sync_to_async
from django.urls import get_script_prefix, get_urlconf, set_script_prefix, set_urlconf
from django.utils import timezone, translation

from django_pgjobs import job

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
local = Local()


def _set_decimals() -> None:
    decimal.getcontext().prec = 3
    decimal.getcontext().traps[decimal.Inexact] = True


LEFT: dict[str, Callable[[], object]] = {
    "language": lambda: translation.activate("de"),
    "no language": translation.deactivate_all,
    "time zone": lambda: timezone.activate("Asia/Tokyo"),
    "script prefix": lambda: set_script_prefix("/left/"),
    "urlconf": lambda: set_urlconf("tests.nowhere"),
    "decimal context": _set_decimals,
    "new decimal context": lambda: decimal.setcontext(decimal.Context(prec=2)),
    "context variable": lambda: tenant.set("acme"),
    "asgiref local": lambda: setattr(local, "tenant", "acme"),
}


def found() -> dict[str, Any]:
    return {
        "language": translation.get_language(),
        "time zone": timezone.get_current_timezone_name(),
        "script prefix": get_script_prefix(),
        "urlconf": get_urlconf(),
        "decimals": [decimal.getcontext().prec, decimal.getcontext().traps[decimal.Inexact]],
        "context variable": tenant.get(),
        "local": getattr(local, "tenant", "nobody"),
    }


CLEAN: dict[str, Any] = {
    "language": "en",
    "time zone": "UTC",
    "script prefix": "/",
    "urlconf": None,
    "decimals": [28, False],
    "context variable": "nobody",
    "local": "nobody",
}


@job(name="surroundings.leaves", max_attempts=1)
def leaves(how: str) -> None:
    LEFT[how]()


@job(name="surroundings.finds", max_attempts=1)
def finds() -> dict[str, Any]:
    return found()


@job(name="surroundings.aleaves", max_attempts=1)
async def aleaves(how: str) -> None:
    """In its task and in the thread of its queries."""
    LEFT[how]()
    await sync_to_async(LEFT[how])()


@job(name="surroundings.afinds", max_attempts=1)
async def afinds() -> list[dict[str, Any]]:
    return [found(), await sync_to_async(found)()]
