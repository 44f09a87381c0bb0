"""The memory of ``pgjobs import``: which job of another queue has become which job here."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from django_pgjobs.models.base import PostgresModel


class ImportNote(PostgresModel):
    """A job or schedule that was taken from another queue: it is not taken again, even after its restore."""

    pk = models.CompositePrimaryKey("source", "source_id")
    source = models.TextField()
    source_id = models.TextField()
    job_id = models.BigIntegerField(null=True)
    run = models.TextField()
    imported_at = models.DateTimeField(db_default=Now())
    original = models.JSONField(null=True)

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_import"
        default_permissions = ()
        indexes = (models.Index(name="pgjobs_import_run", fields=["run", "source_id"]),)

    def __str__(self) -> str:
        return f"{self.source} {self.source_id}"
