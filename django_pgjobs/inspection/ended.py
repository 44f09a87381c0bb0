"""Sentences about a job that has ended: how, why, and how it runs again."""

from __future__ import annotations

from collections.abc import Callable

from django.utils.translation import gettext as _

from django_pgjobs.inspection.words import Reason, by_whom, quoted, since, tries
from django_pgjobs.states import GATHERING, NOT_MET, NOT_NEEDED
from django_pgjobs.store.explaining import WhyFacts


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
