"""Tables of numbers over time, what the leader has told of failures, and a nullable column. No row is touched."""

from __future__ import annotations

from django.db import migrations, models

import django_pgjobs.fields


class Migration(migrations.Migration):
    dependencies = [
        ("pgjobs", "0024_index_of_targets"),
    ]

    operations = [
        migrations.CreateModel(
            name="Depth",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "minute", "queue", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("minute", models.DateTimeField(verbose_name="minute")),
                ("queue", models.TextField(verbose_name="queue")),
                ("ready", models.BigIntegerField(verbose_name="due")),
                ("scheduled", models.BigIntegerField(verbose_name="scheduled")),
                ("running", models.BigIntegerField(verbose_name="running")),
                ("held", models.BigIntegerField(verbose_name="held")),
                ("oldest_seconds", models.FloatField(null=True, verbose_name="age of the oldest in seconds")),
            ],
            options={
                "verbose_name": "depth",
                "verbose_name_plural": "depths",
                "db_table": "pgjobs_depth",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Minute",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "worker",
                        "minute",
                        "queue",
                        "name",
                        "outcome",
                        "release",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("worker", models.UUIDField(verbose_name="worker")),
                ("minute", models.DateTimeField(verbose_name="minute")),
                ("queue", models.TextField(verbose_name="queue")),
                ("name", models.TextField(verbose_name="name")),
                ("outcome", models.TextField(verbose_name="outcome")),
                ("release", models.TextField(verbose_name="release")),
                ("jobs", models.BigIntegerField(verbose_name="jobs")),
                ("run_seconds", models.FloatField(verbose_name="seconds run")),
                ("wait_seconds", models.FloatField(verbose_name="seconds waited")),
                ("run_histogram", django_pgjobs.fields.BigIntArrayField(verbose_name="histogram of runs")),
                ("wait_histogram", django_pgjobs.fields.BigIntArrayField(verbose_name="histogram of waits")),
            ],
            options={
                "verbose_name": "minute",
                "verbose_name_plural": "minutes",
                "db_table": "pgjobs_minute",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Notice",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                (
                    "finished_at",
                    models.DateTimeField(
                        help_text="Jobs abandoned before this instant need no further notice.", verbose_name="reached"
                    ),
                ),
                ("notified_at", models.DateTimeField(null=True, verbose_name="last notice")),
                (
                    "job_id",
                    models.BigIntegerField(
                        help_text="The job of the last notice.", null=True, verbose_name="delivered by"
                    ),
                ),
                ("problems", models.JSONField(default=list, verbose_name="known problems")),
            ],
            options={
                "verbose_name": "notice",
                "verbose_name_plural": "notices",
                "db_table": "pgjobs_notice",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Total",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "queue", "name", "outcome", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("queue", models.TextField(verbose_name="queue")),
                ("name", models.TextField(verbose_name="name")),
                ("outcome", models.TextField(verbose_name="outcome")),
                ("jobs", models.BigIntegerField(verbose_name="jobs")),
                ("run_seconds", models.FloatField(verbose_name="seconds run")),
                ("wait_seconds", models.FloatField(verbose_name="seconds waited")),
                ("run_histogram", django_pgjobs.fields.BigIntArrayField(verbose_name="histogram of runs")),
                ("wait_histogram", django_pgjobs.fields.BigIntArrayField(verbose_name="histogram of waits")),
            ],
            options={
                "verbose_name": "total",
                "verbose_name_plural": "totals",
                "db_table": "pgjobs_total",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.AddField(
            model_name="job",
            name="error_class",
            field=models.TextField(
                help_text="What an abandoned job failed with: the class of the exception, or the cause.",
                null=True,
                verbose_name="error class",
            ),
        ),
    ]
