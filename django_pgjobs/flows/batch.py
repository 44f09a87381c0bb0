"""``Batch``: many jobs, and what comes after all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, cast

from django_pgjobs.exceptions import BatchClosed, InvalidJob
from django_pgjobs.flows.builtin import (
    BATCH,
    checked_calls,
    checked_undo,
    holder,
    new_job_of,
    own_call,
    with_undo,
)
from django_pgjobs.flows.builtin import batch as batch_job
from django_pgjobs.jobs import BoundJob
from django_pgjobs.logs import log
from django_pgjobs.middleware import registering
from django_pgjobs.states import GATHERING, Rule
from django_pgjobs.values.asynchronous import asynchronous
from django_pgjobs.values.built_in import OWN_QUEUE

if TYPE_CHECKING:
    from django_pgjobs.models import Job
    from django_pgjobs.models.gates import Gate
    from django_pgjobs.registering.encode import Row
    from django_pgjobs.steering.batching import Steered

AT_ONCE = 10_000
"""Members that ``add_many`` stores at once: outside a transaction each portion is committed by itself."""


class Figures(NamedTuple):
    """Numbers of a batch's members, and of those that have ended, by how; ``pending`` have not ended."""

    total: int
    succeeded: int
    abandoned: int
    cancelled: int
    pending: int


