"""Checks of a database itself: that this code knows the names in it, and that its tables are where they must be.

The only checks that query a database. ``needed`` is for a look before and after a deploy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from django.apps import AppConfig
from django.core.checks import CheckMessage, Warning
from django.db import DatabaseError, connections, router

from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.serialization.escapes import one_line, plain
from django_pgjobs.store import counting, keeping
from django_pgjobs.store.database import at_read_committed, configure, is_not_migrated, on


class NeededName(NamedTuple):
    """A name that ``rows`` unfinished jobs need; for the ``use`` *undo*, as many remembered steps of such jobs.

    ``use``: *job*; *member* of a batch or flow; *step*, the next one of a step machine; or *undo*.
    """

    name: str
    use: str
    rows: int
    known: bool


def needed(using: str, **settings: str) -> list[NeededName]:
    """Return all of them, by name; ``settings`` apply to the statement, such as ``statement_timeout``.

    Reads every unfinished job.
    """
    with at_read_committed(using):
        db = on(using)
        if settings:
            configure(db, settings, local=True)
        return [NeededName(*row, registry.resolved(row.name) is not None) for row in counting.count_names(db)]


STATEMENT_TIMEOUT = "10s"
MOST_NAMED = 5


def check_names(
    app_configs: Sequence[AppConfig] | None = None, databases: Collection[str] | None = None, **_: object
) -> Iterator[CheckMessage]:
    """Check the rows in ``databases``, of which Django passes only those that the caller names."""
    for using in databases or ():
        if connections[using].vendor == "postgresql" and router.allow_migrate_model(using, Job):
            yield from _check(using)
            yield from check_distributed(using)


def check_distributed(using: str) -> Iterator[CheckMessage]:
    """Check one database for tables that Citus has distributed."""
    with suppress(DatabaseError):  # which the check above has told of
        if keeping.read_distributed(on(using), keeping.read_identity(on(using))):
            yield Warning(
                f"Citus has distributed tables of django-pgjobs in the database {using!r}: jobs are claimed less "
                "than half as fast, and no notification of another node starts one.",
                hint="Keep them local on each node that has data: migrate them with the connection option "
                "-c citus.enable_ddl_propagation=off.",
                id="pgjobs.W017",
            )


def _check(using: str) -> Iterator[CheckMessage]:
    try:
        unknown = [each for each in needed(using, statement_timeout=STATEMENT_TIMEOUT) if not each.known]
    except DatabaseError as error:
        if not is_not_migrated(error):  # "migrate" runs this check before it makes the tables
            yield Warning(
                f"The names that unfinished jobs in the database {using!r} need cannot be read: {one_line(error)}",
                hint="Look again when the database answers: manage.py pgjobs names reads them without a time limit.",
                id="pgjobs.W007",
            )
        return
    if unknown:
        named = ", ".join(f"{plain(one_line(each.name))} ({each.use}, {each.rows})" for each in unknown[:MOST_NAMED])
        yield Warning(
            f"Unfinished jobs in the database {using!r} need names that this code does not know: {named}"
            f"{', …' if unknown[MOST_NAMED:] else ''}.",
            hint="Keep each as name= or among aliases= until its jobs have ended, or cancel them: see manage.py pgjobs "
            "names.",
            id="pgjobs.W006",
        )
