"""Settings of the benchmarks: the package alone, on the server that DATABASE_URL names.

``benchmarks.run`` makes databases of its own there and passes their names by PGJOBS_BENCH_DATABASE. A module that you
run by itself uses the database that DATABASE_URL names, and empties its tables.
"""

from __future__ import annotations

import os

import environ

SECRET_KEY = "benchmarks only"
USE_TZ = True
INSTALLED_APPS = ["django_pgjobs", "benchmarks"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PGJOBS = {"RETENTION_HOURS": {"succeeded": 0}} if os.environ.get("PGJOBS_BENCH_KEEP") == "nothing" else {}
_DATABASE = environ.Env().db()
_NAME = os.environ.get("PGJOBS_BENCH_DATABASE", _DATABASE["NAME"])
DATABASES = {"default": {**_DATABASE, "NAME": _NAME}, "small": {**_DATABASE, "NAME": f"{_NAME}_small"}}
