"""Check the database that stores the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error
from django.db import connections, router
from django.utils.module_loading import import_string

from django_pgjobs.models import Job


def check_database(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> Iterator[CheckMessage]:
    """Check that jobs go to PostgreSQL, through psycopg 3."""
    alias = router.db_for_write(Job)
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        yield Error(
            f"Jobs are written to the database {alias!r}, which is not PostgreSQL ({vendor}).",
            hint="Point that alias at PostgreSQL, or let a database router's db_for_write() send the app "
            '"pgjobs" to an alias that is. No PostgreSQL at hand? Install django-pgjobs[embedded] and write '
            "DATABASES = {'default': django_pgjobs.embedded.database()} for development and tests.",
            id="pgjobs.E009",
        )
    elif not _uses_psycopg3():
        yield Error(
            f"The database {alias!r} is used through psycopg2; jobs need psycopg 3.",
            hint='Install "psycopg[binary]": Django prefers it over psycopg2 for the whole project.',
            id="pgjobs.E010",
        )


def _uses_psycopg3() -> bool:
    return bool(import_string("django.db.backends.postgresql.psycopg_any.is_psycopg3"))
