"""Three help texts in other words. They are not in the database: nothing there changes."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pgjobs", "0010_attempts_cancelled"),
    ]

    operations = [
        migrations.AlterField(
            model_name="action",
            name="asked",
            field=models.TextField(
                db_default="",
                help_text="The filter that selected the jobs; empty for a single job.",
                verbose_name="filter",
            ),
        ),
        migrations.AlterField(
            model_name="action",
            name="mode",
            field=models.TextField(
                db_default="", help_text="The mode of a cancel, or the target of a move.", verbose_name="how"
            ),
        ),
        migrations.AlterField(
            model_name="claim",
            name="check_at",
            field=models.DateTimeField(
                help_text="When to check the claim: at its lease's end or its earliest deadline."
            ),
        ),
    ]
