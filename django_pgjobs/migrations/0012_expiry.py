"""The expiry of jobs and their rare options: two nullable columns, which rewrite nothing."""

from __future__ import annotations

from django.db import migrations, models

import django_pgjobs.fields


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0011_help_texts")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="expires_at",
            field=django_pgjobs.fields.InstantField(
                help_text="Not started after it, but cancelled; empty once an attempt has ended.",
                null=True,
                verbose_name="expires at",
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="options",
            field=models.JSONField(help_text="Options that few jobs have.", null=True, verbose_name="rare options"),
        ),
    ]
