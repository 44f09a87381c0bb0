"""The operator's actions on jobs: one table, and the messages that follow an action.

Each action calls a steering method of ``JobQuerySet``, or steers batches. The table adds the states that the action
applies to, the permission that it needs, and its form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.db import router
from django.db.models import Q
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Job, JobQuerySet
from django_pgjobs.models.gates import Gate
from django_pgjobs.presentation.flow import Surroundings
from django_pgjobs.presentation.wording import STATE_LABELS
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import GATHERING, UNDO, FlowFlag, JobState, MemoKind, Outcome
from django_pgjobs.steering.batching import Steered
from django_pgjobs.steering.jobs import OUT_OF_TURN, SUSPENDED, UNDONE, close_batches, take_stacks
from django_pgjobs.steering.trail import recorded_as
from django_pgjobs.store.memos import Suspension
from django_pgjobs.values.built_in import BATCH, Act, refusal, refused

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import JobRow

_UNCLAIMED = frozenset({JobState.READY, JobState.BLOCKED, JobState.PARKED, JobState.LIMITED, JobState.PAUSED})
_RETRIABLE = frozenset({JobState.ABANDONED, JobState.CANCELLED, JobState.PARKED})

REASONS: dict[str, object] = {
    **STATE_LABELS,
    "busy": _("locked by another transaction"),
    "changed": _("changed in the meantime"),
    "ending": _("already ending"),
    "key taken": _("another job has the same key"),
    "started": _("started since"),
    "ended": _("ended since"),
    "needed": _("others wait for its end: cancel or abandon it"),
    "left": _("left for the next time: repeat the action"),
    "no batch": _("no batch"),
    "no undo": _("nothing undoes it"),
    UNDONE: _("its undo has begun"),
    OUT_OF_TURN: _("behind another of its sequence that has not ended: cancel that"),
    "unknown": _("gone"),
}
"""Why a job was skipped, in words."""


MEMBERS = 10_000
"""Number of members of batches that one request retries: each thousand is a transaction of its own."""


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


ActionCall = Callable[..., Steered]
"""Called with the jobs, and by name with the user as ``by`` and the answers in the form: ``reason``, ``mode``."""


@dataclass(frozen=True, slots=True)
class SteeringAction:
    """One action: its texts, its permission, the states that it applies to, its form, and its effect."""

    name: str
    verb: Any
    question: object
    """Before it changes many jobs."""
    permission: str
    states: frozenset[str]
    run: ActionCall
    form: type[forms.Form] = forms.Form
    form_of_many: type[forms.Form] | None = None
    """The form before many jobs change, if it is another; then it always asks there."""
    of_selected: Any = ""
    """The words that offer it for the selected jobs of the list; empty if it is offered for one job only."""
    destructive: bool = False
    always_confirms: bool = False
    """True if it asks for confirmation even if few jobs are selected."""
    note: Any = ""
    """Side effects that the operator should know."""
    note_of_suspended: object = ""
    """The same, for a durable function that sleeps or waits."""
    note_of_batch: object = ""
    """The same, for a batch or flow."""
    button: object = ""
    """The words on the button of a job's page, if *verb this job* would not do."""
    button_of_batch: object = ""
    stops_neighbours: bool = False
    """True if it may stop other jobs of the same process."""
    names: frozenset[str] = frozenset()
    """The names of the jobs that it applies to; empty for all."""
    changes_members: bool = False
    """True if it changes the members of batches, not their rows."""
    takes_suspended: bool = False
    """True if it also applies to suspended jobs, which sleep or wait."""
    act: Act | None = None
    """The action on the rows of the jobs themselves; None if it changes others."""

    def form_for(self, number: int) -> type[forms.Form]:
        """Return the form before so many jobs change."""
        return self.form if number == 1 or self.form_of_many is None else self.form_of_many

    @property
    def condition(self) -> Q:
        """The condition of jobs that it applies to, as far as state and name say."""
        in_states = Q(state__in=sorted(self.states)) if self.states != frozenset(JobState) else Q()
        in_states = in_states | SUSPENDED if self.takes_suspended else in_states
        if self.act is not None:
            in_states &= ~Q(name__in=sorted(refused(self.act)))
        return in_states & Q(name__in=sorted(self.names)) if self.names else in_states

    def refusal(self, name: str, state: str, flow: int) -> str:
        """Return why it does not apply to a job of this name in this state, or nothing."""
        if self.act is not None and (own := refusal(name, self.act, parked=state == JobState.PARKED)):
            return own
        if self.names and name not in self.names:
            return "no batch"
        return "" if state in self.states or self._takes_as_suspended(state, flow) else state

    def sorted_out(self, jobs: JobQuerySet) -> tuple[dict[int, str], Counter[str]]:
        """Return id → name of those of these jobs that it applies to, and why it does not apply to others."""
        taken: dict[int, str] = {}
        skipped: Counter[str] = Counter()
        for job_id, name, state, flow in jobs.order_by("pk").values_list("pk", "name", "state", "flow"):
            if refusal := self.refusal(name, state, flow):
                skipped[refusal] += 1
            else:
                taken[job_id] = name
        return taken, skipped

    def _takes_as_suspended(self, state: str, flow: int) -> bool:
        return self.takes_suspended and bool(flow & FlowFlag.REMEMBERS) and state in _UNCLAIMED

    def allows(self, job: JobRow, around: Surroundings, waits_for: Suspension | None = None) -> bool:
        """Tell whether to offer the action for ``job``, whose query added ``now``, the database's clock.

        ``around``: a batch's figures, and what undoes the job. ``waits_for``: what it waits for as a durable function.
        """
        if self.changes_members:
            return around.gate is not None and around.gate.abandoned > 0
        if self.act is not None and refusal(job.name, self.act, parked=job.state == JobState.PARKED):
            return False
        only_callback_left = job.ending is not None and job.claim_id is None
        taken = job.state in self.states or self._takes_as_suspended(job.state, job.flow)
        return taken and not only_callback_left and self._applies(job, around, waits_for)

    def _applies(self, job: JobRow, around: Surroundings, waits_for: Suspension | None) -> bool:
        match self.name:
            case "retry":
                return not around.is_undone
            case "undo_again":
                return around.undo is not None and around.undo.state in _RETRIABLE
            case "run_now":  # One that sleeps or waits would only begin to wait again.
                return bool(job.run_at > job.now) and (waits_for is None or waits_for.kind == MemoKind.STEP)
            case "release":
                return job.release_requested_at is None
            case "unblock":
                waits = waits_for is not None and waits_for.kind in (MemoKind.SLEEP, MemoKind.EVENT)
                return waits or (job.state == JobState.BLOCKED and bool(job.flow & FlowFlag.GATED))
            case "close":
                return around.gate is not None and around.gate.is_open
        return True

    def notes(self, job: Job) -> list[object]:
        """Return the notes for this job."""
        special = self.note_of_batch if job.name in GATHERING else ""
        special = special or (self.note_of_suspended if job.state != JobState.BLOCKED else "")
        note = special or self.note
        return [note] if note else []

    def button_for(self, name: str) -> object:
        """Return the words on the button behind the form, for a job of this name."""
        return (self.button_of_batch if name in GATHERING else "") or self.button


