"""What workers tell of executors that died, and of the suspects that run apart since."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pgjobs", "0028_digest_of_arguments"),
    ]

    operations = [
        migrations.AddField(
            model_name="heartbeat",
            name="death",
            field=models.TextField(db_default="", verbose_name="how it died"),
        ),
        migrations.AddField(
            model_name="heartbeat",
            name="deaths",
            field=models.IntegerField(db_default=0, verbose_name="deaths of executors"),
        ),
        migrations.AddField(
            model_name="heartbeat",
            name="died_at",
            field=models.DateTimeField(null=True, verbose_name="last death of an executor"),
        ),
        migrations.AddField(
            model_name="heartbeat",
            name="suspects",
            field=models.JSONField(null=True, verbose_name="suspects"),
        ),
        migrations.AddField(
            model_name="heartbeat",
            name="suspects_since",
            field=models.DateTimeField(null=True, verbose_name="suspects run apart since"),
        ),
    ]
