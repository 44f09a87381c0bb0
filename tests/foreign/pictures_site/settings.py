"""Settings of the site with django-pictures, which has a queue of its own."""

from __future__ import annotations

from tests.foreign.settings import *  # noqa: F403
from tests.foreign.settings import BACKEND, BASIC_APPS

INSTALLED_APPS = [*BASIC_APPS, "pictures", "tests.foreign.pictures_site"]
TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "pictures"]}}
PICTURES = {"PIXEL_DENSITIES": [1]}
