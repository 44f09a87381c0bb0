"""Celery's app of the sites whose packages have tasks of Celery, with the line of docs/how-to/from-celery.md or not.

``PGJOBS_FOREIGN_CELERY`` decides: without it the app is Celery's alone; ``bridge`` is ``install(app)``; ``back`` is
``install(app, tasks=[])``. ``rows`` is for the tests of a package, which call eagerly: each such call is stored as a
job, and runs from its row before the call returns; the file ``rows`` lists these.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import after_task_publish
from django.conf import settings

from django_pgjobs.celery_bridge import install

MODE = os.environ.get("PGJOBS_FOREIGN_CELERY", "")
running = False


def make(namespace: str | None = None) -> Celery:
    """Return the app of a site, as the how-to has it."""
    app = Celery("site")
    app.config_from_object("django.conf:settings", namespace=namespace)
    app.autodiscover_tasks()
    if MODE:
        install(app, tasks=[] if MODE == "back" else ["*"])
    if MODE == "rows":
        app.on_after_configure.connect(_store_all, weak=False)
        after_task_publish.connect(_run_at_once, weak=False)
    return app


def _store_all(sender: Celery, **_: Any) -> None:
    sender.conf.task_always_eager = False


def _run_at_once(**_: Any) -> None:
    global running
    eager = ("CELERY_TASK_ALWAYS_EAGER", "CELERY_ALWAYS_EAGER")
    if running or not any(getattr(settings, name, False) for name in eager):
        return
    from django_pgjobs.testing import run_jobs  # here because apps are not loaded when the app is made

    running = True
    try:
        ran = run_jobs(include_scheduled=True)
        with (Path(os.environ["PGJOBS_FOREIGN_FILES"]) / "rows").open("a") as log:
            log.writelines(f"{job}\n" for job in ran.ran)
    finally:
        running = False