def _retry_members(batches: JobQuerySet, *, by: object, reason: str = "") -> Steered:
    """Retry abandoned members of some batches, at most ``MEMBERS``; what is left counts as skipped."""
    using = _written_at(batches)
    ids = list(batches.using(using).order_by("pk").values_list("pk", flat=True)[:MEMBERS])
    failed: dict[int, int] = dict(
        Gate.objects.using(using).filter(pk__in=ids, abandoned__gt=0).order_by("pk").values_list("pk", "abandoned")
    )
    members = Job.objects.using(using).filter(parent_id__in=list(failed), state=Outcome.ABANDONED)
    chosen = list(members.order_by("pk").values_list("pk", flat=True)[:MEMBERS])
    with recorded_as(filter_words="failed members of " + ", ".join(map(str, failed))):
        retried: Steered = members.filter(pk__in=chosen).retry(by=by, reason=reason)
    left = sum(failed.values()) - MEMBERS if len(chosen) == MEMBERS else 0
    return retried + Steered(0, {"left": left} if left > 0 else {})


def _take_stack(jobs: JobQuerySet, *, by: object) -> Steered:
    return take_stacks(jobs, _written_at(jobs), by=by)


def _undo_again(jobs: JobQuerySet, *, by: object, reason: str = "") -> Steered:
    """Retry the jobs that undo these, the latest of each, which continue where they stopped."""
    using = _written_at(jobs)
    failed = jobs.using(using).filter(outcome__in=[Outcome.ABANDONED, Outcome.CANCELLED])
    targets = list(failed.order_by("pk").values_list("pk", flat=True)[:MEMBERS])
    undos = Job.objects.using(using).filter(name=UNDO, target_id__in=targets)
    latest = list(undos.order_by("target_id", "-pk").distinct("target_id").values_list("pk", flat=True))
    steered: Steered = Job.objects.using(using).filter(pk__in=latest).retry(by=by, reason=reason)
    return steered if latest else Steered(0, {"no undo": max(len(targets), 1)})


