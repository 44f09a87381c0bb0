"""A nullable column of stored results. No row is touched."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0027_overview")]

    operations = [
        migrations.AddField(
            model_name="storedresult",
            name="digest",
            field=models.BinaryField(null=True, verbose_name="digest of the arguments"),
        ),
    ]
