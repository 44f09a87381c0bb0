"""The workers, the leader's term, and the figures that the leader measured."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models
from django.db.models import Exists, ExpressionWrapper, F, OuterRef
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgjobs.conf import get_conf
from django_pgjobs.models.base import PostgresModel
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.values.by_queue import EVERY_OTHER


class HeartbeatQuerySet(models.QuerySet[Any]):
    """Workers."""

    def with_status(self) -> HeartbeatQuerySet:
        """Add ``status``, a key of ``STATUS_LABELS``; ``beat_age``, the time since the last beat; and ``leads``."""
        from django_pgjobs.inspection import liveness  # here for start-up time

        beat_age = ExpressionWrapper(Now() - F("last_beat_at"), output_field=models.DurationField())
        leads = Exists(LeaderTerm.objects.filter(worker=OuterRef("pk"), expires_at__gt=Now()))
        found: HeartbeatQuerySet = self.annotate(status=liveness.status(), beat_age=beat_age, leads=leads)
        return found

    def live(self) -> HeartbeatQuerySet:
        """Keep workers that were heard from lately and are not marked as lost or stopped."""
        from django_pgjobs.inspection import liveness  # here for start-up time

        beat = liveness.beat_within(get_conf().silent_seconds)
        found: HeartbeatQuerySet = self.filter(beat, state__in=liveness.LIVE)
        return found


if TYPE_CHECKING:

    class HeartbeatManager(models.Manager["Heartbeat"]):
        """The type of ``Heartbeat.objects`` for type checkers."""

        def get_queryset(self) -> HeartbeatQuerySet: ...
        def all(self) -> HeartbeatQuerySet: ...
        def using(self, using: str | None) -> HeartbeatQuerySet: ...
        def filter(self, *args: object, **kwargs: object) -> HeartbeatQuerySet: ...
        def order_by(self, *field_names: object) -> HeartbeatQuerySet: ...
        def with_status(self) -> HeartbeatQuerySet: ...
        def live(self) -> HeartbeatQuerySet: ...


class Heartbeat(PostgresModel):
    """One worker (`runjobs`), for people and for the text of a rescue's cause. It grants no right to a job.

    ``state`` is what the worker wrote last, or *lost* once another worker rescued its jobs; its next heartbeat clears
    that. ``with_status()`` also shows which workers were not heard from.
    """

    class Stage(models.TextChoices):
        """The stages of a worker's life."""

        RUNNING = "running", _("running")
        QUIET = "quiet", _("quiet")
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
    places = models.JSONField(_("places of queues"), null=True)
    version = models.TextField(_("version"))
    release = models.TextField(_("release"), db_default="")
    protocol = models.SmallIntegerField(_("protocol"), db_default=0, help_text=_("Job features it knows."))
    state = models.TextField(_("state"), choices=Stage.choices, db_default="running")
    started_at = models.DateTimeField(_("started at"), db_default=Now())
    last_beat_at = models.DateTimeField(_("last beat at"), db_default=Now())
    running = models.IntegerField(_("running jobs"), db_default=0)
    finished = models.BigIntegerField(_("finished jobs"), db_default=0)
    deaths = models.IntegerField(_("deaths of executors"), db_default=0)
    died_at = models.DateTimeField(_("last death of an executor"), null=True)
    death = models.TextField(_("how it died"), db_default="")
    suspects = models.JSONField(_("suspects"), null=True)
    suspects_since = models.DateTimeField(_("suspects run apart since"), null=True)
    control = models.TextField(_("last request"), db_default="")
    control_number = models.IntegerField(_("number of requests"), db_default=0)
    control_by = models.TextField(_("requested by"), db_default="")
    control_reason = models.TextField(_("reason"), db_default="")
    controlled_at = models.DateTimeField(_("requested at"), null=True)
    control_taken = models.IntegerField(_("last request taken up"), db_default=0)
    taken_at = models.DateTimeField(_("taken up at"), null=True)

    if TYPE_CHECKING:
        objects: ClassVar[HeartbeatManager]
    else:
        objects = HeartbeatQuerySet.as_manager()

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_heartbeat"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        permissions = (("steer_worker", _("Can steer workers")),)

    def __str__(self) -> str:
        return visible(self.name[:200])

    @property
    def served(self) -> tuple[list[str] | None, list[str]]:
        """The queues that it serves, None for all, and those of all that it leaves out; its row is not checked."""
        named, excluded = (
            [str(name) for name in stored] if isinstance(stored, list) else []
            for stored in (self.queues, self.excluded_queues)
        )
        return None if self.queues is None else named, excluded

    @property
    def is_asked(self) -> bool:
        """True if it has not taken up the last request."""
        return self.control_number > self.control_taken

    @property
    def slots_of_queues(self) -> dict[str, int]:
        """Number of jobs of a queue that it runs at once, by queue; ``"*"``: of all others together."""
        stored = self.places if isinstance(self.places, dict) else {}
        names = sorted(stored, key=lambda name: (name == EVERY_OTHER, name))
        return {name: stored[name] for name in names if isinstance(stored[name], int)}


class LeaderTerm(PostgresModel):
    """The leader: one row, a lease with a numbered term. The leader audits and prunes; jobs run without it."""

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

    def __str__(self) -> str:
        return f"term {self.term} of {self.worker_name or self.worker}"

    @classmethod
    def current(cls, using: str | None = None) -> LeaderTerm | None:
        """Return the current term, by the database's clock; None without a leader. ``worker`` is the leader."""
        terms = cls._default_manager.using(using) if using else cls._default_manager
        return terms.filter(expires_at__gt=Now()).first()


class Installation(PostgresModel):
    """The database that the jobs belong to: one row, by which a worker knows a copy."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    system = models.TextField(_("identifier of the server"))
    database_oid = models.BigIntegerField(_("database"))
    database_name = models.TextField(_("name of the database"))
    table_oid = models.BigIntegerField(_("job table"))
    version = models.IntegerField(_("major version of the server"))
    environment = models.TextField(_("environment"), db_default="")
    adopted_at = models.DateTimeField(_("adopted at"))
    adopted_by = models.TextField(_("adopted by"), db_default="")
    written_in = models.BigIntegerField(_("transaction that wrote it"))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_installation"
        verbose_name = _("installation")
        verbose_name_plural = _("installations")
        default_permissions = ()

    def __str__(self) -> str:
        return f"installation {self.database_name}"


class Statistic(PostgresModel):
    """The latest figures of the queues, measured by a leader: one row."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    measured_at = models.DateTimeField(_("measured at"))
    worker_name = models.TextField(_("worker name"), db_default="")
    figures = models.JSONField(_("figures"))

    class Meta(PostgresModel.Meta):
        db_table = "pgjobs_statistic"
        verbose_name = _("statistic")
        verbose_name_plural = _("statistics")

    def __str__(self) -> str:
        return f"statistic of {self.measured_at}"


class Overview(Statistic):
    """The page of the admin that shows the latest figures; no table of its own. ``view_job`` grants it."""

    class Meta:
        proxy = True
        verbose_name = _("overview")
        # The blank makes it the first of the app: the admin sorts by these words, and browsers show no blank there.
        verbose_name_plural = _(" Overview")
        default_permissions = ()
