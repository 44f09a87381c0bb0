"""The index of error classes, built while the table is in use. It is empty until a job is abandoned."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0025_numbers")]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("error_class__isnull", False), ("finished_at__isnull", False)),
                fields=["error_class", "finished_at"],
                name="pgjobs_job_error_class",
            ),
        ),
    ]
