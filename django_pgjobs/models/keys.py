"""Rows that outlive the jobs of keys and limits: stored results, windows of keys, starts that a rate admitted."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgjobs.models.base import PostgresModel


class StoredResult(PostgresModel):
    """The result of a job with an idempotency key: the next job of its name and key returns it without running."""

    pk = models.CompositePrimaryKey("name", "key")
    name = models.TextField(_("name"))
    key = models.TextField(_("idempotency key"))
    job_id = models.BigIntegerField(_("job"))
    result = models.JSONField(_("result"), null=True)
    stored_at = models.DateTimeField(_("stored at"), db_default=Now())
    digest = models.BinaryField(_("digest of the arguments"), null=True)

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_stored_result"
        verbose_name = _("stored result")
        verbose_name_plural = _("stored results")
        indexes = (models.Index(name="pgjobs_stored_result_age", fields=["stored_at"]),)

    def __str__(self) -> str:
        return f"{self.name} {self.key}"


class KeyWindow(PostgresModel):
    """A key that was used once in its window of time; the row may outlive its job."""

    pk = models.CompositePrimaryKey("queue", "key", "begins_at")
    queue = models.TextField(_("queue"))
    key = models.TextField(_("key"))
    begins_at = models.DateTimeField(_("begins at"))
    ends_at = models.DateTimeField(_("ends at"))
    job_id = models.BigIntegerField(_("job"))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_key_window"
        verbose_name = _("window of a key")
        verbose_name_plural = _("windows of keys")
        indexes = (models.Index(name="pgjobs_key_window_end", fields=["ends_at"]),)

    def __str__(self) -> str:
        return f"{self.queue} {self.key}"


class Admission(PostgresModel):
    """Starts that a rate limit admitted: of which subject, how many, when. Kept for the limit's window.

    A row sums up a thousandth of the window, dated at its end, so a window has a thousand rows at most.
    """

    pk = models.CompositePrimaryKey("subject", "admitted_at")
    subject = models.TextField(_("limited"))
    admitted_at = models.DateTimeField(_("admitted at"))
    expires_at = models.DateTimeField(_("expires at"))
    starts = models.IntegerField(_("starts"))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_admission"
        verbose_name = _("admission")
        verbose_name_plural = _("admissions")
        indexes = (models.Index(name="pgjobs_admission_end", fields=["expires_at"]),)

    def __str__(self) -> str:
        return f"{self.starts} of {self.subject}"
