"""Gates of the jobs that wait, and the links from the jobs that they need."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_pgjobs.fields import InstantField
from django_pgjobs.models.base import BoundedQuerySet, PostgresModel
from django_pgjobs.models.jobs import Job
from django_pgjobs.states import Rule

RULES = [
    (Rule.SUCCEEDED.value, _("succeeded")),
    (Rule.SETTLED.value, _("settled")),
    (Rule.FAILED.value, _("failed")),
]


class Gate(PostgresModel):
    """Counts of the jobs that a job needs, or has needed: how many have ended, and how.

    Each end counts once, in the transaction that writes it. The gate opens once: when nothing is pending, or, if it is
    ``eager``, as soon as its job cannot run any more. A batch has one too, for its members.
    """

    job = models.OneToOneField(
        Job,
        on_delete=models.DO_NOTHING,
        primary_key=True,
        db_constraint=False,
        related_name="gate",
        verbose_name=_("job"),
    )
    pending = models.BigIntegerField(_("pending"), db_default=0, help_text=_("Jobs that have not ended, and hands."))
    total = models.BigIntegerField(_("total"), db_default=0)
    succeeded = models.BigIntegerField(_("succeeded"), db_default=0)
    abandoned = models.BigIntegerField(_("abandoned"), db_default=0)
    cancelled = models.BigIntegerField(_("cancelled"), db_default=0)
    unmet = models.BigIntegerField(_("unmet"), db_default=0, help_text=_("Jobs that ended otherwise than needed."))
    hands = models.SmallIntegerField(
        _("hands"), db_default=0, help_text=_("1 while a batch is open for members, or a job waits for its turn.")
    )
    eager = models.BooleanField(_("eager"), db_default=False)
    fail_fast = models.BooleanField(
        _("fail fast"), db_default=False, help_text=_("Its first abandoned member has the others cancelled.")
    )
    due = models.BooleanField(_("due"), db_default=False, help_text=_("To be opened: its job's row was locked."))
    opened_at = InstantField(_("opened at"), null=True)

    objects: ClassVar[models.Manager[Gate]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_gate"
        verbose_name = _("gate")
        verbose_name_plural = _("gates")
        indexes = (models.Index(name="pgjobs_gate_due", fields=["job"], condition=Q(due=True)),)

    def __str__(self) -> str:
        return f"gate of job {self.job_id}"

    @property
    def is_open(self) -> bool:
        """True while a batch takes members."""
        return self.hands > 0 and not self.eager

    @property
    def unfinished(self) -> int:
        """Number of the jobs that it counts and that have not ended."""
        return self.pending - self.hands


class Link(PostgresModel):
    """A job needs another: ``rule`` says which end of ``parent`` it needs."""

    pk = models.CompositePrimaryKey("parent", "job")
    parent = models.ForeignKey(
        Job,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="dependents",
        verbose_name=_("needed job"),
    )
    job = models.ForeignKey(
        Job,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="needs",
        verbose_name=_("job"),
    )
    rule = models.TextField(_("rule"), choices=RULES)

    objects: ClassVar[models.Manager[Link]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_link"
        verbose_name = _("link")
        verbose_name_plural = _("links")
        indexes = (models.Index(name="pgjobs_link_job", fields=["job"]),)

    def __str__(self) -> str:
        return f"job {self.job_id} needs job {self.parent_id}"
