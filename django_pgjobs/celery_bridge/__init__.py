"""Celery's tasks as jobs: one line in ``celery.py``, and the tasks stay as they are.

::

    from celery import Celery
    from django_pgjobs.celery_bridge import install

    app = Celery("shop")
    app.config_from_object("django.conf:settings", namespace="CELERY")
    app.autodiscover_tasks()
    install(app)

Celery builds each message, and this room stores it as a job instead of publishing it; workers of ours hand the job to
Celery's own tracer. Options, routes, base classes, hooks, signals, retries and the canvas are Celery's code; claims,
retries in place, timeouts, results and schedules are the engine's. See docs/adr/0058.

Nothing of the engine imports this room; importing it imports Celery only when ``install`` is called.
"""

from __future__ import annotations

from django_pgjobs.celery_bridge.installing import install

__all__ = ["install"]
