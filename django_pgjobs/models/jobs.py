"""Jobs: the table, and the queryset that reads and steers many of them.

Steering methods have asynchronous twins (``acancel`` …). ``alters_data`` keeps templates from calling them.
``queryset_only`` on those of the queryset keeps a slip such as ``Job.objects.cancel()`` from cancelling everything.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from django.db import models, router
from django.db.models import Q
from django.db.models.functions import Now
from django.db.models.lookups import Exact
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgjobs.fields import ComputedStateField, GinIndex, InstantField, TagsField
from django_pgjobs.models.base import BoundedQuerySet, PostgresModel
from django_pgjobs.models.job_steering import Steerable, alters
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import Ending, FlowFlag, JobState, Outcome, label
from django_pgjobs.values.asynchronous import asynchronous

if TYPE_CHECKING:
    from django_pgjobs.steering.batching import Steered

NOT_DELETED = (
    "A job is not deleted: a worker may be running it. End it by cancel() or abandon(); ended jobs go when their "
    "retention is over, or at once by manage.py pgjobs prune --older-than."
)

F = TypeVar("F", bound=Callable[..., object])


def _alters_queryset(method: F) -> F:
    method.queryset_only = True  # type: ignore[attr-defined]
    return alters(method)


class JobQuerySet(BoundedQuerySet["Job"]):
    """Jobs, with steering methods for all of them."""

    @_alters_queryset
    def cancel(self, *, mode: str = "ask", by: object = None, reason: str = "") -> Steered:
        """Cancel these jobs: unclaimed jobs end at once, running ones stop as ``mode`` says.

        ``mode``: ``ask`` sets the job's ``context.cancelled`` and forbids a retry; ``interrupt`` also raises
        ``CancelRequested`` in it and cancels its queries; ``kill`` ends its process. A repeated
        cancel can only become stronger. ``by``: a user or text. A job with ``on_cancel`` ends after that callback.
        Waits for row locks for up to 5 s. Repeatable.
        """
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.cancel(self, self._alias(), mode=mode, by=by, reason=reason)

    @_alters_queryset
    def abandon(self, *, by: object = None, reason: str = "") -> Steered:
        """Abandon these jobs; their ``on_abandon`` runs. Skips running jobs: cancel those. Repeatable."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.abandon(self, self._alias(), by=by, reason=reason)

    @_alters_queryset
    def retry(self, *, by: object = None, reason: str = "") -> Steered:
        """Make abandoned, cancelled and parked jobs ready, with as many more attempts as their definition gives."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.retry(self, self._alias(), by=by, reason=reason)

    @_alters_queryset
    def release(self, *, by: object = None, reason: str = "") -> Steered:
        """Ask the workers of these running jobs to release them: they run again, uncharged. Repeatable."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.release(self, self._alias(), by=by, reason=reason)

    @_alters_queryset
    def unblock(self, *, by: object = None, reason: str = "") -> Steered:
        """Let these blocked jobs and suspended durable functions run, regardless of what they wait for.

        A job that needs others runs; one that takes the result of another that has not succeeded is abandoned. The next
        job of a sequence passes those that were abandoned, and none that has not ended: others are skipped. A batch
        or flow ends by its figures so far, and takes no more members. A durable function that sleeps continues; its
        wait for an event times out. Ends that come later count, and unblock nothing again. Waits for row locks for up
        to 5 s. Repeatable.
        """
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        return steer.unblock(self, self._alias(), by=by, reason=reason)

    @_alters_queryset
    def reschedule(
        self,
        *,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        queue: str | None = None,
        priority: int | None = None,
        by: object = None,
        reason: str = "",
    ) -> Steered:
        """Move unclaimed jobs to another instant (``delay`` in seconds, database clock), queue or priority."""
        from django_pgjobs.steering import jobs as steer  # here for start-up time

        using = self._alias()
        return steer.reschedule(
            self, using, run_at=run_at, delay=delay, queue=queue, priority=priority, by=by, reason=reason
        )

    acancel = asynchronous(cancel)
    aabandon = asynchronous(abandon)
    aretry = asynchronous(retry)
    arelease = asynchronous(release)
    aunblock = asynchronous(unblock)
    areschedule = asynchronous(reschedule)

    def tagged(self, *tags: str) -> JobQuerySet:
        """Keep jobs that have all of these tags; an index finds them. Raises ``ValueError`` for invalid tags."""
        from django_pgjobs.values.tags import check_tags  # here for start-up time

        return self.filter(tags__contains=list(check_tags(tags)))

    @_alters_queryset
    def delete(self) -> NoReturn:
        """Refuse: steering methods end jobs, and pruning deletes ended ones."""
        raise TypeError(NOT_DELETED)

    def _alias(self) -> str:
        own: Any = self
        return str(own._db or router.db_for_write(self.model, **own._hints))


