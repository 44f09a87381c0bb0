"""Memos of durable functions, and the events that they wait for."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgjobs.fields import InstantField
from django_pgjobs.models.base import BoundedQuerySet, PostgresModel
from django_pgjobs.models.jobs import of_job
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import MemoKind


class Memo(PostgresModel):
    """An entry that a job remembers under a name: the result of a step, how long it sleeps, what it waits for.

    Without ``finished_at`` the step failed and is tried again, or the job still sleeps or waits. With an ``error`` too,
    the step has failed for good, or the wait has timed out.
    """

    id = models.BigAutoField(primary_key=True)
    job = of_job("memos")
    name = models.TextField(_("name"))
    kind = models.TextField(_("kind"), choices=[(kind.value, _(kind.value)) for kind in MemoKind])
    result = models.JSONField(_("result"), null=True)
    undo = models.JSONField(_("undo"), null=True, help_text=_("The call that undoes it."))
    failures = models.IntegerField(_("failures"), db_default=0)
    error = models.TextField(_("error"), db_default="")
    event = models.TextField(_("event"), null=True)
    wake_at = InstantField(_("wakes at"), null=True)
    claim_id = models.UUIDField(_("claim"), null=True)
    created_at = InstantField(_("begun at"), db_default=Now())
    finished_at = InstantField(_("finished at"), null=True)
    duration_seconds = models.FloatField(_("duration in seconds"), null=True)

    objects: ClassVar[models.Manager[Memo]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_memo"
        verbose_name = _("memo")
        verbose_name_plural = _("memos")
        constraints = (models.UniqueConstraint(name="pgjobs_memo_name", fields=["job", "name"]),)
        indexes = (
            models.Index(name="pgjobs_memo_open", fields=["kind", "event"], condition=Q(finished_at__isnull=True)),
        )

    def __str__(self) -> str:
        return f"{visible(self.name)} of job {self.job_id}"


class EventState(PostgresModel):
    """An event that was sent, or that a job waits for. The first one sent under a name counts."""

    name = models.TextField(_("name"), primary_key=True)
    payload = models.JSONField(_("payload"), null=True)
    sent_at = InstantField(_("sent at"), null=True)
    sent_by = models.TextField(_("sent by"), db_default="")
    read_at = InstantField(_("read at"), null=True)
    waits = models.IntegerField(_("waits"), db_default=0, help_text=_("How often a job has begun to wait for it."))
    created_at = InstantField(_("known since"), db_default=Now())

    objects: ClassVar[models.Manager[EventState]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_event"
        verbose_name = _("event")
        verbose_name_plural = _("events")
        permissions = (("send_event", _("Can send events")),)
        indexes = (models.Index(name="pgjobs_event_created", fields=["created_at"]),)

    def __str__(self) -> str:
        return visible(self.name)
