"""``app.control``: to revoke a task cancels its job."""

from __future__ import annotations

from typing import Any

from celery.app.control import TERM_SIGNAME, Control

from django_pgjobs.celery_bridge import messages
from django_pgjobs.celery_bridge.bridges import bridge_of
from django_pgjobs.celery_bridge.running import TERMINATED


class JobsControl(Control):
    """Celery's own; what it says to workers reaches those of Celery alone."""

    def revoke(
        self, task_id: Any, destination: Any = None, terminate: bool = False, signal: Any = TERM_SIGNAME, **kwargs: Any
    ) -> Any:
        """Cancel the jobs of these ids; with ``terminate`` kill the process of one that runs. Repeatable."""
        ids = list(task_id) if isinstance(task_id, list | tuple | set) else [task_id]
        rest = []
        for each in ids:
            job = messages.job_of(each)
            if job is None:
                rest.append(each)
            elif terminate:
                job.cancel(mode="kill", by="celery", reason=TERMINATED)
            else:  # a running one ends by itself, without a retry
                job.cancel(by="celery", reason="revoked")
        if rest and not bridge_of(self.app).takes_all:
            return super().revoke(rest, destination=destination, terminate=terminate, signal=signal, **kwargs)
        return None
