"""What can be taken back: where jobs stood before an operator moved them, and whether a job has read an event."""

from __future__ import annotations

from django.db import migrations, models

import django_pgjobs.fields


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0031_index_of_member_keys")]

    operations = [
        migrations.AddField(
            model_name="actionpart",
            name="former",
            field=models.JSONField(null=True),
        ),
        migrations.AddField(
            model_name="eventstate",
            name="read_at",
            field=django_pgjobs.fields.InstantField(null=True, verbose_name="read at"),
        ),
    ]
