"""What the settings of all sites share. Each site adds its apps, its ``TASKS`` and what its package needs.

``PGJOBS_FOREIGN_FILES`` is a directory for uploaded files, the same in the scenario and in its workers, and
``PGJOBS_TEST_CONF`` is ``PGJOBS`` as JSON, as the fixture ``worker`` sets it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import environ

SECRET_KEY = "tests only"
DEBUG = False
USE_TZ = True
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
MEDIA_URL = "/media/"
MEDIA_ROOT = str(Path(os.environ["PGJOBS_FOREIGN_FILES"]) / "media")
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

BASIC_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django_pgjobs",
]
DATABASES = {"default": environ.Env.db_url_config(os.environ["DATABASE_URL"], engine="django.db.backends.postgresql")}
PGJOBS = json.loads(os.environ.get("PGJOBS_TEST_CONF", "{}"))
# Of sites with pages and an admin.
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.request",
            ]
        },
    }
]
BACKEND = "django_pgjobs.tasks.PgJobsBackend"
