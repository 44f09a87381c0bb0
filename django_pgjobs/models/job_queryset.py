"""Reading jobs, and the steering methods on one job and on many.

Steering methods have asynchronous twins (``acancel`` …). They are marked ``alters_data``, so a template cannot
call them, and those of the queryset ``queryset_only``, so ``Job.objects.cancel()`` cannot cancel everything by
slip of the keyboard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import DataError, models, router

from django_pgjobs.fields import within_bounds
from django_pgjobs.inspection import blockers, why
from django_pgjobs.inspection.blockers import Blocker
from django_pgjobs.inspection.why import Reason
from django_pgjobs.steering import jobs
from django_pgjobs.steering import wait as waiting
from django_pgjobs.steering.jobs import Steered
from django_pgjobs.values.tags import check_tags

if TYPE_CHECKING:
    from django_pgjobs.models import Job

NOT_DELETED = (
    "A job is not deleted: a worker may be running it. End it by cancel() or abandon(); ended jobs go when their "
    "retention is over, or at once by manage.py pgjobs prune --older-than."
)

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=models.Model)


def _alters(method: F) -> F:
    method.alters_data = True  # type: ignore[attr-defined]
    return method


def _alters_queryset(method: F) -> F:
    method.queryset_only = True  # type: ignore[attr-defined]
    return _alters(method)


class BoundedQuerySet(models.QuerySet[M]):
    """Rows of which SQL may have written instants that Python cannot read: these are read at a bound."""

    def iterator(self, chunk_size: int | None = None) -> Iterator[Any]:
        """Iterate without keeping the rows; as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).iterator(chunk_size)

    def aiterator(self, chunk_size: int = 2000) -> AsyncIterator[Any]:
        """Iterate without keeping the rows, from asynchronous code; as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).aiterator(chunk_size)

    def aggregate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Aggregate, as Django's."""
        return super(BoundedQuerySet, self._within_bounds()).aggregate(*args, **kwargs)

    def _fetch_all(self) -> None:
        fetch: Callable[[], None] = super()._fetch_all
        try:
            fetch()
        except DataError as error:
            if getattr(error.__cause__, "sqlstate", None) is not None:
                raise
            # Not the server's word: an instant that SQL has written and Python cannot read. See ``InstantField``.
            self._be_within_bounds()
            fetch()

    def _within_bounds(self) -> Self:
        found = self.all()
        found._be_within_bounds()
        return found

    def _be_within_bounds(self) -> None:
        rows = self._iterable_class
        self.query = within_bounds(self.query)  # which forgets what values_list() has said of the rows
        self._iterable_class = rows


