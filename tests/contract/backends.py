"""Our backend with what Django's tests read of its Dummy: the results of what they have enqueued."""

from __future__ import annotations

from typing import Any

from django.db import connection

from django_pgjobs.tasks import PgJobsBackend


class CollectingBackend(PgJobsBackend):
    """Remembers the ids of what it was given, as Dummy remembers the results."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._enqueued: list[str] = []

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue it, and remember its id."""
        result = super().enqueue(task, args, kwargs)
        self._enqueued.append(result.id)
        return result

    @property
    def results(self) -> list[Any]:
        """Those of all tasks enqueued here, read anew."""
        return [self.get_result(each) for each in self._enqueued]

    def clear(self) -> None:
        """Delete the jobs of all tasks enqueued here."""
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM pgjobs_job WHERE id = ANY(%s)", [list(map(int, self._enqueued))])
        self._enqueued.clear()
