"""One more cause of an attempt's end. Choices are not in the database: nothing there changes."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0009_index_of_tags")]

    operations = [
        migrations.AlterField(
            model_name="attempt",
            name="cause",
            field=models.TextField(
                choices=[
                    ("failed", "failed"),
                    ("timeout", "timeout"),
                    ("crashed", "crashed"),
                    ("lost", "lost"),
                    ("released", "released"),
                    ("cancelled", "cancelled"),
                ],
                verbose_name="cause",
            ),
        ),
    ]
