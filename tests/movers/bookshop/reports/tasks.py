"""Three tasks: a chord, and one that schedules call."""

from __future__ import annotations

from celery import shared_task

from ..orders.models import done


@shared_task
def count(part: int) -> int:
    return part


@shared_task
def total(counts: list[int], token: str) -> int:
    done(token, f"total {sum(counts)}")
    return sum(counts)


@shared_task
def tick(schedule: str) -> None:
    done(schedule, "tick")
