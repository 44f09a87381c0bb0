"""Settings of the run: our backend, and one attempt, since Immediate has no second."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_pgjobs"]
DATABASES = {"default": {**DATABASES["default"], "TEST": {"NAME": "test_pgjobs_contract"}}}
DATABASE_ROUTERS = []
# Two of the tests want no OPTIONS, so the number of attempts is said here.
PGJOBS = {"DEFAULT_MAX_ATTEMPTS": 1}
TASKS = {"default": {"BACKEND": "django_pgjobs.tasks.PgJobsBackend", "QUEUES": []}}
