"""Idempotency keys: a job returns what an earlier one of its name and key returned, instead of running.

The result is stored by the statement that ends the job, so with it or not at all; of two that run at once both run, and
the first that ends is remembered. The executor looks it up, after it has signalled the start and before any layer or
body: only a job that has such a key pays for that. An attempt that could not look it up is snoozed, since its body may
have run already, elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psycopg
from asgiref.sync import sync_to_async
from django.db import Error

from django_pgjobs import decisions as decide
from django_pgjobs.execution import events
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.statements import FoundResult

UNREADABLE_SECONDS = 5.0
UNREAD = (Error, psycopg.Error)
"""Whatever the database answers to our own statement: it is never charged to the job."""

Recall = Callable[[Sequence[str], str], FoundResult | None]
"""Reads what is stored under (names of the job, key)."""


class Recallable(Protocol):
    """A job about to be called, as far as it matters here."""

    @property
    def definition(self) -> Any: ...
    @property
    def item(self) -> Any: ...
    @property
    def context(self) -> Any: ...
    @property
    def recall(self) -> Recall | None: ...


def key_of(extras: str | None) -> str | None:
    """Return the idempotency key among what a claim says of few jobs."""
    key: str | None = None if extras is None else json.loads(extras).get("idempotency_key")
    return key


def recalled(prepared: Recallable) -> decide.Succeed | decide.Snooze | None:
    """Return what a job with an idempotency key comes to without being called; None if it is to be called."""
    key, recall = key_of(prepared.item.extras), prepared.recall
    if key is None or recall is None:
        return None
    definition, context = prepared.definition, prepared.context
    try:
        found = recall(list({definition.name, *definition.aliases, context.name}), key)
    except UNREAD as error:
        return _snooze(context, error)
    if found is None:
        return None
    events.idempotency_hit(definition, context, key, found.job_id)
    return decide.Succeed(found.result)


async def arecalled(prepared: Recallable) -> decide.Succeed | decide.Snooze | None:
    """``recalled`` for a job on an event loop."""
    try:
        return await sync_to_async(recalled)(prepared)
    except RuntimeError as error:  # no thread can be started for the query
        return _snooze(prepared.context, error)


def _snooze(context: Any, error: Exception) -> decide.Snooze:
    words = one_line(error)
    events.log.warning(
        "stored result cannot be read, again in %g s %s: %s", UNREADABLE_SECONDS, events.facts(context), words
    )
    return decide.Snooze(UNREADABLE_SECONDS)
