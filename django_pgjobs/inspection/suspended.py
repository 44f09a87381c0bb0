"""Sentences about what a durable function waits for: a time, an event, other jobs, another attempt of a step."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgjobs.inspection.words import Reason, clock_time, quoted, span
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import MemoKind
from django_pgjobs.store.memos import Suspension


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