class JobQuerySet(BoundedQuerySet["Job"]):
    """Jobs, with what an operator may do with all of them."""

    @_alters_queryset
    def cancel(self, *, mode: str = "ask", by: object = None, reason: str = "") -> Steered:
        """Cancel these jobs: one that nobody has claimed ends at once, a running one is stopped as ``mode`` says.

        ``mode``: ``ask`` sets the job's ``context.cancelled`` and forbids a retry; ``interrupt`` also raises
        ``CancelRequested`` in it and cancels its queries; ``kill`` ends its process. A wish can only become
        stronger. ``by``: a user or text. A job with ``on_cancel`` ends after that callback. Waits for row locks up to
        5 s. May be repeated.
        """
        return jobs.cancel(self, self._alias(), mode=mode, by=by, reason=reason)

    @_alters_queryset
    def abandon(self, *, by: object = None, reason: str = "") -> Steered:
        """Give these jobs up; their ``on_abandon`` runs. Running jobs are skipped: cancel them. May be repeated."""
        return jobs.abandon(self, self._alias(), by=by, reason=reason)

    @_alters_queryset
    def retry(self, *, by: object = None, reason: str = "") -> Steered:
        """Make abandoned, cancelled and parked jobs ready, with as many more attempts as their definition gives."""
        return jobs.retry(self, self._alias(), by=by, reason=reason)

    @_alters_queryset
    def release(self, *, by: object = None, reason: str = "") -> Steered:
        """Ask the workers of these running jobs to give them back, uncharged."""
        return jobs.release(self, self._alias(), by=by, reason=reason)

    @_alters_queryset
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
        """Move unclaimed jobs to another instant (``delay`` in seconds, database clock), queue or priority."""
        using = self._alias()
        return jobs.reschedule(
            self, using, run_at=run_at, delay=delay, queue=queue, priority=priority, by=by, reason=reason
        )

    @_alters_queryset
    async def acancel(self, *, mode: str = "ask", by: object = None, reason: str = "") -> Steered:
        """Cancel, from asynchronous code."""
        return await sync_to_async(self.cancel)(mode=mode, by=by, reason=reason)

    @_alters_queryset
    async def aabandon(self, *, by: object = None, reason: str = "") -> Steered:
        """Abandon, from asynchronous code."""
        return await sync_to_async(self.abandon)(by=by, reason=reason)

    @_alters_queryset
    async def aretry(self, *, by: object = None, reason: str = "") -> Steered:
        """Retry, from asynchronous code."""
        return await sync_to_async(self.retry)(by=by, reason=reason)

    @_alters_queryset
    async def arelease(self, *, by: object = None, reason: str = "") -> Steered:
        """Release, from asynchronous code."""
        return await sync_to_async(self.release)(by=by, reason=reason)

    @_alters_queryset
    async def areschedule(self, **to: Any) -> Steered:
        """Reschedule, from asynchronous code; arguments as ``reschedule``."""
        return await sync_to_async(self.reschedule)(**to)

    def tagged(self, *tags: str) -> JobQuerySet:
        """Return those of these jobs that have all of these tags; an index finds them. Raises ``ValueError``."""
        return self.filter(tags__contains=list(check_tags(tags)))

    @_alters_queryset
    def delete(self) -> NoReturn:
        """Refuse: jobs end by the steering methods, and ended ones are pruned."""
        raise TypeError(NOT_DELETED)

    def _alias(self) -> str:
        own: Any = self
        return str(own._db or router.db_for_write(self.model, **own._hints))


if TYPE_CHECKING:

    class JobManager(models.Manager["Job"]):
        """What ``Job.objects`` is to a type checker that does not run Django: as ``JobQuerySet.as_manager()``."""

        def get_queryset(self) -> JobQuerySet: ...
        def all(self) -> JobQuerySet: ...
        def none(self) -> JobQuerySet: ...
        def using(self, alias: str | None) -> JobQuerySet: ...
        def filter(self, *args: Any, **kwargs: Any) -> JobQuerySet: ...
        def exclude(self, *args: Any, **kwargs: Any) -> JobQuerySet: ...
        def order_by(self, *field_names: Any) -> JobQuerySet: ...
        def reverse(self) -> JobQuerySet: ...
        def tagged(self, *tags: str) -> JobQuerySet: ...
        def distinct(self, *field_names: Any) -> JobQuerySet: ...
        def only(self, *fields: Any) -> JobQuerySet: ...
        def defer(self, *fields: Any) -> JobQuerySet: ...
        def alias(self, *args: Any, **kwargs: Any) -> JobQuerySet: ...
        def annotate(self, *args: Any, **kwargs: Any) -> JobQuerySet: ...
        def prefetch_related(self, *lookups: Any) -> JobQuerySet: ...
        def select_for_update(
            self, nowait: bool = ..., skip_locked: bool = ..., of: Any = ..., no_key: bool = ...
        ) -> JobQuerySet: ...


