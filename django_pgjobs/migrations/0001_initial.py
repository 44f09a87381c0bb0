"""The jobs, their claims, their failed attempts and the workers."""

from __future__ import annotations

import uuid

import django.db.models.deletion
import django.db.models.functions.comparison
import django.db.models.functions.datetime
from django.db import migrations, models

import django_pgjobs.fields
from django_pgjobs.operations import SetStorageParameters


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Heartbeat",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("name", models.TextField(verbose_name="name")),
                ("host", models.TextField(verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process id")),
                ("queues", models.JSONField(null=True, verbose_name="queues")),
                ("excluded_queues", models.JSONField(null=True, verbose_name="excluded queues")),
                ("processes", models.IntegerField(verbose_name="processes")),
                ("threads", models.IntegerField(verbose_name="threads")),
                ("async_slots", models.IntegerField(verbose_name="async slots")),
                ("version", models.TextField(verbose_name="version")),
                ("release", models.TextField(db_default="", verbose_name="release")),
                (
                    "state",
                    models.TextField(
                        choices=[("running", "running"), ("draining", "draining"), ("stopped", "stopped")],
                        db_default="running",
                        verbose_name="state",
                    ),
                ),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="started at"
                    ),
                ),
                (
                    "last_beat_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="last beat at"
                    ),
                ),
                ("running", models.IntegerField(db_default=0, verbose_name="running jobs")),
                ("finished", models.BigIntegerField(db_default=0, verbose_name="finished jobs")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "pgjobs_heartbeat",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Claim",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "claim_id", "part", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("claim_id", models.UUIDField()),
                ("part", models.SmallIntegerField()),
                ("worker", models.UUIDField()),
                ("lease_expires_at", models.DateTimeField()),
                (
                    "check_at",
                    models.DateTimeField(help_text="When somebody shall look: lease end or earliest deadline."),
                ),
                ("job_ids", django_pgjobs.fields.BigIntArrayField()),
            ],
            options={
                "verbose_name": "claim",
                "verbose_name_plural": "claims",
                "db_table": "pgjobs_claim",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["check_at"], name="pgjobs_claim_check")],
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "run_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="Earliest instant it may be claimed.",
                        verbose_name="run at",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="registered at"
                    ),
                ),
                ("claimed_at", models.DateTimeField(null=True, verbose_name="claimed at")),
                (
                    "deadline_at",
                    models.DateTimeField(
                        help_text="When its worker should have stopped it.", null=True, verbose_name="deadline"
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("cancel_requested_at", models.DateTimeField(null=True, verbose_name="cancel requested at")),
                (
                    "release_requested_at",
                    models.DateTimeField(null=True, verbose_name="release requested at"),
                ),
                ("claim_id", models.UUIDField(null=True, verbose_name="claim")),
                ("worker", models.UUIDField(null=True, verbose_name="worker")),
                ("timeout_seconds", models.FloatField(null=True, verbose_name="timeout in seconds")),
                ("duration_seconds", models.FloatField(null=True, verbose_name="duration in seconds")),
                ("attempt", models.IntegerField(db_default=0, verbose_name="attempt")),
                ("max_attempts", models.IntegerField(db_default=5, verbose_name="maximum attempts")),
                (
                    "priority",
                    models.SmallIntegerField(db_default=0, help_text="Larger runs first.", verbose_name="priority"),
                ),
                (
                    "ending_attempt",
                    models.SmallIntegerField(db_default=0, verbose_name="starts of the callback"),
                ),
                ("waited", models.BooleanField(db_default=False, verbose_name="somebody waits")),
                ("queue", models.TextField(db_default="default", verbose_name="queue")),
                ("name", models.TextField(verbose_name="name")),
                ("description", models.TextField(db_default="", verbose_name="description")),
                ("payload", models.JSONField(verbose_name="payload")),
                ("headers", models.JSONField(null=True, verbose_name="headers")),
                (
                    "outcome",
                    models.TextField(
                        choices=[
                            ("succeeded", "succeeded"),
                            ("cancelled", "cancelled"),
                            ("abandoned", "abandoned"),
                        ],
                        null=True,
                        verbose_name="outcome",
                    ),
                ),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("error", models.TextField(db_default="", verbose_name="last error")),
                (
                    "ending",
                    models.TextField(
                        choices=[("abandoned", "abandoned"), ("cancelled", "cancelled")],
                        null=True,
                        verbose_name="ending",
                    ),
                ),
                ("hold", models.TextField(null=True, verbose_name="hold")),
                ("hold_reason", models.TextField(db_default="", verbose_name="reason of the hold")),
                ("hold_fingerprint", models.TextField(db_default="", verbose_name="code that held it")),
                ("cancel_mode", models.TextField(db_default="", verbose_name="mode of the cancel")),
                ("cancel_by", models.TextField(db_default="", verbose_name="cancelled by")),
                ("cancel_reason", models.TextField(db_default="", verbose_name="reason of the cancel")),
                ("progress", models.JSONField(null=True, verbose_name="progress")),
                (
                    "state",
                    models.GeneratedField(
                        db_persist=True,
                        expression=django.db.models.functions.comparison.Coalesce(
                            "outcome",
                            models.Case(models.When(claim_id__isnull=False, then=models.Value("running"))),
                            "hold",
                            models.Value("ready"),
                        ),
                        output_field=django_pgjobs.fields.StateField(
                            choices=[
                                ("ready", "ready"),
                                ("running", "running"),
                                ("waiting", "waiting"),
                                ("parked", "parked"),
                                ("limited", "limited"),
                                ("succeeded", "succeeded"),
                                ("cancelled", "cancelled"),
                                ("abandoned", "abandoned"),
                            ]
                        ),
                        verbose_name="state",
                    ),
                ),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "pgjobs_job",
                "permissions": (
                    ("cancel_job", "Can cancel jobs"),
                    ("retry_job", "Can retry jobs"),
                    ("abandon_job", "Can abandon jobs"),
                    ("reschedule_job", "Can reschedule and release jobs"),
                    ("view_payload", "Can see sensitive arguments of jobs"),
                ),
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        condition=models.Q(("finished_at__isnull", True), ("hold__isnull", True)),
                        fields=["queue", "priority", "run_at", "id"],
                        name="pgjobs_job_claim_order",
                    ),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["outcome", "finished_at"],
                        name="pgjobs_job_ended",
                    ),
                    models.Index(
                        condition=models.Q(("hold__isnull", False)),
                        fields=["hold", "name"],
                        name="pgjobs_job_held",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("claim_id", models.UUIDField(verbose_name="claim")),
                ("number", models.IntegerField(verbose_name="attempt")),
                (
                    "cause",
                    models.TextField(
                        choices=[
                            ("failed", "failed"),
                            ("timeout", "timeout"),
                            ("crashed", "crashed"),
                            ("lost", "lost"),
                            ("released", "released"),
                        ],
                        verbose_name="cause",
                    ),
                ),
                ("worker", models.UUIDField(null=True, verbose_name="worker")),
                ("worker_name", models.TextField(db_default="", verbose_name="worker name")),
                ("release", models.TextField(db_default="", verbose_name="release")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                (
                    "ended_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), verbose_name="ended at"),
                ),
                ("duration_seconds", models.FloatField(null=True, verbose_name="duration in seconds")),
                ("exception", models.TextField(db_default="", verbose_name="exception")),
                ("message", models.TextField(db_default="", verbose_name="message")),
                (
                    "chain",
                    models.JSONField(db_default=models.Value([], models.JSONField()), verbose_name="chain of causes"),
                ),
                ("traceback", models.TextField(db_default="", verbose_name="traceback")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="pgjobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "attempt",
                "verbose_name_plural": "attempts",
                "db_table": "pgjobs_attempt",
                "abstract": False,
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "constraints": [models.UniqueConstraint(fields=("job", "claim_id"), name="pgjobs_attempt_claim")],
            },
        ),
        # A claim takes whole pages at once, so each row needs room on its page for a second version: fillfactor 50
        # keeps claims heap-only. Autovacuum by rows changed, since the table is small and hot.
        SetStorageParameters(
            "Job",
            {
                "fillfactor": 50,
                "autovacuum_vacuum_scale_factor": 0.02,
                "autovacuum_vacuum_threshold": 2000,
                "autovacuum_analyze_scale_factor": 0.1,
                "autovacuum_analyze_threshold": 20000,
                "autovacuum_vacuum_cost_delay": 0,
            },
            index="pgjobs_job_claim_order",
            index_parameters={"deduplicate_items": "off"},
        ),
        SetStorageParameters("Claim", {"autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 1000}),
    ]
