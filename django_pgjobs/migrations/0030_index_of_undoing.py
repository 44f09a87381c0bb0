"""The index of what is to be undone, built while the table is in use. It is empty unless something is being undone."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0029_deaths_of_executors")]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(condition=models.Q(("flow__gte", 128)), fields=["id"], name="pgjobs_job_undoing"),
        ),
    ]
