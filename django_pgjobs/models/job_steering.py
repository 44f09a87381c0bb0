"""The methods of one job: steer it, ask why it waits, wait for it, register it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from asgiref.sync import sync_to_async
from django.db import models

from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.models.base import written_at
from django_pgjobs.values.asynchronous import asynchronous

if TYPE_CHECKING:
    from django_pgjobs.inspection.blockers import Blocker
    from django_pgjobs.inspection.words import Reason
    from django_pgjobs.steering.batching import Steered

F = TypeVar("F", bound=Callable[..., object])


def alters(method: F) -> F:
    """Mark a method that templates must not call."""
    method.alters_data = True  # type: ignore[attr-defined]
    return method


class Steerable(models.Model):
    """The steering methods of one job. None updates the instance: call ``refresh_from_db()`` to see the change."""

    class Meta:
        abstract = True

    def _itself(self) -> models.QuerySet[Self]:
        return models.QuerySet(type(self), using=written_at(self)).filter(pk=self.pk)

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The arguments by name, as registered, sensitive ones hidden; None if this process cannot read them."""
        from django_pgjobs.definition.registry import registry  # here for start-up time
        from django_pgjobs.serialization import payload  # here for start-up time

        job: Any = self
        definition = registry.resolved(job.name)
        if definition is None:
            return None
        try:
            args, kwargs = definition._load(json.dumps(job.payload))
        except UnreadablePayload:
            return None
        return payload.redact(definition._signature, args, kwargs, definition.sensitive)

    def why(self) -> Reason:
        """Return why this job does not run, or what happens to it, and what to do; reads the database, takes no lock.

        Its ``str()`` is the output of ``manage.py pgjobs why``.
        """
        from django_pgjobs.inspection import why  # here for start-up time
        from django_pgjobs.store.database import at_read_committed  # here for start-up time

        using = written_at(self)
        with at_read_committed(using):
            return why.of(self.pk, using)

    awhy = asynchronous(why)

    @alters
    def cancel(self, *, mode: str = "ask", by: object = None, reason: str = "") -> Steered:
        """Cancel this job; see ``JobQuerySet.cancel``."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.cancel(self._itself(), written_at(self), mode=mode, by=by, reason=reason)

    @alters
    def abandon(self, *, by: object = None, reason: str = "") -> Steered:
        """Abandon this job; see ``JobQuerySet.abandon``."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.abandon(self._itself(), written_at(self), by=by, reason=reason)

    @alters
    def retry(self, *, by: object = None, reason: str = "") -> Steered:
        """Make this job ready again; see ``JobQuerySet.retry``."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.retry(self._itself(), written_at(self), by=by, reason=reason)

    @alters
    def release(self, *, by: object = None, reason: str = "") -> Steered:
        """Ask this job's worker to release it; see ``JobQuerySet.release``."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.release(self._itself(), written_at(self), by=by, reason=reason)

    @alters
    def unblock(self, *, by: object = None, reason: str = "") -> Steered:
        """Let this job run, regardless of what it waits for; see ``JobQuerySet.unblock``."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.unblock(self._itself(), written_at(self), by=by, reason=reason)

    @alters
    def reschedule(
        self,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        queue: str | None = None,
        priority: int | None = None,
        by: object = None,
        reason: str = "",
    ) -> Steered:
        """Move this job; see ``JobQuerySet.reschedule``."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.reschedule(
            self._itself(),
            written_at(self),
            run_at=run_at,
            delay=delay,
            queue=queue,
            priority=priority,
            by=by,
            reason=reason,
        )

    @alters
    def take_stack(self, *, by: object = None, reason: str = "") -> Steered:
        """Ask the worker of this running job where it is; its answer comes to ``stacks``, within a second or so.

        If no notification arrives there, within ``BEAT_SECONDS``. Repeatable: an attempt has one open request. A job
        that is not running is skipped. Waits for the row's lock for up to 5 s.
        """
        from django_pgjobs.steering import jobs  # here for start-up time

        return jobs.take_stacks(self._itself(), written_at(self), by=by, reason=reason)

    @alters
    def send(self, name: str, payload: object = None, *, by: object = None) -> bool:
        """Send an event of this job alone, in the caller's transaction; return False if it was sent before.

        The job gets ``payload``, a value that can be stored as JSON, from ``context.wait_for(name, timeout=…)``, now or
        later; the first one counts. ``by``: a user or a text, for people to see. Raises ``InvalidJob``. Repeatable.
        Waits while another transaction sends the same event, or steers the job.
        """
        from django_pgjobs.durable import job_event  # here for start-up time
        from django_pgjobs.steering import events  # here for start-up time

        return events.send_value(written_at(self), job_event(self.pk, name), payload, by=by)

    acancel = asynchronous(cancel)
    aabandon = asynchronous(abandon)
    aretry = asynchronous(retry)
    arelease = asynchronous(release)
    aunblock = asynchronous(unblock)
    areschedule = asynchronous(reschedule)
    atake_stack = asynchronous(take_stack)
    asend = asynchronous(send)

    def blocked_by(self) -> list[Blocker]:
        """Return the limits without room that hold this job, and some of the jobs that hold their slots.

        Empty if the job is not ``limited``, is not due, or will be admitted at the next turn.
        """
        from django_pgjobs.inspection import blockers  # here for start-up time

        job: Any = self
        return blockers.blockers_of(self.pk, job.name, job.queue, self._state.db or "default")

    @alters
    def register_again(self) -> Self:
        """Register a new job like this one (same name, payload, options), due at once, in the caller's transaction.

        A job with steps begins again with its first. Raises ``InvalidJob`` if this process does not know that one.
        """
        from django_pgjobs.registering import again  # here for start-up time

        return again.register_again(self)

    @alters
    async def aregister_again(self) -> Self:
        """Register again, from asynchronous code."""
        return await sync_to_async(self.register_again)()

    @alters
    def wait(self, timeout: float | timedelta | None = None) -> Self:
        """Block until this job has ended and return it refreshed.

        ``timeout``: seconds; None waits forever. Raises ``JobNotFinished`` when it passes, ``JobNotCommitted`` at
        once inside the transaction that registered the job, ``JobDoesNotExist`` if the job is gone. A notification
        wakes it early; it does not rely on that, and polls once a second.
        """
        from django_pgjobs.steering import wait  # here for start-up time

        return wait.wait(self, timeout)

    @alters
    async def await_end(self, timeout: float | timedelta | None = None) -> Self:
        """Wait, from asynchronous code."""
        from django_pgjobs.steering import wait  # here for start-up time

        return await sync_to_async(wait.in_thread, thread_sensitive=False)(wait.wait, self, timeout)

    @alters
    def value(self, timeout: float | timedelta | None = None) -> Any:
        """Block until this job has ended, and return its function's return value with its original type.

        ``timeout``: seconds; None waits forever. Returns None if the definition says ``store_result=False``, or if the
        result could not be stored, unless it says ``strict_results=True``; ``Job.result`` then has the reason. Raises
        ``JobFailed`` for an abandoned or cancelled job, with the last attempt's traceback as cause;
        ``JobNotFinished``, ``JobNotCommitted`` and ``JobDoesNotExist`` as ``wait``. May be repeated.
        """
        from django_pgjobs.steering import wait  # here for start-up time

        return wait.value(self, timeout)

    @alters
    async def avalue(self, timeout: float | timedelta | None = None) -> Any:
        """Return the value, for async callers."""
        from django_pgjobs.steering import wait  # here for start-up time

        return await sync_to_async(wait.in_thread, thread_sensitive=False)(wait.value, self, timeout)
