"""Migration operations of this package.

Each is reversible, asks the routers like any other operation, and does nothing on a database that is not PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db.migrations.operations.base import Operation

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState


class SetStorageParameters(Operation):
    """Set storage parameters of a model's table, and of one of its indexes.

    ``parameters``: name → value, as in ``ALTER TABLE … SET`` (PostgreSQL manual, CREATE TABLE, Storage Parameters).
    """

    reduces_to_sql = True
    reversible = True

    def __init__(
        self,
        model_name: str,
        parameters: Mapping[str, object],
        index: str = "",
        index_parameters: Mapping[str, object] | None = None,
    ) -> None:
        self.model_name = model_name
        self.parameters = dict(parameters)
        self.index = index
        self.index_parameters = dict(index_parameters or {})

    def state_forwards(self, app_label: str, state: object) -> None:
        """Do nothing: storage parameters are not part of the models' state."""

    def database_forwards(self, app_label: str, schema_editor: object, from_state: object, to_state: object) -> None:
        """Set the parameters."""
        self._alter(app_label, schema_editor, to_state, "SET", lambda item: f"{item[0]} = {item[1]}")

    def database_backwards(self, app_label: str, schema_editor: object, from_state: object, to_state: object) -> None:
        """Reset the parameters."""
        self._alter(app_label, schema_editor, from_state, "RESET", lambda item: str(item[0]))

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


class CreateRowFunction(Operation):
    """Create an SQL function of a model's rows, which SQL may write like a column: ``j.state``.

    PostgreSQL looks for a function where a row has no such column. ``returns``: the type of its result. ``body``: an
    expression of ``job``, the row.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, model_name: str, name: str, returns: str, body: str) -> None:
        self.model_name = model_name
        self.name = name
        self.returns = returns
        self.body = body

    def state_forwards(self, app_label: str, state: object) -> None:
        """Do nothing: functions are not part of the models' state."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Create the function."""
        row = self._row(app_label, schema_editor, to_state)
        if row:
            schema_editor.execute(
                f"CREATE FUNCTION {schema_editor.quote_name(self.name)}(job {row}) RETURNS {self.returns} "
                f"LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN {self.body}"
            )

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the function."""
        row = self._row(app_label, schema_editor, from_state)
        if row:
            schema_editor.execute(f"DROP FUNCTION {schema_editor.quote_name(self.name)}({row})")

    def describe(self) -> str:
        """Return what the operation does, for ``migrate --plan``."""
        return f"Create function {self.name} of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        """The part of a migration's name that stands for this operation."""
        return f"{self.model_name.lower()}_{self.name}"

    def _row(self, app_label: str, schema_editor: Any, state: Any) -> str | None:
        """Return the quoted name of the table, or None where the operation has nothing to do."""
        model = state.apps.get_model(app_label, self.model_name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return None
        return str(schema_editor.quote_name(model._meta.db_table))
