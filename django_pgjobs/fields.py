"""Fields and indexes that Django does not have, and an order and a condition that lead the planner.

``ComputedStateField`` is a job's state, which has no column (docs/adr/0025): a query computes it from other columns.
Its value is a ``StateField``, which lets ``filter(state=…)`` use the indexes: no index may hold what claims change, so
the lookups ``exact`` and ``in`` compile to conditions on indexed columns.

``BigIntArrayField`` is a ``bigint[]`` without ``django.contrib.postgres``, which Django 6.1 would demand in
every project's ``INSTALLED_APPS`` for its ArrayField.

``GistIndex`` and ``GinIndex`` stand there, too.

``InstantField`` is readable regardless of the value that SQL has written into it. Migrations see a ``DateTimeField``;
only the select list of a query differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import EmptyResultSet, ValidationError
from django.db import models
from django.db.models import BooleanField, Case, F, Func, Q, QuerySet, Subquery, Value, When
from django.db.models.expressions import Col
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact, In
from django.utils.functional import cached_property

from django_pgjobs.clock import EARLIEST, LATEST
from django_pgjobs.states import Hold, JobState, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler

    TagsBase = models.JSONField[Iterable[str], tuple[str, ...]]
    ListField = models.Field[list[int], list[int]]
    TextField = models.CharField[str, str]
    TimeField = models.DateTimeField[datetime | str, datetime]
else:
    TagsBase = models.JSONField
    ListField = models.Field
    TextField = models.CharField
    TimeField = models.DateTimeField


LATEST_FIRST = (models.F("pk") + 0).desc()
"""The order of one job's attempts or memos. Not ``-pk``: where statistics say that their table is empty, the planner
would walk all rows in the order of the primary key.
"""


class BigIntArrayField(ListField):
    """A PostgreSQL ``bigint[]``; its value is a list of int."""

    def db_type(self, connection: object) -> str:
        """Return the column's type."""
        return "bigint[]"

    def to_python(self, value: Any) -> object:
        """Return the list; fixtures store it as JSON text. Raises ``ValidationError``."""
        try:
            found = json.loads(value) if isinstance(value, str) else value
            return None if found is None else [int(number) for number in found]
        except (TypeError, ValueError):
            raise ValidationError(f"{value!r} is not a list of integers.", code="invalid") from None

    def value_to_string(self, obj: models.Model) -> str:
        """Return the JSON text for a fixture."""
        return json.dumps(self.value_from_object(obj))


class _InstantField(TimeField):
    """An instant; values beyond Python's ``datetime`` read as ``clock.EARLIEST`` or ``clock.LATEST``."""

    def deconstruct(self) -> Any:
        """Return a ``DateTimeField``, for migrations."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs

    def select_format(self, compiler: SQLCompiler, sql: str, params: Any) -> tuple[str, Any]:
        """Clamp the selected value if the query asks for it; conditions, orders and indexes use the column itself."""
        if not getattr(compiler.query, WITHIN_BOUNDS, False):
            return sql, params
        least, most = (f"'{bound.isoformat()}'::timestamptz" for bound in (EARLIEST, LATEST))
        # Not LEAST and GREATEST, which ignore nulls.
        bounded = f"CASE WHEN {sql} < {least} THEN {least} WHEN {sql} > {most} THEN {most} ELSE {sql} END"
        return bounded, (*params, *params, *params)


WITHIN_BOUNDS = "pgjobs_within_bounds"
"""A query with this attribute clamps. Not the default: ``values("run_at").order_by("run_at")`` would lose its index."""


def within_bounds(query: Any) -> Any:
    """Return a copy of the query that clamps selected instants, also in the queries that it combines."""
    found = query.chain()
    setattr(found, WITHIN_BOUNDS, True)
    found.combined_queries = tuple(map(within_bounds, found.combined_queries))
    return found


if TYPE_CHECKING:
    InstantField = models.DateTimeField  # so that type checkers treat null=True as they do there
else:
    InstantField = _InstantField


class TagsField(TagsBase):
    """Short texts as a JSON array, null for none; its value is a tuple."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"null": True, **options})

    def deconstruct(self) -> Any:
        """Leave out ``null``, which is always true."""
        name, path, args, options = super().deconstruct()
        return name, path, args, {key: value for key, value in options.items() if key != "null"}

    def from_db_value(self, value: Any, expression: Any, connection: BaseDatabaseWrapper) -> object:
        """Return the texts; a foreign value that is not an array of texts reads as no tags."""
        try:
            found = super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return ()
        return tuple(tag for tag in found if isinstance(tag, str)) if isinstance(found, list) else ()

    def get_prep_value(self, value: object) -> object:
        """Return a value that JSON can represent."""
        return list(value) if isinstance(value, tuple) else value

    def get_db_prep_save(self, value: object, connection: BaseDatabaseWrapper) -> object:
        """Return SQL's null if there are no tags, even if a fixture spells that differently."""
        return super().get_db_prep_save(value or None, connection)


class StateField(TextField):
    """The text of a job's state; its lookups use indexed columns."""


