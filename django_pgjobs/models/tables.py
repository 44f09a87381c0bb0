"""The tables: what a job is, who has claimed it, how its attempts failed, which workers live, which one leads.

Models are for reading and migrating. Every change of a job's state is a statement of ``sql/``, called by
``store``; ``Job.save()`` therefore refuses. No index holds, and no index condition names, a column that claim,
cancel request, progress or release change (``claim_id``, ``state``, ``deadline_at``, ``attempt``, …): those
writes must stay heap-only (HOT) updates. No constraint points to Job: one would make pruning three times dearer.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Coalesce, Now
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgjobs.fields import BigIntArrayField, InstantField, StateField, TagsField
from django_pgjobs.indexes import GinIndex, GistIndex
from django_pgjobs.inspection.liveness import HeartbeatQuerySet
from django_pgjobs.models.job_queryset import NOT_DELETED, BoundedQuerySet, JobQuerySet, Steerable
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import Cause, Ending, JobState, Outcome, label
from django_pgjobs.steering.crons import CronEntryQuerySet, SteerableCron

if TYPE_CHECKING:
    from datetime import datetime

    from django_pgjobs.models.job_queryset import JobManager


class PostgresModel(models.Model):
    """A model that lives on PostgreSQL only; other databases of a project migrate untouched."""

    class Meta:
        abstract = True
        required_db_vendor = "postgresql"


class Job(Steerable, PostgresModel):
    """One job, from its registration to the end of its retention."""

    class State(models.TextChoices):
        """The values of ``state``."""

        READY = JobState.READY, _("ready")
        RUNNING = JobState.RUNNING, _("running")
        WAITING = JobState.WAITING, _("waiting")
        PARKED = JobState.PARKED, _("parked")
        LIMITED = JobState.LIMITED, _("limited")
        PAUSED = JobState.PAUSED, _("paused")
        SUCCEEDED = JobState.SUCCEEDED, _("succeeded")
        CANCELLED = JobState.CANCELLED, _("cancelled")
        ABANDONED = JobState.ABANDONED, _("abandoned")

    id = models.BigAutoField(primary_key=True)
    run_at = InstantField(_("run at"), db_default=Now(), help_text=_("Earliest instant it may be claimed."))
    created_at = InstantField(_("registered at"), db_default=Now())
    claimed_at = InstantField(_("claimed at"), null=True)
    deadline_at = InstantField(_("deadline"), null=True, help_text=_("Backstop: when others may take it."))
    finished_at = InstantField(_("finished at"), null=True)
    ready_at = InstantField(_("ready again at"), null=True)
    cancel_requested_at = InstantField(_("cancel requested at"), null=True)
    release_requested_at = InstantField(_("release requested at"), null=True)
    claim_id = models.UUIDField(_("claim"), null=True)
    worker = models.UUIDField(_("worker"), null=True)
    timeout_seconds = models.FloatField(_("timeout in seconds"), null=True)
    duration_seconds = models.FloatField(_("duration in seconds"), null=True)
    attempt = models.IntegerField(_("attempt"), db_default=0)
    suspect_attempt = models.IntegerField(_("attempt that may have ended its process"), null=True)
    max_attempts = models.IntegerField(_("maximum attempts"), db_default=5)
    priority = models.SmallIntegerField(_("priority"), db_default=0, help_text=_("Larger runs first."))
    ending_attempt = models.SmallIntegerField(_("starts of the callback"), db_default=0)
    waited = models.BooleanField(_("somebody waits"), db_default=False)
    queue = models.TextField(_("queue"), db_default="default")
    name = models.TextField(_("name"))
    description = models.TextField(_("description"), db_default="")
    payload = models.JSONField(_("payload"))
    headers = models.JSONField(_("headers"), null=True)
    outcome = models.TextField(_("outcome"), null=True, choices=[(o.value, o.value) for o in Outcome])
    result = models.JSONField(_("result"), null=True)
    error = models.TextField(_("last error"), db_default="")
    ending = models.TextField(_("ending"), null=True, choices=[(e.value, e.value) for e in Ending])
    hold = models.TextField(_("hold"), null=True)
    hold_reason = models.TextField(_("reason of the hold"), db_default="")
    hold_fingerprint = models.TextField(_("code that held it"), db_default="")
    cancel_mode = models.TextField(_("mode of the cancel"), db_default="")
    cancel_by = models.TextField(_("cancelled by"), db_default="")
    cancel_reason = models.TextField(_("reason of the cancel"), db_default="")
    progress = models.JSONField(_("progress"), null=True)
    key = models.TextField(_("key"), null=True)
    unique_key = models.TextField(_("key that nobody else may have now"), null=True)
    key_scope = models.TextField(_("scope of the key"), db_default="")
    idempotency_key = models.TextField(_("idempotency key"), null=True)
    limit_key = models.TextField(_("key of its limits"), null=True)
    cron_entry = models.TextField(_("cron entry"), null=True)
    fire_at = InstantField(_("fire of the cron entry"), null=True)
    tags = TagsField(_("tags"))
    not_after = InstantField(_("not after"), null=True, help_text=_("Not started after it, stopped at it."))
    # Frozen: Django refuses to alter it and a change rewrites the table. New states are data in ``hold``.
    state = models.GeneratedField(
        expression=Coalesce(
            "outcome",
            models.Case(models.When(claim_id__isnull=False, then=Value("running"))),
            "hold",
            Value("ready"),
        ),
        output_field=StateField(choices=State.choices),
        db_persist=True,
        verbose_name=_("state"),
    )

    if TYPE_CHECKING:
        objects: ClassVar[JobManager]
    else:
        objects = JobQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_job"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = (
            ("cancel_job", _("Can cancel jobs")),
            ("retry_job", _("Can retry jobs")),
            ("abandon_job", _("Can abandon jobs")),
            ("reschedule_job", _("Can reschedule and release jobs")),
            ("view_payload", _("Can see sensitive arguments of jobs")),
        )
        indexes = (
            models.Index(
                name="pgjobs_job_claim_order",
                fields=["queue", "priority", "run_at", "id"],
                condition=Q(finished_at__isnull=True, hold__isnull=True),
            ),
            models.Index(
                name="pgjobs_job_ended",
                fields=["outcome", "finished_at"],
                condition=Q(finished_at__isnull=False),
            ),
            models.Index(name="pgjobs_job_held", fields=["hold", "name"], condition=Q(hold__isnull=False)),
            models.Index(
                name="pgjobs_job_limited",
                fields=["queue", "name", "limit_key", "priority", "run_at", "id"],
                condition=Q(hold="limited"),
            ),
            models.Index(
                name="pgjobs_job_admitted",
                fields=["name", "limit_key", "queue"],
                condition=Q(limit_key__isnull=False, hold__isnull=True, finished_at__isnull=True),
            ),
            models.Index(
                name="pgjobs_job_cron",
                fields=["cron_entry"],
                condition=Q(cron_entry__isnull=False, finished_at__isnull=True),
            ),
            GinIndex(
                name="pgjobs_job_tags",
                fields=["tags"],
                opclasses=["jsonb_path_ops"],
                condition=Q(tags__isnull=False),
            ),
            models.Index(
                name="pgjobs_job_held_order",
                fields=["queue", "hold", "run_at", "id"],
                condition=Q(hold__isnull=False, finished_at__isnull=True),
            ),
        )
        constraints = (
            models.UniqueConstraint(
                name="pgjobs_job_unique_key",
                fields=["queue", "unique_key"],
                condition=Q(unique_key__isnull=False, finished_at__isnull=True),
            ),
        )

    def __str__(self) -> str:
        return f"{visible(self.name)} #{self.pk}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: jobs are registered, and changed by their steering methods."""
        raise TypeError(
            "A job is not saved: register it by its definition's register(), and change it by cancel(), retry(), "
            "abandon(), release() or reschedule()."
        )

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a job ends by its steering methods, and ended ones are pruned."""
        raise TypeError(NOT_DELETED)

    def refresh_from_db(self, using: str | None = None, fields: Any = None, from_queryset: Any = None) -> None:
        """Read it anew, as Django's."""
        own = JobQuerySet(type(self), using=using, hints={"instance": self})
        super().refresh_from_db(
            using=using, fields=fields, from_queryset=own if from_queryset is None else from_queryset
        )

    @property
    def label(self) -> str:
        """The word people are shown: the state, or *scheduled* or *retrying* for a ready job that is not due."""
        now: datetime = timezone.now()
        run_at: datetime = self.run_at if timezone.is_aware(self.run_at) else timezone.make_aware(self.run_at)
        return label(self.state, run_at, self.attempt, now)


