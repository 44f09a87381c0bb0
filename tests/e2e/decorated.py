"""Jobs whose decorator hides that they are ``async def``. Loaded with ``tests.e2e``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django_pgjobs import current_context, job


def plain(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return inner


@job(max_attempts=1)
@plain
async def awaited(n: int) -> int:
    return n + 1


@plain
async def part(n: int) -> int:
    return n * 2


@job(max_attempts=1)
def has_a_hidden_step(n: int) -> int:
    return int(current_context().step(part, n))