if TYPE_CHECKING:

    class JobManager(models.Manager["Job"]):
        """The type of ``Job.objects`` for type checkers that do not run Django: ``JobQuerySet.as_manager()``."""

        def get_queryset(self) -> JobQuerySet: ...
        def all(self) -> JobQuerySet: ...
        def none(self) -> JobQuerySet: ...
        def using(self, alias: str | None) -> JobQuerySet: ...
        def filter(self, *args: object, **kwargs: object) -> JobQuerySet: ...
        def exclude(self, *args: object, **kwargs: object) -> JobQuerySet: ...
        def order_by(self, *field_names: object) -> JobQuerySet: ...
        def reverse(self) -> JobQuerySet: ...
        def tagged(self, *tags: str) -> JobQuerySet: ...
        def distinct(self, *field_names: object) -> JobQuerySet: ...
        def only(self, *fields: object) -> JobQuerySet: ...
        def defer(self, *fields: object) -> JobQuerySet: ...
        def alias(self, *args: object, **kwargs: object) -> JobQuerySet: ...
        def annotate(self, *args: object, **kwargs: object) -> JobQuerySet: ...
        def prefetch_related(self, *lookups: object) -> JobQuerySet: ...
        def select_for_update(
            self, nowait: bool = ..., skip_locked: bool = ..., of: object = ..., no_key: bool = ...
        ) -> JobQuerySet: ...


