"""A column of gates with a constant default. No row is touched."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0021_index_of_members")]

    operations = [
        migrations.AddField(
            model_name="gate",
            name="fail_fast",
            field=models.BooleanField(
                db_default=False,
                help_text="Its first abandoned member has the others cancelled.",
                verbose_name="fail fast",
            ),
        ),
        migrations.AlterField(
            model_name="gate",
            name="due",
            field=models.BooleanField(
                db_default=False, help_text="To be opened: its job's row was locked.", verbose_name="due"
            ),
        ),
    ]
