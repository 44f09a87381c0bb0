"""What an operator may do to jobs in the admin: one table of actions, and what is said afterwards.

Each is a steering method of ``JobQuerySet``; here is only which states it is offered for, under which permission,
and what it asks first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.utils.text import capfirst
from django.utils.translation import gettext as now_translated
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_pgjobs.presentation.wording import STATE_LABELS, grouped
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import JobState
from django_pgjobs.steering.jobs import Steered

_UNCLAIMED = frozenset({JobState.READY, JobState.WAITING, JobState.PARKED, JobState.LIMITED, JobState.PAUSED})

REASONS: dict[str, Any] = {
    **STATE_LABELS,
    "busy": _("locked by somebody else"),
    "changed": _("changed meanwhile"),
    "ending": _("ending already"),
    "key taken": _("another job has their key"),
    "unknown": _("gone"),
}
"""Why a job was skipped, in words."""


class ReasonForm(forms.Form):
    """Why, for whoever looks at the job later."""

    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=500, widget=forms.TextInput(attrs={"size": 50})
    )


class CancelForm(ReasonForm):
    """How to cancel, and why."""

    MODES = (
        ("ask", _("Ask a running job to stop; it is not retried")),
        ("interrupt", _("Interrupt a running job: raise an exception in it and cancel its queries")),
        ("kill", _("Kill the process of a running job; what else runs in it is released, uncharged")),
    )
    mode = forms.ChoiceField(label=_("How"), choices=MODES, initial="ask", widget=forms.RadioSelect)
    field_order = ("mode", "reason")


Run = Callable[[Any, Any, Mapping[str, Any]], Steered]
"""(jobs, by, answers to the form)"""


@dataclass(frozen=True, slots=True)
class SteeringAction:
    """One thing to do: its words, its permission, the states it is for, its form, and what it does."""

    name: str
    verb: Any
    question: Any
    permission: str
    states: frozenset[str]
    run: Run
    form: type[forms.Form] = forms.Form
    destructive: bool = False
    always_confirms: bool = False
    """Whether it asks for a confirmation also when few jobs are chosen."""
    note: Any = ""
    """What else happens."""

    def allows(self, job: Any) -> bool:
        """Whether to offer it for a job that was read with ``now``, the database's clock."""
        if self.name == "run_now" and job.run_at <= job.now:
            return False
        if self.name == "release" and job.release_requested_at is not None:
            return False
        only_callback_left = job.ending is not None and job.claim_id is None
        return job.state in self.states and not only_callback_left


ACTIONS: dict[str, SteeringAction] = {
    action.name: action
    for action in (
        SteeringAction(
            name="retry",
            verb=_("retry"),
            question=_("Make these jobs ready again, with fresh attempts?"),
            permission="pgjobs.retry_job",
            states=frozenset({JobState.ABANDONED, JobState.CANCELLED, JobState.PARKED}),
            run=lambda jobs, by, answers: jobs.retry(by=by),
        ),
        SteeringAction(
            name="run_now",
            verb=_("run now"),
            question=_("Make these scheduled jobs due now?"),
            permission="pgjobs.reschedule_job",
            states=frozenset({JobState.READY, JobState.LIMITED}),
            run=lambda jobs, by, answers: jobs.reschedule(delay=0, by=by),
        ),
        SteeringAction(
            name="release",
            verb=_("release"),
            question=_("Ask the workers of these running jobs to release them? They run again, uncharged."),
            note=_(
                "If a job does not stop within four seconds, its worker kills the process. Whatever else runs in that "
                "process is released too and runs again, uncharged."
            ),
            permission="pgjobs.reschedule_job",
            states=frozenset({JobState.RUNNING}),
            run=lambda jobs, by, answers: jobs.release(by=by, reason=answers.get("reason", "")),
            form=ReasonForm,
            always_confirms=True,
        ),
        SteeringAction(
            name="cancel",
            verb=_("cancel"),
            question=_("Cancel these jobs? What has not started ends at once; a running job is stopped as you choose."),
            permission="pgjobs.cancel_job",
            states=_UNCLAIMED | {JobState.RUNNING},
            run=lambda jobs, by, answers: jobs.cancel(mode=answers["mode"], by=by, reason=answers["reason"]),
            form=CancelForm,
            destructive=True,
            always_confirms=True,
        ),
        SteeringAction(
            name="abandon",
            verb=_("abandon"),
            question=_("Abandon these jobs? Their on_abandon callback runs; running jobs are skipped."),
            permission="pgjobs.abandon_job",
            states=_UNCLAIMED,
            run=lambda jobs, by, answers: jobs.abandon(by=by, reason=answers["reason"]),
            form=ReasonForm,
            destructive=True,
            always_confirms=True,
        ),
    )
}
"""Name → action, in the order they are shown."""


def steer(action: SteeringAction, jobs: Any, by: Any, answers: Mapping[str, Any], *, everything: bool) -> Steered:
    """Apply the action to ``jobs``. With ``everything`` (all pages of a list) skip jobs of other states unnamed.

    It must skip them: the steering methods lock every job that they get, and a list may hold a million.
    """
    if everything:
        return action.run(jobs.filter(state__in=sorted(action.states)), by, answers)
    states: dict[int, str] = dict(jobs.order_by("pk").values_list("pk", "state"))
    taken = [job_id for job_id, state in states.items() if state in action.states]
    skipped = Steered(0, Counter(state for state in states.values() if state not in action.states))
    return skipped + action.run(jobs.model.objects.filter(pk__in=taken), by, answers) if taken else skipped


def message_of(action: SteeringAction, steered: Steered, answers: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """Level and words: *Cancel (ask): 3 changed, 2 skipped: 1 running, 1 succeeded. Reason: ordered twice.*"""
    mode, reason = (answers or {}).get("mode", ""), (answers or {}).get("reason", "")
    changed = ngettext("%(count)s changed", "%(count)s changed", steered.changed) % {"count": grouped(steered.changed)}
    if number := sum(steered.skipped.values()):
        why = ", ".join(f"{grouped(n)} {REASONS.get(reason, reason)}" for reason, n in sorted(steered.skipped.items()))
        text = ngettext("%(count)s skipped: %(why)s", "%(count)s skipped: %(why)s", number)
        changed = f"{changed}, {text % {'count': grouped(number), 'why': why}}"
    level = messages.SUCCESS if steered.changed else messages.WARNING
    verb = capfirst(str(action.verb))
    text = now_translated("%(action)s: %(changed)s.") % {
        "action": f"{verb} ({mode})" if mode else verb,
        "changed": changed,
    }
    if reason:
        text = f"{text} {now_translated('Reason: %(reason)s.') % {'reason': visible(reason).rstrip('.')}}"
    return level, text
