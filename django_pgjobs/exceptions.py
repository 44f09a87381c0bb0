"""Every error this package raises, and the exceptions a job raises to steer itself.

::

    PgJobsError
    ├── InvalidJob            a bad definition, option or payload, raised where you wrote it
    ├── QueueFull             the queue holds as many unfinished jobs as it may
    ├── RateLimited           this process registers too fast
    ├── DuplicateJob          the key of a registration is taken, and its policy is to raise
    ├── OtherArguments        a job has the idempotency key of one with other arguments
    ├── BatchClosed           the batch takes no more members
    ├── OldWorkers            workers run whose version knows nothing of jobs that wait
    ├── NoWorkerAvailable     all local workers are busy with jobs that bypass the queue
    ├── UnknownJob            a row names a definition this process does not have
    ├── UnreadablePayload     a stored payload cannot be read or no longer fits the signature
    ├── JobDoesNotExist
    ├── JobNotCommitted       you wait for a job whose registration is not committed yet
    ├── JobNotFinished        the job did not end within the timeout of a wait
    ├── JobFailed             you ask for the value of a job that was abandoned or cancelled
    ├── UnstorableResult      the return value cannot be stored as JSON
    │   └── StepLimit         a job remembers more steps, or larger ones, than it may
    ├── StepFailed            a step of the job has failed as often as it may
    ├── WaitTimedOut          the event that the job waited for was not sent
    ├── MembersFailed         jobs that the job ran by ``gather`` did not all succeed
    └── AttemptFailed         causes recorded for an attempt that no exception explains
        ├── AttemptsExhausted
        ├── ExecutorDied
        ├── RolledBack
        └── SuspensionSwallowed
    RemoteTraceback           the cause of a JobFailed: the traceback of another process, as text
    JobControl                Snooze, Release, Cancel, Abandon: not errors, not under PgJobsError
    JobInterrupted            raised in a running job to stop it; a BaseException, not for ``except Exception``
    ├── DeadlinePassed
    ├── MemoryExceeded
    ├── CancelRequested
    └── WorkerStopping
    JobSuspended              raised in a durable function that continues later; a BaseException, to let through
    SoftDeadlinePassed        raised in a running job at its soft limit; an Exception, for the job to catch

The docstring of a class is its default message.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from datetime import timedelta


class PgJobsError(Exception):
    """Something about a job is wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


class InvalidJob(PgJobsError):
    """The job's definition, options or payload are not valid."""


class QueueFull(PgJobsError):
    """The queue holds as many unfinished jobs as it may."""

    def __init__(self, message: str | None = None, *, queue: str = "", capacity: int = 0) -> None:
        self.queue = queue
        self.capacity = capacity
        super().__init__(message or self._words())

    def _words(self) -> str:
        return f"Queue {self.queue!r} holds at most {self.capacity} unfinished jobs: wait until some have ended."


class RateLimited(PgJobsError):
    """This process has registered into the queue faster than it may."""

    def __init__(self, message: str | None = None, *, queue: str = "", retry_after: float = 0.0) -> None:
        self.queue = queue
        self.retry_after = retry_after
        super().__init__(message or self._words())

    def _words(self) -> str:
        return f"Queue {self.queue!r}: too many actions by this process, try again in {self.retry_after:.3f} seconds."


class DuplicateJob(PgJobsError):
    """The key of the job is taken; nothing was stored, and an open transaction can continue.

    ``existing_id``: the job that has it, None if unknown; ``key``, ``queue``: which key.
    """

    def __init__(self, existing_id: int | None = None, key: str = "", queue: str = "", message: str = "") -> None:
        self.existing_id = existing_id
        self.key = key
        self.queue = queue
        who = "Another job" if existing_id is None else f"Job {existing_id}"
        super().__init__(message or f"{who} has the key {key!r} in queue {queue!r}.")


class OtherArguments(PgJobsError):
    """A job with this idempotency key ran before, with other arguments: its result is not the result of these."""


