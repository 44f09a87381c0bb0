"""The index of expiries, built while the table is in use."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0012_expiry")]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("expires_at__isnull", False), ("finished_at__isnull", True)),
                fields=["expires_at"],
                name="pgjobs_job_expires",
            ),
        ),
    ]
