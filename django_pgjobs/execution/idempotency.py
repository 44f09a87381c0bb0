"""Idempotency keys: a job returns the result of an earlier job with its name and key, instead of running.

The statement that ends a job also stores its result, so both are written or neither is. If two such jobs run at the
same time both run to their ends, and the first result is kept. The executor looks the result up after it has signalled
the start and before it calls middleware or body; only jobs with a key pay for the lookup. If the lookup fails, the
attempt is snoozed, since the body may have run already, elsewhere.
"""

from __future__ import annotations

from typing import Any

import psycopg
from asgiref.sync import sync_to_async
from django.db import Error

from django_pgjobs import decisions as decide
from django_pgjobs.exceptions import OtherArguments
from django_pgjobs.execution import events
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line

UNREADABLE_SECONDS = 5.0
UNREAD = (Error, psycopg.Error)
"""Every error of our own statement. The job is never charged for one."""


def recalled(prepared: Prepared) -> decide.Succeeded | decide.Snoozed | None:
    """Return the decision about a job whose result is stored already; None if the job must be called.

    Raises ``OtherArguments`` if that is the result of other arguments.
    """
    key, recall = prepared.job.idempotency_key, prepared.recall
    if key is None or recall is None:
        return None
    definition, context = prepared.definition, prepared.context
    try:
        found = recall(prepared.job.id, list({definition.name, *definition.aliases, context.name}), key)
    except UNREAD as error:
        return _snooze(context, error)
    if found is None:
        return None
    if not found.same:
        raise OtherArguments(
            f"Job {found.job_id} ran for the idempotency key {key!r} with other arguments, and its result is not that "
            "of these: put into the key what tells them apart, such as a tenant."
        )
    events.idempotency_hit(definition, context, key, found.job_id)
    return decide.Succeeded(found.result)


async def arecalled(prepared: Prepared) -> decide.Succeeded | decide.Snoozed | None:
    """``recalled`` for a job on an event loop."""
    try:
        return await sync_to_async(recalled)(prepared)
    except RuntimeError as error:  # no thread can be started for the query
        return _snooze(prepared.context, error)


def _snooze(context: Any, error: Exception) -> decide.Snoozed:
    words = one_line(error)
    log.warning("stored result cannot be read, again in %g s %s: %s", UNREADABLE_SECONDS, events.facts(context), words)
    return decide.Snoozed(UNREADABLE_SECONDS)
