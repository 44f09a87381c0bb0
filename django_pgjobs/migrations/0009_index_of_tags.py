"""The index of tags, built while the table is in use."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.fields import GinIndex
from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0008_tags_and_deadlines")]

    operations = [
        BuildIndex(
            model_name="job",
            index=GinIndex(
                condition=models.Q(("tags__isnull", False)),
                fields=["tags"],
                name="pgjobs_job_tags",
                opclasses=["jsonb_path_ops"],
            ),
        ),
    ]