class Claim(PostgresModel):
    """A part of one claimed batch, and the lease on it.

    The lease lives here and not on the job, so that renewing it touches and locks no job row.
    """

    pk = models.CompositePrimaryKey("claim_id", "part")
    claim_id = models.UUIDField()
    part = models.SmallIntegerField()
    worker = models.UUIDField()
    lease_expires_at = models.DateTimeField()
    check_at = models.DateTimeField(help_text=_("When somebody shall look: lease end or earliest deadline."))
    job_ids = BigIntArrayField()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_claim"
        verbose_name = _("claim")
        verbose_name_plural = _("claims")
        default_permissions = ("view",)
        indexes = (models.Index(name="pgjobs_claim_check", fields=["check_at"]),)

    def __str__(self) -> str:
        return f"{self.claim_id}/{self.part}"


class Attempt(PostgresModel):
    """An attempt that did not succeed, and the cause: failed, timeout, crashed, lost, released or cancelled.

    The successful last attempt is on the job itself, so success costs no row here.
    """

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        Job,
        on_delete=models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="attempts",
        verbose_name=_("job"),
    )
    claim_id = models.UUIDField(_("claim"))
    number = models.IntegerField(_("attempt"))
    cause = models.TextField(_("cause"), choices=[(c.value, _(c.value)) for c in Cause])
    worker = models.UUIDField(_("worker"), null=True)
    worker_name = models.TextField(_("worker name"), db_default="")
    release = models.TextField(_("release"), db_default="")
    started_at = InstantField(_("started at"), null=True)
    ended_at = InstantField(_("ended at"), db_default=Now())
    duration_seconds = models.FloatField(_("duration in seconds"), null=True)
    exception = models.TextField(_("exception"), db_default="")
    message = models.TextField(_("message"), db_default="")
    chain = models.JSONField(_("chain of causes"), db_default=Value([], models.JSONField()))
    traceback = models.TextField(_("traceback"), db_default="")

    objects: ClassVar[models.Manager[Attempt]] = BoundedQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_attempt"
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)
        constraints = (models.UniqueConstraint(name="pgjobs_attempt_claim", fields=["job", "claim_id"]),)

    def __str__(self) -> str:
        return f"attempt {self.number} of job {self.job_id}"