class Steerable(models.Model):
    """The steering methods of one job. Each reads nothing into the instance: ``refresh_from_db()`` shows the change."""

    class Meta:
        abstract = True

    def _itself(self) -> JobQuerySet:
        return JobQuerySet(cast("type[Job]", type(self)), using=jobs.written_at(self)).filter(pk=self.pk)

    def why(self) -> Reason:
        """Return why this job does not run, or what becomes of it, and what to do; reads the database, takes no lock.

        ``str()`` of it is what ``manage.py pgjobs why`` prints.
        """
        using = self._itself()._alias()
        with jobs.at_read_committed(using):
            return why.of(self.pk, using)

    async def awhy(self) -> Reason:
        """Say why, from asynchronous code."""
        return await sync_to_async(self.why)()

    @_alters
    def cancel(self, *, mode: str = "ask", by: object = None, reason: str = "") -> Steered:
        """Cancel this job; see ``JobQuerySet.cancel``."""
        return self._itself().cancel(mode=mode, by=by, reason=reason)

    @_alters
    def abandon(self, *, by: object = None, reason: str = "") -> Steered:
        """Give this job up; see ``JobQuerySet.abandon``."""
        return self._itself().abandon(by=by, reason=reason)

    @_alters
    def retry(self, *, by: object = None, reason: str = "") -> Steered:
        """Make this job ready again; see ``JobQuerySet.retry``."""
        return self._itself().retry(by=by, reason=reason)

    @_alters
    def release(self, *, by: object = None, reason: str = "") -> Steered:
        """Ask this job's worker to give it back; see ``JobQuerySet.release``."""
        return self._itself().release(by=by, reason=reason)

    @_alters
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
        return self._itself().reschedule(
            run_at=run_at, delay=delay, queue=queue, priority=priority, by=by, reason=reason
        )

    @_alters
    async def acancel(self, *, mode: str = "ask", by: object = None, reason: str = "") -> Steered:
        """Cancel, from asynchronous code."""
        return await sync_to_async(self.cancel)(mode=mode, by=by, reason=reason)

    @_alters
    async def aabandon(self, *, by: object = None, reason: str = "") -> Steered:
        """Abandon, from asynchronous code."""
        return await sync_to_async(self.abandon)(by=by, reason=reason)

    @_alters
    async def aretry(self, *, by: object = None, reason: str = "") -> Steered:
        """Retry, from asynchronous code."""
        return await sync_to_async(self.retry)(by=by, reason=reason)

    @_alters
    async def arelease(self, *, by: object = None, reason: str = "") -> Steered:
        """Release, from asynchronous code."""
        return await sync_to_async(self.release)(by=by, reason=reason)

    @_alters
    async def areschedule(self, **to: Any) -> Steered:
        """Reschedule, from asynchronous code; arguments as ``reschedule``."""
        return await sync_to_async(self.reschedule)(**to)

    def blocked_by(self) -> list[Blocker]:
        """Return the limits without room that hold this job back, and some of the jobs that take it up.

        Empty for a job that is not ``limited``, that is not due or that will be let in at the next turn.
        """
        return blockers.blocked_by(cast("Job", self))

    @_alters
    def register_again(self) -> Job:
        """Register a new job like this one (same name, payload, options), due at once, in the caller's transaction."""
        return waiting.register_again(cast("Job", self))

    @_alters
    async def aregister_again(self) -> Job:
        """Register again, from asynchronous code."""
        return await sync_to_async(self.register_again)()

    @_alters
    def wait(self, timeout: float | timedelta | None = None) -> Job:
        """Block until this job has ended and return it refreshed.

        ``timeout``: seconds; None waits for ever. Raises ``JobNotFinished`` when it passes, ``JobNotCommitted`` at
        once inside the transaction that registered the job, ``JobDoesNotExist`` when it is gone. A notification
        wakes it; polling once a second is the truth.
        """
        return waiting.wait(cast("Job", self), timeout)

    @_alters
    async def await_end(self, timeout: float | timedelta | None = None) -> Job:
        """Wait, from asynchronous code."""
        return await sync_to_async(waiting.in_thread, thread_sensitive=False)(waiting.wait, cast("Job", self), timeout)

    @_alters
    def value(self, timeout: float | timedelta | None = None) -> Any:
        """Block until this job has ended and return what its function returned, as the value it was.

        ``timeout``: seconds; None waits for ever. None where the definition says ``store_result=False``. Raises
        ``JobFailed`` for a job that was abandoned or cancelled, its cause the traceback of the last attempt;
        ``JobNotFinished``, ``JobNotCommitted`` and ``JobDoesNotExist`` as ``wait``. May be repeated.
        """
        return waiting.value(cast("Job", self), timeout)

    @_alters
    async def avalue(self, timeout: float | timedelta | None = None) -> Any:
        """Return the value, for async callers."""
        return await sync_to_async(waiting.in_thread, thread_sensitive=False)(waiting.value, cast("Job", self), timeout)
