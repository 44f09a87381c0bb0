"""Settings of the shop: PostgreSQL by DATABASE_URL, Redis by REDIS_URL."""

from __future__ import annotations

import os

import environ

SECRET_KEY = "of a shop in a test"
ALLOWED_HOSTS = ["testserver"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "bookshop.orders.views"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django_celery_beat",
    "bookshop.orders",
    "bookshop.letters",
    "bookshop.covers",
    "bookshop.reports",
]
DATABASES = {
    "default": environ.Env.db_url_config(os.environ["DATABASE_URL"], engine="django.db.backends.postgresql"),
}

CELERY_BROKER_URL = CELERY_RESULT_BACKEND = os.environ.get("REDIS_URL")
CELERY_TASK_ROUTES = {"bookshop.letters.*": {"queue": "mail"}, "bookshop.covers.*": {"queue": "covers"}}
CELERY_TASK_TRACK_STARTED = True
CELERY_BEAT_SCHEDULE = {
    "sales": {"task": "bookshop.reports.tasks.tick", "schedule": 2.0, "args": ("sales",)},
}
CELERY_BEAT_MAX_LOOP_INTERVAL = 1
