"""The Django app: finds the project's jobs and puts the system checks in place; asks no database anything."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class PgJobsConfig(AppConfig):
    """``"django_pgjobs"`` in ``INSTALLED_APPS``."""

    name = "django_pgjobs"
    label = "pgjobs"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the ``jobs`` module of every installed app; an error in one of them is raised as it is."""
        from django_pgjobs.checks import register_checks

        autodiscover_modules("jobs")
        register_checks()
