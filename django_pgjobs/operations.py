"""Migration operations of this package.

Each is reversible, asks the routers like any other operation, and does nothing on a database that is not PostgreSQL.
``BuildIndex`` and ``BuildUniqueConstraint`` need a migration with ``atomic = False``; if it fails, run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.migrations import AddConstraint, AddIndex, AlterField
from django.db.migrations.operations.base import Operation


class SetStorageParameters(Operation):
    """Set storage parameters of a model's table, and of one of its indexes.

    ``parameters``: name → value, as in ``ALTER TABLE … SET`` (PostgreSQL manual, CREATE TABLE, Storage Parameters).
    ``former``: the values that an earlier migration set; going backwards restores these and resets the others.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(
        self,
        model_name: str,
        parameters: Mapping[str, Any],
        index: str = "",
        index_parameters: Mapping[str, Any] | None = None,
        former: Mapping[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.parameters = dict(parameters)
        self.index = index
        self.index_parameters = dict(index_parameters or {})
        self.former = dict(former or {})

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: storage parameters are not part of the models' state."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Set the parameters."""
        self._alter(app_label, schema_editor, to_state, "SET", lambda item: f"{item[0]} = {item[1]}")

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Reset the parameters, and restore the former values."""
        self._alter(app_label, schema_editor, from_state, "RESET", lambda item: str(item[0]))
        if self.former:
            before = SetStorageParameters(self.model_name, self.former)
            before.database_forwards(app_label, schema_editor, from_state, from_state)

    def describe(self) -> str:
        """Return what the operation does, for ``migrate --plan``."""
        return f"Set storage parameters of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name that stands for this operation."""
        return f"{self.model_name.lower()}_storage"

    def _alter(self, app_label: str, schema_editor: Any, state: Any, verb: str, word: Any) -> None:
        model = state.apps.get_model(app_label, self.model_name)
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or not self.allow_migrate_model(connection.alias, model):
            return
        table = schema_editor.quote_name(model._meta.db_table)
        schema_editor.execute(f"ALTER TABLE {table} {verb} ({', '.join(map(word, self.parameters.items()))})")
        if self.index:
            index = schema_editor.quote_name(self.index)
            alter = f"ALTER INDEX {index} {verb} ({', '.join(map(word, self.index_parameters.items()))})"
            # Forwards, if the same migration creates the model, deferred SQL has yet to create the index itself.
            schema_editor.deferred_sql.append(alter) if verb == "SET" else schema_editor.execute(alter)


class BuildIndex(AddIndex):
    """Add an index while others read and write the table.

    It blocks until the open transactions end; readers and writers wait for neither.
    """

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Build the index, replacing the remains of a failed build."""
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.remove_index(model, self.index, concurrently=True)
            schema_editor.add_index(model, self.index, concurrently=True)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop the index."""
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.remove_index(model, self.index, concurrently=True)


class BuildUniqueConstraint(AddConstraint):
    """Add a ``UniqueConstraint`` with a condition, which is a unique index, as ``BuildIndex`` adds an index."""

    atomic = False

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Build the unique index, replacing the remains of a failed build."""
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            self._drop(schema_editor)
            create: Any = self.constraint.create_sql(model, schema_editor)
            create.template = create.template.replace("UNIQUE INDEX", "UNIQUE INDEX CONCURRENTLY", 1)
            schema_editor.execute(create, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop the unique index."""
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            self._drop(schema_editor)

    def _drop(self, schema_editor: Any) -> None:
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.constraint.name)}")


class ComputeColumn(AlterField):
    """Replace a stored generated column by a field without one, and by an SQL function of the row that has its name.

    In SQL ``j.state`` then calls the function: PostgreSQL looks for a function where a row has no such column. So older
    code that qualifies its columns goes on. ``function``: the body, an expression of ``job``.
    Forwards it fails if a view uses the column; PostgreSQL drops indexes on the column with it. Backwards it rewrites
    the table.
    """

    def __init__(self, model_name: str, name: str, field: Any, function: str) -> None:
        super().__init__(model_name, name, field)
        self.function = function

    def deconstruct(self) -> Any:
        """Return what the migration writer writes."""
        name, args, options = super().deconstruct()
        return name, args, options | {"function": self.function}

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop the column and create the function: no row is read or written."""
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            table, name = schema_editor.quote_name(model._meta.db_table), schema_editor.quote_name(self.name)
            # Not remove_field(), whose CASCADE would drop views that the project has made.
            schema_editor.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
            column_type = model._meta.get_field(self.name).db_parameters(schema_editor.connection)["type"]
            # The column's type, or prepared statements of others would fail: their result must not change its type.
            schema_editor.execute(
                f"CREATE FUNCTION {name}(job {table}) RETURNS {column_type} "
                f"LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN {self.function}"
            )

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop the function and add the column, whose values PostgreSQL writes into every row."""
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            table, name = schema_editor.quote_name(model._meta.db_table), schema_editor.quote_name(self.name)
            schema_editor.execute(f"DROP FUNCTION {name}({table})")
            schema_editor.add_field(model, model._meta.get_field(self.name))

    def describe(self) -> str:
        """Return what the operation does, for ``migrate --plan``."""
        return f"Compute {self.name} of {self.model_name} by a function instead of storing it"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name that stands for this operation."""
        return f"compute_{self.model_name_lower}_{self.name_lower}"
