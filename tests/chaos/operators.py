"""What the nemesis does as an operator: to jobs, to the package's own jobs, and with a SQL shell to rows of those.

Each action is counted by what became of it. What is refused has to be refused with the sentence of the policy; what is
not goes into ``surprises``.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection

from django_pgjobs import Batch
from django_pgjobs.admin.actions import ACTIONS
from django_pgjobs.admin.bulk import register_bulk
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.maintenance.pruning import Pruner, PruneRule
from django_pgjobs.models import Job, Memo, QueueState
from django_pgjobs.queues import pauses
from django_pgjobs.states import GATHERING, UNDO, FlowFlag, Hold, MemoKind, Outcome
from django_pgjobs.steering.batching import Steered
from django_pgjobs.steering.jobs import close_batches
from django_pgjobs.store.database import on
from django_pgjobs.values.built_in import OWN_QUEUE, POLICY, SERVANTS, Act, refusal
from tests.chaos import compounds
from tests.chaos.faults import Step
from tests.chaos.journal import Journal

AT_ONCE = 10
BY = "nemesis"
OLDER_SECONDS = 60.0
"""Ended longer ago than this may be pruned."""

STEER: dict[Act, Callable[[Any], Steered]] = {
    Act.CANCEL: lambda jobs: jobs.cancel(by=BY),
    Act.ABANDON: lambda jobs: jobs.abandon(by=BY, reason="for a try"),
    Act.RETRY: lambda jobs: jobs.retry(by=BY),
    Act.RELEASE: lambda jobs: jobs.release(by=BY),
    Act.UNBLOCK: lambda jobs: jobs.unblock(by=BY),
    Act.RESCHEDULE: lambda jobs: jobs.reschedule(priority=7, by=BY),
    Act.CLOSE: lambda jobs: close_batches(jobs, "default", by=BY, reason=""),
}
OTHERWISE = (Act.REGISTER_AGAIN, Act.PAUSE)

FORGE: dict[str, tuple[str, ...]] = {
    "deleted": ("DELETE FROM pgjobs_memo WHERE job_id = %s", "DELETE FROM pgjobs_job WHERE id = %s"),
    **{
        str(outcome): (
            "UPDATE pgjobs_job SET outcome = '" + outcome + "', finished_at = now(), hold = NULL, ending = NULL,"
            " unique_key = NULL WHERE id = %s",
        )
        for outcome in Outcome
    },
}
"""Fate → statements that bring it on a row."""

BULK: tuple[tuple[str, dict[str, str], dict[str, str]], ...] = (
    ("cancel", {"state": "ready", "name": compounds.part.name}, {"mode": "ask", "reason": "for a try"}),
    ("run_now", {"state": "ready", "name": compounds.part.name}, {}),
    ("retry", {"state": "abandoned", "name": compounds.part.name}, {}),
)


class Operators:
    """The operators of one run, and what they have done."""

    def __init__(self, journal: Journal, over: threading.Event) -> None:
        self.journal = journal
        self.over = over
        self.done: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.user: Any = None
        self.deeds: dict[str, Callable[[Step], None]] = {
            "cancel": lambda step: self._open("cancel", mode=("ask", "interrupt", "kill")[step.target % 3]),
            "retry": self._retry,
            "retry members": self._retry_members,
            "release": lambda step: self._open("release"),
            "unblock": lambda step: self._open("unblock"),
            "reschedule": lambda step: self._open("reschedule", delay=0),
            "abandon": lambda step: self._open("abandon", reason="for a try"),
            "send": self._send,
            "pause": self._pause,
            "prune": self._prune,
            "bulk": self._bulk,
            "own": self._own,
            "forge": self._forge,
        }

    # What people do to jobs

    def _open(self, verb: str, **options: Any) -> None:
        """Wish something of up to ten jobs that are open."""
        ids = list(Job.objects.filter(finished_at=None).order_by("?").values_list("pk", flat=True)[:AT_ONCE])
        if ids:
            self._count(verb, getattr(Job.objects.filter(pk__in=ids), verb)(by=BY, **options))

    def _count(self, verb: str, steered: Steered) -> None:
        self.done[f"{verb}:changed"] += steered.changed
        for why, number in steered.skipped.items():
            self.done[f"{verb}:{'refused' if 'takes no *' in why else 'skipped'}"] += number

    def _retry(self, step: Step) -> None:
        ended = Job.objects.filter(outcome__in=("abandoned", "cancelled")).order_by("-finished_at")
        ids = list(ended.values_list("pk", flat=True)[:AT_ONCE])
        for pk in ids:
            self.journal.note("reopen", job=pk)
        if ids:
            self._count("retry", Job.objects.filter(pk__in=ids).retry(by=BY))

    def _retry_members(self, step: Step) -> None:
        """All failed members of a batch or flow."""
        failed = Job.objects.filter(name__in=GATHERING, outcome="abandoned").order_by("-finished_at").first()
        if failed is not None:
            outcome: Any = ("abandoned", "cancelled")[step.target % 2]
            self._count("retry members", Batch.of(failed).retry(outcome=outcome, by=BY))

    def _send(self, step: Step) -> None:
        waits = Memo.objects.filter(kind=MemoKind.EVENT, finished_at=None).order_by("?")
        for memo in waits.select_related("job")[:AT_ONCE]:
            self.done[f"send:{'sent' if memo.job.send(compounds.GO, step.number, by=BY) else 'again'}"] += 1

    def _pause(self, step: Step) -> None:
        paused = (compounds.part, compounds.part_undo, compounds.saga, compounds.durable)[step.target % 4]
        paused.pause(by=BY, reason="for a try")
        self.done["pause:paused"] += 1
        self.over.wait(step.seconds)
        paused.resume(by=BY)

    def _prune(self, step: Step) -> None:
        """Parts and what undoes them; none that something needs goes."""
        names = (compounds.part.name, compounds.part_undo.name, *SERVANTS)
        for outcome in Outcome:
            pruner = Pruner(rules=[PruneRule(str(outcome), OLDER_SECONDS, names=names)])
            self.done["prune:gone"] += pruner(on("default"))
            self.done["prune:left"] += pruner.skipped

    def _bulk(self, step: Step) -> None:
        """By a job of ours, as the admin does with more than ten thousand."""
        if self.user is None:
            users: Any = get_user_model().objects
            self.user, _ = users.get_or_create(username=BY, is_staff=True, is_superuser=True)
        action, params, answers = BULK[step.target % len(BULK)]
        register_bulk(ACTIONS[action], params, self.user, answers, "", "default")
        self.done[f"bulk {action}:registered"] += 1

    # What people do to jobs of ours

    def _own(self, step: Step) -> None:
        """Try one action on one row of the package's own, in whatever state it is."""
        chance = random.Random(f"{step.number} {step.dice}")
        rows = Job.objects.filter(name=chance.choice(list(POLICY)))
        row = (rows.filter(finished_at=None).order_by("?").first() if step.dice < 0.7 else None) or (
            rows.order_by("-pk").first()
        )
        if row is None:
            return
        act = chance.choice([*STEER, *OTHERWISE])
        what = f"{act} {row.name}"
        if act in OTHERWISE:
            self._refused_by_error(what, row, act)
            return
        if act is Act.RETRY:
            self.journal.note("reopen", job=row.pk)
        steered = STEER[act](Job.objects.filter(pk=row.pk))
        why = refusal(row.name, act, parked=row.hold == Hold.PARKED)
        if why and steered not in (Steered(0, {why: 1}), Steered()) and row.hold != Hold.PARKED:  # pruned meanwhile: ()
            self.surprises.append(f"{what} of job {row.pk}: {steered} instead of {why!r}")
        self.done[f"{what}:{'refused' if why else 'changed' if steered.changed else 'skipped'}"] += 1

    def _refused_by_error(self, what: str, row: Job, act: Act) -> None:
        why = refusal(row.name, act)
        try:
            if act is Act.REGISTER_AGAIN:
                row.register_again()
            else:
                pauses.pause("job", row.name, by=BY)
        except InvalidJob as error:
            if why not in str(error):
                self.surprises.append(f"{what} of job {row.pk}: {error} instead of {why!r}")
        else:
            self.surprises.append(f"{what} of job {row.pk} was done")
        try:
            pauses.pause("queue", OWN_QUEUE, by=BY)
        except InvalidJob:
            self.done[f"{what}:refused"] += 1
        else:
            self.surprises.append(f"queue {OWN_QUEUE} was paused")

    def _forge(self, step: Step) -> None:
        """Bring a fate on a row that serves another, behind everybody's back."""
        fate = list(FORGE)[step.target % len(FORGE)]
        names = [name for name in SERVANTS if name.endswith((".wake", ".undo", ".cancel_members"))]
        with on("default").transaction(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT id, name FROM pgjobs_job WHERE name = ANY (%s) AND finished_at IS NULL AND claim_id IS NULL"
                " ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED",
                [names],
            )
            found = cursor.fetchone()
            if found is None:
                return
            self.journal.note("forged", job=found[0], fate=fate)
            for statement in FORGE[fate]:
                cursor.execute(statement, [found[0]])
        self.done[f"forge {fate}:{found[1]}"] += 1

    # When faults are over

    def settle(self) -> None:
        """Take every pause back."""
        for state in QueueState.objects.filter(kind="job"):
            pauses.resume("job", state.name, by=BY)

    def take_up(self) -> bool:
        """Undo again what is not undone; return whether all is undone, or nobody wants it."""
        begun = Job.objects.filter(flow__gte=FlowFlag.UNDONE.value)
        undos = Job.objects.filter(name=UNDO, target__in=begun.values("pk"))
        latest = undos.order_by("target", "-pk").distinct("target").values_list("pk", "outcome")
        again = [pk for pk, outcome in latest if outcome in ("abandoned", "cancelled")]
        for pk in again:
            self.journal.note("reopen", job=pk)
        if again:
            self._count("undo again", Job.objects.filter(pk__in=again).retry(by=BY))
        return not again and not begun.filter(flow__gte=FlowFlag.UNDOING.value).exists()
