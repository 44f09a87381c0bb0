"""A call of a task, and a task that runs here."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery.exceptions import Retry

from django_pgjobs.celery_bridge import messages
from django_pgjobs.models import Attempt

if TYPE_CHECKING:
    from django_pgjobs import JobContext
    from django_pgjobs.jobs import BoundJob, JobDefinition

RETRY_KIND = f"{Retry.__module__}.{Retry.__name__}"

SAME = (*messages.EMBEDDED, "priority", "timelimit", "expires")
"""Parts of a message that a retry in place has in common with the run before."""


@dataclass(frozen=True, slots=True)
class CeleryCall:
    """A call of a task: its message and arguments as JSON, and the options of the job."""

    definition: JobDefinition[..., Any]
    message: messages.Message
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    """Those that a next step may have, too."""
    start: dict[str, Any] = field(default_factory=dict)
    """``delay`` or ``run_at``."""
    expires: dict[str, Any] = field(default_factory=dict)

    def bound(self, **more: Any) -> BoundJob[Any]:
        """Return the call as a job to register, or to continue with."""
        return self.definition.using(**self.options, **more).bind(
            *self.args, **self.kwargs, **{messages.MESSAGE: self.message}
        )

    def register(self) -> None:
        """Store it."""
        self.bound(**self.start, **self.expires, tags=[messages.tag_of(self.message["id"])]).register()

    @property
    def seconds(self) -> float:
        """Seconds from now to its start."""
        if "run_at" in self.start:
            return max((self.start["run_at"] - datetime.now(UTC)).total_seconds(), 0.0)
        return float(self.start.get("delay", 0.0))


@dataclass(slots=True)
class CeleryRun:
    """A task that runs here."""

    context: JobContext
    id: str
    name: str
    message: messages.Message
    args: list[Any]
    kwargs: dict[str, Any]
    again: list[CeleryCall] = field(default_factory=list)
    """Calls with its own id."""
    kept: tuple[str, Any] | None = None
    """The last state that it has set, and its result."""
    lifted: bool = False
    """True if it runs though its call has expired: neither do its retries expire."""

    @classmethod
    def of(cls, context: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CeleryRun:
        """Return the task whose job has this context and these arguments."""
        message = kwargs.get(messages.MESSAGE) or {}
        own = {name: value for name, value in kwargs.items() if name != messages.MESSAGE}
        return cls(context, messages.id_of(message, context.id), context.name, message, list(args), own)

    def has_called(self, call: CeleryCall) -> bool:
        """Return whether the run before, which did not come to its end, has stored this call."""
        job = messages.job_of(call.message["id"]) if self.context.attempt > 1 else None
        stored = {} if job is None else messages.message_of(job)
        if stored.get("parent_id") != self.id or messages.FAILED in stored:
            return False
        past = Attempt.objects.using(self.context.database).filter(job_id=self.context.id).order_by("-id")
        return past.values_list("exception", flat=True).first() != RETRY_KIND

    def hands_on(self, call: CeleryCall) -> bool:
        """Return whether Celery makes this call with the result of the run: of a link, or the next of its chain."""
        following = [self.message.get("callbacks"), (self.message.get("chain") or [None])[-1]]
        return json.dumps({"task_id": call.message["id"]})[1:-1] in json.dumps(following, default=str)

    def is_itself(self, call: CeleryCall) -> bool:
        """Return whether a call is this one once more, so that its row needs no change."""
        if (call.definition.name, call.args, call.kwargs) != (self.name, self.args, self.kwargs):
            return False
        same = all(call.message.get(name) == self.message.get(name) for name in SAME)
        return same and call.options["queue"] == self.context.queue and self.context.remaining_attempts > 1


running: ContextVar[CeleryRun | None] = ContextVar("pgjobs_celery_run", default=None)
