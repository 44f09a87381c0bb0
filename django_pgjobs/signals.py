"""Django signals about jobs, and about the processes that run them.

``sender`` is the ``JobDefinition``, or None where this process does not know the name, or where it is about a process.
Sent with ``send_robust``: an error in a receiver is logged by Django and changes nothing of the job. All but
``job_registered`` are sent in the executor, the process that runs the job's code, never in the supervisor.
"""

from __future__ import annotations

from django.dispatch import Signal

job_registered = Signal()
"""A job was inserted. Sent in the registering process, inside its transaction, which may still be rolled back.

``job``: the ``Job``. After ``register_many`` its ``run_at`` and ``created_at`` are deferred fields.
"""

executor_started = Signal()
"""A process that will run jobs has started: once, after ``AppConfig.ready()``, before its first job.

Sent in a thread of its own, so a receiver may ask the database, and its connections are closed afterwards. After ten
seconds the process goes on without it. Sender: None. ``database``: the alias its jobs are in; ``threads``: how many
jobs it runs at once; ``async_slots``: how many ``async def`` jobs besides.
"""

executor_stopping = Signal()
"""A process that ran jobs leaves in good order: once, after its last outcome was handed over, before ``atexit``.

Sent in a thread of its own; after three seconds the process goes on without it. Sender: None. ``reason``:
``"drained"``, as its worker stops or another process takes its place, or ``"orphaned"``: its worker was killed, jobs
that still run are lost, and it has a second. Not sent when the process is killed or crashes.
"""

job_started = Signal()
"""An attempt begins; sent in the job's own thread, before middleware and body. ``context``: the ``JobContext``."""

idempotency_hit = Signal()
"""An attempt returns the result stored under its idempotency key; its body and middleware are not called.

Sent in the job's own thread, between ``job_started`` and ``attempt_ended``. ``context``: the ``JobContext``;
``idempotency_key``: str; ``first_job_id``: the job that ran, whose row may be gone.
"""

attempt_ended = Signal()
"""An attempt ended; sent in the job's own thread, before the outcome is stored.

``context``: the ``JobContext``; ``decision``: what the attempt came to (``django_pgjobs.decisions``);
``exception``: the live exception, or None.
"""

job_finished = Signal()
"""A job reached its end; sent after the durable write.

``job_id``: int; ``name``: str; ``queue``: str; ``outcome``: ``"succeeded"``, ``"cancelled"`` or ``"abandoned"``;
``attempt``: int; ``executor``: which process ran it, by the name of its database connections, empty if none did;
``duration``: seconds the last attempt took on the monotonic clock, None where no attempt ended; ``error``: what went
wrong in one line, empty for a success.
"""

job_retried = Signal()
"""A failed attempt was stored and the job will run again; sent after the durable write.

``job_id``: int; ``name``: str; ``queue``: str; ``attempt``: the failed attempt's number, the next has one more;
``delay``: seconds until the next; ``retry_at``: the aware instant of that on the database's clock, None after a rescue,
which does not wait; ``executor``, ``duration``, ``error``: as for ``job_finished``.
"""

lease_lost = Signal()
"""A write of an attempt was refused, as the job had been taken from this worker: nothing of the job was changed.

``job_id``: int; ``name``: str; ``attempt``: int; ``claim_id``: str; ``action``: what was to be written, as in
``"complete the job"``; ``reason``: why it was refused, as in ``"another claim has it"``.
"""

job_rescued = Signal()
"""A job was rescued from a worker that had lost it, dead or cut off; sent by the worker that did, after the write.

``job_id``: int; ``name``: str; ``queue``: str; ``attempt``: the lost attempt's number; ``claim_id``: str;
``cause``: ``"lost"`` or ``"timeout"``; ``message``: the cause in words; ``outcome``: ``"cancelled"`` or
``"abandoned"``, or empty if the job is ready again; ``ending``: not empty if only its callback is left. If it ended,
``job_finished`` follows; if its body will run again, ``job_retried``.
"""
