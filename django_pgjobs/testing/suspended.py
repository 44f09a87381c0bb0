"""Waits of jobs, as ``run_jobs`` sees them before and after each start."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from django_pgjobs.models import EventState, Job, Memo
from django_pgjobs.states import Hold, MemoKind

WAITS = (MemoKind.EVENT, MemoKind.GATHER)
PAUSES = (MemoKind.SLEEP, MemoKind.STEP)


def memos(using: str) -> QuerySet[Memo]:
    """Return, of the job in the outer query, what keeps it asleep however early it is run; steps are tried early."""
    asleep = _open(using).filter(job_id=OuterRef("pk"), kind__in=(MemoKind.SLEEP, *WAITS))
    return asleep.filter(wake_at__gte=OuterRef("run_at"))


def _open(using: str) -> QuerySet[Memo]:
    return Memo.objects.using(using).filter(finished_at__isnull=True, wake_at__isnull=False)


def end_sleeps(jobs: QuerySet[Job]) -> None:
    """Let those of these jobs continue that sleep, or pause before a step is tried again."""
    using = jobs.db
    of_job = _open(using).filter(job_id=OuterRef("pk"))
    waits = of_job.filter(kind__in=WAITS, wake_at=OuterRef("run_at"))
    asleep = jobs.filter(Exists(of_job.filter(kind__in=PAUSES)), ~Exists(waits), run_at__gt=Now())
    if ids := list(asleep.values_list("pk", flat=True)):
        _open(using).filter(job_id__in=ids, kind__in=PAUSES, wake_at__gt=Now()).update(wake_at=Now())
        Job.objects.using(using).filter(pk__in=ids, claim_id__isnull=True).update(run_at=Now(), ready_at=Now())


def waiting(using: str) -> set[int]:
    """Return the jobs that wait for other jobs, or for an event that is not sent yet."""
    sent = EventState.objects.using(using).filter(name=OuterRef("event"), sent_at__isnull=False)
    waits = _open(using).filter(~Exists(sent), job_id=OuterRef("pk"), kind__in=WAITS, wake_at__gt=Now())
    jobs = Job.objects.using(using).filter(finished_at__isnull=True, claim_id__isnull=True)
    return set(jobs.filter(Q(hold=Hold.BLOCKED) | Q(Exists(waits))).values_list("pk", flat=True))


def unblocked(using: str, before: Collection[int]) -> list[int]:
    """Return those that can run now of jobs that waited."""
    if not before:
        return []
    able = Job.objects.using(using).filter(pk__in=set(before) - waiting(using))
    return list(able.filter(finished_at__isnull=True, ending__isnull=True).order_by("pk").values_list("pk", flat=True))
