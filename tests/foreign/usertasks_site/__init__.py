"""A site with django-user-tasks: it follows tasks of Celery by their signals, in rows that users see."""

from __future__ import annotations

from tests.foreign.celery_app import make

app = make()
