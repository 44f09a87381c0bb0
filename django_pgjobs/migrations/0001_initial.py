"""All tables of this package."""

from __future__ import annotations

import datetime
import uuid

from django.db import migrations, models
from django.db.models import expressions, lookups
from django.db.models.functions import Now

import django_pgjobs.fields
from django_pgjobs.models.operations import CreateRowFunction, SetStorageParameters


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "run_at",
                    models.DateTimeField(
                        db_default=Now(), help_text="Earliest instant it may be claimed.", verbose_name="run at"
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), verbose_name="registered at")),
                ("claimed_at", models.DateTimeField(null=True, verbose_name="claimed at")),
                (
                    "overdue_at",
                    models.DateTimeField(
                        help_text="When its worker should have stopped it.", null=True, verbose_name="overdue at"
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("cancel_requested_at", models.DateTimeField(null=True, verbose_name="cancel requested at")),
                ("release_requested_at", models.DateTimeField(null=True, verbose_name="release requested at")),
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
                ("ending_attempt", models.SmallIntegerField(db_default=0, verbose_name="starts of the callback")),
                ("waited", models.BooleanField(db_default=False, verbose_name="is waited for")),
                ("queue", models.TextField(db_default="default", verbose_name="queue")),
                ("name", models.TextField(verbose_name="name")),
                ("description", models.TextField(db_default="", verbose_name="description")),
                ("payload", models.JSONField(verbose_name="payload")),
                ("headers", models.JSONField(null=True, verbose_name="headers")),
                (
                    "outcome",
                    models.TextField(
                        choices=[("succeeded", "succeeded"), ("cancelled", "cancelled"), ("abandoned", "abandoned")],
                        null=True,
                        verbose_name="outcome",
                    ),
                ),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("error", models.TextField(db_default="", verbose_name="last error")),
                (
                    "ending",
                    models.TextField(
                        choices=[("abandoned", "abandoned"), ("cancelled", "cancelled"), ("succeeded", "succeeded")],
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
                ("cron_entry", models.TextField(null=True, verbose_name="cron entry")),
                ("fire_at", models.DateTimeField(null=True, verbose_name="fire of the cron entry")),
                ("idempotency_key", models.TextField(null=True, verbose_name="idempotency key")),
                ("key", models.TextField(null=True, verbose_name="key")),
                ("key_scope", models.TextField(db_default="", verbose_name="scope of the key")),
                ("limit_key", models.TextField(null=True, verbose_name="key of its limits")),
                ("unique_key", models.TextField(null=True, verbose_name="key that no other job may have now")),
                ("ready_at", models.DateTimeField(null=True, verbose_name="ready again at")),
                (
                    "suspect_attempt",
                    models.IntegerField(null=True, verbose_name="attempt that may have ended its process"),
                ),
                (
                    "deadline",
                    models.DateTimeField(
                        help_text="Not started after it, stopped at it.", null=True, verbose_name="deadline"
                    ),
                ),
                ("tags", django_pgjobs.fields.TagsField(verbose_name="tags")),
                (
                    "expires_at",
                    models.DateTimeField(
                        help_text="Not started after it, but cancelled; empty once an attempt has ended.",
                        null=True,
                        verbose_name="expires at",
                    ),
                ),
                (
                    "options",
                    models.JSONField(help_text="Options that few jobs have.", null=True, verbose_name="rare options"),
                ),
                (
                    "flow",
                    models.SmallIntegerField(
                        db_default=0,
                        help_text="Bits; 1: a member, 2: others need it, 4: it can be undone, 8: it has finished steps, 16: it has a gate, 32: it remembers, 128: its sequence continues if it is abandoned.",
                        verbose_name="flow",
                    ),
                ),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        help_text="The batch that it is a member of.",
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="members",
                        to="pgjobs.job",
                        verbose_name="parent",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        help_text="The job that it undoes, or a part of.",
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="compensations",
                        to="pgjobs.job",
                        verbose_name="target",
                    ),
                ),
                (
                    "sequence",
                    models.TextField(
                        help_text="Its jobs run one after the other, as they were registered.",
                        null=True,
                        verbose_name="sequence",
                    ),
                ),
                (
                    "error_class",
                    models.TextField(
                        help_text="Class of the exception, or the cause, of an abandoned job.",
                        null=True,
                        verbose_name="error class",
                    ),
                ),
                (
                    "state",
                    django_pgjobs.fields.ComputedStateField(
                        choices=[
                            ("ready", "ready"),
                            ("running", "running"),
                            ("blocked", "blocked"),
                            ("parked", "parked"),
                            ("limited", "limited"),
                            ("paused", "paused"),
                            ("moving", "moving"),
                            ("succeeded", "succeeded"),
                            ("cancelled", "cancelled"),
                            ("abandoned", "abandoned"),
                        ],
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
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("finished_at__isnull", True), ("hold__isnull", True), ("limit_key__isnull", False)
                        ),
                        fields=["name", "limit_key", "queue"],
                        name="pgjobs_job_admitted",
                    ),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", True), ("hold__isnull", True)),
                        fields=["queue", "priority", "run_at", "id"],
                        name="pgjobs_job_claim_order",
                    ),
                    models.Index(
                        condition=models.Q(("cron_entry__isnull", False), ("finished_at__isnull", True)),
                        fields=["cron_entry"],
                        name="pgjobs_job_cron",
                    ),
                    models.Index(
                        condition=models.Q(("cron_entry__isnull", False)),
                        fields=["cron_entry", "id"],
                        name="pgjobs_job_cron_history",
                    ),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["outcome", "finished_at"],
                        name="pgjobs_job_ended",
                    ),
                    models.Index(
                        condition=models.Q(("error_class__isnull", False), ("finished_at__isnull", False)),
                        fields=["error_class", "finished_at"],
                        name="pgjobs_job_error_class",
                    ),
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False), ("finished_at__isnull", True)),
                        fields=["expires_at"],
                        name="pgjobs_job_expires",
                    ),
                    models.Index(
                        condition=models.Q(("hold__isnull", False)), fields=["hold", "name"], name="pgjobs_job_held"
                    ),
                    models.Index(
                        condition=models.Q(("finished_at__isnull", True), ("hold__isnull", False)),
                        fields=["queue", "hold", "run_at", "id"],
                        name="pgjobs_job_held_order",
                    ),
                    models.Index(
                        condition=models.Q(("hold", "limited")),
                        fields=["queue", "name", "limit_key", "priority", "run_at", "id"],
                        name="pgjobs_job_limited",
                    ),
                    models.Index(
                        condition=models.Q(("key__isnull", False), ("parent__isnull", False)),
                        fields=["parent", "key", "id"],
                        name="pgjobs_job_member_key",
                    ),
                    models.Index(
                        condition=models.Q(("parent__isnull", False)), fields=["parent", "id"], name="pgjobs_job_parent"
                    ),
                    django_pgjobs.fields.GinIndex(
                        condition=models.Q(("tags__isnull", False)),
                        fields=["tags"],
                        name="pgjobs_job_tags",
                        opclasses=["jsonb_path_ops"],
                    ),
                    models.Index(
                        condition=models.Q(("target__isnull", False)), fields=["target", "id"], name="pgjobs_job_target"
                    ),
                    models.Index(
                        condition=models.Q(
                            ("sequence__isnull", False),
                            models.Q(
                                ("finished_at__isnull", True),
                                models.Q(
                                    lookups.Exact(
                                        expressions.CombinedExpression(models.F("flow"), "&", models.Value(128)), 0
                                    ),
                                    ("outcome", "abandoned"),
                                ),
                                _connector="OR",
                            ),
                        ),
                        fields=["sequence", "hold", "id"],
                        name="pgjobs_job_sequence",
                    ),
                    models.Index(condition=models.Q(("flow__gte", 256)), fields=["id"], name="pgjobs_job_undoing"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("finished_at__isnull", True), ("unique_key__isnull", False)),
                        fields=("queue", "unique_key"),
                        name="pgjobs_job_unique_key",
                    )
                ],
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
                    models.DateTimeField(
                        help_text="When to check the claim: at its lease's end or its earliest deadline."
                    ),
                ),
                ("job_ids", django_pgjobs.fields.BigIntArrayField()),
            ],
            options={
                "verbose_name": "claim",
                "verbose_name_plural": "claims",
                "db_table": "pgjobs_claim",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["check_at"], name="pgjobs_claim_check")],
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
                            ("cancelled", "cancelled"),
                        ],
                        verbose_name="cause",
                    ),
                ),
                ("worker", models.UUIDField(null=True, verbose_name="worker")),
                ("worker_name", models.TextField(db_default="", verbose_name="worker name")),
                ("release", models.TextField(db_default="", verbose_name="release")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("ended_at", models.DateTimeField(db_default=Now(), verbose_name="ended at")),
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
                        on_delete=models.CASCADE,
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
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "constraints": [models.UniqueConstraint(fields=("job", "claim_id"), name="pgjobs_attempt_claim")],
            },
        ),
        migrations.CreateModel(
            name="JobStack",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("claim_id", models.UUIDField(verbose_name="claim")),
                ("number", models.IntegerField(verbose_name="attempt")),
                ("worker", models.UUIDField(verbose_name="worker")),
                ("asked_at", models.DateTimeField(db_default=Now(), verbose_name="asked at")),
                ("asked_by", models.TextField(db_default="", verbose_name="asked by")),
                ("reason", models.TextField(db_default="", verbose_name="reason")),
                ("answered_at", models.DateTimeField(null=True, verbose_name="answered at")),
                ("stack", models.TextField(db_default="", verbose_name="stack")),
                ("problem", models.TextField(db_default="", verbose_name="problem")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="stacks",
                        to="pgjobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "stack",
                "verbose_name_plural": "stacks",
                "db_table": "pgjobs_stack",
                "permissions": (("view_stack", "Can take and see stacks of running jobs"),),
                "default_permissions": (),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["job", "id"], name="pgjobs_stack_of_job")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("answered_at__isnull", True)),
                        fields=("worker", "job", "claim_id"),
                        name="pgjobs_stack_open",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("claim_id", models.UUIDField(verbose_name="claim")),
                ("name", models.TextField(verbose_name="name")),
                ("queue", models.TextField(verbose_name="queue")),
                ("payload", models.JSONField(verbose_name="payload")),
                ("attempt", models.IntegerField(verbose_name="attempt")),
                ("worker", models.UUIDField(null=True, verbose_name="worker")),
                ("worker_name", models.TextField(db_default="", verbose_name="worker name")),
                ("finished_at", models.DateTimeField(db_default=Now(), verbose_name="finished at")),
                ("duration_seconds", models.FloatField(null=True, verbose_name="duration in seconds")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="steps",
                        to="pgjobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "step",
                "verbose_name_plural": "steps",
                "db_table": "pgjobs_step",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["job", "id"], name="pgjobs_step_of_job")],
            },
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
                        on_delete=models.DO_NOTHING,
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
                        on_delete=models.DO_NOTHING,
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
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["job"], name="pgjobs_link_job")],
            },
        ),
        migrations.CreateModel(
            name="Gate",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=models.DO_NOTHING,
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
                        db_default=0,
                        help_text="1 while a batch is open for members, or a job waits for its turn.",
                        verbose_name="hands",
                    ),
                ),
                ("eager", models.BooleanField(db_default=False, verbose_name="eager")),
                (
                    "due",
                    models.BooleanField(
                        db_default=False, help_text="To be opened: its job's row was locked.", verbose_name="due"
                    ),
                ),
                ("opened_at", models.DateTimeField(null=True, verbose_name="opened at")),
                (
                    "fail_fast",
                    models.BooleanField(
                        db_default=False,
                        help_text="Its first abandoned member has the others cancelled.",
                        verbose_name="fail fast",
                    ),
                ),
            ],
            options={
                "verbose_name": "gate",
                "verbose_name_plural": "gates",
                "db_table": "pgjobs_gate",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(condition=models.Q(("due", True)), fields=["job"], name="pgjobs_gate_due")],
            },
        ),
        migrations.CreateModel(
            name="LogLine",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "claimed_at", "number", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("claimed_at", models.DateTimeField(verbose_name="claimed at")),
                ("number", models.BigIntegerField(verbose_name="number")),
                ("claim_id", models.UUIDField(verbose_name="claim")),
                ("attempt", models.IntegerField(verbose_name="attempt")),
                ("level", models.SmallIntegerField(verbose_name="level")),
                ("logger", models.TextField(verbose_name="logger")),
                ("message", models.TextField(verbose_name="message")),
                ("logged_at", models.DateTimeField(verbose_name="logged at")),
                ("written_at", models.DateTimeField(db_default=Now(), verbose_name="written at")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="logs",
                        to="pgjobs.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "log line",
                "verbose_name_plural": "log lines",
                "db_table": "pgjobs_log_line",
                "default_permissions": (),
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
                ("wake_at", models.DateTimeField(null=True, verbose_name="wakes at")),
                ("claim_id", models.UUIDField(null=True, verbose_name="claim")),
                ("created_at", models.DateTimeField(db_default=Now(), verbose_name="begun at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("duration_seconds", models.FloatField(null=True, verbose_name="duration in seconds")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
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
        migrations.CreateModel(
            name="EventState",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("payload", models.JSONField(null=True, verbose_name="payload")),
                ("sent_at", models.DateTimeField(null=True, verbose_name="sent at")),
                ("sent_by", models.TextField(db_default="", verbose_name="sent by")),
                (
                    "waits",
                    models.IntegerField(
                        db_default=0, help_text="How often a job has begun to wait for it.", verbose_name="waits"
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), verbose_name="known since")),
                ("read_at", models.DateTimeField(null=True, verbose_name="read at")),
            ],
            options={
                "verbose_name": "event",
                "verbose_name_plural": "events",
                "db_table": "pgjobs_event",
                "permissions": (("send_event", "Can send events"),),
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["created_at"], name="pgjobs_event_created")],
            },
        ),
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
                ("places", models.JSONField(null=True, verbose_name="places of queues")),
                ("version", models.TextField(verbose_name="version")),
                ("release", models.TextField(db_default="", verbose_name="release")),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("running", "running"),
                            ("quiet", "quiet"),
                            ("draining", "draining"),
                            ("stopped", "stopped"),
                            ("lost", "lost"),
                        ],
                        db_default="running",
                        verbose_name="state",
                    ),
                ),
                ("started_at", models.DateTimeField(db_default=Now(), verbose_name="started at")),
                ("last_beat_at", models.DateTimeField(db_default=Now(), verbose_name="last beat at")),
                ("running", models.IntegerField(db_default=0, verbose_name="running jobs")),
                ("finished", models.BigIntegerField(db_default=0, verbose_name="finished jobs")),
                (
                    "protocol",
                    models.SmallIntegerField(db_default=0, help_text="Job features it knows.", verbose_name="protocol"),
                ),
                ("death", models.TextField(db_default="", verbose_name="how it died")),
                ("deaths", models.IntegerField(db_default=0, verbose_name="deaths of executors")),
                ("died_at", models.DateTimeField(null=True, verbose_name="last death of an executor")),
                ("suspects", models.JSONField(null=True, verbose_name="suspects")),
                ("suspects_since", models.DateTimeField(null=True, verbose_name="suspects run apart since")),
                ("control", models.TextField(db_default="", verbose_name="last request")),
                ("control_number", models.IntegerField(db_default=0, verbose_name="number of requests")),
                ("control_by", models.TextField(db_default="", verbose_name="requested by")),
                ("control_reason", models.TextField(db_default="", verbose_name="reason")),
                ("controlled_at", models.DateTimeField(null=True, verbose_name="requested at")),
                ("control_taken", models.IntegerField(db_default=0, verbose_name="last request taken up")),
                ("taken_at", models.DateTimeField(null=True, verbose_name="taken up at")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "pgjobs_heartbeat",
                "default_permissions": ("view",),
                "permissions": (("steer_worker", "Can steer workers"),),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="LeaderTerm",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("term", models.BigIntegerField(verbose_name="term")),
                ("worker", models.UUIDField(verbose_name="worker")),
                ("worker_name", models.TextField(db_default="", verbose_name="worker name")),
                ("taken_at", models.DateTimeField(verbose_name="taken at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
            ],
            options={
                "verbose_name": "leader's term",
                "verbose_name_plural": "leader's terms",
                "db_table": "pgjobs_leader_term",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="ImportNote",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "source", "source_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("source", models.TextField()),
                ("source_id", models.TextField()),
                ("job_id", models.BigIntegerField(null=True)),
                ("run", models.TextField()),
                ("imported_at", models.DateTimeField(db_default=Now())),
                ("original", models.JSONField(null=True)),
            ],
            options={
                "db_table": "pgjobs_import",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["run", "source_id"], name="pgjobs_import_run")],
            },
        ),
        migrations.CreateModel(
            name="Installation",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("system", models.TextField(verbose_name="identifier of the server")),
                ("database_oid", models.BigIntegerField(verbose_name="database")),
                ("database_name", models.TextField(verbose_name="name of the database")),
                ("table_oid", models.BigIntegerField(verbose_name="job table")),
                ("version", models.IntegerField(verbose_name="major version of the server")),
                ("environment", models.TextField(db_default="", verbose_name="environment")),
                ("adopted_at", models.DateTimeField(verbose_name="adopted at")),
                ("adopted_by", models.TextField(db_default="", verbose_name="adopted by")),
                ("written_in", models.BigIntegerField(verbose_name="transaction that wrote it")),
            ],
            options={
                "verbose_name": "installation",
                "verbose_name_plural": "installations",
                "db_table": "pgjobs_installation",
                "default_permissions": (),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="KnownJob",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("fingerprint", models.TextField(verbose_name="fingerprint")),
                ("confirmed_at", models.DateTimeField(db_default=Now(), verbose_name="confirmed at")),
            ],
            options={"db_table": "pgjobs_known_job", "default_permissions": (), "required_db_vendor": "postgresql"},
        ),
        migrations.CreateModel(
            name="CronEntry",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("job_name", models.TextField(verbose_name="job")),
                ("declared_expression", models.TextField(verbose_name="declared expression")),
                ("declared_zone", models.TextField(verbose_name="declared time zone")),
                ("declared_payload", models.JSONField(verbose_name="declared arguments")),
                ("declared_options", models.JSONField(verbose_name="declared options")),
                ("expression", models.TextField(blank=True, null=True, verbose_name="expression instead")),
                ("zone", models.TextField(blank=True, null=True, verbose_name="time zone instead")),
                ("payload", models.JSONField(blank=True, null=True, verbose_name="arguments instead")),
                ("misfire", models.TextField(db_default="once", verbose_name="misfire policy")),
                ("overlap", models.TextField(db_default="allow", verbose_name="overlap policy")),
                ("created_at", models.DateTimeField(db_default=Now(), verbose_name="created at")),
                ("in_force_since", models.DateTimeField(null=True, verbose_name="in force since")),
                ("declared_at", models.DateTimeField(db_default=Now(), verbose_name="declared last at")),
                ("missing_since", models.DateTimeField(null=True, verbose_name="not declared since")),
                ("last_fire_at", models.DateTimeField(null=True, verbose_name="last fire")),
                ("last_job_id", models.BigIntegerField(null=True, verbose_name="last job")),
                ("next_fire_at", models.DateTimeField(null=True, verbose_name="next fire")),
                ("paused_at", models.DateTimeField(null=True, verbose_name="paused at")),
                ("paused_by", models.TextField(db_default="", verbose_name="paused by")),
                ("paused_reason", models.TextField(db_default="", verbose_name="reason of the pause")),
                ("paused_until", models.DateTimeField(null=True, verbose_name="paused until")),
                ("broken", models.TextField(db_default="", verbose_name="why it cannot fire")),
                (
                    "check_at",
                    models.DateTimeField(
                        db_default=models.Value(datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                        verbose_name="look again at",
                    ),
                ),
                ("enabled", models.BooleanField(db_default=True, verbose_name="enabled")),
                ("ends_at", models.DateTimeField(blank=True, null=True, verbose_name="end")),
                ("fingerprint", models.TextField(db_default="", verbose_name="arguments checked against")),
                ("fires_made", models.IntegerField(db_default=0, verbose_name="fires made")),
                ("max_fires", models.IntegerField(blank=True, null=True, verbose_name="at most so many fires")),
                (
                    "origin",
                    models.TextField(
                        choices=[("code", "code"), ("row", "row")], db_default="code", verbose_name="origin"
                    ),
                ),
                ("starts_at", models.DateTimeField(blank=True, null=True, verbose_name="start")),
            ],
            options={
                "verbose_name": "cron entry",
                "verbose_name_plural": "cron entries",
                "db_table": "pgjobs_cron_entry",
                "permissions": (("run_cronentry", "Can run, pause and resume cron entries"),),
                "default_permissions": ("add", "view", "change", "delete"),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(
                        condition=models.Q(("missing_since__isnull", True), ("origin", "code")),
                        fields=["declared_at"],
                        name="pgjobs_cron_declared",
                    ),
                    models.Index(
                        condition=models.Q(("next_fire_at__isnull", False)),
                        fields=["next_fire_at"],
                        name="pgjobs_cron_due",
                    ),
                    models.Index(
                        condition=models.Q(("origin", "row")),
                        fields=["job_name", "fingerprint", "name"],
                        name="pgjobs_cron_rows",
                    ),
                    models.Index(
                        condition=models.Q(("broken", ""), ("next_fire_at__isnull", True)),
                        fields=["check_at"],
                        name="pgjobs_cron_unplanned",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="QueueState",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.TextField(choices=[("queue", "queue"), ("job", "job")], verbose_name="kind")),
                ("name", models.TextField(verbose_name="name")),
                ("paused_at", models.DateTimeField(db_default=Now(), verbose_name="paused at")),
                ("paused_by", models.TextField(db_default="", verbose_name="paused by")),
                ("reason", models.TextField(db_default="", verbose_name="reason")),
                ("until", models.DateTimeField(null=True, verbose_name="until")),
            ],
            options={
                "verbose_name": "paused queue or job",
                "verbose_name_plural": "paused queues and jobs",
                "db_table": "pgjobs_queue_state",
                "permissions": (("pause_queue", "Can pause and resume queues and jobs"),),
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "constraints": [models.UniqueConstraint(fields=("kind", "name"), name="pgjobs_queue_state_name")],
            },
        ),
        migrations.CreateModel(
            name="LimitOverride",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.TextField(
                        choices=[("queue", "queue"), ("job", "job"), ("key", "each key of a job")], verbose_name="kind"
                    ),
                ),
                ("name", models.TextField(verbose_name="name")),
                ("concurrency", models.IntegerField(blank=True, null=True, verbose_name="jobs at once")),
                ("rate", models.IntegerField(blank=True, null=True, verbose_name="starts")),
                ("per", models.FloatField(blank=True, null=True, verbose_name="in so many seconds")),
                ("set_at", models.DateTimeField(db_default=Now(), verbose_name="set at")),
                ("set_by", models.TextField(db_default="", verbose_name="set by")),
                ("reason", models.TextField(db_default="", verbose_name="reason")),
                ("until", models.DateTimeField(null=True, verbose_name="until")),
            ],
            options={
                "verbose_name": "limit set by an operator",
                "verbose_name_plural": "limits set by operators",
                "db_table": "pgjobs_limit",
                "permissions": (("limit_queue", "Can set the limits of queues and jobs"),),
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "constraints": [models.UniqueConstraint(fields=("kind", "name"), name="pgjobs_limit_name")],
            },
        ),
        migrations.CreateModel(
            name="Admission",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "subject", "admitted_at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("subject", models.TextField(verbose_name="limited")),
                ("admitted_at", models.DateTimeField(verbose_name="admitted at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
                ("starts", models.IntegerField(verbose_name="starts")),
            ],
            options={
                "verbose_name": "admission",
                "verbose_name_plural": "admissions",
                "db_table": "pgjobs_admission",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["expires_at"], name="pgjobs_admission_end")],
            },
        ),
        migrations.CreateModel(
            name="KeyWindow",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "queue", "key", "begins_at", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("queue", models.TextField(verbose_name="queue")),
                ("key", models.TextField(verbose_name="key")),
                ("begins_at", models.DateTimeField(verbose_name="begins at")),
                ("ends_at", models.DateTimeField(verbose_name="ends at")),
                ("job_id", models.BigIntegerField(verbose_name="job")),
            ],
            options={
                "verbose_name": "window of a key",
                "verbose_name_plural": "windows of keys",
                "db_table": "pgjobs_key_window",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["ends_at"], name="pgjobs_key_window_end")],
            },
        ),
        migrations.CreateModel(
            name="StoredResult",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "name", "key", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.TextField(verbose_name="name")),
                ("key", models.TextField(verbose_name="idempotency key")),
                ("job_id", models.BigIntegerField(verbose_name="job")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("stored_at", models.DateTimeField(db_default=Now(), verbose_name="stored at")),
                ("digest", models.BinaryField(null=True, verbose_name="digest of the arguments")),
            ],
            options={
                "verbose_name": "stored result",
                "verbose_name_plural": "stored results",
                "db_table": "pgjobs_stored_result",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [models.Index(fields=["stored_at"], name="pgjobs_stored_result_age")],
            },
        ),
        migrations.CreateModel(
            name="Action",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("acted_at", models.DateTimeField(db_default=Now(), verbose_name="when")),
                ("verb", models.TextField(verbose_name="what")),
                (
                    "mode",
                    models.TextField(
                        db_default="", help_text="The mode of a cancel, or the target of a move.", verbose_name="how"
                    ),
                ),
                (
                    "via",
                    models.TextField(
                        choices=[("admin", "admin"), ("shell", "shell"), ("code", "code")], verbose_name="where"
                    ),
                ),
                ("acted_by", models.TextField(db_default="", verbose_name="who")),
                ("reason", models.TextField(db_default="", verbose_name="reason")),
                (
                    "asked",
                    models.TextField(
                        db_default="",
                        help_text="The filter that selected the jobs; empty for a single job.",
                        verbose_name="filter",
                    ),
                ),
                ("kind", models.TextField(db_default="jobs", verbose_name="kind")),
                (
                    "subject",
                    models.TextField(
                        db_default="", help_text="A queue, the name of a job, a cron entry.", verbose_name="of what"
                    ),
                ),
                ("changed", models.IntegerField(verbose_name="changed")),
                ("skipped", models.JSONField(db_default=models.Value({}, models.JSONField()), verbose_name="skipped")),
            ],
            options={
                "verbose_name": "action",
                "verbose_name_plural": "actions",
                "db_table": "pgjobs_action",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [
                    models.Index(fields=["acted_at"], name="pgjobs_action_age"),
                    models.Index(
                        condition=models.Q(("kind", "cron")), fields=["subject", "id"], name="pgjobs_action_of_cron"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ActionPart",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "action_id", "part", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("action_id", models.BigIntegerField()),
                ("part", models.IntegerField()),
                ("first_id", models.BigIntegerField()),
                ("last_id", models.BigIntegerField()),
                ("job_ids", django_pgjobs.fields.BigIntArrayField()),
                ("former", models.JSONField(null=True)),
            ],
            options={
                "verbose_name": "part of an action",
                "verbose_name_plural": "parts of actions",
                "db_table": "pgjobs_action_part",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
                "indexes": [
                    django_pgjobs.fields.GistIndex(
                        models.Func(
                            models.F("first_id"), models.F("last_id"), models.Value("[]"), function="int8range"
                        ),
                        name="pgjobs_action_part_span",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Statistic",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("measured_at", models.DateTimeField(verbose_name="measured at")),
                ("worker_name", models.TextField(db_default="", verbose_name="worker name")),
                ("figures", models.JSONField(verbose_name="figures")),
            ],
            options={
                "verbose_name": "statistic",
                "verbose_name_plural": "statistics",
                "db_table": "pgjobs_statistic",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": " Overview",
                "proxy": True,
                "default_permissions": (),
            },
            bases=("pgjobs.statistic",),
        ),
        migrations.CreateModel(
            name="Minute",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "worker",
                        "minute",
                        "queue",
                        "name",
                        "outcome",
                        "release",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("worker", models.UUIDField(verbose_name="worker")),
                ("minute", models.DateTimeField(verbose_name="minute")),
                ("queue", models.TextField(verbose_name="queue")),
                ("name", models.TextField(verbose_name="name")),
                ("outcome", models.TextField(verbose_name="outcome")),
                ("release", models.TextField(verbose_name="release")),
                ("jobs", models.BigIntegerField(verbose_name="jobs")),
                ("run_seconds", models.FloatField(verbose_name="seconds run")),
                ("wait_seconds", models.FloatField(verbose_name="seconds waited")),
                ("run_histogram", django_pgjobs.fields.BigIntArrayField(verbose_name="histogram of runs")),
                ("wait_histogram", django_pgjobs.fields.BigIntArrayField(verbose_name="histogram of waits")),
            ],
            options={
                "verbose_name": "minute",
                "verbose_name_plural": "minutes",
                "db_table": "pgjobs_minute",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Total",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "queue", "name", "outcome", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("queue", models.TextField(verbose_name="queue")),
                ("name", models.TextField(verbose_name="name")),
                ("outcome", models.TextField(verbose_name="outcome")),
                ("jobs", models.BigIntegerField(verbose_name="jobs")),
                ("run_seconds", models.FloatField(verbose_name="seconds run")),
                ("wait_seconds", models.FloatField(verbose_name="seconds waited")),
                ("run_histogram", django_pgjobs.fields.BigIntArrayField(verbose_name="histogram of runs")),
                ("wait_histogram", django_pgjobs.fields.BigIntArrayField(verbose_name="histogram of waits")),
            ],
            options={
                "verbose_name": "total",
                "verbose_name_plural": "totals",
                "db_table": "pgjobs_total",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Depth",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "minute", "queue", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("minute", models.DateTimeField(verbose_name="minute")),
                ("queue", models.TextField(verbose_name="queue")),
                ("ready", models.BigIntegerField(verbose_name="due")),
                ("scheduled", models.BigIntegerField(verbose_name="scheduled")),
                ("running", models.BigIntegerField(verbose_name="running")),
                ("held", models.BigIntegerField(verbose_name="held")),
                ("oldest_seconds", models.FloatField(null=True, verbose_name="age of the oldest in seconds")),
            ],
            options={
                "verbose_name": "depth",
                "verbose_name_plural": "depths",
                "db_table": "pgjobs_depth",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        migrations.CreateModel(
            name="Notice",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                (
                    "finished_at",
                    models.DateTimeField(
                        help_text="Jobs abandoned before this instant need no further notice.", verbose_name="reached"
                    ),
                ),
                ("notified_at", models.DateTimeField(null=True, verbose_name="last notice")),
                (
                    "job_id",
                    models.BigIntegerField(
                        help_text="The job of the last notice.", null=True, verbose_name="delivered by"
                    ),
                ),
                ("problems", models.JSONField(default=list, verbose_name="known problems")),
            ],
            options={
                "verbose_name": "notice",
                "verbose_name_plural": "notices",
                "db_table": "pgjobs_notice",
                "default_permissions": ("view",),
                "required_db_vendor": "postgresql",
            },
        ),
        # The id is null only where an outer join found no job.
        CreateRowFunction(
            "Job",
            "state",
            "varchar",
            "coalesce(job.outcome, CASE WHEN job.claim_id IS NOT NULL THEN 'running' END, job.hold, "
            "CASE WHEN job.id IS NOT NULL THEN 'ready' END)",
        ),
        # A claim takes whole pages at once, so each row needs room on its page for a second version: fillfactor 45
        # keeps claims heap-only (docs/adr/0019). Autovacuum by rows changed, since the table is small and hot.
        SetStorageParameters(
            "Job",
            {
                "fillfactor": 45,
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
        SetStorageParameters(
            "Gate", {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 1000}
        ),
    ]
