"""Settings of the site with django-crontask."""

from __future__ import annotations

from tests.foreign.settings import *  # noqa: F403
from tests.foreign.settings import BACKEND, BASIC_APPS

INSTALLED_APPS = [*BASIC_APPS, "crontask", "tests.foreign.crontask_site"]
TASKS = {"default": {"BACKEND": BACKEND}}
