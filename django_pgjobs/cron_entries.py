"""``Cron``: a cron entry as declared in code. The maintenance room writes it to the database and fires it there.

An invalid entry raises at import and names the line that declares it. The name identifies an entry in the database.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.signature import call_site
from django_pgjobs.definition.validation import check_flag, check_name
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.registering.encode import new_job
from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from django_pgjobs.schedules import MisfirePolicy, OverlapPolicy
    from django_pgjobs.store.firing import DeclaredCron


class Cron:
    """A schedule for a job: ``@job(cron=Cron("*/10 * * * *"))``, or standing alone with arguments::

        Cron("0 3 * * *", send_report.bind("daily"), name="daily report", tz="Europe/Paris")
        Cron("every 45 minutes", fetch_rates.bind())

    ``expression`` has five fields, or six with seconds last, or is a word such as ``@daily``, or an interval.
    ``every`` gives the interval instead: seconds, a ``timedelta``, or ``"2 weeks"``. A whole number of days follows
    the local clocks, other intervals are elapsed time. ``anchor`` fixes the phase: a local time such as
    ``"2026-01-05 07:00"``, or an aware ``datetime``; by default midnight of Monday, 2001-01-01. ``tz`` is an IANA zone,
    by default the project's ``TIME_ZONE``. ``misfire`` decides which missed fires to make: the latest (``once``),
    none that is more than a minute late (``skip``), or the last ``misfire_limit`` (``all``). ``overlap`` decides what a
    fire does while a job of the entry is unfinished: start another (``allow``), skip the fire (``skip``), or wait for
    the first fire after the job's end (``after_completion``).

    ``each_database``: the entry is in each database of the setting ``DATABASES``, or without that in each that a worker
    serves, and fires there by itself; otherwise it is in one.

    ``name`` identifies the entry and defaults to the job's name. Raises ``InvalidJob``, which names file and line.
    """

    def __init__(
        self,
        expression: str | None = None,
        call: BoundJob | None = None,
        *,
        every: float | timedelta | str | None = None,
        anchor: str | datetime | None = None,
        name: str | None = None,
        tz: str | ZoneInfo | None = None,
        misfire: MisfirePolicy = "once",
        misfire_limit: int | None = None,
        overlap: OverlapPolicy = "allow",
        each_database: bool = False,
    ) -> None:
        self.location = call_site()
        self.call: BoundJob | None = None
        """The call to register; None until the entry belongs to a job."""
        self.decorates = ""
        """The name of the job whose decorator has the entry; empty if it stands alone."""
        self._name = name
        from django_pgjobs.values import schedule as cron  # here for start-up time

        try:
            self.zone = None if tz is None else cron.check_zone(tz).key
            self.expression = cron.check_either(expression, every, anchor, self._default_zone)
            self.misfire = cron.check_misfire(misfire, misfire_limit)
            self.overlap = cron.check_overlap(overlap, self.misfire)
            self.each_database = check_flag("each_database", each_database)
            if name is not None:
                check_name("name", name)
        except (cron.InvalidCron, InvalidOption) as error:
            raise self._wrong(error) from None
        if call is not None:
            self._declare(call)

    def __repr__(self) -> str:
        return f"<Cron {self.name} {self.expression}>"

    @property
    def name(self) -> str:
        """The entry's name; empty while it belongs to no job."""
        return self._name or ("" if self.call is None else self.call.definition.name)

    def _default_zone(self) -> str:
        return self.zone or settings.TIME_ZONE

    @property
    def database(self) -> str | None:
        """The alias that its job names; None if the router decides."""
        using: str | None = None if self.call is None else self.call.options.get("database")
        return using

    def next_fires(self, count: int = 5, *, after: datetime | None = None) -> list[datetime]:
        """Return the next ``count`` fires of this declaration, in UTC, without a query.

        ``after``: an aware instant, by default now. The entry's row has the operator's overrides and pauses:
        ``CronEntry.next_fires`` reads those. Raises ``ValueError`` for a naive instant.
        """
        if after is not None and timezone.is_naive(after):
            raise ValueError(f"next_fires() takes an aware datetime, not {after!r}: give it a time zone")
        from django_pgjobs.values import schedule as cron  # here for start-up time

        schedule = cron.schedule_of(self.expression, self._default_zone())
        return schedule.next_fires(after or datetime.now(UTC), count)

    def declared(self) -> DeclaredCron:
        """Return the values for the entry's row. Raises ``InvalidJob`` if settings or arguments forbid them."""
        if self.call is None:
            raise self._wrong("it has no job")
        try:
            new = new_job(self.call._row(), None)
        except InvalidJob as error:
            raise self._wrong(error) from None
        from django_pgjobs.schedules import kept_options  # here for start-up time

        try:
            options = kept_options(new, each_database=self.each_database)
        except InvalidOption as error:
            raise self._wrong(error) from None
        from django_pgjobs.store.firing import DeclaredCron  # here for start-up time

        return DeclaredCron(
            name=self.name,
            job_name=new.name,
            expression=self.expression,
            zone=self._default_zone(),
            payload=new.payload,
            options=options,
            misfire=str(self.misfire),
            overlap=self.overlap,
        )

    def declare(self, definition: JobDefinition[..., object]) -> None:
        """Become an entry of ``definition``, called without arguments. Raises ``InvalidJob``."""
        if self.call is not None:
            raise self._wrong(f"it already belongs to job {self.call.definition.name!r}; create another entry")
        try:
            call = definition.bind()
        except TypeError as error:
            raise self._wrong(
                f"job {definition.name!r} cannot be called without arguments ({error}); "
                "write Cron(…, job.bind(…), name=…) beside it"
            ) from None
        self.decorates = definition.name
        self._declare(call)

    def _declare(self, call: BoundJob) -> None:
        if not isinstance(call, BoundJob):
            raise self._wrong(f"it needs a call such as send_report.bind('daily'), not {call!r}")
        from django_pgjobs.schedules import refused_option  # here for start-up time

        if refused := refused_option(call.options):
            raise self._wrong(refused)
        if self.each_database and call.options.get("database") is not None:
            raise self._wrong("each_database=True makes no sense for a call with a database: leave one of them out")
        self.call = call
        try:
            self._check()
            registry.add_cron(self)
        except InvalidJob:
            self.call = None
            raise

    def _check(self) -> None:
        """Check against the settings, if configured; system checks report errors in the settings themselves."""
        if not settings.configured:
            return
        try:
            self.declared()
        except ImproperlyConfigured:
            return

    def _wrong(self, what: object) -> InvalidJob:
        entry = f"cron entry {self.name!r}" if self.name else "cron entry"
        return InvalidJob(f"{self.location}: {entry}: {what}")
