"""Wagtail's own test settings, on PostgreSQL and with the task backend that ``PGJOBS_FOREIGN_BACKEND`` names."""

from __future__ import annotations

import os

os.environ["DATABASE_ENGINE"] = "django.db.backends.postgresql"  # read by the settings that follow

from wagtail.test.settings import *  # noqa: F403
from wagtail.test.settings import INSTALLED_APPS

from tests.foreign.settings import DATABASES as DATABASES
from tests.foreign.settings import MEDIA_ROOT as MEDIA_ROOT

DATABASES["default"]["TEST"] = {"NAME": DATABASES["default"]["NAME"]}
INSTALLED_APPS = [*INSTALLED_APPS, "django_pgjobs"]
TASKS = {"default": {"BACKEND": os.environ["PGJOBS_FOREIGN_BACKEND"]}}
