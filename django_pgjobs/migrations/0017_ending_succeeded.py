"""The word *succeeded* among the endings of jobs. No SQL runs."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0016_state_without_a_column")]

    operations = [
        migrations.AlterField(
            model_name="job",
            name="ending",
            field=models.TextField(
                choices=[("abandoned", "abandoned"), ("cancelled", "cancelled"), ("succeeded", "succeeded")],
                null=True,
                verbose_name="ending",
            ),
        ),
    ]