class Heartbeat(PostgresModel):
    """One worker (`runjobs`): for people, and to word the cause of a rescue. It grants no right to a job.

    ``state`` is what the worker wrote last, or *lost* when another one took its jobs back; its next heartbeat clears
    that. ``with_status()`` also tells who has not been heard from.
    """

    class State(models.TextChoices):
        """Where the worker is in its life."""

        RUNNING = "running", _("running")
        DRAINING = "draining", _("draining")
        STOPPED = "stopped", _("stopped")
        LOST = "lost", _("lost")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.TextField(_("name"))
    host = models.TextField(_("host"))
    pid = models.IntegerField(_("process id"))
    queues = models.JSONField(_("queues"), null=True)
    excluded_queues = models.JSONField(_("excluded queues"), null=True)
    processes = models.IntegerField(_("processes"))
    threads = models.IntegerField(_("threads"))
    async_slots = models.IntegerField(_("async slots"))
    version = models.TextField(_("version"))
    release = models.TextField(_("release"), db_default="")
    state = models.TextField(_("state"), choices=State.choices, db_default="running")
    started_at = models.DateTimeField(_("started at"), db_default=Now())
    last_beat_at = models.DateTimeField(_("last beat at"), db_default=Now())
    running = models.IntegerField(_("running jobs"), db_default=0)
    finished = models.BigIntegerField(_("finished jobs"), db_default=0)

    objects: ClassVar[models.Manager[Heartbeat]] = HeartbeatQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_heartbeat"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return visible(self.name)


class LeaderTerm(PostgresModel):
    """Who leads: one row, a lease with a numbered term. The leader audits and sweeps; nobody needs it for progress."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    term = models.BigIntegerField(_("term"))
    worker = models.UUIDField(_("worker"))
    worker_name = models.TextField(_("worker name"), db_default="")
    taken_at = models.DateTimeField(_("taken at"))
    expires_at = models.DateTimeField(_("expires at"))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_leader_term"
        verbose_name = _("leader's term")
        verbose_name_plural = _("leader's terms")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"term {self.term} of {self.worker_name or self.worker}"

    @classmethod
    def current(cls, using: str | None = None) -> LeaderTerm | None:
        """Return the term that runs now, by the database's clock; None while nobody leads. ``worker`` is who leads."""
        terms = cls._default_manager.using(using) if using else cls._default_manager
        return terms.filter(expires_at__gt=Now()).first()


