"""The indexes of schedules, limits and keys on the table of jobs, built while it is in use."""

from __future__ import annotations

from django.db import migrations, models

from django_pgjobs.operations import BuildIndex, BuildUniqueConstraint


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("pgjobs", "0003_schedules_limits_keys")]

    operations = [
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("hold", "limited")),
                fields=["queue", "name", "limit_key", "priority", "run_at", "id"],
                name="pgjobs_job_limited",
            ),
        ),
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", True), ("hold__isnull", True), ("limit_key__isnull", False)),
                fields=["name", "limit_key", "queue"],
                name="pgjobs_job_admitted",
            ),
        ),
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("cron_entry__isnull", False), ("finished_at__isnull", True)),
                fields=["cron_entry"],
                name="pgjobs_job_cron",
            ),
        ),
        BuildIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", True), ("hold__isnull", False)),
                fields=["queue", "hold", "run_at", "id"],
                name="pgjobs_job_held_order",
            ),
        ),
        # The last one: a worker that finds it may work (read_identity).
        BuildUniqueConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("finished_at__isnull", True), ("unique_key__isnull", False)),
                fields=("queue", "unique_key"),
                name="pgjobs_job_unique_key",
            ),
        ),
    ]
