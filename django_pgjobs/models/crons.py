"""Cron entries: the table, and the steering methods for one and for many of them.

No deploy undoes an operator's change: the values that code declares have columns of their own. Every steering method
is repeatable and joins the caller's transaction.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.db import models, router
from django.db.models import Q, Value
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgjobs.models.base import PostgresModel, written_at
from django_pgjobs.models.jobs import Job
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.values.asynchronous import asynchronous

if TYPE_CHECKING:
    from django_pgjobs.steering.batching import Steered
    from django_pgjobs.steering.trail import Until


def aware(instant: datetime) -> datetime:
    """Return an instant of a row with its zone, which it lacks if ``USE_TZ`` is off."""
    return timezone.make_aware(instant) if timezone.is_naive(instant) else instant


class CronEntryQuerySet(models.QuerySet["CronEntry"]):
    """Cron entries, with steering methods for many of them."""

    def paused(self) -> CronEntryQuerySet:
        """Keep entries that are paused now, by the database's clock."""
        return self.filter(models.Q(paused_until=None) | models.Q(paused_until__gt=Now()), paused_at__isnull=False)

    def pause(self, *, by: object = None, reason: str = "", until: Until = None) -> int:
        """Stop these entries from firing; return how many there are. Registered jobs still run.

        ``by``: a user or a text. ``until``: an aware instant, or seconds or a ``timedelta`` from now, by the database's
        clock; None until they are resumed. Fires due during the pause are lost. Raises ``InvalidJob``, also for an end
        in the past.
        """
        from django_pgjobs.steering import crons  # here for start-up time

        return crons.pause(self, self._alias(), by=by, reason=reason, until=until)

    def resume(self, *, by: object = None) -> int:
        """Resume the paused entries from their next fire on; return how many there were."""
        from django_pgjobs.steering import crons  # here for start-up time

        return crons.resume(self.paused(), self._alias(), by=by)

    def stop(self, *, by: object = None, reason: str = "", mode: str = "ask") -> Steered:
        """Pause entries until they are resumed, and cancel their unfinished jobs; return the jobs' result.

        ``mode`` is that of ``Job.cancel``.
        """
        from django_pgjobs.steering import crons  # here for start-up time

        jobs = Job.objects.using(self._alias())
        return crons.stop(self, self._alias(), jobs, by=by, reason=reason, mode=mode)

    def remove(self, *, by: object = None, reason: str = "") -> int:
        """Delete schedules made at run time, and entries that no code declares any more; return how many.

        Their jobs stay. Raises ``InvalidJob``, and deletes nothing, if code declares one of them.
        """
        from django_pgjobs.steering import crons  # here for start-up time

        return crons.remove(self, self._alias(), by=by, reason=reason)

    apause = asynchronous(pause)
    aresume = asynchronous(resume)
    astop = asynchronous(stop)
    aremove = asynchronous(remove)

    _altering: Any
    for _altering in (pause, resume, stop, remove, apause, aresume, astop, aremove):
        _altering.alters_data = _altering.queryset_only = True
    del _altering

    def _alias(self) -> str:
        own: Any = self
        return str(own._db or router.db_for_write(self.model, **own._hints))


class SteerableCron(models.Model):
    """The steering methods of one cron entry. ``refresh_from_db()`` shows the change."""

    class Meta:
        abstract = True

    def _itself(self) -> CronEntryQuerySet:
        return CronEntryQuerySet(cast(Any, type(self)), using=written_at(self)).filter(pk=self.pk)

    def pause(self, *, by: object = None, reason: str = "", until: Until = None) -> int:
        """Pause this entry; see ``CronEntryQuerySet.pause``."""
        return self._itself().pause(by=by, reason=reason, until=until)

    def resume(self, *, by: object = None) -> int:
        """Resume this entry; see ``CronEntryQuerySet.resume``."""
        return self._itself().resume(by=by)

    def stop(self, *, by: object = None, reason: str = "", mode: str = "ask") -> Steered:
        """Pause this entry and cancel its jobs; see ``CronEntryQuerySet.stop``."""
        return self._itself().stop(by=by, reason=reason, mode=mode)

    def run_now(self, *, by: object = None) -> Job:
        """Register its job now, regardless of its schedule, even while it is paused; return the job.

        Its fires do not change. Raises ``InvalidJob`` if its overlap policy forbids a second unfinished job, or if the
        database refuses the row's values; ``DuplicateJob`` if the key is taken; ``JobDoesNotExist`` if the entry is
        gone.
        """
        from django_pgjobs.steering import crons  # here for start-up time

        alias = written_at(self)
        job_id = crons.run_now(self.pk, alias, by)
        return Job.objects.using(alias).get(pk=job_id)

    def override(self, *, by: object = None, **values: object) -> None:
        """Override the declared ``expression``, ``zone`` or ``payload``; None restores the declared value.

        ``payload`` is ``{"args": […], "kwargs": {…}}`` as stored. Raises ``ValidationError`` for an invalid
        expression, zone or arguments, and for a job that this process does not know.
        """
        from django_pgjobs.steering import crons  # here for start-up time

        crons.override(self._itself(), written_at(self), cast("CronEntry", self), by=by, values=values)

    def remove(self, *, by: object = None, reason: str = "") -> int:
        """Delete this schedule; see ``CronEntryQuerySet.remove``."""
        return self._itself().remove(by=by, reason=reason)

    def next_fires(
        self, count: int = 5, *, after: datetime | None = None, until: datetime | None = None
    ) -> list[datetime]:
        """Return the next fires of its schedule in UTC, from now or from ``after`` on, within its start and end.

        With ``until``, the first one and those until then. No more than it may still make. Empty if expression or zone
        is invalid. Pauses do not matter here; with ``after_completion`` these are the earliest possible fires. Raises
        ``ValueError`` for more than 1000.
        """
        from django_pgjobs.steering.crons import MOST_PREVIEWED  # here for start-up time
        from django_pgjobs.values import schedule as cron  # here for start-up time

        if not 0 <= count <= MOST_PREVIEWED:
            raise ValueError(f"next_fires() takes a count from 0 to {MOST_PREVIEWED}, not {count!r}")
        entry = cast("CronEntry", self)
        starts, ends = (None if bound is None else aware(bound) for bound in (entry.starts_at, entry.ends_at))
        try:
            schedule = cron.bounded_schedule_of(entry.effective_expression, entry.effective_zone, starts, ends)
        except cron.InvalidCron:
            return []
        if entry.max_fires is not None:
            count = min(count, max(0, entry.max_fires - entry.fires_made))
        return schedule.next_fires(aware(after) if after else datetime.now(UTC), count, until)

    apause = asynchronous(pause)
    aresume = asynchronous(resume)
    astop = asynchronous(stop)
    arun_now = asynchronous(run_now)
    aoverride = asynchronous(override)
    aremove = asynchronous(remove)

    _altering: Any
    for _altering in (
        pause, resume, stop, run_now, override, remove, apause, aresume, astop, arun_now, aoverride, aremove,
    ):  # fmt: skip
        _altering.alters_data = True
    del _altering


