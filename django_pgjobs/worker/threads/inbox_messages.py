"""Reports of the worker's threads to its main thread. Each message is one fact; ``Inbox`` carries it.

A thread posts a message for each claim or flush, never one for each job. The supervisor's ``match`` handles each of
``InboxMessage``: mypy refuses a message that it forgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django_pgjobs.ends.kinds import EndKind
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import Control, ExpiredJob, Flag, Rescued
from django_pgjobs.store.pausing import Pauses
from django_pgjobs.store.stacks import StackRequest
from django_pgjobs.worker.shared.runs import HeldRun

StoredEnd = tuple[HeldRun, End, object]
"""A run, its end as written, and the row that the statement returned; None if an earlier try wrote it."""

RefusedEnd = tuple[HeldRun, str, str]
"""A run whose end was not written, the intended end, and the reason."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """From the claim thread: a claim sent at ``asked_at`` took these jobs, at least one.

    ``scanned_at``: when, by the database's clock.
    """

    asked_at: float
    jobs: list[ClaimedJob]
    scanned_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HomeOpened:
    """One of several databases can be served; ``identity``: which it is."""

    identity: list[object]


@dataclass(frozen=True, slots=True)
class Idle:
    """From the claim thread: at this instant it had scanned everything since the last arrival, and found nothing."""

    at: float


@dataclass(frozen=True, slots=True)
class Stored:
    """From the finaliser: these ends of one kind are durable."""

    kind: EndKind
    entries: Sequence[StoredEnd]


@dataclass(frozen=True, slots=True)
class RefusedEnds:
    """From the finaliser: these ends were not this worker's to write."""

    refused: list[RefusedEnd]


@dataclass(frozen=True, slots=True)
class BackendsEnded:
    """From the finaliser: nothing of the dead executor with this name is left on the server."""

    application_name: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """From the keep thread: a query begun at ``asked_at`` renewed these claims, and no others."""

    asked_at: float
    claim_ids: set[str]


@dataclass(frozen=True, slots=True)
class FlagsRead:
    """From the keep thread: these jobs were read by a query begun at ``asked_at``, and these of them are flagged."""

    asked_at: float
    job_ids: set[int]
    flags: list[Flag]


@dataclass(frozen=True, slots=True)
class PausesRead:
    """From the keep thread: the pauses and operators' limits, at the start and after every change."""

    pauses: Pauses


@dataclass(frozen=True, slots=True)
class ControlRead:
    """From the keep thread: an operator asks this worker for something, after what it has obeyed."""

    control: Control


@dataclass(frozen=True, slots=True)
class StacksAsked:
    """From the keep thread: operators ask for stacks of jobs that this worker holds, or held."""

    requests: list[StackRequest]


@dataclass(frozen=True, slots=True)
class JobsRescued:
    """From the maintenance thread: these jobs were taken from workers whose leases had run out."""

    rescued: list[Rescued]


@dataclass(frozen=True, slots=True)
class JobsExpired:
    """From the maintenance thread: these jobs ended because they had not started when they expired."""

    expired: list[ExpiredJob]


@dataclass(frozen=True, slots=True)
class NothingHeld:
    """From the admitter: limits hold no due job. It only wakes the main thread."""


class OfSchemas:
    """A message about one or more of many schemas, to the inbox that is for these alone."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SchemasFound(OfSchemas):
    """From the rota: these sleeping schemas have something to do, these others no leader for long.

    ``duties``: those of the first that have more to do than a job.
    """

    due: Sequence[str]
    unled: Sequence[str] = ()
    duties: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SchemasNamed(OfSchemas):
    """From the rota: the schemas that there are now."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class HomeLeft(OfSchemas):
    """All threads of a schema's home have ended."""

    schema: str


InboxMessage = (
    Claimed
    | Stored
    | HomeOpened
    | Idle
    | Renewed
    | FlagsRead
    | RefusedEnds
    | BackendsEnded
    | PausesRead
    | ControlRead
    | StacksAsked
    | JobsRescued
    | JobsExpired
    | NothingHeld
    | OfSchemas
)
