"""A site with celery-haystack-ng: what is saved is indexed by a task of Celery after the commit."""

from __future__ import annotations

from tests.foreign.celery_app import make

app = make()
