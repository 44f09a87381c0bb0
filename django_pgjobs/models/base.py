"""The common base of our models and querysets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

from django.db import DataError, models

from django_pgjobs.fields import within_bounds

M = TypeVar("M", bound=models.Model)


def written_at(row: models.Model) -> str:
    """Return the database alias for steering a row; see ``store.database``."""
    from django_pgjobs.store import database  # here for start-up time

    return database.written_at(row)


class PostgresModel(models.Model):
    """A model for PostgreSQL only; migrations leave a project's other databases untouched."""

    class Meta:
        abstract = True
        required_db_vendor = "postgresql"
        default_permissions: ClassVar[Sequence[str]] = ("view",)

    def refresh_from_db(self, using: str | None = None, fields: Any = None, from_queryset: Any = None) -> None:
        """Read the row again, also for a deferred column, where it was read: elsewhere another row has its id.

        A router that decides by the model alone would lead elsewhere, and what steers the row would follow.
        """
        super().refresh_from_db(using=using or self._state.db, fields=fields, from_queryset=from_queryset)


class BoundedQuerySet(models.QuerySet[M]):
    """Rows whose instants Python may be unable to represent, if SQL wrote them; those read as a bound."""

    def iterator(self, chunk_size: int | None = None) -> Iterator[Any]:
        """Iterate without keeping the rows; as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).iterator(chunk_size)

    def aiterator(self, chunk_size: int = 2000) -> AsyncIterator[Any]:
        """Iterate without keeping the rows, from asynchronous code; as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).aiterator(chunk_size)

    def aggregate(self, *args: object, **kwargs: object) -> dict[str, Any]:
        """Aggregate, as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).aggregate(*args, **kwargs)

    def _fetch_all(self) -> None:
        fetch: Callable[[], None] = super()._fetch_all
        try:
            fetch()
        except DataError as error:
            if getattr(error.__cause__, "sqlstate", None) is not None:
                raise
            # Not an error of the server: SQL wrote an instant that Python cannot represent. See ``InstantField``.
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
