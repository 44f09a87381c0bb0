"""Tags and deadlines of jobs: two nullable columns, which rewrite nothing."""

from __future__ import annotations

from django.db import migrations

import django_pgjobs.fields


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0007_suspects")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="not_after",
            field=django_pgjobs.fields.InstantField(
                help_text="Not started after it, stopped at it.", null=True, verbose_name="not after"
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="tags",
            field=django_pgjobs.fields.TagsField(verbose_name="tags"),
        ),
    ]