class Job(Steerable, PostgresModel):
    """One job, from its registration to the end of its retention."""

    class State(models.TextChoices):
        """The values of ``state``."""

        READY = JobState.READY, _("ready")
        RUNNING = JobState.RUNNING, _("running")
        BLOCKED = JobState.BLOCKED, _("blocked")
        PARKED = JobState.PARKED, _("parked")
        LIMITED = JobState.LIMITED, _("limited")
        PAUSED = JobState.PAUSED, _("paused")
        MOVING = JobState.MOVING, _("moving")
        SUCCEEDED = JobState.SUCCEEDED, _("succeeded")
        CANCELLED = JobState.CANCELLED, _("cancelled")
        ABANDONED = JobState.ABANDONED, _("abandoned")

    id = models.BigAutoField(primary_key=True)
    run_at = InstantField(_("run at"), db_default=Now(), help_text=_("Earliest instant it may be claimed."))
    created_at = InstantField(_("registered at"), db_default=Now())
    claimed_at = InstantField(_("claimed at"), null=True)
    overdue_at = InstantField(_("overdue at"), null=True, help_text=_("When its worker should have stopped it."))
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
    waited = models.BooleanField(_("is waited for"), db_default=False)
    queue = models.TextField(_("queue"), db_default="default")
    name = models.TextField(_("name"))
    description = models.TextField(_("description"), db_default="")
    payload = models.JSONField(_("payload"))
    headers = models.JSONField(_("headers"), null=True)
    outcome = models.TextField(_("outcome"), null=True, choices=[(o.value, o.value) for o in Outcome])
    result = models.JSONField(_("result"), null=True)
    error = models.TextField(_("last error"), db_default="")
    error_class = models.TextField(
        _("error class"),
        null=True,
        help_text=_("Class of the exception, or the cause, of an abandoned job."),
    )
    ending = models.TextField(_("ending"), null=True, choices=[(e.value, e.value) for e in Ending])
    hold = models.TextField(_("hold"), null=True)
    hold_reason = models.TextField(_("reason of the hold"), db_default="")
    hold_fingerprint = models.TextField(_("code that held it"), db_default="")
    cancel_mode = models.TextField(_("mode of the cancel"), db_default="")
    cancel_by = models.TextField(_("cancelled by"), db_default="")
    cancel_reason = models.TextField(_("reason of the cancel"), db_default="")
    progress = models.JSONField(_("progress"), null=True)
    key = models.TextField(_("key"), null=True)
    unique_key = models.TextField(_("key that no other job may have now"), null=True)
    key_scope = models.TextField(_("scope of the key"), db_default="")
    idempotency_key = models.TextField(_("idempotency key"), null=True)
    limit_key = models.TextField(_("key of its limits"), null=True)
    cron_entry = models.TextField(_("cron entry"), null=True)
    fire_at = InstantField(_("fire of the cron entry"), null=True)
    tags = TagsField(_("tags"))
    deadline = InstantField(_("deadline"), null=True, help_text=_("Not started after it, stopped at it."))
    expires_at = InstantField(
        _("expires at"), null=True, help_text=_("Not started after it, but cancelled; empty once an attempt has ended.")
    )
    options = models.JSONField(_("rare options"), null=True, help_text=_("Options that few jobs have."))
    flow = models.SmallIntegerField(
        _("flow"),
        db_default=0,
        help_text=_(
            "Bits; 1: a member, 2: others need it, 4: it can be undone, 8: it has finished steps, 16: it has a gate, "
            "32: it remembers, 128: its sequence continues if it is abandoned."
        ),
    )
    parent = models.ForeignKey(
        "self",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="members",
        verbose_name=_("parent"),
        help_text=_("The batch that it is a member of."),
    )
    target = models.ForeignKey(
        "self",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="compensations",
        verbose_name=_("target"),
        help_text=_("The job that it undoes, or a part of."),
    )
    sequence = models.TextField(
        _("sequence"), null=True, help_text=_("Its jobs run one after the other, as they were registered.")
    )
    # No column (docs/adr/0025). A new state is a value of ``hold``: the SQL function knows no words.
    state = ComputedStateField(choices=State.choices, verbose_name=_("state"))

    fresh = False
    """True if the registration that returned this instance made the job; False if its key was taken. Not stored."""

    if TYPE_CHECKING:
        objects: ClassVar[JobManager]
    else:
        objects = JobQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_job"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
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
            models.Index(
                name="pgjobs_job_error_class",
                fields=["error_class", "finished_at"],
                condition=Q(error_class__isnull=False, finished_at__isnull=False),
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
            models.Index(
                name="pgjobs_job_cron_history",
                fields=["cron_entry", "id"],
                condition=Q(cron_entry__isnull=False),
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
            models.Index(
                name="pgjobs_job_expires",
                fields=["expires_at"],
                condition=Q(expires_at__isnull=False, finished_at__isnull=True),
            ),
            models.Index(name="pgjobs_job_target", fields=["target", "id"], condition=Q(target__isnull=False)),
            models.Index(
                # Those that stand before others: not ended, or abandoned so that the sequence waits.
                name="pgjobs_job_sequence",
                fields=["sequence", "hold", "id"],
                condition=Q(sequence__isnull=False)
                & (
                    Q(finished_at__isnull=True)
                    | Q(Exact(models.F("flow").bitand(FlowFlag.YIELDS.value), 0), outcome=Outcome.ABANDONED.value)
                ),
            ),
            models.Index(
                name="pgjobs_job_undoing",
                fields=["id"],
                condition=Q(flow__gte=FlowFlag.UNDOING.value),
            ),
            models.Index(name="pgjobs_job_parent", fields=["parent", "id"], condition=Q(parent__isnull=False)),
            models.Index(
                name="pgjobs_job_member_key",
                fields=["parent", "key", "id"],
                condition=Q(parent__isnull=False, key__isnull=False),
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

    def save(self, *args: object, **kwargs: object) -> None:
        """Refuse: registration creates jobs, and steering methods change them."""
        raise TypeError(
            "A job is not saved: register it by its definition's register(), and change it by cancel(), retry(), "
            "abandon(), release() or reschedule()."
        )

    def delete(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: steering methods end a job, and pruning deletes ended ones."""
        raise TypeError(NOT_DELETED)

    def refresh_from_db(self, using: str | None = None, fields: object = None, from_queryset: object = None) -> None:
        """Read the row again, where it was read."""
        own = JobQuerySet(type(self), using=using or self._state.db, hints={"instance": self})
        super().refresh_from_db(
            using=using, fields=fields, from_queryset=own if from_queryset is None else from_queryset
        )

    @property
    def label(self) -> str:
        """The word that people see: the state, or *scheduled* or *retrying* for a ready job that is not due."""
        run_at: datetime = self.run_at if timezone.is_aware(self.run_at) else timezone.make_aware(self.run_at)
        return label(self.state, run_at, self.attempt, datetime.now(UTC))


def of_job(related_name: str) -> models.ForeignKey[Job, Job]:
    """Return the field of rows that go with their job."""
    return models.ForeignKey(
        Job, models.CASCADE, related_name=related_name, db_constraint=False, db_index=False, verbose_name=_("job")
    )
