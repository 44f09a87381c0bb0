"""The fate of a claimed job, as the database knows it."""

from __future__ import annotations

from django.db.models import Case, Exists, OuterRef, Q, TextField, Value, When
from django.db.models.functions import Now

from django_pgjobs.inspection.liveness import LOST, SILENT
from django_pgjobs.models import Claim, Heartbeat


def fate() -> Case:
    """Return an annotation: *lost* for running jobs without a lease, *silent* if the worker is silent, else empty.

    The words are the codes of ``why``. It costs one lookup by primary key for each running job, nothing for others.
    """
    leases = Claim._base_manager.filter(claim_id=OuterRef("claim_id"), lease_expires_at__gt=Now())
    live = Heartbeat.objects.live().filter(pk=OuterRef("worker"))
    return Case(
        When(Q(claim_id__isnull=True) | Q(outcome__isnull=False), then=Value("")),
        When(~Exists(leases), then=Value(LOST)),
        When(~Exists(leases.filter(Exists(live))), then=Value(SILENT)),
        default=Value(""),
        output_field=TextField(),
    )
