"""Asynchronous twins of methods that wait for the database."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import sync_to_async

P = ParamSpec("P")
R = TypeVar("R")


def asynchronous(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the asynchronous twin of a method: *a* before its name, the same arguments and marks."""
    name = method.__name__

    @wraps(method)
    async def twin(self: object, *args: object, **kwargs: object) -> object:
        return await sync_to_async(getattr(self, name))(*args, **kwargs)

    twin.__name__, twin.__qualname__ = f"a{name}", f"{method.__qualname__.removesuffix(name)}a{name}"
    twin.__doc__ = f"Call ``{name}`` from asynchronous code; same arguments."
    return cast(Callable[P, Coroutine[Any, Any, R]], twin)
