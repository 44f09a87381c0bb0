"""Settings of the test project. The database comes from DATABASE_URL; ``make test`` starts one if it is unset."""

from __future__ import annotations

import os
from pathlib import Path

import environ

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "tests only"
DEBUG = False
USE_TZ = os.environ.get("PGJOBS_TEST_USE_TZ", "1") == "1"
TIME_ZONE = os.environ.get("PGJOBS_TEST_TIME_ZONE", "UTC")
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["*"]
STATIC_URL = "/static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_pgjobs",
    "tests",
]
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
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

_default = environ.Env.db_url_config(
    os.environ.get("DATABASE_URL", "postgres://postgres@127.0.0.1:5432/postgres"),
    engine="django.db.backends.postgresql",
)
DATABASES = {
    "default": {**_default, "TEST": {"NAME": os.environ.get("PGJOBS_TEST_DATABASE", "test_pgjobs")}},
    # A second database that is not PostgreSQL: our migrations must leave it alone.
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
DATABASE_ROUTERS = ["tests.routers.EverythingOnDefault"]

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
PGJOBS: dict[str, object] = {}
