"""The index of the actions on a cron entry, built while the table is in use. Nobody waits for it."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0017_ending_succeeded")]

    operations = [
        BuildIndex(
            model_name="action",
            index=models.Index(
                condition=models.Q(("kind", "cron")), fields=["subject", "id"], name="pgjobs_action_of_cron"
            ),
        ),
    ]
