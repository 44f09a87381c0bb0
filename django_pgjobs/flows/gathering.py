"""``context.gather``: a durable function runs jobs, and continues with their results.

The jobs are the members of a batch. One transaction registers them and remembers the batch, so they are registered
once. The batch's callback sends the event that the function waits for. It reads the results once, and remembers
them: members may be pruned before the function has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.db import transaction
from django.db.models import Max, Q

from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.keys import DESCRIPTION_LIMIT
from django_pgjobs.durable import Settled
from django_pgjobs.exceptions import InvalidJob, MembersFailed, Snooze, StepLimit
from django_pgjobs.flows.batch import Batch
from django_pgjobs.flows.builtin import checked_calls, remove_event, wake
from django_pgjobs.jobs import BoundJob
from django_pgjobs.serialization.headers import inherited
from django_pgjobs.serialization.payload import decode_result, encode_payload, revive
from django_pgjobs.states import BUILT_IN, UNDO, MemoKind, Outcome
from django_pgjobs.store import memos
from django_pgjobs.store.database import on
from django_pgjobs.values.backoff import LONGEST_SECONDS

if TYPE_CHECKING:
    from django_pgjobs.execution.durable import DurableMemory

Member = list[Any]
"""The end of a member, as the memo keeps it: outcome, result, error, id."""

RETRIED_SECONDS = 1.0
"""Delay before the next look for a job that was retried."""

GATHERED = f"{BUILT_IN}gathered:"
"""Prefix of the names of the events that these batches send at their ends."""


def gather(memory: DurableMemory, given: Sequence[object], name: str, *, settled: bool) -> list[object]:
    """Return what the calls came to, in their order; or register them, or suspend the job until they have ended."""
    calls = _checked(given, memory.using)
    memory.load()
    memo = memory.known(name, MemoKind.GATHER)
    stored: dict[str, Any] = decode_result(memo.result or "{}") if memo is not None else {}
    digest = _digest(calls)
    if memo is not None and stored["calls"] != digest:
        raise InvalidJob(
            f"{name}: these are not the calls that it gathered before: let a step return what they are made from, or "
            "give the new ones another name=…"
        )
    if memo is not None and memo.finished:
        return _values(stored["members"], settled=settled)
    if not calls and memo is None:
        return []
    if memo is None or "members" in stored:
        event = None if memo is None else memo.event
        stored = _begin(memory, calls, name, stored.get("members", []), event, digest)
    members = _ended(memory, name, stored)
    if members is None:
        memory.suspend(decide.Suspended(name, MemoKind.GATHER, LONGEST_SECONDS, event=stored["event"]))
    failed = any(member[0] != Outcome.SUCCEEDED for member in members)
    text = json.dumps({"members": members, "calls": digest}, ensure_ascii=False)
    if len(text) > get_conf().bounds.steps_bytes and memory.prepared.context.name != UNDO:
        raise StepLimit(
            f"{name}: the results of {len(members)} jobs take {len(text)} bytes, more than a job may remember "
            "(BOUNDS['steps_bytes']): store what is large elsewhere and return its key."
        )
    error = "Some of its jobs did not succeed." if failed and not settled else ""
    memory.finish(name, MemoKind.GATHER, text, error=error)
    if stored["event"] is not None:
        remove_event(memory.using, stored["event"])
    return _values(members, settled=settled)


def _checked(given: Iterable[Any], using: str) -> list[BoundJob]:
    calls = list(checked_calls(given))
    for call in calls:
        if not isinstance(call, BoundJob):
            raise InvalidJob(f"gather takes calls, made by a definition's bind(…), not {call!r}")
        if call.options.get("bypass"):
            raise InvalidJob(
                f"gather: job {call.name!r} would bypass the queue: pass bypass=False, as a member has a row"
            )
        if call.options.get("database") not in (None, using):
            raise InvalidJob(
                f"gather: job {call.name!r} has to go to database {using!r}, where this one is, "
                f"not to {call.options['database']!r}"
            )
    if len(calls) > (most := get_conf().bounds.gather):
        raise InvalidJob(
            f"gather runs at most {most} jobs (BOUNDS['gather']), not {len(calls)}: register a Batch, "
            "and let its callback do what comes next"
        )
    return calls


def _digest(calls: Sequence[BoundJob]) -> str:
    """Return what tells these calls from others, by names, arguments and order."""
    limit = get_conf().bounds.payload_bytes
    found = [
        [call.name, encode_payload(call.args, dict(call.kwargs), limit, call.definition._signature)] for call in calls
    ]
    return sha256(json.dumps(found).encode()).hexdigest()


def _begin(
    memory: DurableMemory,
    calls: Sequence[BoundJob],
    name: str,
    before: list[Member],
    event: str | None,
    digest: str,
) -> dict[str, Any]:
    """Register the calls, or those that failed ``before``, and remember their batch, in one transaction."""
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    job, using, sent = memory.prepared.job, memory.using, f"{GATHERED}{uuid4()}"
    with transaction.atomic(using=using):
        known = _known(calls, before, using)
        positions = [n for n, member in enumerate(known) if member is None or member[0] != Outcome.SUCCEEDED]
        if not positions:
            return {"batch": None, "event": event, "kept": known, "calls": digest}
        batch = Batch(
            f"{name} of job {job.id}"[:DESCRIPTION_LIMIT],
            settled=wake.bind(sent),
            database=using,
        )
        batch._gather = sent  # its members stay until this job has read them
        batch._headers = inherited(job.headers)
        if batch.add_many([calls[n].using(database=using) for n in positions]) < len(positions):
            raise InvalidJob(f"{name}: another job has the key of one of these: pass using(unique=None)")
        batch.close()
        # A member that runs may add others to the batch, but none of those has a smaller id.
        last = Job.objects.using(using).filter(parent_id=batch.job.pk).aggregate(last=Max("pk"))["last"]
        stored = {"batch": batch.job.pk, "last": last, "event": sent, "positions": positions, "kept": known}
        stored["calls"] = digest
        kept = memos.begin_gather(
            on(using),
            job.id,
            job.claim_id,
            name=name,
            event=sent,
            before=event,
            result=json.dumps(stored),
            seconds=LONGEST_SECONDS,
        )
        if not kept:
            if Job.objects.using(using).filter(pk=job.id, claim_id=job.claim_id).exclude(cancel_requested_at=None):
                memory.suspend(decide.Suspended(name, MemoKind.GATHER, LONGEST_SECONDS))  # it ends as cancelled
            memory.lost()
    return stored


def _known(calls: Sequence[BoundJob], before: Sequence[Member], using: str) -> list[Member | None]:
    """Return how the calls have ended ``before``, or since: failed jobs may have been retried.

    Each undo has one job that succeeds, regardless of who registered it. Locks these jobs: none is retried in the
    meantime. Raises ``Snooze`` if one runs again.
    """
    known: list[Member | None] = [*before, *([None] * (len(calls) - len(before)))]
    for n, call in enumerate(calls):
        member = known[n]
        if member is not None and member[0] == Outcome.SUCCEEDED:
            continue
        if (target := call.options.get("target")) is not None:
            this = Q(target_id=target[0], options__target=list(target)) & ~Q(name=UNDO)
        elif member is not None:
            this = Q(pk=member[3])
        else:
            continue
        found = _members(this, using, lock=True)
        if any(member[0] is None for member in found):
            raise Snooze(RETRIED_SECONDS)
        known[n] = next((member for member in found if member[0] == Outcome.SUCCEEDED), member)
    return known


def _members(these: Q, using: str, *, lock: bool = False) -> list[Member]:
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    rows = Job.objects.using(using).filter(these).order_by("pk")
    fields = rows.values_list("pk", "outcome", "result", "error", "cancel_by", "cancel_reason")
    return [
        [outcome, result, _words(error, by, reason), pk]
        for pk, outcome, result, error, by, reason in (fields.select_for_update(no_key=True) if lock else fields)
    ]


def _ended(memory: DurableMemory, name: str, stored: dict[str, Any]) -> list[Member] | None:
    """Return how all calls ended; None if some have not."""
    members: list[Member] = list(stored["kept"])
    if stored["batch"] is None:
        return members
    found = _members(Q(parent_id=stored["batch"], pk__lte=stored["last"]), memory.using)
    if any(member[0] is None for member in found):
        return None
    if len(found) != len(stored["positions"]):
        raise InvalidJob(f"{name}: jobs of batch {stored['batch']} were pruned before this job read their results")
    for position, member in zip(stored["positions"], found, strict=True):
        members[position] = member
    return members


def _words(error: str, by: str, reason: str) -> str:
    return error or " ".join(filter(None, (by and f"cancelled by {by}", reason)))


def _values(members: list[Member], *, settled: bool) -> list[Any]:
    found = [Settled(outcome, revive(result), error, pk) for outcome, result, error, pk in members]
    if settled:
        return found
    if failed := [member for member in found if member.outcome != "succeeded"]:
        first = failed[0]
        raise MembersFailed(
            f"{len(failed)} of {len(found)} jobs did not succeed; "
            f"job {first.job_id} was {first.outcome}" + (first.error and f": {first.error}"),
            failed=failed,
        )
    return [member.result for member in found]
