"""The overview, a page of the admin without a table of its own."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0026_index_of_error_classes")]

    operations = [
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": " Overview",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("pgjobs.statistic",),
        ),
    ]
