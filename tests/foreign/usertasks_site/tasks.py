"""Tasks on the base class that django-user-tasks gives."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from user_tasks.tasks import UserTask


class Named(UserTask):
    """Names its rows after what they work on."""

    @classmethod
    def generate_name(cls, arguments_dict: dict[str, Any]) -> str:
        return str(arguments_dict["what"])

    @staticmethod
    def calculate_total_steps(arguments_dict: dict[str, Any]) -> int:
        return 2


@shared_task(base=Named, bind=True)
def works(self: Any, user_id: int, what: str, **_: Any) -> str:
    """Do the first of two steps; the end counts as the other."""
    self.status.increment_completed_steps()
    return what


@shared_task(base=Named, bind=True)
def fails(self: Any, user_id: int, what: str) -> None:
    """Raise an error."""
    raise ValueError(what)


@shared_task(base=Named, bind=True, max_retries=3)
def tries(self: Any, user_id: int, what: str) -> str:
    """Succeed at the third time."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return what
