"""The Django app: finds the project's jobs and registers the system checks, without a query."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags
from django.core.checks import register as register_check
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _

from django_pgjobs.conf import get_conf
from django_pgjobs.flows import builtin as builtin  # the registry knows its jobs from now on
from django_pgjobs.registering import register

if TYPE_CHECKING:
    from django_pgjobs.store.registering import NewJob


class PgJobsConfig(AppConfig):
    """``"django_pgjobs"`` in ``INSTALLED_APPS``."""

    name = "django_pgjobs"
    label = "pgjobs"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the ``jobs`` module of every installed app; an error in one of them propagates."""
        register.run_bypassed = _run_bypassed
        autodiscover_modules("jobs")
        register_check(_check_project, "pgjobs")
        register_check(_check_names, Tags.database)
        _register_metrics()


def _check_project(**given: Any) -> Iterable[CheckMessage]:
    from django_pgjobs.checks import check_project  # here for start-up time

    return check_project(**given)


def _check_names(**given: Any) -> Iterable[CheckMessage]:
    if not given.get("databases"):
        return ()
    from django_pgjobs.checks import check_names  # here for start-up time

    return check_names(**given)


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
