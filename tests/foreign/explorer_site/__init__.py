"""A site with django-sql-explorer, which mails and uploads the results of queries by tasks of Celery."""

from __future__ import annotations

from tests.foreign.celery_app import make

app = make(namespace="CELERY")
