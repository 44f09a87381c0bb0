"""The settings of the tests of tasks, and the tasks decorated under them."""

from __future__ import annotations

from typing import Any

from django.test import override_settings

BACKEND = "django_pgjobs.tasks.PgJobsBackend"

TASKS: dict[str, Any] = {"default": {"BACKEND": BACKEND, "QUEUES": []}}

with override_settings(TASKS=TASKS):
    from tests.db import tasks_cast as cast

__all__ = ["BACKEND", "TASKS", "cast"]
