"""Functions of all shapes to make jobs of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_pgjobs import JobContext, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.jobs import JobDefinition


@job
def add(one: int, other: int = 2, /, *rest: int, scale: int = 1, **names: int) -> int:
    """Add numbers."""
    return (one + other + sum(rest) + sum(names.values())) * scale


@job(takes_context=True)
def in_context(context: JobContext, /, path: str, **more: str) -> tuple[int, str]:
    return context.attempt, path


def one_argument(user_id: int) -> None: ...


def context_and_argument(context: JobContext, user_id: int) -> None: ...


async def async_one_argument(user_id: int) -> str:
    return ""


def no_argument() -> None: ...


def only_rest(*rest: Any) -> None: ...


def declare(func: Callable[..., Any] = one_argument, **options: Any) -> JobDefinition[..., Any]:
    with registry.isolated():
        definition: JobDefinition[..., Any] = job(**options)(func)
    return definition


def named(value: object) -> str:
    """Return the id of a test with this value, the same in each process: no address of a function."""
    return getattr(value, "__name__", repr(value))
