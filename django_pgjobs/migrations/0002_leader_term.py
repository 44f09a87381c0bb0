"""Who leads: one row, a lease with a numbered term."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="LeaderTerm",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("term", models.BigIntegerField(verbose_name="term")),
                ("worker", models.UUIDField(verbose_name="worker")),
                ("worker_name", models.TextField(db_default="", verbose_name="worker name")),
                ("taken_at", models.DateTimeField(verbose_name="taken at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
            ],
            options={
                "verbose_name": "leader's term",
                "verbose_name_plural": "leader's terms",
                "db_table": "pgjobs_leader_term",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
    ]
