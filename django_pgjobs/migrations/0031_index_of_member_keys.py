"""The index of keys that members of a batch have had, built while the table is in use."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0030_index_of_undoing")]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("key__isnull", False), ("parent__isnull", False)),
                fields=["parent", "key", "id"],
                name="pgjobs_job_member_key",
            ),
        ),
    ]
