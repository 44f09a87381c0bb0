"""Two model fields that Django does not have.

``StateField`` lets ``filter(state=…)`` use the indexes. The generated column itself is in no index, and must
not be: the claim changes it, and one index that holds it would turn every claim into a non-HOT update. So its
``exact`` and ``in`` lookups compile to the columns it is generated from.

``BigIntArrayField`` is a ``bigint[]`` without ``django.contrib.postgres``, which Django 6.1 would demand in
every project's ``INSTALLED_APPS`` for its ArrayField.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import models
from django.db.models.lookups import Exact, In

from django_pgjobs.states import Hold, JobState, Outcome

if TYPE_CHECKING:
    ListField = models.Field[list[int], list[int]]
    TextField = models.CharField[str, str]
else:
    ListField = models.Field
    TextField = models.CharField


class BigIntArrayField(ListField):
    """A PostgreSQL ``bigint[]``; its value is a list of int."""

    def db_type(self, connection: Any) -> str:
        """Return the column's type."""
        return "bigint[]"


class StateField(TextField):
    """A job's state: text whose lookups are answered from indexed columns."""


def _state_condition(state: str, column: Callable[[str], str]) -> str | None:
    """The SQL that says what ``state`` means in stored columns; None for a word that is no state."""
    unfinished = f"{column('finished_at')} IS NULL"
    if state in list(Outcome):
        return f"({column('finished_at')} IS NOT NULL AND {column('outcome')} = '{Outcome(state)}')"
    if state in list(Hold):
        hold = column("hold")
        return f"({unfinished} AND {hold} IS NOT NULL AND {hold} = '{Hold(state)}' AND {column('claim_id')} IS NULL)"
    if state == JobState.READY:
        # The id says that there is a row: an outer join to a job that does not exist is not a ready one.
        there = f"{column('id')} IS NOT NULL"
        return f"({there} AND {unfinished} AND {column('hold')} IS NULL AND {column('claim_id')} IS NULL)"
    if state == JobState.RUNNING:
        ledger = apps.get_model("pgjobs", "Claim")._meta.db_table
        ids = f'ARRAY(SELECT unnest("job_ids") FROM "{ledger}")'  # noqa: S608 (our own table)
        return f"({unfinished} AND {column('claim_id')} IS NOT NULL AND {column('id')} = ANY ({ids}))"
    return None


def _compile(states: list[Any], lookup: Any, compiler: Any, connection: Any) -> str | None:
    alias = getattr(lookup.lhs, "alias", None)
    if alias is None or not all(isinstance(state, str) for state in states):
        return None
    quote: Callable[[str], str] = getattr(compiler, "quote_name", None) or compiler.quote_name_unless_alias  # until 6.0
    conditions = [
        _state_condition(str(state), lambda name: f"{quote(alias)}.{connection.ops.quote_name(name)}")
        for state in states
    ]
    if not conditions or any(condition is None for condition in conditions):
        return None
    return "(" + " OR ".join(str(condition) for condition in conditions) + ")"


@StateField.register_lookup
class StateExact(Exact):
    """``state = 'ready'`` in indexed columns."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Compile; values that are no literal state compare the column itself."""
        sql = _compile([self.rhs], self, compiler, connection)
        return (sql, []) if sql else super().as_sql(compiler, connection)


@StateField.register_lookup
class StateIn(In):
    """``state IN ('ready', 'running')`` in indexed columns."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Compile; anything but a list of literal states compares the column itself."""
        states = list(self.rhs) if self.rhs_is_direct_value() else [None]
        sql = _compile(states, self, compiler, connection)
        return (sql, []) if sql else super().as_sql(compiler, connection)
