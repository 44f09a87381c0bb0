"""Pauses, and the actions of operators."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgjobs.fields import BigIntArrayField, GistIndex
from django_pgjobs.models.base import PostgresModel
from django_pgjobs.serialization.escapes import visible


class QueueStateQuerySet(models.QuerySet["QueueState"]):
    """Pauses, also those that are over."""

    def current(self) -> QueueStateQuerySet:
        """Keep the pauses that have not ended, by the database's clock: queues first, by name."""
        return self.filter(Q(until=None) | Q(until__gt=Now())).order_by("-kind", "name")


class QueueState(PostgresModel):
    """A queue, or the name of a job, that is paused: who, why, and until when."""

    class Kind(models.TextChoices):
        """Kind of what is paused."""

        QUEUE = "queue", _("queue")
        JOB = "job", _("job")

    # Not (kind, name): Django's admin does not support composite primary keys.
    id = models.BigAutoField(primary_key=True)
    kind = models.TextField(_("kind"), choices=Kind.choices)
    name = models.TextField(_("name"))
    paused_at = models.DateTimeField(_("paused at"), db_default=Now())
    paused_by = models.TextField(_("paused by"), db_default="")
    reason = models.TextField(_("reason"), db_default="")
    until = models.DateTimeField(_("until"), null=True)

    objects = QueueStateQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_queue_state"
        verbose_name = _("paused queue or job")
        verbose_name_plural = _("paused queues and jobs")
        permissions = (("pause_queue", _("Can pause and resume queues and jobs")),)
        constraints = (models.UniqueConstraint(name="pgjobs_queue_state_name", fields=["kind", "name"]),)

    def __str__(self) -> str:
        return visible(f"{self.kind} {self.name}")

    def validate_constraints(self, exclude: object = None) -> None:
        """Accept a name that is already paused: pausing again replaces who, why and until when."""


class LimitOverrideQuerySet(models.QuerySet["LimitOverride"]):
    """Limits that operators have set, also those that are over."""

    def current(self) -> LimitOverrideQuerySet:
        """Keep those that are in force, by the database's clock: queues first, by name."""
        return self.filter(Q(until=None) | Q(until__gt=Now())).order_by("-kind", "name")


class LimitOverride(PostgresModel):
    """The limit of a queue, of a job or of each of its keys that an operator has set in place of the code's numbers.

    A number that is null is the code's. ``rate`` and ``per`` go together.
    """

    class LimitKind(models.TextChoices):
        """Kind of what is limited."""

        QUEUE = "queue", _("queue")
        JOB = "job", _("job")
        KEY = "key", _("each key of a job")

    # Not (kind, name): Django's admin does not support composite primary keys.
    id = models.BigAutoField(primary_key=True)
    kind = models.TextField(_("kind"), choices=LimitKind.choices)
    name = models.TextField(_("name"))
    concurrency = models.IntegerField(_("jobs at once"), null=True, blank=True)
    rate = models.IntegerField(_("starts"), null=True, blank=True)
    per = models.FloatField(_("in so many seconds"), null=True, blank=True)
    set_at = models.DateTimeField(_("set at"), db_default=Now())
    set_by = models.TextField(_("set by"), db_default="")
    reason = models.TextField(_("reason"), db_default="")
    until = models.DateTimeField(_("until"), null=True)

    objects = LimitOverrideQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_limit"
        verbose_name = _("limit set by an operator")
        verbose_name_plural = _("limits set by operators")
        permissions = (("limit_queue", _("Can set the limits of queues and jobs")),)
        constraints = (models.UniqueConstraint(name="pgjobs_limit_name", fields=["kind", "name"]),)

    def __str__(self) -> str:
        return visible(f"{self.kind} {self.name}")

    def validate_constraints(self, exclude: object = None) -> None:
        """Accept a name that has a limit already: setting it again replaces all of it."""


class Action(PostgresModel):
    """One action of an operator: a cancel, retry, abandon, release, reschedule, pause or the like.

    The transaction that changes the jobs also writes this row; ``ActionPart`` lists the jobs.
    """

    class Via(models.TextChoices):
        """Interface by which it was done."""

        ADMIN = "admin", _("admin")
        SHELL = "shell", _("shell")
        CODE = "code", _("code")

    id = models.BigAutoField(primary_key=True)
    acted_at = models.DateTimeField(_("when"), db_default=Now())
    verb = models.TextField(_("what"))
    mode = models.TextField(_("how"), db_default="", help_text=_("The mode of a cancel, or the target of a move."))
    via = models.TextField(_("where"), choices=Via.choices)
    acted_by = models.TextField(_("who"), db_default="")
    reason = models.TextField(_("reason"), db_default="")
    asked = models.TextField(
        _("filter"), db_default="", help_text=_("The filter that selected the jobs; empty for a single job.")
    )
    kind = models.TextField(_("kind"), db_default="jobs")
    subject = models.TextField(_("of what"), db_default="", help_text=_("A queue, the name of a job, a cron entry."))
    changed = models.IntegerField(_("changed"))
    skipped = models.JSONField(_("skipped"), db_default=Value({}, models.JSONField()))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_action"
        verbose_name = _("action")
        verbose_name_plural = _("actions")
        indexes = (
            models.Index(name="pgjobs_action_age", fields=["acted_at"]),
            models.Index(name="pgjobs_action_of_cron", fields=["subject", "id"], condition=models.Q(kind="cron")),
        )

    def __str__(self) -> str:
        return f"{self.verb} #{self.pk}"


class ActionPart(PostgresModel):
    """The jobs that one batch of an action changed, at most a thousand."""

    pk = models.CompositePrimaryKey("action_id", "part")
    action_id = models.BigIntegerField()
    part = models.IntegerField()
    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField()
    job_ids = BigIntArrayField()
    former = models.JSONField(null=True)
    """The place of each job before and after the action, if it can be undone."""

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_action_part"
        verbose_name = _("part of an action")
        verbose_name_plural = _("parts of actions")
        indexes = (
            GistIndex(
                Func(F("first_id"), F("last_id"), Value("[]"), function="int8range"), name="pgjobs_action_part_span"
            ),
        )

    def __str__(self) -> str:
        return f"{self.action_id}/{self.part}"
