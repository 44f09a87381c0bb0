"""The index of what undoes a job, built while the table is in use. It is empty until something is undone."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0023_memos_and_events")]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("target__isnull", False)), fields=["target", "id"], name="pgjobs_job_target"
            ),
        ),
    ]
