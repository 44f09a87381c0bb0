"""The states of jobs and the transitions between them.

Layer 0: no Django, no I/O. ``models`` derives its choices from here, the documentation its diagram. A job's *state*
follows from outcome, claim and hold: queries compute it (``fields``, and an SQL function). The *label* is the word that
people see: a ready job whose time has not come is *scheduled*, or *retrying* if it has failed before.
"""

from __future__ import annotations

from datetime import datetime
from enum import IntFlag, StrEnum
from uuid import UUID

FLEET = UUID(int=0)
"""Stands for all workers in the numbers over time."""

TREND = UUID(int=2**128 - 1)
"""Stands for all workers, queues and names in the numbers over time: what charts show."""


OTHERS = "others"
"""Stands in the numbers for queues and names beyond the bounds, and for names that a worker does not define."""


class Outcome(StrEnum):
    """End of a job; null on the row until then."""

    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


BODY, ON_ABANDON, ON_CANCEL, ON_SUCCESS = "body", "on_abandon", "on_cancel", "on_success"

CALLBACK_OF: dict[str, str] = {
    Outcome.SUCCEEDED: ON_SUCCESS,
    Outcome.ABANDONED: ON_ABANDON,
    Outcome.CANCELLED: ON_CANCEL,
}
"""The callback that runs before a job ends so."""


class Ended(StrEnum):
    """End of an attempt, for numbers and metrics: with its job, or so that the job runs again."""

    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    RETRIED = "retried"
    RELEASED = "released"
    SNOOZED = "snoozed"
    STEPPED = "stepped"
    SUSPENDED = "suspended"


class Hold(StrEnum):
    """Why no worker may claim a job. New reasons are data, never a migration."""

    BLOCKED = "blocked"
    PARKED = "parked"
    LIMITED = "limited"
    PAUSED = "paused"
    MOVING = "moving"


class KeyScope(StrEnum):
    """Time for which a job takes its key: until it ends, until it starts, or for a window of time."""

    UNTIL_FINISHED = "until_finished"
    UNTIL_STARTED = "until_started"
    WINDOW = "window"


class JobState(StrEnum):
    """The values of a job's ``state``."""

    READY = "ready"
    RUNNING = "running"
    BLOCKED = "blocked"
    PARKED = "parked"
    LIMITED = "limited"
    PAUSED = "paused"
    MOVING = "moving"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


class Ending(StrEnum):
    """The outcome to write after the callback, when only the callback is left."""

    ABANDONED = "abandoned"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"


class Rule(StrEnum):
    """The end of another job that a job needs to run: a success, any end, or anything but a success."""

    SUCCEEDED = "succeeded"
    SETTLED = "settled"
    FAILED = "failed"


class FlowFlag(IntFlag):
    """The bits of a job's ``flow``.

    ``MEMBER``: its end counts in the gate of its parent. ``NEEDED``: its end counts in the gates of others, to which
    links lead. ``UNDOABLE``: what it has done is undone if it fails. ``STEPPED``: it has finished steps. ``GATED``: it
    waits for others, or has. ``REMEMBERS``: it has memos. ``UNDONE``: its undo has begun. ``YIELDS``: it
    does not hold its sequence up if it is abandoned. ``UNDOING``: it is to be undone, and has not been to the end; no
    bit is higher, so an index finds these.

    ``COUNTED``, in statements ``flow & 7``: its writer settles its end, too. No statement asks for ``MEMBER``: each job
    with a parent is a member.
    """

    MEMBER = 1
    NEEDED = 2
    UNDOABLE = 4
    STEPPED = 8
    GATED = 16
    REMEMBERS = 32
    UNDONE = 64
    YIELDS = 128
    UNDOING = 256

    COUNTED = MEMBER | NEEDED | UNDOABLE
    ITS_OWN = UNDOABLE | STEPPED | REMEMBERS | UNDONE | UNDOING


# Plain numbers: a claim asks for each job of a flow.
_COUNTED, _MEMBER = int(FlowFlag.COUNTED), int(FlowFlag.MEMBER)
_BEGUN = int(FlowFlag.STEPPED | FlowFlag.REMEMBERS)


def is_counted(flow: int) -> bool:
    """Return whether the end of a job with these bits counts in a gate, or has to begin its undo."""
    return flow & _COUNTED != 0


def gate_of(flow: int, parent_id: int | None) -> int | None:
    """Return the only gate in which the end of such a job counts; 0 for others, None if it counts in none."""
    return (parent_id or 0) if flow & _COUNTED == _MEMBER else 0 if is_counted(flow) else None


