"""Settings of the benchmarks: the package alone, on the database that DATABASE_URL names."""

from __future__ import annotations

import environ

SECRET_KEY = "benchmarks only"
USE_TZ = True
INSTALLED_APPS = ["django_pgjobs", "benchmarks"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": environ.Env().db()}
