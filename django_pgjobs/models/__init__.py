"""The tables, and what their querysets can do."""

from __future__ import annotations

from django_pgjobs.models.tables import (
    Action,
    ActionPart,
    Admission,
    Attempt,
    Claim,
    CronEntry,
    Heartbeat,
    Job,
    KeyWindow,
    LeaderTerm,
    PostgresModel,
    QueueState,
    Statistic,
    StoredResult,
)

__all__ = [
    "Action",
    "ActionPart",
    "Admission",
    "Attempt",
    "Claim",
    "CronEntry",
    "Heartbeat",
    "Job",
    "KeyWindow",
    "LeaderTerm",
    "PostgresModel",
    "QueueState",
    "Statistic",
    "StoredResult",
]
