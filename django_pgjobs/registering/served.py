"""The databases that the workers of this project serve, as its settings say."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_pgjobs.conf import get_conf
from django_pgjobs.values import setting_rules


def served_aliases() -> tuple[str, ...]:
    """Return the aliases of ``PGJOBS["DATABASES"]``, empty without that setting. May call code of the project.

    Raises ``ImproperlyConfigured``.
    """
    given = get_conf().databases
    if given is None or isinstance(given, tuple):
        return given or ()
    try:
        found = (import_string(given) if isinstance(given, str) else given)()
        return tuple(setting_rules.alias_list(found))
    except Exception as error:
        raise ImproperlyConfigured(f'PGJOBS["DATABASES"]: {given!r} cannot be used: {error}') from error


def several_aliases() -> tuple[str, ...]:
    """Return them where they are several, else none: then pages, commands and figures say of which each thing is."""
    found = served_aliases()
    return found if len(found) > 1 else ()


def served_schemas() -> tuple[str, ...]:
    """Return what ``PGJOBS["SCHEMAS"]`` names now. Calls code of the project. Raises ``ImproperlyConfigured``."""
    given: Any = get_conf().schemas
    try:
        return setting_rules.schema_list((import_string(given) if isinstance(given, str) else given)())
    except Exception as error:
        raise ImproperlyConfigured(f'PGJOBS["SCHEMAS"]: {given!r} cannot be used: {error}') from error