def has_begun(flow: int) -> bool:
    """Return whether a job with these bits has finished steps or remembers something: what it has done is done."""
    return flow & _BEGUN != 0


class MemoKind(StrEnum):
    """Kind of what a durable function remembers under a name."""

    STEP = "step"
    SLEEP = "sleep"
    EVENT = "event"
    GATHER = "gather"
    VERSION = "version"


class Cause(StrEnum):
    """Why an attempt did not succeed, in the retry history."""

    FAILED = "failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    LOST = "lost"
    RELEASED = "released"
    CANCELLED = "cancelled"


class CancelMode(StrEnum):
    """Ways to cancel a running job, gentlest first: ask it, raise an exception in it, kill its process."""

    ASK = "ask"
    INTERRUPT = "interrupt"
    KILL = "kill"


BUILT_IN = "pgjobs."
"""Prefix of the names of this package's own jobs."""

GATHERING = (f"{BUILT_IN}batch", f"{BUILT_IN}flow")
"""The names of jobs that wait for their members."""

CANCEL_MEMBERS = f"{BUILT_IN}cancel_members"
"""The name of the job that cancels the members of a batch."""

NOTIFY = f"{BUILT_IN}notify"
"""The job that delivers a notice of failures; its own failures cause no notice."""

UNDO = f"{BUILT_IN}undo"
"""The name of the job that undoes what a job has done."""

WAKE = f"{BUILT_IN}wake"
"""The name of the job that wakes one whose gathered jobs have ended."""

STEER = f"{BUILT_IN}steer"
"""The name of the job that carries out an action on more jobs than a request may change."""

TIRELESS = 1_000_000
"""The ``max_attempts`` of our own jobs that hold together what others do: no attempt of theirs decides anything."""

FAIL_FAST = "pgjobs:fail_fast"
"""Author of the cancel of the members of a batch that fails fast."""

GATHER = "pgjobs:gather"
"""Author of the cancel of the jobs of a gather when the job that waits for them ends without a success."""

NOT_MET, NOT_NEEDED = "pgjobs:flow", "pgjobs:not_needed"
"""Authors of the cancel of a job that its gate did not let run: a job that it needs failed, or no job needs it."""

TASK_FRONT = "@task"
"""Mark of job definitions of the front for ``django.tasks``, beside those of ``@job``."""

TASK_HEADER = "task"
"""The key of ``Job.headers`` that belongs to the front for ``django.tasks``; middleware must not capture it."""

EXPIRED = "expired"
"""The reason on a job that was cancelled because it had not started when it expired; until then its label in lists."""

LABELS = ("scheduled", "retrying")
"""Labels that are not states: rows whose ``run_at`` has not come, *retrying* ones regardless of what holds them."""

RETRYING = (JobState.READY, JobState.LIMITED, JobState.PAUSED)
"""The states of a job that is *retrying*, if an attempt has failed and the time of the next has not come."""

TRANSITIONS: dict[JobState, tuple[JobState, ...]] = {
    JobState.BLOCKED: (JobState.READY, JobState.LIMITED, JobState.CANCELLED, JobState.ABANDONED),
    JobState.LIMITED: (JobState.READY, JobState.MOVING, JobState.CANCELLED, JobState.ABANDONED),
    JobState.PAUSED: (JobState.READY, JobState.LIMITED, JobState.MOVING, JobState.CANCELLED, JobState.ABANDONED),
    JobState.PARKED: (JobState.READY, JobState.LIMITED, JobState.MOVING, JobState.CANCELLED, JobState.ABANDONED),
    JobState.MOVING: (JobState.READY, JobState.LIMITED, JobState.PAUSED, JobState.PARKED),
    JobState.READY: (JobState.RUNNING, JobState.LIMITED, JobState.MOVING, JobState.CANCELLED, JobState.ABANDONED),
    JobState.RUNNING: (
        JobState.READY,
        JobState.PARKED,
        JobState.LIMITED,
        JobState.PAUSED,
        JobState.SUCCEEDED,
        JobState.CANCELLED,
        JobState.ABANDONED,
    ),
    JobState.SUCCEEDED: (),
    JobState.CANCELLED: (JobState.READY, JobState.LIMITED, JobState.BLOCKED),
    JobState.ABANDONED: (JobState.READY, JobState.LIMITED, JobState.BLOCKED),
}
"""State → states that may follow it; an operator's retry leads from an end back to ready, or to blocked."""


def label(state: str, run_at: datetime, attempt: int, now: datetime) -> str:
    """Return the word to show for a job in ``state``: the state, or one of ``LABELS``."""
    if run_at > now and attempt and state in RETRYING:
        return "retrying"
    return "scheduled" if state == JobState.READY and run_at > now else state