def _close(batches: JobQuerySet, *, by: object, reason: str = "") -> Steered:
    return close_batches(batches, _written_at(batches), by=by, reason=reason)


def _written_at(jobs: Any) -> str:
    return str(jobs._db or router.db_for_write(Job))


_TABLE = (
    SteeringAction(
        name="retry", act=Act.RETRY, verb=_("retry"), permission="pgjobs.retry_job", states=_RETRIABLE,
        run=JobQuerySet.retry, form_of_many=ReasonForm, of_selected=_("Retry selected %(verbose_name_plural)s"),
        question=_("Make these jobs ready again, with a fresh set of attempts?"),
    ),
    SteeringAction(
        name="undo_again", verb=_("undo again"), permission="pgjobs.retry_job", run=_undo_again,
        states=frozenset({JobState.ABANDONED, JobState.CANCELLED}), form_of_many=ReasonForm,
        question=_("Continue to undo what these jobs have done, where the undo was abandoned or cancelled?"),
    ),
    SteeringAction(
        name="run_now", act=Act.RESCHEDULE, verb=_("run now"), permission="pgjobs.reschedule_job",
        states=frozenset({JobState.READY, JobState.LIMITED}), run=partial(JobQuerySet.reschedule, delay=0),
        form_of_many=ReasonForm, of_selected=_("Run selected %(verbose_name_plural)s now"),
        question=_("Make these scheduled jobs due now?"),
    ),
    SteeringAction(
        name="stack", act=Act.STACK, verb=_("take stack"), permission="pgjobs.view_stack",
        states=frozenset({JobState.RUNNING}), run=_take_stack,
        question=_("Ask the workers of these jobs where each of them is?"),
    ),
    SteeringAction(
        name="release", act=Act.RELEASE, verb=_("release"), permission="pgjobs.reschedule_job",
        states=frozenset({JobState.RUNNING}), run=JobQuerySet.release, form=ReasonForm, always_confirms=True,
        stops_neighbours=True, of_selected=_("Release selected %(verbose_name_plural)s"),
        question=_("Ask the workers of these running jobs to release them? They run again, uncharged."),
        note=_(
            "If a job does not stop within four seconds, its worker kills the process. Other jobs that run in that "
            "process are released too and run again, uncharged."
        ),
    ),
    SteeringAction(
        name="unblock", act=Act.UNBLOCK, verb=_("unblock"), permission="pgjobs.reschedule_job",
        states=frozenset({JobState.BLOCKED}), takes_suspended=True, run=JobQuerySet.unblock,
        form=ReasonForm, always_confirms=True, button=_("Unblock"),
        of_selected=_("Unblock selected %(verbose_name_plural)s…"),
        question=_("Let these jobs run, regardless of what they wait for?"),
        note=_(
            "A job that needs others runs as if they had ended as it needs; if it takes the result of one that has "
            "not succeeded, it is abandoned."
        ),
        note_of_suspended=_(
            "A sleeping job continues at once. A job that waits for an event continues as if none had come in time."
        ),
        note_of_batch=_(
            "A batch or flow ends by its figures so far, and takes no more members. Unfinished members still run."
        ),
    ),
    SteeringAction(
        name="retry_members", verb=_("retry failed members"), permission="pgjobs.retry_job",
        states=frozenset(JobState), names=frozenset(GATHERING), changes_members=True, run=_retry_members,
        form=ReasonForm,  # one batch has many members
        always_confirms=True, button=_("Retry failed members"),
        of_selected=_("Retry failed members of selected batches"),
        question=_("Retry the abandoned members of these batches and flows? They wait for them again."),
    ),
    SteeringAction(
        name="close", act=Act.CLOSE, verb=_("close"), permission="pgjobs.reschedule_job",
        states=frozenset({JobState.BLOCKED}), names=frozenset({BATCH}), run=_close, form=ReasonForm,
        button=_("Close this batch"), of_selected=_("Close selected batches"),
        question=_("Close these batches? They end when their present members have ended."),
        note=_("Once its present members have ended, no more can be added from outside."),
    ),
    SteeringAction(
        name="cancel", act=Act.CANCEL, verb=_("cancel"), permission="pgjobs.cancel_job",
        states=_UNCLAIMED | {JobState.RUNNING}, run=JobQuerySet.cancel, form=CancelForm, destructive=True,
        always_confirms=True, of_selected=_("Cancel selected %(verbose_name_plural)s…"),
        question=_("Cancel these jobs? Jobs that have not started end at once; choose how to stop running ones."),
        note_of_batch=_(
            "All members of a batch or flow that have not ended are cancelled, too, in the same way; then it ends."
        ),
        button_of_batch=_("Cancel it and its members"),
    ),
    SteeringAction(
        name="abandon", act=Act.ABANDON, verb=_("abandon"), permission="pgjobs.abandon_job", states=_UNCLAIMED,
        run=JobQuerySet.abandon, form=ReasonForm, destructive=True, always_confirms=True,
        of_selected=_("Abandon selected %(verbose_name_plural)s…"),
        question=_("Abandon these jobs? Their on_abandon callback runs; running jobs are skipped."),
    ),
)  # fmt: skip

