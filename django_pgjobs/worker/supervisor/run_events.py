"""The signals of durable writes: what receivers in executors get for an end, a loss, a rescue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from django_pgjobs.ends.kinds import EndKind
from django_pgjobs.execution import events
from django_pgjobs.states import Outcome
from django_pgjobs.store.finalising import End, Rescheduled
from django_pgjobs.store.keeping import ExpiredJob, Rescued
from django_pgjobs.worker.shared.channel_messages import SignalEvent
from django_pgjobs.worker.shared.runs import HeldRun

EVERY_KIND = (*events.OUTCOMES, *events.WRITES)


class EventSender(Protocol):
    """Sends signals of durable writes; ``items`` is called only if one of ``kinds`` is wanted."""

    def __call__(self, items: Callable[[], list[SignalEvent]], kinds: Collection[str] = ...) -> None: ...


def at_home(alias: str, send: EventSender) -> EventSender:
    """Return a sender whose events of ends say the home of their jobs, for executors that have jobs of several."""

    def send_with_alias(items: Callable[[], list[SignalEvent]], kinds: Collection[str] = EVERY_KIND) -> None:
        send(lambda: [_with_alias(alias, *item) for item in items()], kinds)

    return send_with_alias


def _with_alias(alias: str, what: str, fields: dict[str, object]) -> SignalEvent:
    return what, {**fields, "database": alias} if what == events.FINISHED else fields


def in_schema(schema: str, send: EventSender) -> EventSender:
    """Return a sender whose events say which of many schemas their jobs are of."""

    def send_with_schema(items: Callable[[], list[SignalEvent]], kinds: Collection[str] = EVERY_KIND) -> None:
        send(lambda: [(what, {**fields, "schema": schema}) for what, fields in items()], kinds)

    return send_with_schema


def event_of_end(kind: EndKind, run: HeldRun, end: End, row: object) -> SignalEvent:
    """Return the signal of an end that was written, or of a retry; ``row`` is what its statement returned."""
    duration = run.duration if end.seconds is None else end.seconds
    error = end.failure.summary if end.failure else run.error
    fields = {**_fields(run), "queue": run.job.queue, "executor": run.executor, "duration": duration, "error": error}
    if not kind.final:
        retry_at = row.run_at.isoformat() if isinstance(row, Rescheduled) else None
        return events.RETRIED, {**fields, "delay": end.delay, "retry_at": retry_at}
    return events.FINISHED, {**fields, "outcome": end.outcome or Outcome.SUCCEEDED}


def event_of_loss(run: HeldRun, action: str, reason: str) -> SignalEvent:
    """Return the signal of a job whose claim is no longer ours, so that ``action`` was refused."""
    about = {**_fields(run), "executor": run.executor, "claim_id": run.job.claim_id}
    return events.LOST, {**about, "action": action, "reason": reason}


def events_of_rescue(job: Rescued) -> list[SignalEvent]:
    """Return the signals of a job that this worker rescued from another."""
    about = {"job_id": job.id, "name": job.name, "attempt": job.attempt}
    facts = {**about, "queue": job.queue, "claim_id": str(job.claim_id), "cause": job.cause, "message": job.message}
    found: list[SignalEvent] = [(events.RESCUED, {**facts, "outcome": job.outcome, "ending": job.ending})]
    ended = {**about, "queue": job.queue, "executor": "", "duration": None, "error": job.message}
    if job.outcome:
        found.append((events.FINISHED, {**ended, "outcome": job.outcome}))
    elif not job.ending:
        found.append((events.RETRIED, {**ended, "delay": 0.0, "retry_at": None}))
    return found


def event_of_expiry(job: ExpiredJob) -> SignalEvent:
    """Return the signal of a job that expired before it started."""
    fields = {"job_id": job.id, "name": job.name, "attempt": job.attempt, "queue": job.queue, "executor": ""}
    return events.FINISHED, {**fields, "duration": None, "error": "", "outcome": Outcome.CANCELLED}


def _fields(run: HeldRun) -> dict[str, object]:
    job = run.job
    fields = {"job_id": job.id, "name": job.name, "attempt": job.attempt}
    return fields if job.target is None else {**fields, "target_id": job.target}
