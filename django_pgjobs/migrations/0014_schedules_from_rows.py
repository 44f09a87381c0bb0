"""Schedules made at run time: columns with constant defaults, four indexes, and the jobs that workers know."""

from __future__ import annotations

import datetime

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pgjobs", "0013_index_of_expiries"),
    ]

    operations = [
        migrations.CreateModel(
            name="KnownJob",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("fingerprint", models.TextField(verbose_name="fingerprint")),
                (
                    "confirmed_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="confirmed at"
                    ),
                ),
            ],
            options={
                "db_table": "pgjobs_known_job",
                "abstract": False,
                "default_permissions": (),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.AlterModelOptions(
            name="cronentry",
            options={
                "default_permissions": ("add", "view", "change", "delete"),
                "permissions": (("run_cronentry", "Can run, pause and resume cron entries"),),
                "verbose_name": "cron entry",
                "verbose_name_plural": "cron entries",
            },
        ),
        migrations.AddField(
            model_name="cronentry",
            name="check_at",
            field=models.DateTimeField(
                db_default=models.Value(datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                verbose_name="look again at",
            ),
        ),
        migrations.AddField(
            model_name="cronentry",
            name="enabled",
            field=models.BooleanField(db_default=True, verbose_name="enabled"),
        ),
        migrations.AddField(
            model_name="cronentry",
            name="ends_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="end"),
        ),
        migrations.AddField(
            model_name="cronentry",
            name="fingerprint",
            field=models.TextField(db_default="", verbose_name="arguments checked against"),
        ),
        migrations.AddField(
            model_name="cronentry",
            name="fires_made",
            field=models.IntegerField(db_default=0, verbose_name="fires made"),
        ),
        migrations.AddField(
            model_name="cronentry",
            name="max_fires",
            field=models.IntegerField(blank=True, null=True, verbose_name="at most so many fires"),
        ),
        migrations.AddField(
            model_name="cronentry",
            name="origin",
            field=models.TextField(
                choices=[("code", "code"), ("row", "row")], db_default="code", verbose_name="origin"
            ),
        ),
        migrations.AddField(
            model_name="cronentry",
            name="starts_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="start"),
        ),
        migrations.AddIndex(
            model_name="cronentry",
            index=models.Index(
                condition=models.Q(("next_fire_at__isnull", False)), fields=["next_fire_at"], name="pgjobs_cron_due"
            ),
        ),
        migrations.AddIndex(
            model_name="cronentry",
            index=models.Index(
                condition=models.Q(("broken", ""), ("next_fire_at__isnull", True)),
                fields=["check_at"],
                name="pgjobs_cron_unplanned",
            ),
        ),
        migrations.AddIndex(
            model_name="cronentry",
            index=models.Index(
                condition=models.Q(("missing_since__isnull", True), ("origin", "code")),
                fields=["declared_at"],
                name="pgjobs_cron_declared",
            ),
        ),
        migrations.AddIndex(
            model_name="cronentry",
            index=models.Index(
                condition=models.Q(("origin", "row")),
                fields=["job_name", "fingerprint", "name"],
                name="pgjobs_cron_rows",
            ),
        ),
    ]
