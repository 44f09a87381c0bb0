"""The type of what a registration returns, for type checkers only."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from django_pgjobs.models import Job

    V = TypeVar("V")
    Value = TypeVar("Value", covariant=True)

    class JobOf(Job, Generic[Value]):
        """A ``Job`` whose function returns ``Value``. For type checkers only: at run time it is a plain ``Job``."""

        @overload
        def value(self: JobOf[Coroutine[Any, Any, V]], timeout: float | timedelta | None = None) -> V: ...
        @overload
        def value(self, timeout: float | timedelta | None = None) -> Value: ...
        def value(self, timeout: object = None) -> Any: ...
        @overload
        async def avalue(self: JobOf[Coroutine[Any, Any, V]], timeout: float | timedelta | None = None) -> V: ...
        @overload
        async def avalue(self, timeout: float | timedelta | None = None) -> Value: ...
        async def avalue(self, timeout: object = None) -> object: ...
