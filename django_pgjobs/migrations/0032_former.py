"""Where jobs stood before an operator retried or moved them, so that it can be undone."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0031_index_of_member_keys")]

    operations = [
        migrations.AddField(
            model_name="actionpart",
            name="former",
            field=models.JSONField(null=True),
        ),
    ]
