"""What django-user-tasks' own tests ask of the settings, on PostgreSQL."""

from __future__ import annotations

import os

from tests.foreign.settings import DATABASES
from tests.foreign.usertasks_site.settings import *  # noqa: F403
from tests.foreign.usertasks_site.settings import INSTALLED_APPS

DATABASES["default"]["TEST"] = {"NAME": "test_pgjobs_foreign_own"}
INSTALLED_APPS = [*INSTALLED_APPS, "django.contrib.admin"]
ROOT_URLCONF = "tests.foreign.usertasks_site.own_urls"
BROKER_URL = "memory://"
CELERY_IGNORE_RESULT = True
CELERY_RESULT_BACKEND = f"file://{os.environ['PGJOBS_FOREIGN_FILES']}"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "user_task_artifacts": {
        "BACKEND": "storages.backends.s3boto3.S3Boto3Storage",
        "OPTIONS": {"bucket_name": "tasks", "location": "tasks/images"},
    },
}
