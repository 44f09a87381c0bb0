"""Sources that a job goes through: the rows of a queryset in the order of a key, or the items of an iterable.

Each comes behind the last one that was done, and refuses if it no longer knows where that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set, Sized
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db.models import Model, QuerySet
from django.db.models.query import FlatValuesListIterable

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.serialization.failures import OUR_FILES

OUR_FILES.add(__file__)

T = TypeVar("T")

OTHERWISE = "To start from the beginning, give this each another name, or register the job again."

_MISSING: object = object()


class Source(Protocol[T]):
    """A source of rows or items. ``label``: by which key of which model; empty for an iterable."""

    label: str

    def count(self) -> int | None:
        """Return how many there are, None if that is not known."""
        ...

    def go_behind(self, n: int, at: object) -> None:
        """Continue behind the ``n``-th, which is ``at``. Raises ``InvalidJob`` if that is not possible."""
        ...

    def take(self, most: int) -> list[tuple[object, T]]:
        """Return the next ones, each behind its key; fewer than ``most`` only at the end."""
        ...


def source_of(rows: Iterable[T], key: str) -> Source[T]:
    """Return the source that ``context.each`` is given. Raises ``InvalidJob``."""
    if isinstance(rows, QuerySet):
        return RowsByKey(rows, key)
    if isinstance(rows, Set) and not isinstance(rows, Mapping):
        raise InvalidJob("each: a set has no order to continue in: pass sorted(…)")
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise InvalidJob(f"each takes a queryset or an iterable of keys, not {type(rows).__name__}")
    return Items(rows)


class RowsByKey(Generic[T]):
    """The rows of a queryset in the order of a unique field, whatever order it had."""

    def __init__(self, rows: QuerySet[Any, T], key: str) -> None:
        query = rows.query
        if query.is_sliced or query.combinator or query.distinct_fields:
            raise InvalidJob("each: a queryset that is sliced, combined or distinct on fields cannot be continued")
        self.field = _field_of(rows.model, key)
        self.label = f"{rows.model._meta.label_lower}.{self.field.name}"
        self.rows = rows.order_by(self.field.attname)  # a relation would bring the order of its model
        self.rows.query.standard_ordering = True  # reverse() outlives order_by()
        self.last: object = None

    def count(self) -> int | None:
        """Return how many rows there are now."""
        return self.rows.count()

    def go_behind(self, n: int, at: object) -> None:
        """Continue behind the row with this key, whether it is still there or not."""
        field = self.field
        while field.remote_field is not None:
            field = field.target_field
        try:
            fits = field.to_python(at) == at
        except (ValidationError, TypeError, ValueError):
            fits = False
        if not fits:
            raise InvalidJob(f"each: its cursor, {at!r:.200}, is no value of {self.label} any more. {OTHERWISE}")
        self.last = at

    def take(self, most: int) -> list[tuple[object, T]]:
        """Read the next rows."""
        some = self.rows if self.last is None else self.rows.filter(**{f"{self.field.attname}__gt": self.last})
        # The keys before the rows are handed out: a row that is deleted loses its own.
        found = [(self._key_of(row), row) for row in some[:most]]
        if len({key for key, _ in found}) < len(found):
            raise InvalidJob(f"each: the queryset returns rows of {self.label} more than once: add distinct()")
        if found:
            self.last = found[-1][0]
        return found

    def _key_of(self, row: object) -> object:
        names = {"pk", self.field.name, self.field.attname} if self.field.primary_key else {self.field.name}
        if isinstance(row, Model):
            return getattr(row, self.field.attname)
        if isinstance(row, Mapping) and (found := names & row.keys()):
            return row[found.pop()]
        rows: Any = self.rows
        if rows._iterable_class is FlatValuesListIterable and rows._fields and rows._fields[0] in names:
            return row
        raise InvalidJob(f"each: values() has to hold the key {self.field.name!r}, and values_list() nothing else")


def _field_of(model: type[Model], key: str) -> Any:
    try:
        field: Any = model._meta.pk if key == "pk" else model._meta.get_field(key)
    except FieldDoesNotExist as error:
        raise InvalidJob(f"each: key: {error}") from None
    if not getattr(field, "column", None) or not field.unique or field.null:
        raise InvalidJob(f"each: key must name a unique field without NULL of {model._meta.label}, not {key!r}")
    return field


class Items(Generic[T]):
    """The items of an iterable that yields the same ones in each run, which are their own keys."""

    label = ""

    def __init__(self, items: Iterable[T]) -> None:
        self.size = len(items) if isinstance(items, Sized) else None
        self.items = iter(items)

    def count(self) -> int | None:
        """Return how many items there are, if the iterable knows."""
        return self.size

    def go_behind(self, n: int, at: object) -> None:
        """Pass the first ``n`` items, the last of which is ``at``."""
        last = next(islice(self.items, n - 1, n), _MISSING)
        if last is _MISSING or last != at:
            now = "missing" if last is _MISSING else f"{last!r:.200}"
            raise InvalidJob(
                f"each: item {n} of the iterable was {at!r:.200} when the job stopped behind it, and is {now} now: it "
                f"has to yield the same items in each run. {OTHERWISE}"
            )

    def take(self, most: int) -> list[tuple[object, T]]:
        """Return the next items."""
        return [(item, item) for item in islice(self.items, most)]
