"""Asks once, before anything works there, whether the tables of a database have all that this code knows."""

from __future__ import annotations

from django.apps import apps
from django.db import ProgrammingError
from django.db.models import Value
from django.db.models.lookups import Exact

from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import is_not_migrated
from django_pgjobs.worker.shared.connection import WorkerConnection


def lack_of(db: WorkerConnection) -> str | None:
    """Return what is missing, in parentheses, or empty if it is all of the tables; None if nothing is."""
    if db.identity.table is None:
        return ""
    try:
        with db.orm() as using:
            for model in apps.get_app_config("pgjobs").get_models():
                list(model._base_manager.using(using).filter(Exact(Value(0), Value(1))))  # names all of its columns
    except ProgrammingError as error:
        if is_not_migrated(error):
            words = str(error).partition("\n")[0]
            return f" ({one_line(words)})"
    return None  # a role that may not read all of them can do without
