"""Which attempt may have ended its process. Adds a column without a default: no row is touched."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0006_ready_again")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="suspect_attempt",
            field=models.IntegerField(null=True, verbose_name="attempt that may have ended its process"),
        ),
    ]
