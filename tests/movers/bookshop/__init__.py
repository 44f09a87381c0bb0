"""A shop on Celery, as its team had it before the move: four apps, twelve tasks, Redis and beat.

The move copies it to a folder of its own and edits ``celery.py`` and ``settings.py`` there. Each call is a promise, and
each task that ran leaves an effect: see ``orders.models``.
"""

from __future__ import annotations

from .celery import app as celery_app

__all__ = ("celery_app",)