class CronEntry(SteerableCron, PostgresModel):
    """A schedule: what the code declares and, in columns of their own, what an operator has put in its place.

    Its identity is its name. ``last_fire_at`` is compared and set by the statement that fires it, so that each due
    instant is fired once, whoever evaluates it.
    """

    name = models.TextField(_("name"), primary_key=True)
    job_name = models.TextField(_("job"))
    declared_expression = models.TextField(_("declared expression"))
    declared_zone = models.TextField(_("declared time zone"))
    declared_payload = models.JSONField(_("declared arguments"))
    declared_options = models.JSONField(_("declared options"))
    expression = models.TextField(_("expression instead"), null=True, blank=True)
    zone = models.TextField(_("time zone instead"), null=True, blank=True)
    payload = models.JSONField(_("arguments instead"), null=True, blank=True)
    misfire = models.TextField(_("misfire policy"), db_default="once")
    overlap = models.TextField(_("overlap policy"), db_default="allow")
    created_at = models.DateTimeField(_("created at"), db_default=Now())
    in_force_since = models.DateTimeField(_("in force since"), null=True)
    declared_at = models.DateTimeField(_("declared last at"), db_default=Now())
    missing_since = models.DateTimeField(_("not declared since"), null=True)
    last_fire_at = models.DateTimeField(_("last fire"), null=True)
    last_job_id = models.BigIntegerField(_("last job"), null=True)
    next_fire_at = models.DateTimeField(_("next fire"), null=True)
    paused_at = models.DateTimeField(_("paused at"), null=True)
    paused_by = models.TextField(_("paused by"), db_default="")
    paused_reason = models.TextField(_("reason of the pause"), db_default="")
    paused_until = models.DateTimeField(_("paused until"), null=True)
    broken = models.TextField(_("why it cannot fire"), db_default="")

    objects: ClassVar[models.Manager[CronEntry]] = CronEntryQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_cron_entry"
        verbose_name = _("cron entry")
        verbose_name_plural = _("cron entries")
        default_permissions = ("view", "change")
        permissions = (("run_cronentry", _("Can run, pause and resume cron entries")),)

    def __str__(self) -> str:
        return visible(self.name)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: an old last fire, written back, would be made a second time."""
        raise TypeError(
            "A cron entry is not saved: code declares it by Cron(…), and pause(), resume(), stop(), run_now() and "
            "override() steer it."
        )

    @property
    def effective_expression(self) -> str:
        """The expression that counts."""
        return self.declared_expression if self.expression is None else self.expression

    @property
    def effective_zone(self) -> str:
        """The time zone that counts."""
        return self.declared_zone if self.zone is None else self.zone

    @property
    def effective_payload(self) -> Any:
        """The arguments that count."""
        return self.declared_payload if self.payload is None else self.payload

    @property
    def is_paused(self) -> bool:
        """Whether somebody has paused it, and that is not over."""
        until = self.paused_until
        if until is not None and timezone.is_naive(until):
            until = timezone.make_aware(until)
        return self.paused_at is not None and (until is None or until > timezone.now())

    @property
    def status(self) -> str:
        """*broken*, *missing*, *paused* or *on*: the first that is true."""
        if self.broken:
            return "broken"
        if self.missing_since is not None:
            return "missing"
        return "paused" if self.is_paused else "on"


class QueueState(PostgresModel):
    """A queue, or the name of a job, that somebody has paused: who, why, and until when."""

    class Kind(models.TextChoices):
        """What is paused."""

        QUEUE = "queue", _("queue")
        JOB = "job", _("job")

    # Not (kind, name): Django's admin takes no model with a composite primary key.
    id = models.BigAutoField(primary_key=True)
    kind = models.TextField(_("kind"), choices=Kind.choices)
    name = models.TextField(_("name"))
    paused_at = models.DateTimeField(_("paused at"), db_default=Now())
    paused_by = models.TextField(_("paused by"), db_default="")
    reason = models.TextField(_("reason"), db_default="")
    until = models.DateTimeField(_("until"), null=True)

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_queue_state"
        verbose_name = _("paused queue or job")
        verbose_name_plural = _("paused queues and jobs")
        default_permissions = ("view",)
        permissions = (("pause_queue", _("Can pause and resume queues and jobs")),)
        constraints = (models.UniqueConstraint(name="pgjobs_queue_state_name", fields=["kind", "name"]),)

    def __str__(self) -> str:
        return visible(f"{self.kind} {self.name}")

    def validate_constraints(self, exclude: Any = None) -> None:
        """Take a name that is paused already: pausing again replaces who, why and until when."""


class StoredResult(PostgresModel):
    """What a job with an idempotency key returned: the next one of its name and key returns it without running."""

    pk = models.CompositePrimaryKey("name", "key")
    name = models.TextField(_("name"))
    key = models.TextField(_("idempotency key"))
    job_id = models.BigIntegerField(_("job"))
    result = models.JSONField(_("result"), null=True)
    stored_at = models.DateTimeField(_("stored at"), db_default=Now())

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_stored_result"
        verbose_name = _("stored result")
        verbose_name_plural = _("stored results")
        default_permissions = ("view",)
        indexes = (models.Index(name="pgjobs_stored_result_age", fields=["stored_at"]),)

    def __str__(self) -> str:
        return f"{self.name} {self.key}"


class KeyWindow(PostgresModel):
    """A key that was used once in its window of time; the row may outlive its job."""

    pk = models.CompositePrimaryKey("queue", "key", "begins_at")
    queue = models.TextField(_("queue"))
    key = models.TextField(_("key"))
    begins_at = models.DateTimeField(_("begins at"))
    ends_at = models.DateTimeField(_("ends at"))
    job_id = models.BigIntegerField(_("job"))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_key_window"
        verbose_name = _("window of a key")
        verbose_name_plural = _("windows of keys")
        default_permissions = ("view",)
        indexes = (models.Index(name="pgjobs_key_window_end", fields=["ends_at"]),)

    def __str__(self) -> str:
        return f"{self.queue} {self.key}"


class Admission(PostgresModel):
    """Starts that a rate limit has let in: of what, how many, when. Kept for the limit's window.

    A row has the starts of a thousandth of the window, dated at its end: a window is a thousand rows at most.
    """

    pk = models.CompositePrimaryKey("subject", "admitted_at")
    subject = models.TextField(_("limited"))
    admitted_at = models.DateTimeField(_("admitted at"))
    expires_at = models.DateTimeField(_("expires at"))
    starts = models.IntegerField(_("starts"))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_admission"
        verbose_name = _("admission")
        verbose_name_plural = _("admissions")
        default_permissions = ("view",)
        indexes = (models.Index(name="pgjobs_admission_end", fields=["expires_at"]),)

    def __str__(self) -> str:
        return f"{self.starts} of {self.subject}"


class Statistic(PostgresModel):
    """The figures of the queues as a leader measured them last: one row."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    measured_at = models.DateTimeField(_("measured at"))
    worker_name = models.TextField(_("worker name"), db_default="")
    figures = models.JSONField(_("figures"))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_statistic"
        verbose_name = _("statistic")
        verbose_name_plural = _("statistics")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"statistic of {self.measured_at}"


