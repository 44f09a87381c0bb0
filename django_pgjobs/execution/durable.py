"""The memos of a running job, under names, and its suspensions.

The job's own connection writes each memo, fenced, before ``step`` returns. Of two runs of one job only one thus leaves
a memo, and with ``atomic`` only one leaves its effects. A result is encoded and decoded at the first call too: it never
differs between this run and the next one.

A suspension reaches the body as ``JobSuspended``. It is an end of the attempt like others: the executor returns
``Suspended``, which the worker writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from psycopg.pq import TransactionStatus

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.durable import gatherer
from django_pgjobs.exceptions import (
    INTERRUPTS,
    InvalidJob,
    JobControl,
    StepFailed,
    StepLimit,
    UnstorableResult,
    WorkerStopping,
)
from django_pgjobs.execution import events
from django_pgjobs.execution.atomic_end import check_committable, log_hook, one_transaction
from django_pgjobs.execution.failed_attempts import failure_of, released
from django_pgjobs.execution.memos import call_step, new_memo, of_step, payload_of, undo_call
from django_pgjobs.execution.naming import Names
from django_pgjobs.execution.suspending import Suspending
from django_pgjobs.execution.walks import Walks
from django_pgjobs.logs import log
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.serialization.payload import decode_result
from django_pgjobs.states import FlowFlag, MemoKind
from django_pgjobs.store.atomic import LOCK_TIMEOUT
from django_pgjobs.store.database import on, set_lock_timeout
from django_pgjobs.store.memos import NewMemo, StoredMemo, Waited, finish_wait, write_memo
from django_pgjobs.values.call_options import StepOptions, check_name

if TYPE_CHECKING:
    from django_pgjobs.execution.prepared import Prepared

OUR_FILES.add(__file__)

LOST = "The claim of this job is lost: another worker may run it, so nothing was remembered."
IN_ATOMIC = (
    "context.{what}() inside atomic(): one commit cannot both keep and undo it. Call it outside of the block, or make "
    "the block a step: context.step.using(atomic=True)(func, …)."
)

Func = Callable[..., object]
"""The function or job that a step calls."""

_MISSING: object = object()


@dataclass(frozen=True, slots=True)
class Memories:
    """Opens the memory of each job that asks for it, on this thread's connection ``using``, where the rows are.

    ``schema``: the one that the connection leads to, in a worker that serves many.
    """

    using: str
    schema: str | None = None

    def of(self, prepared: Prepared) -> DurableMemory:
        """Return the memory of a running job, always the same. Raises ``InvalidJob`` in a callback."""
        if prepared.job.kind != "body":
            raise InvalidJob(f"{prepared.job.kind} of {prepared.job.name!r}: a callback remembers no steps")
        memory: DurableMemory | None = prepared.memory
        if memory is None:
            memory = prepared.memory = DurableMemory(prepared, self.using)
        return memory


class DurableMemory(Walks):
    """The memory of one attempt. Not for several threads at once; tasks of an event loop may share it."""

    def __init__(self, prepared: Prepared, using: str) -> None:
        super().__init__(prepared, using)
        self.suspending = Suspending()
        self.claim_lost = False
        self.names = Names(prepared.lane, self.has_ended)

    # Steps

    def step(self, options: StepOptions, func: Func, args: object, kwargs: Mapping[str, object]) -> object:
        """Call ``func``, or return what it came to before; see ``durable.Steps``."""
        self.check_usable("step")
        with self.names.of_step(options, func) as name:
            self.load()
            found = self._recalled(name)
            if found is not _MISSING:
                return found
            undo, began = undo_call(name, options.undo, args, kwargs), clock.monotonic()
            try:
                if options.atomic:
                    return self._atomically(name, func, args, kwargs, undo, began)
                value = call_step(func, self.prepared, args, kwargs)
            except BaseException as error:
                self._step_failed(name, options, error, began)
                raise
            return self._remember(name, value, undo, began)

    async def astep(self, options: StepOptions, func: Func, args: object, kwargs: Mapping[str, object]) -> object:
        """``step`` for coroutines: awaits ``func`` if that is one; a plain function is called in the job's thread."""
        self.suspending.check_going_on()
        return await self.suspending.beside(self._astepped(options, func, args, kwargs))

    async def _astepped(self, options: StepOptions, func: Func, args: object, kwargs: Mapping[str, object]) -> object:
        is_async = self._is_async(options, func)
        with self.names.of_step(options, func) as name:
            await sync_to_async(self.load)()
            found = self._recalled(name)
            if found is not _MISSING:
                return found
            undo, began = undo_call(name, options.undo, args, kwargs), clock.monotonic()
            try:
                if options.atomic:
                    return await sync_to_async(self._atomically)(name, func, args, kwargs, undo, began)
                if is_async:
                    value = await call_step(func, self.prepared, args, kwargs)
                else:
                    value = await sync_to_async(call_step)(func, self.prepared, args, kwargs)
                    if inspect.isawaitable(value):  # an async function behind a plain decorator
                        value = await value
            except BaseException as error:
                await sync_to_async(self._step_failed)(name, options, error, began)
                raise
            return await sync_to_async(self._remember)(name, value, undo, began)

    def _is_async(self, options: StepOptions, func: Func) -> bool:
        is_async = inspect.iscoroutinefunction(getattr(func, "func", func))
        if options.atomic and is_async:
            raise InvalidJob("step: atomic needs a plain function: Django has no transactions in async code")
        return is_async

    def _atomically(
        self, name: str, func: Callable[..., Any], args: object, kwargs: Any, undo: str | None, began: float
    ) -> object:
        text, committed = "", False

        def note() -> None:
            nonlocal committed
            committed = True

        try:
            outermost = not connections[self.using].in_atomic_block
            with transaction.atomic(using=self.using):
                if outermost:  # a savepoint has no COMMIT
                    transaction.on_commit(note, using=self.using)
                with one_transaction(connections[self.using]):
                    value = call_step(func, self.prepared, args, kwargs)
                check_committable(connections[self.using])
                text = self._encoded(name, value)
                db = on(self.using)
                before = set_lock_timeout(db, LOCK_TIMEOUT)
                if not self._written(new_memo(name, text, undo, began)):
                    raise _Refused
                set_lock_timeout(db, before)
        except _Refused:
            return self._remembered_elsewhere(name)
        except BaseException as error:
            if not committed:
                raise
            noted = self._noted(name, text)
            if isinstance(error, INTERRUPTS):
                raise
            log_hook(self.prepared, f"step {name}", error)
            return noted
        return self._noted(name, text)

    def _remember(self, name: str, value: object, undo: str | None, began: float) -> object:
        text = self._encoded(name, value)
        if not self._written(new_memo(name, text, undo, began)):
            return self._remembered_elsewhere(name)
        return self._noted(name, text)

    def _step_failed(self, name: str, options: StepOptions, error: BaseException, began: float) -> None:
        """Suspend the job if the step has attempts left; remember that it failed if it has had all. Else do nothing."""
        passes = (JobControl, *INTERRUPTS, UnstorableResult, StepLimit)
        if options.attempts is None or not isinstance(error, Exception) or isinstance(error, passes):
            return
        memo = (self._memos or {}).get(name)
        failures = (0 if memo is None else memo.failures) + 1
        failure = failure_of(error)
        about, words = events.facts(self.prepared.context), failure.summary
        if failures < options.attempts:
            backoff = options.backoff or get_conf().default_backoff
            delay = backoff.jittered(failures)
            log.warning("step failed, again in %.1f s step=%s %s: %s", delay, name, about, words)
            self.suspend(
                decide.Suspended(name, MemoKind.STEP, delay, failures=failures, failure=of_step(name, failure)), error
            )
        log.error("step failed for good step=%s attempts=%d %s: %s", name, failures, about, words)
        seconds = clock.monotonic() - began
        new = NewMemo(name, MemoKind.STEP, None, seconds, int(FlowFlag.REMEMBERS), None, failures, words or "failed")
        if not self._written(new):
            self._remembered_elsewhere(name)
        self.progressed = True
        raise StepFailed(step=name, error=words, kind=failure.kind) from error

    # Sleeps and waits

    def sleep(self, seconds: float, name: str) -> None:
        """Return if the job has slept; else suspend it."""
        self.suspending.check_going_on()
        self._slept(seconds, self.names.of_pause("sleep", name))

    async def asleep(self, seconds: float, name: str) -> None:
        """``sleep`` for coroutines."""
        self.suspending.check_going_on()
        name = self.names.of_pause("asleep", name)
        await self.suspending.beside(sync_to_async(self._slept)(seconds, name))

    def _slept(self, seconds: float, name: str) -> None:
        self.check_usable("sleep")
        self.load()
        memo = self.known(name, MemoKind.SLEEP)
        if memo is not None and memo.finished:
            return
        if memo is not None and (memo.left_seconds or 0.0) <= 0:
            self._finished_wait(name, MemoKind.SLEEP, None)
            return
        self.suspend(decide.Suspended(name, MemoKind.SLEEP, seconds if memo is None else memo.left_seconds or 0.0))

    def wait_for(self, event: str, seconds: float) -> object:
        """Return the payload of ``event`` if it was sent; else suspend the job. Raises ``WaitTimedOut``."""
        self.suspending.check_going_on()
        self.names.check_outside("wait_for")
        return self._waited(event, seconds)

    async def await_for(self, event: str, seconds: float) -> object:
        """``wait_for`` for coroutines."""
        self.suspending.check_going_on()
        self.names.check_outside("await_for")
        return await self.suspending.beside(sync_to_async(self._waited)(event, seconds))

    def _waited(self, event: str, seconds: float) -> object:
        self.check_usable("wait_for")
        self.load()
        memo = self.known(event, MemoKind.EVENT)
        if memo is not None and memo.finished:
            return payload_of(memo)
        waited = self._finished_wait(event, MemoKind.EVENT, event)
        if waited.status == "waiting":
            left = seconds if waited.left_seconds is None else max(waited.left_seconds, 0.0)
            self.suspend(decide.Suspended(event, MemoKind.EVENT, left, event=event))
        return payload_of(self._memo_of(event))

    def _finished_wait(self, name: str, kind: MemoKind, event: str | None) -> Waited:
        error = f"{event} was not sent in time."
        job = self.prepared.job
        waited = finish_wait(on(self.using), job.id, job.claim_id, name=name, kind=kind, event=event, error=error)
        if waited is None:
            self.lost()
        if waited.status != "waiting":
            failed = error if waited.status == "timed_out" else ""
            self._keep(StoredMemo(name, kind, waited.payload, True, failed, 0, event, None))
        return waited

    def version(self, name: str, number: int) -> int:
        """Return the number that was given at the first call under this name."""
        self.check_usable("version")
        self.load()
        memo = self.known(check_name("name", name), MemoKind.VERSION)
        if memo is None:
            new = NewMemo(name, MemoKind.VERSION, str(number), 0.0, int(FlowFlag.REMEMBERS))
            if not self._written(new):
                return int(self._remembered_elsewhere(name))
            return int(self._noted(name, str(number), MemoKind.VERSION))
        return int(decode_result(memo.result or "0"))

    def gather(self, calls: Sequence[object], name: str, *, settled: bool) -> list[object]:
        """Run calls as jobs, and return what they returned; see ``flows.gathering``."""
        self.suspending.check_going_on()
        return self._gathered(calls, self.names.of_pause("gather", name), settled=settled)

    async def agather(self, calls: Sequence[object], name: str, *, settled: bool) -> list[object]:
        """``gather`` for coroutines."""
        self.suspending.check_going_on()
        name = self.names.of_pause("agather", name)
        return await self.suspending.beside(self._agathered(calls, name, settled=settled))

    async def _agathered(self, calls: Sequence[object], name: str, *, settled: bool) -> list[object]:
        # Tasks whose waits are over too continue first: one that gathers under this name is refused before jobs are
        # made.
        await sync_to_async(self.load)()
        self.names.check_not_shared("agather", name)
        return await sync_to_async(self._gathered)(calls, name, settled=settled)

    def _gathered(self, calls: Sequence[object], name: str, *, settled: bool) -> list[object]:
        self.check_usable("gather")
        return gatherer()(self, calls, name, settled=settled)

    # Memos

    def _recalled(self, name: str) -> object:
        memo = self.known(name, MemoKind.STEP)
        if memo is not None and not memo.finished and self._pauses > 1 and (memo.left_seconds or 0.0) > 0:
            # The job continues because something else is over.
            self.suspend(decide.Suspended(name, MemoKind.STEP, memo.left_seconds or 0.0, failures=memo.failures))
        if memo is None or not memo.finished:
            return _MISSING
        if memo.error:
            raise StepFailed(step=name, error=memo.error, kind="")
        return None if memo.result is None else decode_result(memo.result)

    def _remembered_elsewhere(self, name: str) -> Any:
        """Return what another run of this job has remembered under ``name``. Raises if the claim is lost."""
        self._read_again()
        found = self._recalled_any(name)
        if found is _MISSING:
            self.lost()
        return found

    def _recalled_any(self, name: str) -> object:
        memo = (self._memos or {}).get(name)
        if memo is None or not memo.finished:
            return _MISSING
        return self._recalled(name) if memo.kind == MemoKind.STEP else decode_result(memo.result or "null")

    def _written(self, memo: NewMemo) -> bool:
        self._check_no_begin(memo.kind)
        job = self.prepared.job
        return write_memo(on(self.using), job.id, job.claim_id, memo)

    def _memo_of(self, name: str) -> StoredMemo:
        memo = (self._memos or {}).get(name)
        if memo is None or not memo.finished:  # another run of this job has finished it
            memo = self._read_again().get(name)
        if memo is None:
            self.lost()
        return memo

    # Suspension

    def check_usable(self, what: str) -> None:
        """Raise unless the job may remember something here."""
        self.suspending.check_going_on()
        connection = connections[self.using]
        if len(connection.atomic_blocks) > self.prepared.outer_blocks:
            raise InvalidJob(IN_ATOMIC.format(what=what))
        if connection.connection is not None and not connection.autocommit and not connection.in_atomic_block:
            raise InvalidJob(f"context.{what}() with autocommit off: a rollback would take what it remembers")
        self._check_no_begin(what)

    def _check_no_begin(self, what: str) -> None:
        """Raise if the job's own SQL has begun a transaction, of which Django knows nothing."""
        connection = connections[self.using]
        if connection.connection is None or connection.in_atomic_block:
            return
        if connection.connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            raise InvalidJob(
                f"context.{what}() in a transaction that the job has begun by SQL: a rollback would take what it "
                "remembers: use transaction.atomic(), or COMMIT before"
            )

    def check_not_swallowed(self) -> None:
        """Raise if the body has returned although it was suspended, or without what it has done."""
        self.suspending.check_not_swallowed()
        self.check_walked()

    def lost(self) -> NoReturn:
        """Stop this run of the job: its claim is lost."""
        self.claim_lost = True
        raise WorkerStopping(LOST)

    def finish(self, name: str, kind: MemoKind, text: str, *, error: str = "") -> None:
        """Remember what a wait came to."""
        if not self._written(NewMemo(name, kind, text, 0.0, int(FlowFlag.REMEMBERS), error=error)):
            self.lost()
        self._keep(StoredMemo(name, kind, text, True, error, 0, None, None))

    def suspend(self, suspension: decide.Suspended, cause: BaseException | None = None) -> NoReturn:
        """Suspend the job: raise ``JobSuspended``. Raises ``StepLimit``."""
        self._check_room(suspension.memo)
        self.suspending.suspend(suspension, cause)

    def decision(self) -> decide.Unwritten | None:
        """Return the suspension of the attempt, or its release; None if it has neither."""
        if self.suspending.released:
            return released(self.prepared.context.stopping.why)
        return self.suspending.decision(progressed=self.progressed)


class _Refused(Exception):
    """Rolls back an atomic step whose memo was not written."""
