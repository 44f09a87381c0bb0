"""A ``JobContext`` without a job, for tests that call a body or a callback directly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import Token
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from django_pgjobs import clock
from django_pgjobs.context import JobContext, Running, activate, deactivate
from django_pgjobs.decisions import Failure
from django_pgjobs.execution.failed_attempts import failure_of
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.testing.fake_memory import FakeMemory
from django_pgjobs.values.stopping import DRAIN


class FakeContext(JobContext):
    """The context that ``context()`` returns; ``reports`` lists the (n, total, message) of every ``progress()``.

    Use it as a context manager to have ``current_context()`` return it within the block. ``step`` calls its function,
    again at once if it has ``attempts``; ``sleep`` returns at once; ``wait_for`` and ``version`` take their values from
    the arguments of ``context()``; ``gather`` calls its functions one after the other. The asynchronous twins do the
    same. Results are encoded and decoded as in a real job.
    """

    __slots__ = ("_control", "_token", "reports")

    def __init__(
        self,
        job: ClaimedJob,
        headers: dict[str, object],
        control: RunControl,
        error: Failure | None,
        events: Mapping[str, object],
        versions: Mapping[str, int],
    ) -> None:
        self.reports: list[tuple[float, float | None, str]] = []
        self._control = control
        self._token: Token[JobContext | Running] | None = None

        def report(n: float, total: float | None, message: str) -> None:
            self.reports.append((n, total, message))

        memory = FakeMemory(self, events, versions)
        super().__init__(job, headers, report, control, control.started, error, lambda: memory)

    def cancel(self, *, by: str = "", reason: str = "") -> None:
        """Make ``cancelled`` True from now on, for a body that checks more than once."""
        self._control.requested, self._control.by, self._control.reason = True, by, reason

    def stop(self, *, why: str = DRAIN, seconds: float | None = None) -> None:
        """Make ``stopping`` True from now on; ``seconds``: the time that the job has left."""
        self._control.stopping.announce(why, None if seconds is None else clock.monotonic() + seconds)

    def __enter__(self) -> Self:
        self._token = activate(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            deactivate(self._token)
            self._token = None


def context(
    *,
    id: int = 1,
    name: str = "test",
    queue: str = "default",
    attempt: int = 1,
    max_attempts: int = 5,
    timeout: float | None = None,
    elapsed: float = 0.0,
    cancelled: bool = False,
    cancelled_by: str = "",
    cancel_reason: str = "",
    lease_is_trusted: bool = True,
    headers: Mapping[str, object] | None = None,
    description: str = "",
    run_at: datetime | None = None,
    cron_entry: str | None = None,
    fire_at: datetime | None = None,
    error: BaseException | None = None,
    events: Mapping[str, object] | None = None,
    versions: Mapping[str, int] | None = None,
) -> FakeContext:
    """Return a context like that of a running job, for a test that calls the job's function. Sends no query.

    ``timeout`` and ``elapsed`` are seconds: how long the attempt may take, and has taken. ``error`` is the exception
    that ended the job, to test ``on_abandon``. ``run_at`` and ``fire_at`` are aware datetimes. ``events``: the payloads
    that ``wait_for`` returns, by the names of the events with their keys: ``{"order.approval:7": {"by": "ann"}}``; an
    exception is raised instead, such as ``WaitTimedOut()``. ``versions``: what ``version`` returns, by name, for a job
    that older code has begun. Every other argument is the value of the attribute with that name.
    """
    fired = {"cron_entry": cron_entry, "fire_at": fire_at and fire_at.isoformat()}
    due = datetime.now(UTC) if run_at is None else run_at
    started = clock.monotonic() - elapsed
    trusted_until = math.inf if lease_is_trusted else -math.inf
    job = ClaimedJob(
        id, due, None, queue, 0, name, attempt, max_attempts, timeout, None, "00000000-0000-4000-8000-000000000000",
        description, extras=fired if cron_entry or fire_at else None,
    )  # fmt: skip
    control = RunControl()
    control.requested, control.by, control.reason = cancelled, cancelled_by, cancel_reason
    control.trusted_until, control.started = trusted_until, started
    failure = None if error is None else failure_of(error)
    return FakeContext(job, dict(headers or {}), control, failure, dict(events or {}), dict(versions or {}))
