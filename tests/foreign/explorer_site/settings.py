"""Settings of the site with django-sql-explorer; its snapshots go to a server of S3 that the driver is."""

from __future__ import annotations

import os

from tests.foreign.settings import *  # noqa: F403
from tests.foreign.settings import BASIC_APPS, MEDIA_ROOT

INSTALLED_APPS = [*BASIC_APPS, "django.contrib.admin", "django.contrib.staticfiles", "explorer"]
ROOT_URLCONF = "tests.foreign.explorer_site.urls"
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = f"{MEDIA_ROOT}/mails"
EXPLORER_CONNECTIONS = {"Primary": "default"}
EXPLORER_TASKS_ENABLED = True
EXPLORER_ENABLE_ANONYMOUS_STATS = False
EXPLORER_S3_ENDPOINT_URL = f"http://127.0.0.1:{os.environ.get('PGJOBS_FOREIGN_PORT')}"
EXPLORER_S3_BUCKET = EXPLORER_S3_ACCESS_KEY = EXPLORER_S3_SECRET_KEY = "snapshots"
CELERY_BROKER_URL = os.environ.get("PGJOBS_FOREIGN_REDIS")
CELERY_TASK_ANNOTATIONS = {"explorer.tasks.snapshot_query": {"default_retry_delay": 1}}
