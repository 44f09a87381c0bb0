"""Background jobs for Django, kept in PostgreSQL.

Here is what declares jobs, registers and composes them, and decides how they end. Importing this package loads no model
and asks nothing of a database, so ``from django_pgjobs import job`` may stand in any module. Errors that you catch are
in ``django_pgjobs.exceptions``, the tables in ``django_pgjobs.models``, signals in ``django_pgjobs.signals``; the page
*Public names* of the documentation lists the rest.
"""

from __future__ import annotations

from django_pgjobs.context import JobContext, current_context
from django_pgjobs.cron_entries import Cron
from django_pgjobs.definition.keys import Sequence, Unique
from django_pgjobs.definition.next_step import Next
from django_pgjobs.eventing import Event
from django_pgjobs.exceptions import Abandon, Cancel, Snooze
from django_pgjobs.flows.batch import Batch
from django_pgjobs.flows.flow import Flow
from django_pgjobs.jobs import aregister_many, job, register_many
from django_pgjobs.values.backoff import Backoff
from django_pgjobs.values.limit import Limit

__version__ = "0.1.0.dev0"

__all__ = [
    "Abandon",
    "Backoff",
    "Batch",
    "Cancel",
    "Cron",
    "Event",
    "Flow",
    "JobContext",
    "Limit",
    "Next",
    "Sequence",
    "Snooze",
    "Unique",
    "aregister_many",
    "current_context",
    "job",
    "register_many",
]
