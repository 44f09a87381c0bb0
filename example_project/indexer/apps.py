"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class LibraryConfig(AppConfig):
    """``"example_project.indexer"`` in ``INSTALLED_APPS``."""

    name = "example_project.indexer"
    label = "library"
    default_auto_field = "django.db.models.BigAutoField"
