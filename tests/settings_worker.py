"""Settings of the workers that end-to-end tests start; each test says what differs by environment variables.

``PGJOBS_TEST_CONF`` is ``PGJOBS`` as JSON, ``PGJOBS_TEST_EXECUTOR_DATABASE_URL`` a database for executors alone,
``PGJOBS_TEST_SECOND_DATABASE_URL`` one for the alias ``second``, ``PGJOBS_TEST_ROLE`` a role that connections take on,
``PGJOBS_TEST_UNROUTED`` leaves the routers out.
``PGJOBS_TEST_DATABASES`` changes ``DATABASES``: JSON of what each alias gets besides.
``PGJOBS_TEST_MAIL`` Django's settings of mail as JSON, ``PGJOBS_TEST_TASKS`` those of ``TASKS``.
"""

from __future__ import annotations

import json
import os
import sys

import environ

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.e2e"]
PGJOBS = json.loads(os.environ.get("PGJOBS_TEST_CONF", "{}"))
DEBUG = os.environ.get("PGJOBS_TEST_DEBUG") == "1"
LANGUAGE_CODE = "en"
globals().update(json.loads(os.environ.get("PGJOBS_TEST_MAIL", "{}")))
if tasks := os.environ.get("PGJOBS_TEST_TASKS"):
    TASKS = json.loads(tasks)


def _database(variable: str) -> dict[str, object] | None:
    url = os.environ.get(variable)
    return environ.Env.db_url_config(url, engine="django.db.backends.postgresql") if url else None


if second := _database("PGJOBS_TEST_SECOND_DATABASE_URL"):
    DATABASES["second"] = second
if os.environ.get("PGJOBS_TEST_UNROUTED") == "1":
    DATABASE_ROUTERS = []
if role := os.environ.get("PGJOBS_TEST_ROLE"):
    DATABASES["default"] = {**DATABASES["default"], "OPTIONS": {"assume_role": role}}
for alias, given in json.loads(os.environ.get("PGJOBS_TEST_DATABASES", "{}")).items():
    DATABASES[alias] = {**DATABASES.get(alias, {}), **given}
if "executor" in sys.argv and (elsewhere := _database("PGJOBS_TEST_EXECUTOR_DATABASE_URL")):
    DATABASES["default"] = elsewhere
