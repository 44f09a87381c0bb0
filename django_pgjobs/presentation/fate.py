"""The fate of a job, as the database knows it, where that is more than its state."""

from __future__ import annotations

from django.db.models import Case, Exists, OuterRef, Q, TextField, Value, When
from django.db.models.functions import Now

from django_pgjobs.inspection.liveness import LOST, SILENT
from django_pgjobs.models import Claim, Heartbeat
from django_pgjobs.states import EXPIRED


def expired() -> Q:
    """Return the condition of jobs that have expired and wait for their end."""
    return Q(expires_at__lte=Now(), attempt=0, claim_id__isnull=True, outcome__isnull=True, ending__isnull=True)


def fate() -> Case:
    """Return an annotation: *lost* for running jobs without a lease, *silent* if the worker is silent, else empty.

    An unclaimed job that has expired, and that the leader has not ended yet, is *expired*.

    The words are the codes of ``why``. It costs one lookup by primary key for each running job, nothing for others.
    """
    leases = Claim._base_manager.filter(claim_id=OuterRef("claim_id"), lease_expires_at__gt=Now())
    live = Heartbeat.objects.live().filter(pk=OuterRef("worker"))
    return Case(
        When(expired(), then=Value(EXPIRED)),
        When(Q(claim_id__isnull=True) | Q(outcome__isnull=False), then=Value("")),
        When(~Exists(leases), then=Value(LOST)),
        When(~Exists(leases.filter(Exists(live))), then=Value(SILENT)),
        default=Value(""),
        output_field=TextField(),
    )
