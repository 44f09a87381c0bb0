"""Settings of the site with django-user-tasks."""

from __future__ import annotations

import os

from tests.foreign.settings import *  # noqa: F403
from tests.foreign.settings import BASIC_APPS

INSTALLED_APPS = [*BASIC_APPS, "rest_framework", "user_tasks", "tests.foreign.usertasks_site"]
ROOT_URLCONF = "user_tasks.urls"
AUTHENTICATION_BACKENDS = ["rules.permissions.ObjectPermissionBackend", "django.contrib.auth.backends.ModelBackend"]
BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("PGJOBS_FOREIGN_REDIS")