ACTIONS: dict[str, SteeringAction] = {action.name: action for action in _TABLE}
"""Name → action, in display order."""


def steer(action: SteeringAction, jobs: Any, by: object, answers: Mapping[str, object], *, everything: bool) -> Steered:
    """Apply the action to ``jobs``; with ``everything`` (all pages of a list) ignore jobs in other states, uncounted.

    It must ignore them: the steering methods lock every job that they get, and a list may hold a million.
    """
    if everything:
        return action.run(jobs.filter(action.condition), by=by, **answers)
    names, refused_as = action.sorted_out(jobs)
    skipped, taken = Steered(0, refused_as), jobs.model.objects.using(jobs._db).filter(pk__in=list(names))
    return skipped + action.run(taken, by=by, **answers) if names else skipped


def message_of(
    action: SteeringAction, steered: Steered, answers: Mapping[str, object] | None = None
) -> tuple[int, str]:
    """Return level and text: *Cancel (ask): 3 changed, 2 skipped: 1 running, 1 succeeded. Reason: ordered twice.*"""
    mode, reason = (answers or {}).get("mode", ""), (answers or {}).get("reason", "")
    changed = ngettext("%(count)s changed", "%(count)s changed", steered.changed) % {"count": grouped(steered.changed)}
    if number := sum(steered.skipped.values()):
        why = ", ".join(f"{grouped(n)} {REASONS.get(reason, reason)}" for reason, n in sorted(steered.skipped.items()))
        text = ngettext("%(count)s skipped: %(why)s", "%(count)s skipped: %(why)s", number)
        changed = f"{changed}, {text % {'count': grouped(number), 'why': why}}"
    level = messages.SUCCESS if steered.changed else messages.WARNING
    verb = capfirst(str(action.verb))
    text = gettext("%(action)s: %(changed)s.") % {
        "action": f"{verb} ({mode})" if mode else verb,
        "changed": changed,
    }
    if reason:
        said = gettext("Reason: %(reason)s.") % {"reason": visible(reason).rstrip(".")}
        text = f"{text} {said}"
    return level, text
