"""The context in which project code runs apart from its caller: nothing of the caller, as in a new process."""

from __future__ import annotations

from contextvars import Context

from django.conf import settings
from django.urls import set_script_prefix


def fresh_context() -> Context:
    """Return a context without language, zone or variables, but with the script prefix that ``django.setup()`` sets."""
    context = Context()
    if settings.FORCE_SCRIPT_NAME:
        context.run(set_script_prefix, settings.FORCE_SCRIPT_NAME)
    return context