class CronEntry(SteerableCron, PostgresModel):
    """A schedule: the declared values and, in columns of their own, the operator's overrides.

    The name identifies it. The statement that fires it compares and sets ``last_fire_at``, so that each due instant
    fires once, whichever process evaluates it.
    """

    class Origin(models.TextChoices):
        """Origin of the schedule."""

        CODE = "code", _("code")
        ROW = "row", _("row")

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
    origin = models.TextField(_("origin"), choices=Origin.choices, db_default="code")
    enabled = models.BooleanField(_("enabled"), db_default=True)
    starts_at = models.DateTimeField(_("start"), null=True, blank=True)
    ends_at = models.DateTimeField(_("end"), null=True, blank=True)
    max_fires = models.IntegerField(_("at most so many fires"), null=True, blank=True)
    fires_made = models.IntegerField(_("fires made"), db_default=0)
    fingerprint = models.TextField(_("arguments checked against"), db_default="")
    # A constant: a default that PostgreSQL computes would rewrite the table.
    check_at = models.DateTimeField(_("look again at"), db_default=Value(datetime(1970, 1, 1, tzinfo=UTC)))

    written: str = ""
    """After ``schedule(…).register(…)``: whether that created or changed the row, or left it unchanged."""

    objects: ClassVar[models.Manager[CronEntry]] = CronEntryQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_cron_entry"
        verbose_name = _("cron entry")
        verbose_name_plural = _("cron entries")
        default_permissions = ("add", "view", "change", "delete")
        permissions = (("run_cronentry", _("Can run, pause and resume cron entries")),)
        indexes = (
            models.Index(name="pgjobs_cron_due", fields=["next_fire_at"], condition=Q(next_fire_at__isnull=False)),
            models.Index(
                name="pgjobs_cron_unplanned", fields=["check_at"], condition=Q(next_fire_at__isnull=True, broken="")
            ),
            models.Index(
                name="pgjobs_cron_declared",
                fields=["declared_at"],
                condition=Q(origin="code", missing_since__isnull=True),
            ),
            models.Index(
                name="pgjobs_cron_rows", fields=["job_name", "fingerprint", "name"], condition=Q(origin="row")
            ),
        )

    def __str__(self) -> str:
        return visible(self.name)

    def save(self, *args: object, **kwargs: object) -> None:
        """Refuse: writing back an old ``last_fire_at`` would repeat a fire."""
        raise TypeError(
            "A cron entry is not saved: code declares it by Cron(…), or makes its row by job.schedule(…).register(…), "
            "and pause(), resume(), stop(), run_now(), override() and remove() steer it."
        )

    @property
    def effective_expression(self) -> str:
        """The expression in force."""
        return self.declared_expression if self.expression is None else self.expression

    @property
    def effective_zone(self) -> str:
        """The time zone in force."""
        return self.declared_zone if self.zone is None else self.zone

    @property
    def effective_payload(self) -> Any:
        """The arguments in force."""
        return self.declared_payload if self.payload is None else self.payload

    @property
    def is_paused(self) -> bool:
        """True if a pause is in force."""
        until = self.paused_until
        return self.paused_at is not None and (until is None or aware(until) > datetime.now(UTC))

    @property
    def has_ended(self) -> bool:
        """True if no fire is left: its end has passed, or it has made all its fires."""
        if self.max_fires is not None and self.fires_made >= self.max_fires:
            return True
        return self.ends_at is not None and aware(self.ends_at) < datetime.now(UTC)

    @property
    def status(self) -> str:
        """*broken*, *missing*, *ended*, *off*, *paused* or *on*: the first that applies."""
        facts = {
            "broken": self.broken,
            "missing": self.missing_since is not None and self.origin == self.Origin.CODE,
            "ended": self.has_ended,
            "off": not self.enabled,
            "paused": self.is_paused,
        }
        return next((word for word, applies in facts.items() if applies), "on")


class KnownJob(PostgresModel):
    """A job that schedules made at run time name, as the workers' code knows it. A worker's code confirms it.

    The leader marks the schedules of a job that no worker has confirmed for some minutes as broken.
    """

    name = models.TextField(_("name"), primary_key=True)
    fingerprint = models.TextField(_("fingerprint"))
    confirmed_at = models.DateTimeField(_("confirmed at"), db_default=Now())

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_known_job"
        default_permissions = ()

    def __str__(self) -> str:
        return visible(self.name)
