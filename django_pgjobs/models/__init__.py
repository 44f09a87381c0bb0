"""The tables: what a job is, who has claimed it, how its attempts failed, which workers live, which one leads.

Models are for reading and migrating. Every change of a job's state is a statement of ``sql/``, called by ``store``;
therefore ``Job.save()`` refuses. A claim, a cancel request, progress and a release change columns such as ``claim_id``,
``state``, ``overdue_at`` and ``attempt``. No index may hold these columns or name them in its condition: those writes
must stay heap-only (HOT) updates. No constraint points to Job: one would make pruning three times dearer.

Every process that has the app installed loads this room. Its methods therefore import ``steering`` and ``inspection``
when called, and the top of each module imports only what the tables need.
"""

from __future__ import annotations

from django_pgjobs.models import gates, imports, numbers
from django_pgjobs.models.attempts import Attempt, JobStack, LogLine, Step
from django_pgjobs.models.crons import CronEntry, CronEntryQuerySet, SteerableCron
from django_pgjobs.models.job_steering import Steerable
from django_pgjobs.models.jobs import Job, JobQuerySet
from django_pgjobs.models.keys import StoredResult
from django_pgjobs.models.memos import EventState, Memo
from django_pgjobs.models.operators import (
    Action,
    LimitOverride,
    LimitOverrideQuerySet,
    QueueState,
    QueueStateQuerySet,
)
from django_pgjobs.models.workers import Heartbeat, LeaderTerm

__all__ = [
    "Action",
    "Attempt",
    "CronEntry",
    "CronEntryQuerySet",
    "EventState",
    "Heartbeat",
    "Job",
    "JobQuerySet",
    "JobStack",
    "LeaderTerm",
    "LimitOverride",
    "LimitOverrideQuerySet",
    "LogLine",
    "Memo",
    "QueueState",
    "QueueStateQuerySet",
    "Steerable",
    "SteerableCron",
    "Step",
    "StoredResult",
]

INTERNAL = (gates, imports, numbers)
"""Modules whose models are internal, as are all that ``__all__`` does not name. Django knows imported ones."""
