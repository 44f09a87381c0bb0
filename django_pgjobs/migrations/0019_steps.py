"""The finished steps of jobs, and a column with a constant default that says which jobs have some. No row is touched."""

from __future__ import annotations

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import django_pgjobs.fields


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0018_index_of_schedule_history")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="flow",
            field=models.SmallIntegerField(
                db_default=0, help_text="Bits; 8: it has finished steps.", verbose_name="flow"
            ),
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("claim_id", models.UUIDField(verbose_name="claim")),
                ("name", models.TextField(verbose_name="name")),
                ("queue", models.TextField(verbose_name="queue")),
                ("payload", models.JSONField(verbose_name="payload")),
                ("attempt", models.IntegerField(verbose_name="attempt")),
                ("worker", models.UUIDField(null=True, verbose_name="worker")),
                ("worker_name", models.TextField(db_default="", verbose_name="worker name")),
                (
                    "finished_at",
                    django_pgjobs.fields.InstantField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="finished at"
                    ),
                ),
                ("duration_seconds", models.FloatField(null=True, verbose_name="duration in seconds")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="steps",
                        to="pgjobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "step",
                "verbose_name_plural": "steps",
                "db_table": "pgjobs_step",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["job", "id"], name="pgjobs_step_of_job")],
            },
        ),
    ]
