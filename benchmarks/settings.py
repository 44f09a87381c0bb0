"""Settings of the benchmarks: the package alone, on the server that DATABASE_URL names.

``benchmarks.run`` makes databases of its own there and passes their names by PGJOBS_BENCH_DATABASE. A module that you
run by itself uses the database that DATABASE_URL names, and empties its tables.
"""

from __future__ import annotations

import os
from typing import Any

import environ

SECRET_KEY = "benchmarks only"
USE_TZ = True
INSTALLED_APPS = ["django_pgjobs", "benchmarks"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PGJOBS: dict[str, Any] = {}
if os.environ.get("PGJOBS_BENCH_KEEP") == "nothing":
    PGJOBS["RETENTION"] = {"succeeded": 0}
if _PORT := os.environ.get("PGJOBS_BENCH_METRICS_PORT"):
    PGJOBS |= {"METRICS_PORT": int(_PORT), "NOTIFY_FAILURES": {"to": "mail_admins"}}
if _SAMPLED := os.environ.get("PGJOBS_BENCH_TRACED"):
    from benchmarks import tracing

    tracing.begin(float(_SAMPLED))
    PGJOBS["MIDDLEWARE"] = ["django_pgjobs.telemetry.otel.tracing"]
if os.environ.get("PGJOBS_BENCH_SCHEMAS"):
    PGJOBS["SCHEMAS"] = "benchmarks.tenants.names"
if os.environ.get("PGJOBS_BENCH_TASKS"):
    TASKS = {"default": {"BACKEND": "django_pgjobs.tasks.PgJobsBackend"}}
_DATABASE = environ.Env().db()
_NAME = os.environ.get("PGJOBS_BENCH_DATABASE", _DATABASE["NAME"])
DATABASES = {"default": {**_DATABASE, "NAME": _NAME}, "small": {**_DATABASE, "NAME": f"{_NAME}_small"}}
