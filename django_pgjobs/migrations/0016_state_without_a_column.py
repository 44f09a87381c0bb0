"""A job's state has no column any more; the function of its name computes it. No row is touched.

Backwards rewrites the table. To run the previous version you need not go back: ``j.state`` works as before.
"""

from __future__ import annotations

from django.db import migrations

from django_pgjobs.fields import ComputedStateField
from django_pgjobs.operations import ComputeColumn


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0015_index_of_fires")]

    operations = [
        ComputeColumn(
            model_name="job",
            name="state",
            field=ComputedStateField(
                choices=[
                    ("ready", "ready"),
                    ("running", "running"),
                    ("waiting", "waiting"),
                    ("parked", "parked"),
                    ("limited", "limited"),
                    ("paused", "paused"),
                    ("succeeded", "succeeded"),
                    ("cancelled", "cancelled"),
                    ("abandoned", "abandoned"),
                ],
                verbose_name="state",
            ),
            # The id is null only where an outer join found no job.
            function=(
                "coalesce(job.outcome, CASE WHEN job.claim_id IS NOT NULL THEN 'running' END, job.hold, "
                "CASE WHEN job.id IS NOT NULL THEN 'ready' END)"
            ),
        ),
    ]
