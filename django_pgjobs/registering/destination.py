"""The database to which a registration goes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.models.base import Model

from django_pgjobs.conf import get_conf
from django_pgjobs.context import running_alias
from django_pgjobs.definition.signature import call_site
from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import listed
from django_pgjobs.logs import log as logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgjobs.store.new_jobs import NewJobs

_warned_sites: set[tuple[str, str]] = set()

_NOTHING: Mapping[str, object] = {}

_judged: set[tuple[str, bool]] = set()
"""Aliases that ``_warn_if_unserved`` has looked at, each with whether routers chose it."""


def writable_alias(database: str | None, new: Iterable[NewJobs] = (), **hints: object) -> str:
    """Return the alias of ``connection_for``; without jobs, the routers get ``hints``. Raises ``InvalidJob``."""
    return _connection(_chosen(new, hints) if database is None else database, chosen=database is None).alias


def routed(model: type[Model], hints: Mapping[str, object] = _NOTHING, *, read: bool = False) -> str:
    """Return the alias for rows of a model of ours: the routers' choice, else that of the job that runs here.

    In a job the routers get a ``Job`` of its database as the hint ``instance``, by which Django decides where they
    return None.
    """
    here = running_alias()
    if here is not None:
        hints = {**hints, "instance": _related(here)}
    return str((router.db_for_read if read else router.db_for_write)(model, **hints))


def connection_for(
    database: str | None, new: Sequence[NewJobs] = (), needed: Iterable[tuple[str, Iterable[object]]] = ()
) -> BaseDatabaseWrapper:
    """Return the connection for new jobs: to ``database`` or, if that is None, to the one that the routers choose.

    They get the name, queue, key and tags of each as hints. ``needed``: names, and the jobs that these need. Raises
    ``InvalidJob``, also if the routers choose several, or if a needed job is elsewhere. Logs an open transaction of
    another alias, which the jobs do not join.
    """
    connection = _connection(_chosen(new, {}) if database is None else database, chosen=database is None)
    for name, jobs in needed:
        _check_needed(connection.alias, name, jobs)
    if new:
        _warn_of_foreign_transaction(connection, new[0].first.name)
    return connection


def check_members(using: str, new: Iterable[NewJobs]) -> None:
    """Refuse jobs that the routers send elsewhere than the batch or flow that they sent to ``using``.

    Where they return None, a job follows its batch or flow. Raises ``InvalidJob``.
    """
    if not router.routers:
        return
    for some in new:
        for hints in _hints_of(some):
            sent = router.db_for_write(job_model(), **hints, instance=_related(using))
            if sent != using:
                raise InvalidJob(
                    f"job {some.first.name!r}: it has to go to database {using!r}, as its batch or flow, and your "
                    f"routers send it to {sent!r}: pass database={sent!r} to the batch or flow"
                )


def _connection(using: str, *, chosen: bool) -> BaseDatabaseWrapper:
    if using not in connections.settings:
        raise InvalidJob(f"there is no database {using!r}{did_you_mean(using, connections.settings)}")
    connection = connections[using]
    if connection.vendor != "postgresql":
        raise InvalidJob(f"jobs live on PostgreSQL; database {using!r} is {connection.display_name}")
    if (using, chosen) not in _judged:
        _warn_if_unserved(using, chosen=chosen)
    return connection


def _hints_of(some: NewJobs) -> Iterator[dict[str, object]]:
    first = some.first
    for key in set(some.keys or (first.key,)):
        yield {"name": first.name, "queue": first.queue, "key": key, "tags": first.tags or ()}


def _chosen(new: Iterable[NewJobs], hints: Mapping[str, object]) -> str:
    if not router.routers:
        return routed(job_model())
    chosen = {routed(job_model(), each) for some in new for each in _hints_of(some)}
    if len(chosen) > 1:
        raise InvalidJob(f"one call registers in one database, and your routers send these jobs to {listed(chosen)}")
    return chosen.pop() if chosen else routed(job_model(), hints)


def _warn_if_unserved(using: str, *, chosen: bool) -> None:
    """Warn once per alias of jobs where workers that are started without ``--database`` do not look.

    ``chosen``: by the routers. Without the setting ``DATABASES`` nothing is known of aliases that callers name.
    """
    said = get_conf().databases
    if not isinstance(said, tuple | None) and any(
        each.in_atomic_block for each in connections.all(initialized_only=True)
    ):
        return  # later: it is code of the project, which may ask a database, and this transaction is the caller's
    served: tuple[str, ...] = (router.db_for_write(job_model()) if chosen else using,)
    if said is not None:
        from django_pgjobs.registering.served import served_aliases  # here for start-up time

        try:
            served = served_aliases() or served
        except ImproperlyConfigured:
            served = (using,)  # workers and checks say so
    _judged.add((using, chosen))
    if using not in (*served, running_alias()):
        logger.warning(
            "job registered where workers do not look unless --database says so alias=%s served=%s at=%s: name the "
            'alias in PGJOBS["DATABASES"], too',
            using,
            listed(served),
            call_site(),
        )


def _warn_of_foreign_transaction(connection: BaseDatabaseWrapper, name: str) -> None:
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


def _check_needed(using: str, name: str, jobs: Iterable[Any]) -> None:
    """Refuse a needed job of another database: here another job may have its number. Raises ``InvalidJob``.

    Two aliases may lead to one database, such as to a replica: the row tells, by when it was stored.
    """
    for job in jobs:
        of = job._state.db
        if of in (None, using) or type(job)._base_manager.using(using).filter(pk=job.pk, created_at=job.created_at):
            continue
        raise InvalidJob(
            f"job {name!r}: after names job {job.pk} of database {of!r}, and this is for database {using!r}: "
            f"use database={of!r}"
        )


@cache
def _related(using: str) -> Model:
    job = job_model()()
    job._state.db = using
    return job


@cache
def job_model() -> type[Model]:
    """Return the model of jobs, looked up late: importing ``job`` needs no app registry."""
    return apps.get_model("pgjobs", "Job")