class BatchClosed(PgJobsError):
    """The batch takes no more members: it has ended, was cancelled, has as many as it may have, or is not stored."""

    def __init__(self, message: str | None = None, *, batch_id: int | None = None) -> None:
        self.batch_id = batch_id
        super().__init__(message)


class OldWorkers(PgJobsError):
    """Workers of an older version are running, which know nothing of jobs that wait for others; nothing was stored.

    ``names``: these workers, each in one line.
    """

    def __init__(self, message: str | None = None, *, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        super().__init__(message or self._words())

    def _words(self) -> str:
        names = ", ".join(self.names[:5]) + (", …" if self.names[5:] else "")
        return (
            f"Workers of an older version are running: {names}. "
            "They cannot run batches, flows or jobs that wait for others: stop or upgrade them first."
        )


class NoWorkerAvailable(PgJobsError):
    """All local workers of this process are busy, so the job neither ran nor was queued."""


class UnknownJob(PgJobsError):
    """No job definition of this name is known to this process."""


class UnreadablePayload(PgJobsError):
    """The stored payload cannot be read, or does not fit the job's signature."""


class JobDoesNotExist(PgJobsError):
    """There is no such job."""


class JobNotCommitted(PgJobsError):
    """The job's registration is not committed, so waiting for it here could never end."""


class JobNotFinished(PgJobsError, TimeoutError):
    """The job did not finish within the time given."""


class JobFailed(PgJobsError):
    """The job was abandoned or cancelled, so it has no value.

    ``job_id``; ``outcome``: ``abandoned`` or ``cancelled``; ``kind``: the qualified name of the last attempt's
    exception, empty if there was none; ``error``: the error as the job keeps it, or who cancelled it and why. Its
    ``__cause__`` shows the traceback of that attempt.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        job_id: int | None = None,
        outcome: str = "",
        kind: str = "",
        error: str = "",
    ) -> None:
        self.job_id = job_id
        self.outcome = outcome
        self.kind = kind
        self.error = error
        super().__init__(message or self._words())

    def _words(self) -> str:
        return f"Job {self.job_id} was {self.outcome}" + (f": {self.error}" if self.error else ".")


class RemoteTraceback(Exception):
    """The traceback of an attempt that failed in another process, as text; the cause of a ``JobFailed``."""

    def __init__(self, traceback: str) -> None:
        self.traceback = traceback
        super().__init__(traceback)

    def __str__(self) -> str:
        return f"\n{self.traceback}"


class UnstorableResult(PgJobsError):
    """The job's return value cannot be stored as JSON."""


class StepLimit(UnstorableResult):
    """The job remembers as many steps as it may, or their results take too much space."""


class StepFailed(PgJobsError):
    """A step of the job has failed as often as it may.

    ``step``: its name; ``error``: its last error, in one line; ``kind``: the qualified name of that exception, empty
    when the job remembers the failure from an earlier run. Catch it to go another way: the job raises it again each
    time that it runs. If the job lets it out, the job is abandoned.
    """

    def __init__(self, message: str | None = None, *, step: str = "", error: str = "", kind: str = "") -> None:
        self.step = step
        self.error = error
        self.kind = kind
        super().__init__(message or f"Step {step!r} failed: {error}")


class WaitTimedOut(PgJobsError, TimeoutError):
    """The event was not sent in time.

    ``event``: its name. Catch it to go another way: the job raises it again each time that it runs. If the job lets it
    out, the job is abandoned.
    """

    def __init__(self, message: str | None = None, *, event: str = "") -> None:
        self.event = event
        super().__init__(message or f"{event!r} was not sent in time.")


class MembersFailed(PgJobsError):
    """Jobs that the job ran by ``gather`` did not all succeed.

    ``failed``: how each of these ended, a ``Settled`` each. If the job lets it out, the job is abandoned.
    """

    def __init__(self, message: str | None = None, *, failed: Sequence[object] = ()) -> None:
        self.failed = list(failed)
        super().__init__(message or f"{len(self.failed)} jobs did not succeed.")


class AttemptFailed(PgJobsError):
    """The attempt failed."""


class AttemptsExhausted(AttemptFailed):
    """No attempts are left, so the job was not run again."""


class ExecutorDied(AttemptFailed):
    """The process that ran the job died."""

    def __init__(
        self,
        message: str | None = None,
        *,
        exitcode: int | None = None,
        signal: int | None = None,
        out_of_memory: bool = False,
    ) -> None:
        self.exitcode = exitcode
        self.signal = signal
        self.out_of_memory = out_of_memory
        super().__init__(message or self._words())

    def _words(self) -> str:
        if self.out_of_memory:
            return "The process that ran the job was killed by the kernel: out of memory."
        if self.signal is not None:
            return f"The process that ran the job was killed by {signals.Signals(self.signal).name}."
        if self.exitcode is not None:
            return f"The process that ran the job exited with status {self.exitcode}."
        return "The process that ran the job died."


class RolledBack(AttemptFailed):
    """The body of an atomic job returned, but its transaction could not be committed, so nothing of it remains.

    It caught a database error outside of an ``atomic()`` of its own, called ``set_rollback(True)``, or closed the
    connection.
    """


class SuspensionSwallowed(AttemptFailed):
    """The job caught JobSuspended and continued. Let it through: write ``except Exception``, not a bare ``except``."""


class JobControl(Exception):
    """Raised by a job to steer its own attempt."""


class Snooze(JobControl):
    """Run this job again later; costs no attempt.

    ``seconds``: how long to wait, in seconds or as a ``timedelta``, by the database's clock. Raises ``ValueError``.
    """

    seconds = 0.0

    def __init__(self, seconds: float | timedelta = 0) -> None:
        self.seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        if not 0 <= self.seconds < float("inf"):
            raise ValueError(f"Snooze needs a finite number of seconds ≥ 0, not {seconds!r}")
        super().__init__(self.seconds)


class Release(JobControl):
    """Release this job: it is ready again at once, in its old place in the queue; costs no attempt.

    For a job that is to stop and has stored how far it is; see ``JobContext.stopping``.
    """


class Cancel(JobControl):
    """End this job as cancelled; no further attempt. ``on_cancel`` runs."""

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class Abandon(JobControl):
    """Give this job up now, even if attempts are left. ``on_abandon`` runs."""

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class JobInterrupted(BaseException):
    """The job is stopped while it runs.

    A ``BaseException``, so that ``except Exception`` does not swallow it. Catch it to clean up, then raise it again.
    Afterwards the worker closes the thread's connections.
    """

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


class JobSuspended(BaseException):
    """The job sleeps, waits or is released by itself: its body restarts when it continues, and finds what it remembers.

    A ``BaseException``, so that ``except Exception`` does not swallow it; ``finally`` blocks run. Let it through.
    """

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


class _SoftLimit(Exception):
    """The base of the next one, for which a bridge puts that of another queue: code of that queue catches its own."""


class SoftDeadlinePassed(_SoftLimit):
    """The attempt ran longer than its soft limit.

    Raised once in the running job: catch it to finish in the time that is left until the timeout. If the job lets it
    out, the attempt has failed.
    """

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


Interrupt = JobInterrupted | SoftDeadlinePassed
"""Exceptions that are raised in a running job from outside."""

INTERRUPTS = (JobInterrupted, SoftDeadlinePassed)


class DeadlinePassed(JobInterrupted):
    """The attempt ran longer than its timeout."""


class MemoryExceeded(JobInterrupted):
    """The attempt took more memory than it may."""


class CancelRequested(JobInterrupted):
    """The job was cancelled while it ran."""


class WorkerStopping(JobInterrupted):
    """This worker must stop running the job: it releases the job, or has lost it."""
