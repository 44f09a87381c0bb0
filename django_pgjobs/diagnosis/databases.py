"""The databases that pages, commands and metrics show: those that the workers of this project serve."""

from __future__ import annotations

from django.db import router

from django_pgjobs.models import Job
from django_pgjobs.registering.served import served_aliases


def shown_aliases() -> tuple[str, ...]:
    """Return the aliases of ``PGJOBS["DATABASES"]``; if there are not several, the one that jobs are written to.

    May call code of the project. Raises ``ImproperlyConfigured``.
    """
    aliases = served_aliases()
    return aliases if len(aliases) > 1 else (str(router.db_for_write(Job)),)
