"""Methods of a definition besides registering: what operators do with all its jobs, and what only other queues have."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.values.asynchronous import asynchronous

if TYPE_CHECKING:
    from django_pgjobs.models import LimitOverride, QueueState
    from django_pgjobs.steering.trail import Until


class SteeredByName:
    """The part of a definition that steers its jobs, under all its names."""

    name: str

    # Pausing

    def pause(
        self, *, by: object = None, reason: str = "", until: Until = None, database: str | None = None
    ) -> QueueState:
        """Stop jobs of this definition from starting, in any queue and under its former names; return the pause.

        In the caller's transaction. ``by``, ``reason`` and ``until`` are those of ``Queue.pause``; ``database``: an
        alias. Raises ``InvalidJob`` as that does. Repeatable.
        """
        from django_pgjobs.queues import pauses  # here for start-up time

        return pauses.pause("job", self.name, by=by, reason=reason, until=until, database=database)

    def resume(self, *, by: object = None, reason: str = "", database: str | None = None) -> bool:
        """Resume jobs of this definition, in the caller's transaction; return whether they were paused. Repeatable."""
        from django_pgjobs.queues import pauses  # here for start-up time

        return pauses.resume("job", self.name, by=by, reason=reason, database=database)

    apause = asynchronous(pause)

    aresume = asynchronous(resume)

    # Limits

    def limit(
        self,
        concurrency: int | None = None,
        rate: int | None = None,
        per: float | timedelta | None = None,
        *,
        each_key: bool = False,
        by: object = None,
        reason: str = "",
        until: Until = None,
        database: str | None = None,
    ) -> LimitOverride:
        """Set another limit for the jobs of this definition, in any queue; see ``Queue.limit``.

        ``each_key``: instead of its ``Limit`` with a key, for each key separately. ``database``: an alias.
        """
        from django_pgjobs.queues import limits  # here for start-up time

        return limits.override(
            "key" if each_key else "job", self.name, concurrency=concurrency, rate=rate, per=per, by=by, reason=reason,
            until=until, database=database,
        )  # fmt: skip

    def restore_limit(
        self, *, each_key: bool = False, by: object = None, reason: str = "", database: str | None = None
    ) -> bool:
        """Let the code's limit apply again; return whether another one was in force. See ``Queue.restore_limit``."""
        from django_pgjobs.queues import limits  # here for start-up time

        kind = "key" if each_key else "job"
        return limits.restore(kind, self.name, by=by, reason=reason, database=database)

    alimit = asynchronous(limit)

    arestore_limit = asynchronous(restore_limit)


GUESSED = (
    "aenqueue", "apply_async", "apply_async_on_commit", "chunks", "configure", "defer", "delay", "delay_on_commit",
    "describe", "enqueue", "map", "on_error", "on_failure", "s", "send", "send_with_options", "si", "signature",
    "starmap",
)  # fmt: skip
"""Methods of other job queues; the table of cures says what to write here."""


class Elsewhere:
    """A method that only other job queues have. It says what to write here.

    By a ``__getattr__`` each attribute of a definition would be found more slowly, and each job reads a dozen.
    ``dir`` does not list it, or Python and mocks would suggest it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, definition: JobPolicy | None, owner: type) -> object:
        whose = "a job" if definition is None else f"job {definition.name!r}"
        from django_pgjobs.values.cures import cure  # here for start-up time

        words = f"{whose} has no {self.name}(): {cure('definition', self.name)}"
        raise AttributeError(words, name=self.name, obj=definition)
