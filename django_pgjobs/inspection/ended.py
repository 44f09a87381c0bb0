"""Sentences about a job that has ended: how, why, how it runs again; and what a durable function waits for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgjobs.inspection.words import Reason, by_whom, clock_time, quoted, since, span, tries
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import GATHERING, NOT_MET, NOT_NEEDED, MemoKind
from django_pgjobs.store.explaining import WhyFacts
from django_pgjobs.store.memos import Suspension


def succeeded(facts: WhyFacts) -> Reason:
    """Say in which attempt, or that another job had stored its result."""
    words = {"ago": since(facts, facts.finished_at), "tries": tries(facts), "id": facts.result_of}
    if facts.result_of is not None:
        text = _("It succeeded %(ago)s ago without running: job %(id)s had stored the result of its idempotency key.")
        return Reason("succeeded", text % words)
    return Reason("succeeded", _("It succeeded %(ago)s ago, in %(tries)s.") % words)


def cancelled(facts: WhyFacts) -> Reason:
    """Say who cancelled it, or what it needed, and how to run it all the same."""
    if facts.cancel_by in (NOT_MET, NOT_NEEDED):
        words = {"ago": since(facts, facts.finished_at), "why": quoted(facts.cancel_reason)}
        text = _("It was cancelled %(ago)s ago, before it began%(why)s.") % words
        advice = _("To run it all the same: ") + f"manage.py pgjobs retry {facts.id}"
        if facts.undone_by is not None:
            advice = _undone(facts.undone_by)
        elif facts.cancel_by == NOT_MET:
            advice = _("It waits again when you retry what failed.") + f" {advice}"
        return Reason("not_needed", text, advice)
    words = {
        "ago": since(facts, facts.finished_at),
        "by": by_whom(facts.cancel_by),
        "why": quoted(facts.cancel_reason),
    }
    # A batch is not retried itself.
    advice = "" if facts.name in GATHERING and facts.undone_by is None else _retry(facts)
    return Reason("cancelled", _("It was cancelled %(ago)s ago%(by)s%(why)s.") % words, advice)


def abandoned(facts: WhyFacts) -> Reason:
    """Say why, and how to retry it, unless something undoes it."""
    words = {"ago": since(facts, facts.finished_at), "tries": tries(facts), "why": quoted(facts.error)}
    if facts.name in GATHERING:
        text = _("It was abandoned %(ago)s ago%(why)s.") % words
        if facts.undone_by is not None:
            return Reason("abandoned", text, _undone(facts.undone_by))
        command = f"manage.py pgjobs retry --batch {facts.id} --state abandoned"
        advice = _("Retry those of its members that failed, and it waits again: ") + command
        return Reason("abandoned", text, advice)
    text = _("It was abandoned %(ago)s ago after %(tries)s%(why)s.") % words
    if facts.undone_by is not None:
        return Reason("abandoned", text, _undone(facts.undone_by))
    return Reason("abandoned", text, _("Fix the cause, then: ") + _retry(facts))


def _undone(by: int) -> str:
    words = _("It cannot be retried: job %(id)d undoes what was done. To see how far that is: ") % {"id": by}
    return f"{words}manage.py pgjobs show {by}"


def _retry(facts: WhyFacts) -> str:
    if facts.undone_by is not None:
        return _undone(facts.undone_by)
    if facts.key_holder is not None:
        return _("It cannot be retried while job %(id)s has its key.") % {"id": facts.key_holder}
    return f"manage.py pgjobs retry {facts.id}"


ENDED: dict[str, Callable[[WhyFacts], Reason]] = {
    "succeeded": succeeded,
    "cancelled": cancelled,
    "abandoned": abandoned,
}
"""Outcome → what says the reason."""


def words_of(job_id: int, now: datetime, found: Suspension) -> Reason:
    """Return why a suspended job does not run."""
    name = one_line(found.name)
    when = {
        "name": name,
        "at": clock_time(found.wake_at),
        "time": span((found.wake_at - now).total_seconds()),
        "event": one_line(found.event or ""),
    }
    if found.kind == MemoKind.EVENT:
        text = _("It waits for the event %(event)s, until %(at)s at most, for another %(time)s.") % when
        return Reason("waiting_for_event", text, _("To send it: ") + f"manage.py pgjobs send-event --job {job_id}")
    if found.kind == MemoKind.GATHER:
        if not found.pending:
            text = _(
                "All jobs that it gathers have ended, and nothing has woken it; the leader does so within two minutes."
            )
            advice = _("To let it continue now: ") + f"manage.py pgjobs reschedule {job_id} --delay 0"
            return Reason("waiting_for_gather", text, advice)
        counts = {"pending": found.pending or 0, "total": found.total or 0, "batch": found.batch_id}
        text = _("It waits for %(pending)d of the %(total)d jobs that it gathers, in batch %(batch)s.") % counts
        return Reason("waiting_for_gather", text, _("To see them: ") + f"manage.py pgjobs tree {found.batch_id}")
    if found.kind == MemoKind.STEP:
        words = {**when, "failures": found.failures, "why": quoted(found.error)}
        text = ngettext(
            "Its step %(name)s has failed once, and is tried again at %(at)s, in %(time)s%(why)s.",
            "Its step %(name)s has failed %(failures)d times, and is tried again at %(at)s, in %(time)s%(why)s.",
            found.failures,
        )
        advice = _("To try it now: ") + f"manage.py pgjobs reschedule {job_id} --delay 0"
        return Reason("step_retrying", text % words, advice)
    text = _("It sleeps (%(name)s) until %(at)s, for another %(time)s.") % when
    return Reason("sleeping", text, _("To let it continue now: ") + f"manage.py pgjobs unblock {job_id}")
