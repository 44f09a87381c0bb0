"""What durable functions remember, the events that they wait for, and a job's target. No row is touched."""

from __future__ import annotations

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import django_pgjobs.fields


class Migration(migrations.Migration):
    dependencies = [("pgjobs", "0022_fail_fast")]

    operations = [
        migrations.CreateModel(
            name="EventState",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("payload", models.JSONField(null=True, verbose_name="payload")),
                ("sent_at", django_pgjobs.fields.InstantField(null=True, verbose_name="sent at")),
                ("sent_by", models.TextField(db_default="", verbose_name="sent by")),
                (
                    "waits",
                    models.IntegerField(
                        db_default=0, help_text="How often a job has begun to wait for it.", verbose_name="waits"
                    ),
                ),
                (
                    "created_at",
                    django_pgjobs.fields.InstantField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="known since"
                    ),
                ),
            ],
            options={
                "verbose_name": "event",
                "verbose_name_plural": "events",
                "db_table": "pgjobs_event",
                "abstract": False,
                "default_permissions": ("view",),
                "permissions": (("send_event", "Can send events"),),
                "indexes": [models.Index(fields=["created_at"], name="pgjobs_event_created")],
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Memo",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(verbose_name="name")),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("step", "step"),
                            ("sleep", "sleep"),
                            ("event", "event"),
                            ("gather", "gather"),
                            ("version", "version"),
                        ],
                        verbose_name="kind",
                    ),
                ),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("undo", models.JSONField(help_text="The call that undoes it.", null=True, verbose_name="undo")),
                ("failures", models.IntegerField(db_default=0, verbose_name="failures")),
                ("error", models.TextField(db_default="", verbose_name="error")),
                ("event", models.TextField(null=True, verbose_name="event")),
                ("wake_at", django_pgjobs.fields.InstantField(null=True, verbose_name="wakes at")),
                ("claim_id", models.UUIDField(null=True, verbose_name="claim")),
                (
                    "created_at",
                    django_pgjobs.fields.InstantField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="begun at"
                    ),
                ),
                ("finished_at", django_pgjobs.fields.InstantField(null=True, verbose_name="finished at")),
                ("duration_seconds", models.FloatField(null=True, verbose_name="duration in seconds")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memos",
                        to="pgjobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "memo",
                "verbose_name_plural": "memos",
                "db_table": "pgjobs_memo",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        condition=models.Q(("finished_at__isnull", True)),
                        fields=["kind", "event"],
                        name="pgjobs_memo_open",
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("job", "name"), name="pgjobs_memo_name")],
            },
        ),
        migrations.AddField(
            model_name="job",
            name="target",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="The job that it undoes, or a part of.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="compensations",
                to="pgjobs.job",
                verbose_name="target",
            ),
        ),
        migrations.AlterField(
            model_name="job",
            name="flow",
            field=models.SmallIntegerField(
                db_default=0,
                help_text=(
                    "Bits; 1: a member, 2: others need it, 4: it can be undone, 8: it has finished steps, 16: it has a "
                    "gate, 32: it remembers."
                ),
                verbose_name="flow",
            ),
        ),
    ]
