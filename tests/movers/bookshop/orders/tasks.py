"""Five tasks: after the commit, a chain, and a base class with a hook."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from .models import done


class Refusable(Task):
    """Tells of a card that was refused."""

    def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        done(args[0], "refused")


@shared_task
def confirm(token: str) -> None:
    done(token, "confirm")


@shared_task(base=Refusable, throws=(ValueError,))
def charge(token: str, card: str) -> str:
    if card == "stolen":
        raise ValueError("card refused")
    done(token, "charge")
    return token


@shared_task
def reserve(token: str) -> str:
    done(token, "reserve")
    return token


@shared_task
def pack(token: str) -> str:
    done(token, "pack")
    return token


@shared_task(acks_late=True)
def ship(token: str) -> None:
    done(token, "ship")
