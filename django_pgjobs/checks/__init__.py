"""System checks: they find errors in a project's use of this app before a worker starts.

=============  =========================================================================================
pgjobs.E001    ``PGJOBS`` is not a dict
pgjobs.E002    ``PGJOBS`` has an unknown key
pgjobs.E003    a setting has the wrong type
pgjobs.E004    a setting is out of its range
pgjobs.E005    ``LEASE_SECONDS`` is less than three times ``RENEW_SECONDS``
pgjobs.E006    ``STALE_SECONDS`` is not more than twice ``BEAT_SECONDS``
pgjobs.E007    ``RESCUE_GRACE_SECONDS`` leaves a job's own worker no time to end it
pgjobs.E008    a default is out of its bounds
pgjobs.E009    jobs are written to a database that is not PostgreSQL
pgjobs.E010    the database is used through psycopg2
pgjobs.E011    a path in ``MIDDLEWARE`` does not name a factory
pgjobs.E012    a foreign key to Job would block pruning
pgjobs.E013    an index on Job holds or names a column that claims change
pgjobs.E014    a job is declared with a queue that ``QUEUES`` does not allow
pgjobs.E015    a job is declared with options that the settings do not allow
pgjobs.E016    a setting by queue names a queue that ``QUEUES`` does not allow
pgjobs.E017    a cron entry is declared with values that the settings do not allow
pgjobs.E018    ``NOTIFY_FAILURES`` names nothing that can deliver a notice
pgjobs.E019    a middleware captures the header ``task``, which belongs to ``django.tasks``
pgjobs.E020    ``TASKS`` names a backend of ours, and the app is not installed
pgjobs.E021    ``DATABASE`` of an alias of ``TASKS`` is unknown, or not PostgreSQL
pgjobs.E022    ``OPTIONS`` of an alias of ``TASKS`` has an unknown key or a wrong value
pgjobs.E023    ``DATABASES`` names an alias that is unknown or not PostgreSQL, or cannot be called
pgjobs.E024    two aliases of ``DATABASES`` are the same database
pgjobs.E025    ``EXECUTOR_KILL_MEGABYTES`` is not above ``EXECUTOR_MAX_MEGABYTES``
pgjobs.E026    with a bridge for Celery: something that a job cannot have, by name
pgjobs.E027    with a bridge for Celery: a schedule of ``beat_schedule`` that cannot be fired here
pgjobs.W001    another app's ``runjobs`` command shadows ours
pgjobs.W002    a job declares retry options and ``max_attempts=1``
pgjobs.W003    a job's ``give_up_on`` covers every exception of its ``retry_on``
pgjobs.W004    a job's limit per key can never be reached because the limit of the job is lower
pgjobs.W005    there are atomic jobs, and jobs are not written to the database ``default``
pgjobs.W006    with ``--database``: unfinished jobs need a name that this code does not know
pgjobs.W007    with ``--database``: the names that unfinished jobs need cannot be read
pgjobs.W008    ``NOTIFY_FAILURES`` mails the admins, and there are none
pgjobs.W009    ``OPTIONS`` of an alias of ``TASKS`` names a path at which there is no task
pgjobs.W010    an alias of ``TASKS`` allows queues that ``QUEUES`` does not
pgjobs.W011    jobs of tasks are deleted as they succeed, so there are no results to get
pgjobs.W012    an alias of ``TASKS`` has ``ENQUEUE_ON_COMMIT``, which does nothing
pgjobs.W013    a pattern of ``MODULES`` names no module
pgjobs.W014    a job or cron entry is declared in a module that workers do not import
pgjobs.W015    with ``--deploy``: psycopg runs in Python, without its C extension
pgjobs.W016    jobs are written to a database that ``DATABASES`` does not name
pgjobs.W017    with ``--database``: Citus has distributed the tables
pgjobs.W018    with a bridge for Celery: receivers or boot steps that only Celery's workers call
=============  =========================================================================================

E020 to E022 and W009 to W012 are of ``tasks``: Django asks each backend of ``TASKS`` for them, under no tag. E026, E027
and W018 are of ``celery_bridge``, which registers its check itself.

Every check is a generator. Django runs them all under the tag ``pgjobs``, in the order of ``CHECKS``:
``apps`` registers ``check_project``. Web processes run no checks and never load this room. It imports ``models``,
``definition``, ``middleware`` and ``conf``. A check judges settings, models and declarations; it must never query the
database. ``check_names`` alone does, in the databases that Django passes to it, so it is not among ``CHECKS``: it has
the tag ``database`` instead, as from Django 6.1 on a check whose tag is named runs on every database. ``check_driver``
is not among them either: it matters only where workers are deployed. Checks that need
valid settings stay silent while E001 to E004 report invalid ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from django.core.checks import CheckMessage

from django_pgjobs.checks.database import check_atomic_jobs, check_database, check_databases, check_driver
from django_pgjobs.checks.jobs import check_definitions, check_modules
from django_pgjobs.checks.models import check_foreign_keys, check_indexes
from django_pgjobs.checks.names import check_names
from django_pgjobs.checks.settings import (
    check_commands,
    check_defaults,
    check_middleware,
    check_named_queues,
    check_notices,
    check_relations,
    check_settings,
)

__all__ = [
    "CHECKS",
    "check_atomic_jobs",
    "check_commands",
    "check_database",
    "check_databases",
    "check_defaults",
    "check_definitions",
    "check_driver",
    "check_foreign_keys",
    "check_indexes",
    "check_middleware",
    "check_modules",
    "check_named_queues",
    "check_names",
    "check_notices",
    "check_project",
    "check_relations",
    "check_settings",
]

CHECKS: tuple[Callable[..., Iterable[CheckMessage]], ...] = (
    check_settings, check_relations, check_defaults, check_named_queues, check_middleware, check_notices,
    check_database, check_databases, check_atomic_jobs, check_foreign_keys, check_indexes, check_commands,
    check_definitions, check_modules,
)  # fmt: skip


def check_project(**given: object) -> Iterator[CheckMessage]:
    """Yield the findings of all checks. ``given``: the arguments that Django passes to a check."""
    for check in CHECKS:
        yield from check(**given)
