"""Numbers over time: what the fleet ended in each minute, how much waited, and what the leader has told of failures."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgjobs.fields import BigIntArrayField, InstantField
from django_pgjobs.models.base import BoundedQuerySet, PostgresModel
from django_pgjobs.serialization.escapes import visible


class Minute(PostgresModel):
    """Number of attempts of one name that ended in one way in one minute, with their waits and durations.

    A worker writes a row of its own, and writes it again with each heartbeat while the minute lasts; in one of many
    schemas it has another at each visit. Some minutes later the leader adds it to the row of the ``FLEET``, and after a
    day to the row of the hour, which begins at ``minute``.
    The bounds of the histograms are ``values.histogram.BOUNDS``; trailing zeros are left out. ``jobs`` may be more than
    a histogram counts: the duration of a lost attempt is not known.
    """

    pk = models.CompositePrimaryKey("worker", "minute", "queue", "name", "outcome", "release")
    worker = models.UUIDField(_("worker"))
    minute = InstantField(_("minute"))
    queue = models.TextField(_("queue"))
    name = models.TextField(_("name"))
    outcome = models.TextField(_("outcome"))
    release = models.TextField(_("release"))
    jobs = models.BigIntegerField(_("jobs"))
    run_seconds = models.FloatField(_("seconds run"))
    wait_seconds = models.FloatField(_("seconds waited"))
    run_histogram = BigIntArrayField(_("histogram of runs"))
    wait_histogram = BigIntArrayField(_("histogram of waits"))

    objects: ClassVar[models.Manager[Minute]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_minute"
        verbose_name = _("minute")
        verbose_name_plural = _("minutes")

    def __str__(self) -> str:
        return f"{visible(self.name)} {self.outcome} {self.minute}"


class Total(PostgresModel):
    """Number of attempts that the fleet has ended since the table was made, apart from the latest minutes. It only
    grows."""

    pk = models.CompositePrimaryKey("queue", "name", "outcome")
    queue = models.TextField(_("queue"))
    name = models.TextField(_("name"))
    outcome = models.TextField(_("outcome"))
    jobs = models.BigIntegerField(_("jobs"))
    run_seconds = models.FloatField(_("seconds run"))
    wait_seconds = models.FloatField(_("seconds waited"))
    run_histogram = BigIntArrayField(_("histogram of runs"))
    wait_histogram = BigIntArrayField(_("histogram of waits"))

    objects: ClassVar[models.Manager[Total]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_total"
        verbose_name = _("total")
        verbose_name_plural = _("totals")

    def __str__(self) -> str:
        return f"{visible(self.name)} {self.outcome}"


class Depth(PostgresModel):
    """The most that waited in a queue in one minute, or after a day in one hour, as a leader has measured it."""

    pk = models.CompositePrimaryKey("minute", "queue")
    minute = InstantField(_("minute"))
    queue = models.TextField(_("queue"))
    ready = models.BigIntegerField(_("due"))
    scheduled = models.BigIntegerField(_("scheduled"))
    running = models.BigIntegerField(_("running"))
    held = models.BigIntegerField(_("held"))
    oldest_seconds = models.FloatField(_("age of the oldest in seconds"), null=True)

    objects: ClassVar[models.Manager[Depth]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_depth"
        verbose_name = _("depth")
        verbose_name_plural = _("depths")

    def __str__(self) -> str:
        return f"{visible(self.queue)} {self.minute}"


class Notice(PostgresModel):
    """The abandoned jobs and the problems that the latest notice has reached: one row."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    finished_at = InstantField(_("reached"), help_text=_("Jobs abandoned before this instant need no further notice."))
    notified_at = InstantField(_("last notice"), null=True)
    job_id = models.BigIntegerField(_("delivered by"), null=True, help_text=_("The job of the last notice."))
    problems = models.JSONField(_("known problems"), default=list)

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_notice"
        verbose_name = _("notice")
        verbose_name_plural = _("notices")

    def __str__(self) -> str:
        return f"reached {self.finished_at}"
