"""Settings from the environment, by django-environ; a file ``.env`` beside this one is read first.

DATABASE_URL   PostgreSQL; needed, and set by ``python -m example_project.demo`` when it starts its own server
SECRET_KEY     a random one for each process if unset, so logins end with the server
DEBUG          off
ALLOWED_HOSTS  this machine
"""

from __future__ import annotations

import secrets
from pathlib import Path

import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent

env = environ.Env()
env.read_env(str(BASE_DIR / ".env"))

SECRET_KEY = env.str("SECRET_KEY", default=secrets.token_urlsafe(40))
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])

if not env.str("DATABASE_URL", default=""):
    raise ImproperlyConfigured(
        "The example project needs DATABASE_URL (PostgreSQL). `python -m example_project.demo` starts a server of "
        "its own; for other commands: python -m django_pgjobs.embedded --data .pg -- python manage.py …"
    )
DATABASES = {"default": {**env.db("DATABASE_URL"), "ENGINE": "django.db.backends.postgresql"}}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "django_pgjobs",
    "example_project.indexer",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
ROOT_URLCONF = "example_project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
TIME_ZONE = "UTC"
USE_TZ = True

PGJOBS = {"PROCESSES": env.int("PGJOBS_PROCESSES", default=2)}