class Action(PostgresModel):
    """What an operator did: one row for each cancel, retry, abandon, release, reschedule, pause and the like.

    It is written in the transaction that changes the jobs; ``ActionPart`` says which jobs these were.
    """

    class Via(models.TextChoices):
        """Where it was done."""

        ADMIN = "admin", _("admin")
        SHELL = "shell", _("shell")
        CODE = "code", _("code")

    id = models.BigAutoField(primary_key=True)
    acted_at = models.DateTimeField(_("when"), db_default=Now())
    verb = models.TextField(_("what"))
    mode = models.TextField(_("how"), db_default="", help_text=_("Of a cancel its mode, of a move where to."))
    via = models.TextField(_("where"), choices=Via.choices)
    acted_by = models.TextField(_("who"), db_default="")
    reason = models.TextField(_("reason"), db_default="")
    asked = models.TextField(_("filter"), db_default="", help_text=_("What chose the jobs; empty for single ones."))
    kind = models.TextField(_("kind"), db_default="jobs")
    subject = models.TextField(_("of what"), db_default="", help_text=_("A queue, the name of a job, a cron entry."))
    changed = models.IntegerField(_("changed"))
    skipped = models.JSONField(_("skipped"), db_default=Value({}, models.JSONField()))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_action"
        verbose_name = _("action")
        verbose_name_plural = _("actions")
        default_permissions = ("view",)
        indexes = (models.Index(name="pgjobs_action_age", fields=["acted_at"]),)

    def __str__(self) -> str:
        return f"{self.verb} #{self.pk}"


class ActionPart(PostgresModel):
    """The jobs that one batch of an action changed, at most a thousand."""

    pk = models.CompositePrimaryKey("action_id", "part")
    action_id = models.BigIntegerField()
    part = models.IntegerField()
    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField()
    job_ids = BigIntArrayField()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_action_part"
        verbose_name = _("part of an action")
        verbose_name_plural = _("parts of actions")
        default_permissions = ("view",)
        indexes = (
            GistIndex(
                Func(F("first_id"), F("last_id"), Value("[]"), function="int8range"), name="pgjobs_action_part_span"
            ),
        )

    def __str__(self) -> str:
        return f"{self.action_id}/{self.part}"
