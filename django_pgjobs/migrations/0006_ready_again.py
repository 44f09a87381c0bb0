"""When a job became ready again; and workers that are lost. Adds a column without a default: no row is touched."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0005_actions")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="ready_at",
            field=models.DateTimeField(null=True, verbose_name="ready again at"),
        ),
        migrations.AlterField(
            model_name="heartbeat",
            name="state",
            field=models.TextField(
                choices=[("running", "running"), ("draining", "draining"), ("stopped", "stopped"), ("lost", "lost")],
                db_default="running",
                verbose_name="state",
            ),
        ),
    ]
