"""The index of an entry's jobs, ended ones too, built while the table is in use."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0014_schedules_from_rows")]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("cron_entry__isnull", False)),
                fields=["cron_entry", "id"],
                name="pgjobs_job_cron_history",
            ),
        ),
    ]