class Batch:
    """Many jobs, its *members*, and what comes after all of them.

    A batch is a job: it has a row, a state and a page, can be waited for and cancelled. It ends when the last member
    has ended: as succeeded if all of them did, else as abandoned; or as cancelled if it was cancelled. Add members
    inside ``with``, which closes the batch at its end, or call ``close()``. If the block raises, the batch stays open.

    ``description``: text for lists, at most 200 characters. ``succeeded``, ``failed``, ``settled``: calls, made by
    ``bind(…)``, that become ready when the batch has ended: if every member succeeded, if one did not, and in any case.
    ``fail_fast``: once a member is abandoned, the batch takes no more members, those that have not started are
    cancelled, and running ones are asked to stop.
    ``undo``: if the batch is abandoned or cancelled, the members that succeeded are undone, the latest first, by the
    ``undo`` of their definitions; ``undo_on_failure``: what happens if one cannot be undone.
    ``key``: as of a job; if an unfinished batch has it, this is that batch, and its calls are not registered again.
    ``queue``, ``priority``: of the batch's own row. ``database``: an alias; all members go there.

    Raises ``InvalidJob`` for invalid values. Nothing is stored before the first member, ``open()`` or ``with``. If the
    transaction that stored the batch is rolled back, make another object.
    """

    def __init__(
        self,
        description: str = "",
        *,
        succeeded: BoundJob | None = None,
        failed: BoundJob | None = None,
        settled: BoundJob | None = None,
        fail_fast: bool = False,
        undo: bool = False,
        undo_on_failure: Literal["go_on", "stop"] = "go_on",
        key: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        database: str | None = None,
    ) -> None:
        self._call = own_call(
            batch_job, description=description, queue=queue, priority=priority, unique=key, database=database
        )
        after = ((Rule.SUCCEEDED, succeeded), (Rule.FAILED, failed), (Rule.SETTLED, settled))
        for rule, call in after:
            if call is None:
                continue
            if not isinstance(call, BoundJob):
                raise InvalidJob(f"{rule}= takes a call, made by a definition's bind(…), not {call!r}")
            for option in ("bypass", "after"):
                if call.options.get(option):
                    raise InvalidJob(f"job {call.name!r}: what comes after a batch takes no {option}")
        self._fail_fast = bool(fail_fast)
        self._undo = checked_undo(undo, undo_on_failure)
        self._after = [(rule, call) for rule, call in after if call is not None]
        self._id: int | None = None
        self._using: str | None = None
        self._is_routed = False  # where it is was left to the routers, which then have no other place for its members
        self._gather: str | None = None  # the event for which the function waits that gathers these members
        self._headers: str | None = None  # those of that function's job
        self.is_new = False
        """True if this object has stored the batch; False if another batch had its key."""

    @classmethod
    def of(cls, job: Job | None) -> Batch:
        """Return the batch whose row is ``job``, to add members or to close it.

        A running member adds others to its own batch, that of the parent of its row. A flow's row will do, too:
        ``retry`` and ``figures`` mean its nodes. Raises ``InvalidJob`` for another job.
        """
        from django_pgjobs.store.database import written_at  # here for start-up time

        if job is None or job.name not in GATHERING or job.pk is None:
            raise InvalidJob(f"{job} is no batch")
        batch = cls()
        batch._id, batch._using = job.pk, written_at(job)
        return batch

    def __repr__(self) -> str:
        return f"<Batch {'not stored' if self._id is None else self._id}>"

    # Open, add, close

    def open(self) -> Self:
        """Store the batch, open for members, in the caller's transaction. Repeatable.

        Raises ``OldWorkers``, and what registering the calls behind it raises; then nothing is stored.
        """
        if self._id is None:
            row = self._call._row()
            with registering(BATCH, row.plan.queue) as registration:
                self._store(row)
                if registration is not None:
                    registration.count, registration.job = (1 + len(self._after) if self.is_new else 0), self._id
        return self

    def _store(self, row: Row) -> None:
        from django_pgjobs.registering import waiting  # here for start-up time
        from django_pgjobs.registering.destination import check_members, writable_alias  # here for start-up time
        from django_pgjobs.registering.register import announce  # here for start-up time
        from django_pgjobs.store.new_jobs import NewJobs  # here for start-up time

        captures = self._gather is None
        new = with_undo(new_job_of(self._call, row.plan.database, captures=captures), self._undo)
        self._using = writable_alias(row.plan.database, [NewJobs.of(new)])
        self._is_routed = row.plan.database is None
        callbacks = [(rule, new_job_of(call, self._using, captures=captures)) for rule, call in self._after]
        if self._is_routed:
            check_members(self._using, [NewJobs.of(each) for _, each in callbacks])
        if self._gather is not None:
            options = {**(new.options or {}), "gather": self._gather}
            new = new._replace(options=options, headers=self._headers, queue=OWN_QUEUE)
            callbacks = [(rule, each._replace(headers=self._headers)) for rule, each in callbacks]
        stored, after = waiting.insert_batch(self._using, new, callbacks, row.plan.conf, fail_fast=self._fail_fast)
        self.is_new = after is not None
        self._id = stored if self.is_new else holder(self._using, stored, BATCH).pk
        announce(self._using, [call.definition for _, call in self._after] if self.is_new else [], after or [])

    def add(self, call: BoundJob) -> None:
        """Store one member, in the caller's transaction; see ``add_many``.

        If another job has its key, none is stored, and nothing says so here: ``add_many`` returns 0 then.
        """
        self.add_many([call])

    def add_many(self, calls: Iterable[BoundJob]) -> int:
        """Store members; return how many, without those whose key another job has.

        The calls may be lazy. In a transaction all of them are part of it. Outside, each ten thousand are committed by
        themselves, and run at once. Raises ``BatchClosed`` if the batch takes no more, and what ``register_many``
        raises; then the latest portion is not stored, and an open transaction stays usable.
        """
        from django_pgjobs.registering import register, waiting  # here for start-up time
        from django_pgjobs.store.database import at_read_committed  # here for start-up time

        self.open()
        using, batch_id, conf = cast(str, self._using), cast(int, self._id), self._call._row().plan.conf
        count = 0
        for some in _portions(calls):
            with at_read_committed(using):
                rows = (call._row() for call in some)
                new = register.register_members(rows, using, conf, batch_id, self._is_routed)
                waiting.count_members(using, batch_id, new, conf)
            count += new
        return count

    def close(self) -> None:
        """Let the batch end when all of its members have ended: it waits for no more. Repeatable.

        Until it has ended, members can still be added, as by one that runs.
        """
        from django_pgjobs.registering import waiting  # here for start-up time

        self.open()
        waiting.close_batch(cast(str, self._using), cast(int, self._id))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            log.warning("batch stays open, an exception left its block batch=%s", self._id)

    def retry(
        self, *, outcome: Literal["abandoned", "cancelled"] = "abandoned", by: object = None, reason: str = ""
    ) -> Steered:
        """Retry the members that ended as ``outcome``; the batch waits for them again.

        Callbacks that were not needed wait again, too; those that have begun are left alone, and so is a cancelled
        batch. Repeatable.
        """
        from django_pgjobs.models import Job  # here: the models are not loaded yet

        members = Job.objects.using(self.job._state.db).filter(parent_id=self._id, outcome=outcome)
        return members.retry(by=by, reason=reason)

    # Async

    aopen = asynchronous(open)

    aadd = asynchronous(add)

    aadd_many = asynchronous(add_many)

    aclose = asynchronous(close)

    # Read

    @property
    def job(self) -> Job:
        """The batch's own row, as it is now. Raises ``BatchClosed`` if the batch is not stored, or pruned."""
        from django_pgjobs.models import Job  # here: the models are not loaded yet

        found = Job.objects.using(self._using).filter(pk=self._id).first() if self._id is not None else None
        if found is None:
            raise BatchClosed("The batch is not stored.", batch_id=self._id)
        return found

    @property
    def figures(self) -> Figures:
        """Progress of the batch, from one row. Raises ``BatchClosed`` if the batch is not stored, or pruned."""
        from django_pgjobs.models.gates import Gate  # here: the models are not loaded yet

        gate: Gate | None = (
            Gate.objects.using(self._using).filter(pk=self._id).first() if self._id is not None else None
        )
        if gate is None:
            raise BatchClosed("The batch is not stored.", batch_id=self._id)
        return Figures(gate.total, gate.succeeded, gate.abandoned, gate.cancelled, gate.unfinished)


def _portions(calls: Iterable[BoundJob]) -> Iterator[list[BoundJob]]:
    left = iter(checked_calls(calls))
    while some := list(islice(left, AT_ONCE)):
        for call in some:
            if not isinstance(call, BoundJob):
                raise InvalidJob(f"a batch takes calls, made by a definition's bind(…), not {call!r}")
        yield some
