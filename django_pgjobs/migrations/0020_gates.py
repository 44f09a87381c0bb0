"""Gates of jobs that wait for others, links to what they need, and a nullable column for members. No row is touched."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import django_pgjobs.fields
from django_pgjobs.operations import SetStorageParameters


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0019_steps")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="parent",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="The batch that it is a member of.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="members",
                to="pgjobs.job",
                verbose_name="parent",
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="flow",
            field=models.SmallIntegerField(
                db_default=0,
                help_text="Bits; 1: a member, 2: others need it, 8: it has finished steps, 16: it has a gate.",
                verbose_name="flow",
            ),
        ),
        migrations.AddField(
            model_name="heartbeat",
            name="protocol",
            field=models.SmallIntegerField(
                db_default=0, help_text="What its version knows of jobs.", verbose_name="protocol"
            ),
        ),
        migrations.CreateModel(
            name="Gate",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="gate",
                        serialize=False,
                        to="pgjobs.job",
                        verbose_name="job",
                    ),
                ),
                (
                    "pending",
                    models.BigIntegerField(
                        db_default=0, help_text="Jobs that have not ended, and hands.", verbose_name="pending"
                    ),
                ),
                ("total", models.BigIntegerField(db_default=0, verbose_name="total")),
                ("succeeded", models.BigIntegerField(db_default=0, verbose_name="succeeded")),
                ("abandoned", models.BigIntegerField(db_default=0, verbose_name="abandoned")),
                ("cancelled", models.BigIntegerField(db_default=0, verbose_name="cancelled")),
                (
                    "unmet",
                    models.BigIntegerField(
                        db_default=0, help_text="Jobs that ended otherwise than needed.", verbose_name="unmet"
                    ),
                ),
                (
                    "hands",
                    models.SmallIntegerField(
                        db_default=0, help_text="1 while a batch is open for members.", verbose_name="hands"
                    ),
                ),
                ("eager", models.BooleanField(db_default=False, verbose_name="eager")),
                (
                    "due",
                    models.BooleanField(
                        db_default=False, help_text="Open, but its job's row was locked.", verbose_name="due"
                    ),
                ),
                ("opened_at", django_pgjobs.fields.InstantField(null=True, verbose_name="opened at")),
            ],
            options={
                "verbose_name": "gate",
                "verbose_name_plural": "gates",
                "db_table": "pgjobs_gate",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(condition=models.Q(("due", True)), fields=["job"], name="pgjobs_gate_due"),
                ],
            },
        ),
        # One row takes the ends of a whole batch: room for its next version on its page, and a VACUUM by rows changed.
        SetStorageParameters(
            "Gate",
            {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 1000},
        ),
        migrations.CreateModel(
            name="Link",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "parent", "job", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="dependents",
                        to="pgjobs.job",
                        verbose_name="needed job",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="needs",
                        to="pgjobs.job",
                        verbose_name="job",
                    ),
                ),
                (
                    "rule",
                    models.TextField(
                        choices=[("succeeded", "succeeded"), ("settled", "settled"), ("failed", "failed")],
                        verbose_name="rule",
                    ),
                ),
            ],
            options={
                "verbose_name": "link",
                "verbose_name_plural": "links",
                "db_table": "pgjobs_link",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["job"], name="pgjobs_link_job")],
            },
        ),
    ]
