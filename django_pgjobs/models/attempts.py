"""Claims of jobs, their failed attempts, their finished steps, and stacks that an operator asked for."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Value
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgjobs.fields import BigIntArrayField, InstantField
from django_pgjobs.models.base import BoundedQuerySet, PostgresModel
from django_pgjobs.models.jobs import of_job
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import Cause

CAUSES = [
    (Cause.FAILED.value, _("failed")),
    (Cause.TIMEOUT.value, _("timeout")),
    (Cause.CRASHED.value, _("crashed")),
    (Cause.LOST.value, _("lost")),
    (Cause.RELEASED.value, _("released")),
    (Cause.CANCELLED.value, _("cancelled")),
]


class Claim(PostgresModel):
    """A part of a claimed batch, with its lease.

    The lease lives here and not on the job, so that a renewal neither touches nor locks job rows.
    """

    pk = models.CompositePrimaryKey("claim_id", "part")
    claim_id = models.UUIDField()
    part = models.SmallIntegerField()
    worker = models.UUIDField()
    lease_expires_at = models.DateTimeField()
    check_at = models.DateTimeField(
        help_text=_("When to check the claim: at its lease's end or its earliest deadline.")
    )
    job_ids = BigIntArrayField()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_claim"
        verbose_name = _("claim")
        verbose_name_plural = _("claims")
        indexes = (models.Index(name="pgjobs_claim_check", fields=["check_at"]),)

    def __str__(self) -> str:
        return f"{self.claim_id}/{self.part}"


class Attempt(PostgresModel):
    """An attempt that did not succeed, and the cause: failed, timeout, crashed, lost, released or cancelled.

    The job itself records a successful last attempt, so success costs no row here.
    """

    id = models.BigAutoField(primary_key=True)
    job = of_job("attempts")
    claim_id = models.UUIDField(_("claim"))
    number = models.IntegerField(_("attempt"))
    cause = models.TextField(_("cause"), choices=CAUSES)
    worker = models.UUIDField(_("worker"), null=True)
    worker_name = models.TextField(_("worker name"), db_default="")
    release = models.TextField(_("release"), db_default="")
    started_at = InstantField(_("started at"), null=True)
    ended_at = InstantField(_("ended at"), db_default=Now())
    duration_seconds = models.FloatField(_("duration in seconds"), null=True)
    exception = models.TextField(_("exception"), db_default="")
    message = models.TextField(_("message"), db_default="")
    chain = models.JSONField(_("chain of causes"), db_default=Value([], models.JSONField()))
    traceback = models.TextField(_("traceback"), db_default="")

    objects: ClassVar[models.Manager[Attempt]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_attempt"
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        constraints = (models.UniqueConstraint(name="pgjobs_attempt_claim", fields=["job", "claim_id"]),)

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"


class LogLine(PostgresModel):
    """A line that a job logged. In the order of its key: by claim, then as they were logged."""

    pk = models.CompositePrimaryKey("job_id", "claimed_at", "number")
    job = of_job("logs")
    claimed_at = InstantField(_("claimed at"))
    number = models.BigIntegerField(_("number"))
    claim_id = models.UUIDField(_("claim"))
    attempt = models.IntegerField(_("attempt"))
    level = models.SmallIntegerField(_("level"))
    logger = models.TextField(_("logger"))
    message = models.TextField(_("message"))
    logged_at = InstantField(_("logged at"))
    written_at = InstantField(_("written at"), db_default=Now())

    objects: ClassVar[models.Manager[LogLine]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_log_line"
        verbose_name = _("log line")
        verbose_name_plural = _("log lines")
        default_permissions = ()

    def __str__(self) -> str:
        return f"line {self.number} of job {self.job_id}"


class Step(PostgresModel):
    """A finished step of a job that continued with the next one; the job itself is its latest step.

    A job keeps its first step and the latest hundred.
    """

    id = models.BigAutoField(primary_key=True)
    job = of_job("steps")
    claim_id = models.UUIDField(_("claim"))
    name = models.TextField(_("name"))
    queue = models.TextField(_("queue"))
    payload = models.JSONField(_("payload"))
    attempt = models.IntegerField(_("attempt"))
    worker = models.UUIDField(_("worker"), null=True)
    worker_name = models.TextField(_("worker name"), db_default="")
    finished_at = InstantField(_("finished at"), db_default=Now())
    duration_seconds = models.FloatField(_("duration in seconds"), null=True)

    objects: ClassVar[models.Manager[Step]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_step"
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        indexes = (models.Index(name="pgjobs_step_of_job", fields=["job", "id"]),)

    def __str__(self) -> str:
        return f"{visible(self.name)} of job {self.job_id}"


class JobStack(PostgresModel):
    """Stack of a job at one moment of an attempt: who asked for it, and what the worker answered.

    A job keeps its latest ten.
    """

    id = models.BigAutoField(primary_key=True)
    job = of_job("stacks")
    claim_id = models.UUIDField(_("claim"))
    number = models.IntegerField(_("attempt"))
    worker = models.UUIDField(_("worker"))
    asked_at = InstantField(_("asked at"), db_default=Now())
    asked_by = models.TextField(_("asked by"), db_default="")
    reason = models.TextField(_("reason"), db_default="")
    answered_at = InstantField(_("answered at"), null=True)
    stack = models.TextField(_("stack"), db_default="")
    problem = models.TextField(_("problem"), db_default="")

    objects: ClassVar[models.Manager[JobStack]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_stack"
        verbose_name = _("stack")
        verbose_name_plural = _("stacks")
        default_permissions = ()
        permissions = (("view_stack", _("Can take and see stacks of running jobs")),)
        constraints = (
            models.UniqueConstraint(
                name="pgjobs_stack_open",
                fields=["worker", "job", "claim_id"],
                condition=models.Q(answered_at__isnull=True),
            ),
        )
        indexes = (models.Index(name="pgjobs_stack_of_job", fields=["job", "id"]),)

    def __str__(self) -> str:
        return f"stack of attempt {self.number} of job {self.job_id}"
