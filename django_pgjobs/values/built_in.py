"""The jobs of this package itself: what each is for, and which actions it allows.

Layer 0: no Django, no I/O. ``POLICY`` is the one table: every way to steer a job asks it, in the admin, in the shell
and in code, and the documentation prints it. The rows of batches and flows stand for something of the user's, so they
take what their owner may want of them. The other jobs are *servants*: each does one thing for an owner, which is what
to steer instead. Lists show servants only when asked. They have a queue of their own: every worker serves it, no pause
stops it, and no limit counts what runs in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from django_pgjobs.states import BUILT_IN, CANCEL_MEMBERS, GATHERING, NOTIFY, STEER, UNDO, WAKE

OWN_QUEUE = "pgjobs"
"""The queue of the servants; no other code may register jobs in it."""

BATCH, FLOW = GATHERING


class Act(StrEnum):
    """Actions on a job, or on all jobs of a name."""

    CANCEL = "cancel"
    ABANDON = "abandon"
    RETRY = "retry"
    RELEASE = "release"
    UNBLOCK = "unblock"
    RESCHEDULE = "reschedule"
    CLOSE = "close"
    REGISTER_AGAIN = "register again"
    PAUSE = "pause"
    SCHEDULE = "schedule"
    MOVE = "move"
    STACK = "stack"


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One of the package's own jobs: what it does, what may be done to it, and what to do instead of the rest."""

    does: str
    allows: frozenset[Act]
    instead: str
    instead_of: Mapping[Act, str] = field(default_factory=dict)
    """The same, where one action has an answer of its own."""


STAYS = "it ends in the database where it began"

_BY_NAME = {
    Act.PAUSE: "pause the queues or the names of what it concerns",
    Act.SCHEDULE: "schedule a job of your own",
    Act.MOVE: STAYS,
}

POLICY: Mapping[str, BuiltIn] = {
    BATCH: BuiltIn(
        "stands for a batch",
        frozenset({Act.CANCEL, Act.RELEASE, Act.UNBLOCK, Act.RESCHEDULE, Act.CLOSE}),
        "steer its members",
        {
            Act.ABANDON: "cancel it, or unblock it",
            Act.RETRY: "retry its failed members",
            Act.REGISTER_AGAIN: "register a new batch, with its members",
            Act.SCHEDULE: "schedule a job that registers the batch",
            Act.PAUSE: "pause the queues or the names of its members",
            Act.MOVE: STAYS,
        },
    ),
    FLOW: BuiltIn(
        "stands for a flow",
        frozenset({Act.CANCEL, Act.RELEASE, Act.UNBLOCK, Act.RESCHEDULE}),
        "steer its nodes",
        {
            Act.ABANDON: "cancel it, or unblock it",
            Act.RETRY: "retry its failed members",
            Act.CLOSE: "it has all its nodes from the beginning",
            Act.REGISTER_AGAIN: "register a new flow, with its nodes",
            Act.SCHEDULE: "schedule a job that registers the flow",
            Act.PAUSE: "pause the queues or the names of its nodes",
            Act.MOVE: STAYS,
        },
    ),
    CANCEL_MEMBERS: BuiltIn(
        "cancels the members of a batch or flow",
        frozenset(),
        "steer the members, or cancel their batch again",
        _BY_NAME,
    ),
    WAKE: BuiltIn("wakes a job whose gathered jobs have ended", frozenset(), "steer that job", _BY_NAME),
    UNDO: BuiltIn(
        "undoes what a job has done",
        frozenset({Act.CANCEL, Act.RETRY}),
        "steer the compensation that it waits for",
        {
            **_BY_NAME,
            Act.ABANDON: "cancel it",
            Act.REGISTER_AGAIN: "retry it, and it continues where it stopped",
            Act.PAUSE: "pause the names of the compensations",
        },
    ),
    NOTIFY: BuiltIn(
        "delivers a notice of failures",
        frozenset({Act.CANCEL}),
        "look at the failures themselves; PGJOBS['NOTIFY_FAILURES'] says who is notified of the next ones",
        {**_BY_NAME, Act.ABANDON: "cancel it", Act.PAUSE: "unset PGJOBS['NOTIFY_FAILURES'] for a while"},
    ),
    STEER: BuiltIn(
        "carries out an operator's action on many jobs",
        frozenset({Act.CANCEL}),
        "choose the jobs and ask again: an action has the rights of the user who asks",
        {
            **_BY_NAME,
            Act.ABANDON: "cancel it, and it stops",
            Act.RELEASE: "cancel it, and it stops",
            Act.RESCHEDULE: "it is begun at once; cancel it, and it stops",
            Act.PAUSE: "cancel it, and it stops",
        },
    ),
}

SERVANTS = frozenset(POLICY) - frozenset(GATHERING)
"""The names that lists leave out unless they are asked for."""


def is_built_in(name: str) -> bool:
    """Return whether jobs of this name are this package's own."""
    return name.startswith(BUILT_IN)


def refusal(name: str, act: Act, *, parked: bool = False) -> str:
    """Return the sentence that says why this is not done to a job of this name, and what to do; empty if it may be.

    A ``parked`` one, whose row no worker could claim, takes a retry once it is mended.
    """
    own = POLICY.get(name)
    if own is None or act in own.allows or act is Act.STACK or (parked and act is Act.RETRY):
        return ""
    return f"{name} {own.does} and takes no *{act}*: {own.instead_of.get(act, own.instead)}"


def refused(act: Act) -> Collection[str]:
    """Return the names of built-in jobs that do not take this."""
    return [name for name, own in POLICY.items() if act not in own.allows and act is not Act.STACK]
