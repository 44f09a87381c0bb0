"""The operator's actions on jobs: one table, and the messages that follow an action.

Each action calls a steering method of ``JobQuerySet``. The table adds the states that the action applies to, the
permission that it needs, and its form.
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
    "busy": _("locked by another transaction"),
    "changed": _("changed in the meantime"),
    "ending": _("already ending"),
    "key taken": _("another job has the same key"),
    "unknown": _("gone"),
}
"""Why a job was skipped, in words."""


class ReasonForm(forms.Form):
    """The reason, kept for people who look at the job later."""

    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=500, widget=forms.TextInput(attrs={"size": 50})
    )


class CancelForm(ReasonForm):
    """The mode and the reason of a cancel."""

    MODES = (
        ("ask", _("Ask a running job to stop; it will not be retried")),
        ("interrupt", _("Interrupt a running job: raise an exception in it and cancel its queries")),
        ("kill", _("Kill the process of a running job; other jobs in that process are released, uncharged")),
    )
    mode = forms.ChoiceField(label=_("How"), choices=MODES, initial="ask", widget=forms.RadioSelect)
    field_order = ("mode", "reason")


Run = Callable[[Any, Any, Mapping[str, Any]], Steered]
"""Called with the jobs, the user, and the cleaned data of the form."""


@dataclass(frozen=True, slots=True)
class SteeringAction:
    """One action: its texts, its permission, the states that it applies to, its form, and its effect."""

    name: str
    verb: Any
    question: Any
    permission: str
    states: frozenset[str]
    run: Run
    form: type[forms.Form] = forms.Form
    destructive: bool = False
    always_confirms: bool = False
    """Whether it asks for confirmation even if few jobs are selected."""
    note: Any = ""
    """Side effects that the operator should know."""

    def allows(self, job: Any) -> bool:
        """Tell whether to offer the action for ``job``, whose query added ``now``, the database's clock."""
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
            question=_("Make these jobs ready again, with a fresh set of attempts?"),
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
            question=_("Cancel these jobs? Jobs that have not started end at once; choose how to stop running ones."),
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
"""Name → action, in display order."""


def steer(action: SteeringAction, jobs: Any, by: Any, answers: Mapping[str, Any], *, everything: bool) -> Steered:
    """Apply the action to ``jobs``; with ``everything`` (all pages of a list) ignore jobs in other states, uncounted.

    It must ignore them: the steering methods lock every job that they get, and a list may hold a million.
    """
    if everything:
        return action.run(jobs.filter(state__in=sorted(action.states)), by, answers)
    states: dict[int, str] = dict(jobs.order_by("pk").values_list("pk", "state"))
    taken = [job_id for job_id, state in states.items() if state in action.states]
    skipped = Steered(0, Counter(state for state in states.values() if state not in action.states))
    return skipped + action.run(jobs.model.objects.filter(pk__in=taken), by, answers) if taken else skipped


def message_of(action: SteeringAction, steered: Steered, answers: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """Return level and text: *Cancel (ask): 3 changed, 2 skipped: 1 running, 1 succeeded. Reason: ordered twice.*"""
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
