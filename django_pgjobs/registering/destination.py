"""The database to which a registration goes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import connections, router
from django.db.models.base import Model

from django_pgjobs.definition.options import did_you_mean
from django_pgjobs.definition.signature import call_site
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import listed, safe_logger

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

logger = safe_logger("django_pgjobs")

_warned_sites: set[tuple[str, str]] = set()


def writable_alias(database: str | None) -> str:
    """Return the alias that jobs for ``database`` go to; None: the router decides. Raises ``InvalidJob``."""
    return connection_for(database).alias


def connection_for(database: str | None) -> BaseDatabaseWrapper:
    """Return the connection of ``writable_alias``."""
    using = router.db_for_write(job_model()) if database is None else database
    if using not in connections.settings:
        raise InvalidJob(f"there is no database {using!r}{did_you_mean(using, connections.settings)}")
    connection = connections[using]
    if connection.vendor != "postgresql":
        raise InvalidJob(f"jobs live on PostgreSQL; database {using!r} is {connection.display_name}")
    return connection


def warn_of_foreign_transaction(connection: BaseDatabaseWrapper, name: str) -> None:
    """Warn once per call site and name that the job does not join the open transaction of *another* alias."""
    if connection.in_atomic_block or len(connections.settings) == 1:
        return
    own = connection.alias
    others = [using for using in connections.settings if using != own and connections[using].in_atomic_block]
    if not others:
        return
    site = call_site()
    # By name, too: in a thread of asynchronous code all calls come from one line.
    if (site, name) not in _warned_sites:
        _warned_sites.add((site, name))
        logger.warning(
            "job registered outside of the open transaction name=%s alias=%s open=%s at=%s: it is stored "
            "at once and stays if that transaction is rolled back",
            name,
            connection.alias,
            listed(others),
            site,
        )


@cache
def job_model() -> type[Model]:
    """Return the model of jobs, looked up late: importing ``job`` needs no app registry."""
    return apps.get_model("pgjobs", "Job")
