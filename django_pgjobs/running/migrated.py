"""The columns that this code knows, and those that a database has: compared once, before anything works there."""

from __future__ import annotations

from django.apps import apps

from django_pgjobs.store import keeping
from django_pgjobs.worker.shared.connection import WorkerConnection


def lack_of(db: WorkerConnection) -> str | None:
    """Return what is missing, in parentheses, or empty if it is all of the tables; None if nothing is."""
    if db.identity.table is None:
        return ""
    models = list(apps.get_app_config("pgjobs").get_models())
    known = keeping.list_columns(db, [model._meta.db_table for model in models])
    needed = {
        (model._meta.db_table, field.column)
        for model in models
        for field in model._meta.concrete_fields
        if not field.generated  # computed by queries
    }
    if missing := sorted(needed - known):
        table, column = missing[0]
        return f" (column {table}.{column} does not exist)"
    return None
