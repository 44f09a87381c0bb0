"""Three tasks: two ways to retry, and reminders by ``eta``."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from ..orders.models import done


@shared_task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=True, retry_jitter=False, max_retries=3)
def send(self: Any, token: str) -> None:
    if self.request.retries == 0:
        raise ConnectionError("the mail server is busy")
    done(token, "send")


@shared_task(bind=True, max_retries=5)
def newsletter(self: Any, token: str) -> None:
    if self.request.retries < 2:
        raise self.retry(countdown=0.5)
    done(token, "newsletter")


@shared_task
def remind(token: str) -> None:
    done(token, "remind")
