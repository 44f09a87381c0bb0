"""The Django app: finds the project's jobs and registers the system checks, without a query."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Tags
from django.core.checks import register as register_check
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.flows import builtin as builtin  # the registry knows its jobs from now on
from django_pgjobs.jobs import definition
from django_pgjobs.registering import register

if TYPE_CHECKING:
    from django_pgjobs.jobs import JobDefinition
    from django_pgjobs.store.new_jobs import NewJob


class PgJobsConfig(AppConfig):
    """``"django_pgjobs"`` in ``INSTALLED_APPS``."""

    name = "django_pgjobs"
    label = "pgjobs"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.closed_at_once = _closed_at_once()
        """The aliases whose settings say that connections are not kept."""

    def ready(self) -> None:
        """Import where jobs are: ``jobs`` of every installed app, the modules that ``MODULES`` names, and ``tasks`` of
        every app if ``TASKS`` names us, and what fronts have asked for. Errors in them propagate."""
        _unmute_loggers()
        register.run_bypassed = _run_bypassed
        autodiscover_modules("jobs")
        _import_modules()
        _discover_tasks()
        registry.discover()
        register_check(_check_project, "pgjobs")
        register_check(_check_driver, "pgjobs", deploy=True)
        register_check(_check_names, Tags.database)
        _register_metrics()


def _unmute_loggers() -> None:
    """Enable our loggers: ``LOGGING`` disables those that exist already if the settings import this package."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "django_pgjobs":
            logger.disabled = False


def _closed_at_once() -> set[str]:
    """Return the aliases whose ``CONN_MAX_AGE`` is 0, as long as Django has not written that default there itself."""
    if "settings" in vars(connections):
        return set()
    return {using for using, database in settings.DATABASES.items() if database.get("CONN_MAX_AGE") == 0}


def _import_modules() -> None:
    """Import the modules that ``MODULES`` names. A project that names none loads nothing for it."""
    try:
        patterns = get_conf().modules
    except ImproperlyConfigured:
        return  # the checks say what is wrong
    if not patterns:
        return
    from django_pgjobs.definition.discovery import modules_of  # here for start-up time

    for name in dict.fromkeys(name for pattern in patterns for name in modules_of(pattern)):
        import_module(name)


def _check_project(**given: object) -> Iterable[CheckMessage]:
    from django_pgjobs.checks import check_project  # here for start-up time

    return check_project(**given)


def _check_driver(**given: Any) -> Iterable[CheckMessage]:
    from django_pgjobs.checks import check_driver  # here for start-up time

    return check_driver(**given)


def _check_names(**given: Any) -> Iterable[CheckMessage]:
    if not given.get("databases"):
        return ()
    from django_pgjobs.checks import check_names  # here for start-up time

    return check_names(**given)


OF_DJANGO = ("django.tasks.", "django_tasks.")
"""Prefixes of the paths of Django's own backends of tasks."""


def _discover_tasks() -> None:
    """Make the tasks of installed apps known. A process that uses no backend of ours loads nothing for it."""
    tasks = getattr(settings, "TASKS", None)
    given = tasks.values() if isinstance(tasks, Mapping) else ()
    paths = [str(params.get("BACKEND")) for params in given if isinstance(params, Mapping)]
    if not [path for path in paths if not path.startswith(OF_DJANGO)]:
        return
    from django_pgjobs.tasks import settings as of_tasks  # here for start-up time

    if not of_tasks.our_aliases():
        return
    from django_pgjobs.tasks.discovery import discover  # here for start-up time

    try:
        discover()
    except ImproperlyConfigured:
        return  # the checks say what is wrong


def _as_task(definition: JobDefinition[..., Any], backend: str) -> object:
    from django_pgjobs.tasks.definitions import as_task  # here for start-up time

    return as_task(definition, backend)


# At once: a module of models may make a task of a job.
definition.made_task = _as_task


def _register_metrics() -> None:
    """Add the fleet's metrics to those of the process. A process that uses no metrics loads nothing for it."""
    try:
        wanted = get_conf().metrics
    except ImproperlyConfigured:
        return  # the checks say what is wrong
    if wanted is None:
        wanted = sys.modules.get("prometheus_client") is not None
    if not wanted:
        return
    try:
        from django_pgjobs.metrics.registry import register  # here for start-up time
    except ImportError as error:
        raise ImproperlyConfigured(
            'PGJOBS["METRICS"] is True, but prometheus_client cannot be imported: '
            f"pip install 'django-pgjobs[prometheus]' ({error})"
        ) from error
    register()


def _run_bypassed(new: NewJob) -> None:
    from django_pgjobs.running import bypass  # here for start-up time

    bypass.run(new)
