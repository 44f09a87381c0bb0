"""Django signals about jobs, and about the processes that run them.

``sender`` is the ``JobDefinition``, or None if this process does not know the name or the signal is about a process.
They use ``send_robust``: Django logs an error in a receiver, and the error changes nothing about the job. The executor,
the process that runs the job's code, sends all of them except ``job_registered``; the supervisor sends none. When an
operator or code ends a job that no worker has, the process that writes this sends ``job_finished``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django.dispatch import Signal

from django_pgjobs.logs import log


class EndListener(NamedTuple):
    """A receiver of ends that is not always interested: ``wants`` says whether ends of an outcome are to be sent."""

    receiver: Callable[..., object]
    wants: Callable[[str], bool]

    def is_interested(self, outcome: str) -> bool:
        """Return what ``wants`` says; True if it raises, because a needless signal does less harm than a lost one."""
        try:
            return bool(self.wants(outcome))
        except Exception:
            return True


class EndSignal(Signal):
    """``job_finished``: besides receivers, it has listeners that say for each outcome whether they want to hear of it.

    An end costs a worker a message to an executor. A receiver that only logs, say, would make every end cost that, even
    with its logger off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[EndListener] = []

    def add_listener(self, receiver: Callable[..., object], wants: Callable[[str], bool]) -> None:
        """Call ``receiver`` as a receiver of the signal, with ``sender``, ``signal`` and the fields, if it is wanted.

        ``wants`` gets ``"succeeded"``, ``"cancelled"`` or ``"abandoned"``. It is called in executors each time that
        outcomes are sent to the worker, hundreds of times a second, and again at the end itself: it must be fast, and
        ask no database. Repeatable: a receiver has one listener, the latest.
        """
        others = [listener for listener in self.listeners if listener.receiver != receiver]
        self.listeners = [*others, EndListener(receiver, wants)]

    def remove_listener(self, receiver: Callable[..., object]) -> None:
        """Undo ``add_listener``. Repeatable."""
        self.listeners = [listener for listener in self.listeners if listener.receiver != receiver]

    def is_wanted(self, outcome: str) -> bool:
        """Return whether a receiver wants ends of this outcome now."""
        return bool(self.receivers) or any(listener.is_interested(outcome) for listener in self.listeners)

    def send_robust(self, sender: object, **fields: Any) -> list[tuple[Any, Any]]:
        """Call receivers, then interested listeners; log what they raise, as Django does. Return their answers."""
        answers = super().send_robust(sender, **fields) if self.receivers else []
        for listener in self.listeners:
            if listener.is_interested(fields.get("outcome", "")):
                answers.append((listener.receiver, self._call(listener, sender, fields)))
        return answers

    def _call(self, listener: EndListener, sender: object, fields: dict[str, object]) -> object:
        try:
            return listener.receiver(signal=self, sender=sender, **fields)
        except Exception as error:
            log.exception("listener of job_finished failed job=%s", fields.get("job_id"))
            return error


job_registered = Signal()
"""A job was inserted. Sent in the registering process, inside its transaction, which may still be rolled back.

``job``: the ``Job``. After ``register_many`` its ``run_at`` and ``created_at`` are deferred fields.
"""

executor_started = Signal()
"""A process that will run jobs has started: once, after ``AppConfig.ready()``, before its first job.

Sent in a thread of its own, so a receiver may query the database; afterwards the thread's connections are closed. After
ten seconds the process continues without it. Sender: None. ``database``: the alias of its jobs; ``threads``: how many
jobs it runs at once in threads; ``async_slots``: how many ``async def`` jobs besides.
"""

executor_stopping = Signal()
"""A process that ran jobs exits in good order: once, after it handed its last outcome over, before ``atexit``.

Sent in a thread of its own; after three seconds the process continues without it. Sender: None. ``reason``:
``"drained"`` if its worker stops or another process replaces it; ``"orphaned"`` if its worker was killed: jobs that
still run are lost, and the receiver has one second. Not sent if the process is killed or crashes.
"""

job_started = Signal()
"""An attempt begins; sent in the job's own thread, before middleware and body. ``context``: the ``JobContext``."""

idempotency_hit = Signal()
"""An attempt returns the result stored under its idempotency key, without calling body or middleware.

Sent in the job's own thread, between ``job_started`` and ``attempt_ended``. ``context``: the ``JobContext``;
``idempotency_key``: str; ``first_job_id``: the job that ran, whose row may be gone.
"""

attempt_ended = Signal()
"""An attempt ended; sent in the job's own thread, before the outcome is stored.

``context``: the ``JobContext``; ``decision``: what follows from the attempt (``django_pgjobs.decisions``);
``exception``: the live exception, or None.
"""

job_finished = EndSignal()
"""A job ended; sent after the durable write.

An executor sends it; or, if no worker had the job, the process that cancelled, abandoned or replaced it.

``job_id``: int; ``name``: str; ``queue``: str; ``outcome``: ``"succeeded"``, ``"cancelled"`` or ``"abandoned"``;
``attempt``: int; ``database``: the alias of its row; ``executor``: the process that ran it, by the name of its database
connections, empty if none did; ``duration``: seconds that the last attempt took, on the monotonic clock, None if no
attempt ended; ``error``: the error in one line, empty for a success; ``by_worker``: False if it was ended by hand,
maybe one of thousands, and no worker had it.
"""

compensation_started = Signal()
"""An attempt begins to undo something; sent after ``job_started``. ``target_id``: the job that it undoes, or a part of;
``job_id``, ``attempt``: of the compensation. Never names a function (C68).
"""

compensation_completed = Signal()
"""A compensation has succeeded; sent after the durable write and ``job_finished``. ``target_id``, ``job_id``."""

compensation_failed = Signal()
"""A compensation was abandoned or cancelled; sent after the durable write and ``job_finished``.

``target_id``, ``job_id``; ``outcome``; ``error``: in one line.
"""

job_retried = Signal()
"""A failed attempt was stored and the job will run again; sent after the durable write.

``job_id``: int; ``name``: str; ``queue``: str; ``attempt``: the failed attempt's number, the next has one more;
``delay``: seconds until the next; ``retry_at``: when that is, an aware instant on the database's clock, None after a
rescue, which does not wait; ``executor``, ``duration``, ``error``: as for ``job_finished``.
"""

lease_lost = Signal()
"""The fence refused a write of an attempt, because this worker had lost the job: nothing about the job changed.

``job_id``: int; ``name``: str; ``attempt``: int; ``executor``: as for ``job_finished``, empty if the job was never
sent to one; ``claim_id``: str; ``action``: the refused write, such as ``"complete the job"``; ``reason``: why it was
refused, such as ``"another claim has it"``.
"""

job_rescued = Signal()
"""A worker rescued a job that a dead or cut-off worker had lost; the rescuing worker sends it, after the write.

``job_id``: int; ``name``: str; ``queue``: str; ``attempt``: the lost attempt's number; ``claim_id``: str;
``cause``: ``"lost"`` or ``"timeout"``; ``message``: the cause in words; ``outcome``: ``"cancelled"`` or
``"abandoned"``, or empty if the job is ready again; ``ending``: not empty if only its callback is left. If the job
ended, ``job_finished`` follows; if its body will run again, ``job_retried``.
"""
