"""What our tables have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import DataError, models

from django_pgjobs.fields import within_bounds

M = TypeVar("M", bound=models.Model)
P = ParamSpec("P")
R = TypeVar("R")


def asynchronous(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the twin of a method for asynchronous code: *a* before its name, the same arguments and marks."""
    name = method.__name__

    @wraps(method)
    async def twin(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(getattr(self, name))(*args, **kwargs)

    twin.__name__, twin.__qualname__ = f"a{name}", f"{method.__qualname__.removesuffix(name)}a{name}"
    twin.__doc__ = f"Call ``{name}`` from asynchronous code; same arguments."
    return cast(Callable[P, Coroutine[Any, Any, R]], twin)


def written_at(row: models.Model) -> str:
    """Return the alias where a row is steered; see ``store.transactions``."""
    from django_pgjobs.store import transactions  # here for start-up time

    return transactions.written_at(row)


class PostgresModel(models.Model):
    """A model that lives on PostgreSQL only; other databases of a project migrate untouched."""

    class Meta:
        abstract = True
        required_db_vendor = "postgresql"


class BoundedQuerySet(models.QuerySet[M]):
    """Rows of which SQL may have written instants that Python cannot read: these are read at a bound."""

    def iterator(self, chunk_size: int | None = None) -> Iterator[Any]:
        """Iterate without keeping the rows; as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).iterator(chunk_size)

    def aiterator(self, chunk_size: int = 2000) -> AsyncIterator[Any]:
        """Iterate without keeping the rows, from asynchronous code; as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).aiterator(chunk_size)

    def aggregate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Aggregate, as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).aggregate(*args, **kwargs)

    def _fetch_all(self) -> None:
        fetch: Callable[[], None] = super()._fetch_all
        try:
            fetch()
        except DataError as error:
            if getattr(error.__cause__, "sqlstate", None) is not None:
                raise
            # Not the server's word: an instant that SQL has written and Python cannot read. See ``InstantField``.
            self._be_within_bounds()
            fetch()

    def _within_bounds(self) -> Self:
        found = self.all()
        found._be_within_bounds()
        return found

    def _be_within_bounds(self) -> None:
        rows = self._iterable_class
        self.query = within_bounds(self.query)  # which drops what values_list() has set for the rows
        self._iterable_class = rows