class ComputedStateField(models.GeneratedField):
    """A job's state, computed by every query that reads it: a generated field without a column.

    Queries need no function in the database: the tables may come from ``MIGRATION_MODULES = {"pgjobs": None}``, and a
    role may lack privileges on functions. ``expression`` serves ``validate_constraints()`` only.
    """

    db_returning: Any = False  # RETURNING would name a column

    def __init__(self, *, choices: Any = None, **options: Any) -> None:
        running = Case(When(claim_id__isnull=False, then=Value("running")))
        output = StateField(choices=choices)
        options["expression"] = Coalesce("outcome", running, "hold", Value("ready"), output_field=output)
        super().__init__(output_field=output, db_persist=True, **options)

    def deconstruct(self) -> Any:
        """Leave out what is always the same."""
        name, path, args, options = super().deconstruct()
        output = options.pop("output_field")
        options = {key: value for key, value in options.items() if key not in ("expression", "db_persist")}
        return name, path, args, options | {"choices": output.choices}

    def db_type(self, connection: object) -> None:
        """Return no type, so that the schema editor makes no column."""

    def db_parameters(self, connection: object) -> Any:
        """Return no type, for the same reason."""
        return {"type": None, "check": None}

    def get_col(self, alias: Any, output_field: Any = None) -> Any:
        """Return what stands for the state in a query."""
        return _StateCol(alias, self, self.output_field if output_field in (None, self) else output_field)

    @cached_property
    def cached_col(self) -> Any:
        """Expression for the state of the model's own table."""
        return _StateCol(self.model._meta.db_table, self, self.output_field)


class _StateCol(Col):
    """The state of a row. It must say what the SQL function of the migration says."""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Compile to literals, not parameters: those of GROUP BY would differ from those of SELECT."""
        column = _columns_of(self.alias, compiler, connection)
        params = super().as_sql(compiler, connection)[1]  # a list until Django 6.0
        # Without the id, an outer join to a missing job would be ready.
        return (
            f"COALESCE({column('outcome')}, CASE WHEN {column('claim_id')} IS NOT NULL THEN 'running' END, "
            f"{column('hold')}, CASE WHEN {column('id')} IS NOT NULL THEN 'ready' END)"
        ), params


def _columns_of(alias: str | None, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Callable[[str], str]:
    """Return what quotes the name of a column of the table that has the alias in the query."""
    quote: Callable[[str], str] = getattr(compiler, "quote_name", None) or compiler.quote_name_unless_alias  # until 6.0
    prefix = f"{quote(alias)}." if alias else ""
    return lambda name: f"{prefix}{connection.ops.quote_name(name)}"


def _state_condition(state: str, column: Callable[[str], str]) -> str | None:
    """Return the SQL condition of ``state`` in stored columns; None for an unknown word."""
    unfinished = f"{column('finished_at')} IS NULL"
    if state in list(Outcome):
        return f"({column('finished_at')} IS NOT NULL AND {column('outcome')} = '{Outcome(state)}')"
    if state in list(Hold):
        hold = column("hold")
        return f"({unfinished} AND {hold} IS NOT NULL AND {hold} = '{Hold(state)}' AND {column('claim_id')} IS NULL)"
    if state == JobState.READY:
        # The id proves that there is a row: an outer join to a missing job must not match as ready.
        there = f"{column('id')} IS NOT NULL"
        return f"({there} AND {unfinished} AND {column('hold')} IS NULL AND {column('claim_id')} IS NULL)"
    if state == JobState.RUNNING:
        ledger = apps.get_model("pgjobs", "Claim")._meta.db_table
        ids = f'ARRAY(SELECT unnest("job_ids") FROM "{ledger}")'  # noqa: S608 (our own table)
        return f"({unfinished} AND {column('claim_id')} IS NOT NULL AND {column('id')} = ANY ({ids}))"
    return None


def _compile(states: list[object], lookup: Any, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> str | None:
    alias = getattr(lookup.lhs, "alias", None)
    if alias is None or not all(isinstance(state, str) for state in states):
        return None
    column = _columns_of(alias, compiler, connection)
    lookups = [_state_condition(str(state), column) for state in states]
    conditions = [condition for condition in lookups if condition is not None]
    if not conditions:
        raise EmptyResultSet  # no row has an unknown state, and no query needs to find that out
    return "(" + " OR ".join(conditions) + ")"


@StateField.register_lookup
class StateExact(Exact):
    """``state = 'ready'`` in indexed columns."""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Compile; values other than literal states compare the state itself."""
        sql = _compile([self.rhs], self, compiler, connection)
        return (sql, []) if sql else super().as_sql(compiler, connection)


@StateField.register_lookup
class StateIn(In):
    """``state IN ('ready', 'running')`` in indexed columns."""

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Compile; anything but a list of literal states compares the state itself."""
        states = list(self.rhs) if self.rhs_is_direct_value() else [None]
        sql = _compile(states, self, compiler, connection)
        return (sql, []) if sql else super().as_sql(compiler, connection)


class GistIndex(models.Index):
    """A GiST index, which finds ranges that contain a value."""

    suffix = "gist"

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **options: Any) -> Any:
        """Return ``CREATE INDEX … USING gist``."""
        return super().create_sql(model, schema_editor, using=f" USING {self.suffix}", **options)


class GinIndex(GistIndex):
    """A GIN index, which finds lists that contain a value."""

    suffix = "gin"

    def create_sql(self, model: object, schema_editor: object, using: str = "", **options: object) -> Any:
        """Return ``CREATE INDEX … USING gin``."""
        return super().create_sql(model, schema_editor, using, **options)


def is_among(column: str, ids: QuerySet[Any, Any]) -> Q:
    """Return the condition that a column is one of these; as an array, which the server makes once, then it looks."""
    array = Subquery(ids, template="ARRAY(%(subquery)s)")
    words: dict[str, object] = {"template": "%(expressions)s)", "arg_joiner": " = ANY ("}
    return Q(Func(F(column), array, output_field=BooleanField(), **words))
