"""Check the database that stores the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psycopg
from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, router
from django.utils.module_loading import import_string

from django_pgjobs.checks.settings import valid_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.registering.served import served_aliases

MOST_NAMED = 5


def check_database(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that jobs go to PostgreSQL, through psycopg 3."""
    using = router.db_for_write(Job)
    vendor = connections[using].vendor
    if vendor != "postgresql":
        yield Error(
            f"Jobs are written to the database {using!r}, which is not PostgreSQL ({vendor}).",
            hint="Point that alias at PostgreSQL, or let a database router's db_for_write() send the app "
            '"pgjobs" to an alias that is. No PostgreSQL at hand? Install django-pgjobs[embedded], and for development '
            "and tests write DATABASES = {'default': django_pgjobs.embedded.database(BASE_DIR / '.pg')}.",
            id="pgjobs.E009",
        )
    elif not _uses_psycopg3():
        yield Error(
            f"The database {using!r} is used through psycopg2; jobs need psycopg 3.",
            hint='Install "django-pgjobs[binary]", which brings psycopg 3: Django prefers it for the whole project.',
            id="pgjobs.E010",
        )


def check_databases(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that each alias of the setting ``DATABASES`` is a database of its own on PostgreSQL."""
    if valid_conf() is None:
        return
    try:
        aliases = served_aliases()
    except ImproperlyConfigured as error:
        yield Error(str(error), hint="Let it return a list of aliases of DATABASES.", id="pgjobs.E023")
        return
    known: dict[str, str] = {}
    for alias in aliases:
        if alias not in connections.settings:
            yield Error(
                f'PGJOBS["DATABASES"] names {alias!r}, which is no alias of DATABASES.',
                hint=f"The aliases are: {', '.join(connections.settings)}.",
                id="pgjobs.E023",
            )
        elif (vendor := connections[alias].vendor) != "postgresql":
            yield Error(
                f'PGJOBS["DATABASES"] names {alias!r}, which is not PostgreSQL ({vendor}).',
                hint="Name aliases that lead to PostgreSQL only: jobs live nowhere else.",
                id="pgjobs.E023",
            )
        else:
            given = connections.settings[alias]
            target = repr([given.get(key) for key in ("HOST", "PORT", "NAME", "USER", "OPTIONS")])
            if (other := known.setdefault(target, alias)) != alias:
                yield Error(
                    f'PGJOBS["DATABASES"] names {other!r} and {alias!r}, which are the same database.',
                    hint="Name one of them: a worker serves no database twice.",
                    id="pgjobs.E024",
                )
    if aliases and (using := router.db_for_write(Job)) not in aliases:
        yield Warning(
            f'Jobs are written to the database {using!r}, which PGJOBS["DATABASES"] does not name.',
            hint="Name it too, or let your routers write jobs to one that is named: else no worker runs them.",
            id="pgjobs.W016",
        )
    for entry in registry.crons() if aliases else ():
        if entry.database not in (None, *aliases):
            yield Warning(
                f"Cron entry {entry.name} is in the database {entry.database!r}, "
                'which PGJOBS["DATABASES"] does not name.',
                hint="Name it too, or another one in the call of the entry: else no worker fires it.",
                id="pgjobs.W016",
            )


def check_atomic_jobs(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that atomic jobs write where their rows are: one transaction cannot span two databases."""
    using = router.db_for_write(Job)
    atomic = sorted(definition.name for definition in registry.definitions() if definition.atomic)
    if atomic and using != DEFAULT_DB_ALIAS:
        yield Warning(
            f"Jobs are written to the database {using!r}, so the transactions of atomic jobs do not cover what they "
            f"write to {DEFAULT_DB_ALIAS!r}: {', '.join(atomic[:MOST_NAMED])}{', …' if atomic[MOST_NAMED:] else ''}.",
            hint=f"Keep the jobs beside the data that they change; if these write to {using!r} only, silence this.",
            id="pgjobs.W005",
        )


def check_driver(app_configs: Sequence[AppConfig] | None = None, **_: object) -> Iterator[CheckMessage]:
    """Check that psycopg has its C extension; for deployments."""
    if psycopg.pq.__impl__ == "python":
        yield Warning(
            "psycopg runs without its C extension, so each statement takes several times as much CPU.",
            hint='Install "django-pgjobs[binary]", or "django-pgjobs[c]" to build it here.',
            id="pgjobs.W015",
        )


def _uses_psycopg3() -> bool:
    return bool(import_string("django.db.backends.postgresql.psycopg_any.is_psycopg3"))
