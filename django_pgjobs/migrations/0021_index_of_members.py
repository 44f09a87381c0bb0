"""The index of a batch's members, built while the table is in use. It is empty until somebody registers a member."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0020_gates")]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("parent__isnull", False)), fields=["parent", "id"], name="pgjobs_job_parent"
            ),
        ),
    ]
