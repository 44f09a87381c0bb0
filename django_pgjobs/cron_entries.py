"""``Cron``: a cron entry as code declares it. The maintenance room brings it into the database and fires it there.

What is wrong with an entry is said where it was written, at import. Its identity is its name, in the whole database.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from django_pgjobs.definition.options import InvalidOption, check_name
from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.signature import call_site
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.jobs import BoundJob, JobDefinition
from django_pgjobs.registering.encode import new_job

if TYPE_CHECKING:
    from django_pgjobs.store.firing import DeclaredCron
    from django_pgjobs.store.registering import NewJob

MisfirePolicy = Literal["once", "skip", "all"]
OverlapPolicy = Literal["allow", "skip", "after_completion"]

NOT_OPTIONS = ("run_at", "delay", "deadline")
"""What a call may be given, and its schedule decides."""

KEPT = (
    "queue", "priority", "max_attempts", "timeout_seconds", "description", "key", "key_scope", "idempotency_key",
    "limit_key",
)  # fmt: skip
"""Fields of a registration that the fire writes from the entry's row, so that any leader can fire it."""


class Cron:
    """A schedule for a job: ``@job(cron=Cron("*/10 * * * *"))``, or with arguments and by itself::

        Cron("0 3 * * *", send_report.bind("daily"), name="daily report", tz="Europe/Paris")

    ``expression`` has five fields, or six with the second as the last, or is a word such as ``@daily``; ``tz`` is an
    IANA zone, by default the project's ``TIME_ZONE``. ``misfire`` says what becomes of fires that nobody made in time:
    the latest of them (``once``), none that is more than a minute late (``skip``), or the last ``misfire_limit`` of
    them (``all``). ``overlap`` says what a fire does while a job of the entry is not finished: start another
    (``allow``), leave it out (``skip``), or wait for the next one after its end (``after_completion``).

    ``name`` is that of the job unless given; it is the entry's identity. Raises ``InvalidJob`` naming file and line.
    """

    def __init__(
        self,
        expression: str,
        call: BoundJob | None = None,
        *,
        name: str | None = None,
        tz: str | ZoneInfo | None = None,
        misfire: MisfirePolicy = "once",
        misfire_limit: int | None = None,
        overlap: OverlapPolicy = "allow",
    ) -> None:
        self.location = call_site()
        self.call: BoundJob | None = None
        """What it calls, None until it belongs to a job."""
        self.decorates = ""
        """The name of the job whose decorator it stands in; empty for one that stands by itself."""
        self._name = name
        from django_pgjobs.values import schedule as cron  # here for start-up time

        try:
            self.expression = cron.check_expression(expression)
            self.zone = None if tz is None else cron.check_zone(tz).key
            self.misfire = cron.check_misfire(misfire, misfire_limit)
            self.overlap = cron.check_overlap(overlap, self.misfire)
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

    @property
    def database(self) -> str | None:
        """The alias its job names, None where the router decides."""
        alias: str | None = None if self.call is None else self.call.options.get("database")
        return alias

    def next_fires(self, count: int = 5, *, after: datetime | None = None) -> list[datetime]:
        """Return the next ``count`` fires of this declaration, in UTC; for tests and for reading, asks no database.

        ``after``: an aware instant, by default now. What an operator has overridden or paused is in the entry's row:
        ``CronEntry.next_fires`` reads that. Raises ``ValueError`` for a naive instant.
        """
        if after is not None and timezone.is_naive(after):
            raise ValueError(f"next_fires() takes an aware datetime, not {after!r}: give it a time zone")
        from django_pgjobs.values import schedule as cron  # here for start-up time

        schedule = cron.schedule_of(self.expression, self.zone or settings.TIME_ZONE)
        return schedule.next_fires(after or datetime.now(UTC), count)

    def declared(self) -> DeclaredCron:
        """Return what to write to the entry's row. Raises ``InvalidJob`` where settings or arguments forbid it."""
        if self.call is None:
            raise self._wrong("it has no job")
        try:
            new = new_job(self.call.row(), None)
        except InvalidJob as error:
            raise self._wrong(error) from None
        if new.window_seconds is not None:
            raise self._wrong("its key has a window, but the expression says how often the job runs; use another scope")
        from django_pgjobs.store.firing import DeclaredCron  # here for start-up time

        return DeclaredCron(
            name=self.name,
            job_name=new.name,
            expression=self.expression,
            zone=self.zone or settings.TIME_ZONE,
            payload=new.payload,
            options=json.dumps({**{field: getattr(new, field) for field in KEPT}, **_tags(new)}),
            misfire=str(self.misfire),
            overlap=self.overlap,
        )

    def declare(self, definition: JobDefinition[..., Any]) -> None:
        """Become an entry of ``definition``, called without arguments. Raises ``InvalidJob``."""
        if self.call is not None:
            raise self._wrong(f"it is an entry of job {self.call.definition.name!r} already; make another")
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
        for option in NOT_OPTIONS:
            if call.options.get(option) is not None:
                raise self._wrong(f"{option} makes no sense: the expression says when the job runs")
        if call.options.get("bypass"):
            raise self._wrong("bypass makes no sense: a schedule puts its jobs into the queue")
        self.call = call
        try:
            self._check()
            registry.add_cron(self)
        except InvalidJob:
            self.call = None
            raise

    def _check(self) -> None:
        """Check against the settings, if there are any yet; what is wrong with *them* is the system checks' to say."""
        if not settings.configured:
            return
        try:
            self.declared()
        except ImproperlyConfigured:
            return

    def _wrong(self, what: object) -> InvalidJob:
        entry = f"cron entry {self.name!r}" if self.name else "cron entry"
        return InvalidJob(f"{self.location}: {entry}: {what}")


def _tags(new: NewJob) -> dict[str, object]:
    # Only where there are some: the rows of all other entries stay as they are.
    return {"tags": new.tags} if new.tags else {}
