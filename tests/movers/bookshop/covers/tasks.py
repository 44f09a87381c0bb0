"""Two tasks: members of a group, and one with a soft limit."""

from __future__ import annotations

import time

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded

from ..orders.models import done


@shared_task
def thumbnail(token: str, size: str) -> None:
    done(token, size)


@shared_task(soft_time_limit=1, time_limit=30)
def render(token: str) -> None:
    try:
        if token[1] == "0":  # a cover that no printer can read
            while True:
                time.sleep(0.01)
    except SoftTimeLimitExceeded:
        pass
    done(token, "render")
