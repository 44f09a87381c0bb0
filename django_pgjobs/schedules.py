"""Schedules made at run time: ``send_report.schedule("0 7 * * 1", name="report:acme").register(tenant_id=7)``.

The row says all that a fire needs, so the leader fires it regardless of the code that it runs. Imports no model at
import time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, TypedDict, cast
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone

from django_pgjobs.definition.cron_declaration import CronDeclaration
from django_pgjobs.definition.keys import Unique
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.validation import check_flag, check_instant, check_known, check_name
from django_pgjobs.exceptions import InvalidJob, UnreadablePayload
from django_pgjobs.registering.destination import routed
from django_pgjobs.registering.encode import Row, new_job
from django_pgjobs.serialization.payload import decode_payload
from django_pgjobs.values.asynchronous import asynchronous
from django_pgjobs.values.built_in import Act, refusal
from django_pgjobs.values.setting_rules import InvalidOption
from django_pgjobs.values.zones import InvalidCron

if TYPE_CHECKING:
    from django_pgjobs.models import CronEntry
    from django_pgjobs.store.new_jobs import NewJob
    from django_pgjobs.store.scheduling import RowCron

P = ParamSpec("P")

MisfirePolicy = Literal["once", "skip", "all"]
OverlapPolicy = Literal["allow", "skip", "after_completion"]

NOT_OPTIONS = ("run_at", "delay", "deadline")
"""Options of a call that make no sense here, since the schedule decides."""

KEPT = (
    "queue", "priority", "max_attempts", "timeout_seconds", "description", "key", "key_scope", "idempotency_key",
    "limit_key",
)  # fmt: skip
"""Fields of a registration that the entry's row stores, so that any leader can fire it."""

MOST_FIRES = 2**31 - 1

OF_A_CRON = ("every", "anchor", "tz", "misfire", "misfire_limit", "overlap")
"""Options that a ``Cron`` has itself."""


class ScheduleOptions(TypedDict, total=False):
    """The options of ``.schedule``, beside the expression. None means "not given"."""

    name: str | None
    every: float | timedelta | str | None
    anchor: str | datetime | None
    tz: str | ZoneInfo | None
    misfire: MisfirePolicy
    misfire_limit: int | None
    overlap: OverlapPolicy
    start: datetime | None
    end: datetime | None
    max_fires: int | None
    enabled: bool
    by: object
    reason: str


def refused_option(options: Mapping[str, object]) -> str:
    """Return why a call with these options cannot be scheduled; empty if it can."""
    for option in NOT_OPTIONS:
        if options.get(option) is not None:
            return f"{option} makes no sense: the expression decides when the job runs"
    if isinstance(options.get("expires"), datetime):
        return "expires must be a duration: the expression decides when the job runs"
    if options.get("after"):
        return "after makes no sense: a schedule registers its jobs again and again"
    return "bypass makes no sense: a schedule puts its jobs into the queue" if options.get("bypass") else ""


def kept_options(new: NewJob, *, each_database: bool = False) -> str:
    """Return what the row of an entry keeps of its jobs, as JSON text. Raises ``InvalidOption``.

    ``each_database``: other databases have such an entry, too; only people want to know.
    """
    if new.window_seconds is not None:
        raise InvalidOption("its key has a window, but the expression says how often the job runs; use another scope")
    if new.sequence is not None:
        raise InvalidOption("a fire takes no place in a sequence: pass sequence=None, or let it register such a job")
    # Write a key only if it has a value, so that the rows of other entries do not change.
    rare = {
        "tags": new.tags,
        "expires_seconds": new.expires_seconds,
        "options": new.options,
        "each_database": each_database,
    }
    given = {key: value for key, value in rare.items() if value}
    return json.dumps({**{field: getattr(new, field) for field in KEPT}, **given})


@dataclass(frozen=True, slots=True)
class Timing:
    """Checked times at which a schedule fires."""

    expression: str
    zone: str
    misfire: str
    overlap: str
    starts_at: datetime | None
    ends_at: datetime | None
    max_fires: int | None
    enabled: bool


@dataclass(frozen=True, slots=True)
class BoundSchedule(Generic[P]):
    """A job definition with a schedule. ``schedule`` makes it; ``register`` writes it to its row."""

    definition: JobPolicy
    options: Mapping[str, Any]
    """Fields of the plan, as ``using`` gives them."""
    name: str
    timing: Timing
    by: object = None
    reason: str = ""

    def register(self, *args: P.args, **kwargs: P.kwargs) -> CronEntry:
        """Write the schedule, for a call with these arguments, as part of the caller's transaction; return its entry.

        May be repeated: a schedule of this name that says the same stays as it is, another one changes.
        ``entry.written`` says which: ``"created"``, ``"changed"`` or ``"unchanged"``. Blocks while another session
        changes or fires the entry. Raises ``TypeError`` if the function does not take these arguments, ``InvalidJob``
        for values that cannot be stored, and if code declares an entry of this name. Then nothing is stored, and an
        open transaction stays usable.
        """
        row = self.check(*args, **kwargs)
        from django_pgjobs.models import CronEntry  # here: the app registry may not be ready at import
        from django_pgjobs.steering import crons  # here for start-up time
        from django_pgjobs.store.database import at_read_committed  # here for start-up time

        kept = json.loads(row.options)
        hints = {"name": row.job_name, "queue": kept["queue"], "key": kept["key"], "tags": tuple(kept.get("tags", ()))}
        using = self.options.get("database") or routed(CronEntry, hints)
        with at_read_committed(using):  # holds the row: it could be deleted
            written = crons.put(using, row, by=self.by, reason=self.reason)
            entry = CronEntry.objects.using(using).get(pk=self.name)
        entry.written = written
        return entry

    aregister = asynchronous(register)

    def next_fires(self, count: int = 5, *, after: datetime | None = None) -> list[datetime]:
        """Return the next ``count`` fires that it would make, in UTC, without a query.

        ``after``: an aware instant, by default now. Raises ``ValueError`` for one without a time zone.
        """
        if after is not None and timezone.is_naive(after):
            raise ValueError(f"next_fires() takes an aware datetime, not {after!r}: give it a time zone")
        from django_pgjobs.values import schedule as cron  # here for start-up time

        when = self.timing
        schedule = cron.bounded_schedule_of(when.expression, when.zone, when.starts_at, when.ends_at)
        return schedule.next_fires(after or datetime.now(UTC), min(count, when.max_fires or count))

    def check(self, *args: P.args, **kwargs: P.kwargs) -> RowCron:
        """Return the row that ``register`` would write. Raises what ``register`` raises, but for a taken name."""
        cast("Any", self.definition)._fits(*args, **kwargs)
        return self._row(args, kwargs)

    def _row(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> RowCron:
        from django_pgjobs.store.scheduling import RowCron  # here for start-up time

        try:
            plan = self.definition._plan.changed(self.options)
            new = new_job(Row(self.definition, plan, args, dict(kwargs)), None)
            kept = kept_options(new)
        except (InvalidOption, InvalidJob) as error:
            raise _wrong(self.name, error) from None
        when = self.timing
        return RowCron(
            name=self.name,
            job_name=new.name,
            expression=when.expression,
            zone=when.zone,
            payload=new.payload,
            options=kept,
            misfire=when.misfire,
            overlap=when.overlap,
            enabled=when.enabled,
            starts_at=when.starts_at,
            ends_at=when.ends_at,
            max_fires=when.max_fires,
            fingerprint=self.definition._fingerprint,
        )


class Reading(NamedTuple):
    """A schedule's row, read back: what ``using``, ``schedule`` and ``register`` take to write it again."""

    definition: JobPolicy
    options: dict[str, Any]
    expression: str | None
    timing: ScheduleOptions
    args: list[object]
    kwargs: dict[str, Any]

    def changed(self, timing: Mapping[str, object], options: Mapping[str, object], **parts: Any) -> Reading:
        """Return it with other values; a policy for missed fires other than *all* has no ``misfire_limit``."""
        given = {"misfire_limit": None, **timing} if timing.get("misfire", "all") != "all" else timing
        merged = cast("ScheduleOptions", {**self.timing, **given})
        return self._replace(options={**self.options, **options}, timing=merged, **parts)

    def write(self) -> CronEntry:
        """Register it. Raises what ``BoundSchedule.register`` raises."""
        return self._bound().register(*self.args, **self.kwargs)

    def checked(self) -> BoundSchedule[...]:
        """Return the schedule after every check that needs no query. Raises as ``BoundSchedule.register`` does."""
        bound = self._bound()
        bound.check(*self.args, **self.kwargs)
        return bound

    def _bound(self) -> BoundSchedule[...]:
        bound = cast("Any", self.definition).using(**self.options).schedule(self.expression, **self.timing)
        return cast("BoundSchedule[...]", bound)


def schedulable(name: str) -> JobPolicy:
    """Return the job of this name that people may schedule. Raises ``InvalidJob``."""
    if refused := refusal(name, Act.SCHEDULE):
        raise InvalidJob(refused)
    definition = registry.resolved(name)
    if definition is None or not definition.schedulable:
        others = ", ".join(found.name for found in registry.definitions() if found.schedulable) or "none yet"
        raise InvalidJob(
            f"People may not schedule job {name!r}: declare it with @job(schedulable=True). Those they may: {others}."
        )
    return definition


def read_back(entry: CronEntry) -> Reading:
    """Return what a schedule's row says, to change parts of it.

    Keys and descriptions that the job makes of its arguments are made again; those of ``using`` stay. Raises
    ``InvalidJob`` if code declares the entry, if people may not schedule its job, or if its row is unreadable.
    """
    from django_pgjobs.values import schedule as cron  # here for start-up time

    if entry.origin != "row":
        raise InvalidJob(f"cron entry {entry.pk!r} is declared by code: change it there, or override it.")
    definition, kept = schedulable(entry.job_name), entry.declared_options
    try:
        args, kwargs = decode_payload(json.dumps(entry.declared_payload))
        misfire, overlap = cron.stored_policies(entry.misfire, entry.overlap)
        options = _options_of(definition, kept)
    except (InvalidCron, UnreadablePayload, KeyError, TypeError, AttributeError) as error:
        raise InvalidJob(f"schedule {entry.pk!r} cannot be read: {error}; delete it and add it again.") from None
    timing = ScheduleOptions(
        name=entry.pk,
        tz=entry.declared_zone,
        misfire=cast("MisfirePolicy", misfire.policy),
        misfire_limit=misfire.limit,
        overlap=cast("OverlapPolicy", overlap),
        start=entry.starts_at,
        end=entry.ends_at,
        max_fires=entry.max_fires,
        enabled=entry.enabled,
    )
    return Reading(definition, options, entry.declared_expression, timing, args, kwargs)


def _options_of(definition: JobPolicy, kept: Mapping[str, Any]) -> dict[str, object]:
    options = {name: kept[name] for name in ("queue", "priority", "max_attempts")}
    options["timeout"] = kept["timeout_seconds"]
    if kept.get("tags"):
        options["tags"] = kept["tags"]
    if kept.get("expires_seconds"):
        options["expires"] = kept["expires_seconds"]
    rare = kept.get("options") or {}
    options["on_crash"] = rare.get("on_crash", "retry")
    options["memory"] = rare.get("memory")
    if "soft_timeout" in rare:
        options["timeout"] = rare["soft_timeout"], kept["timeout_seconds"]
    if definition._describe_func is None and kept["description"] != definition.description:
        options["description"] = kept["description"]
    for key, rule in (("unique", definition._key), ("idempotency_key", definition._idempotency_key)):
        text = kept["key" if key == "unique" else key]
        if (rule is None) != (text is None):
            options[key] = None if text is None else _constant(text)
    if options.get("unique") is not None:
        options["unique"] = Unique(options["unique"], until=kept["key_scope"].removeprefix("until_"))
    return options


def _constant(text: str) -> Callable[..., str]:
    return lambda *args, **kwargs: text


def bound_schedule(
    definition: JobPolicy, options: Mapping[str, object], expression: object, given: ScheduleOptions
) -> BoundSchedule[...]:
    """Return the schedule of a job with the options of ``using``; see ``JobDefinition.schedule``.

    Raises ``InvalidJob``.
    """
    name = given.get("name") or (expression.name if isinstance(expression, CronDeclaration) else None)
    try:
        check_known(given, ScheduleOptions.__annotations__, "schedule")
        if not name:
            raise InvalidOption(
                f"job {definition.name!r}: a schedule needs a name, such as 'report:acme'; to run it once later, write "
                "using(run_at=…).register(…)"
            )
        check_name("name", name)
        if refused := refusal(definition.name, Act.SCHEDULE):
            raise InvalidOption(refused)
        if refused := refused_option(options):
            raise InvalidOption(refused)
        timing = _timing(expression, given)
    except (InvalidOption, InvalidCron) as error:
        raise _wrong(name, error) from None
    return BoundSchedule(definition, options, name, timing, given.get("by"), given.get("reason", ""))


def _timing(expression: object, given: ScheduleOptions) -> Timing:
    from django_pgjobs.values import schedule as cron  # here for start-up time

    if isinstance(expression, CronDeclaration):
        text, named, misfire, overlap = _of_cron(expression, given)
    else:
        tz = given.get("tz")
        named = None if tz is None else cron.check_zone(tz).key
        text = cron.check_either(
            expression, given.get("every"), given.get("anchor"), lambda: named or settings.TIME_ZONE
        )
        checked = cron.check_misfire(given.get("misfire", cron.ONCE), given.get("misfire_limit"))
        misfire, overlap = str(checked), cron.check_overlap(given.get("overlap", cron.ALLOW), checked)
    starts, ends = (_bound(option, given) for option in ("start", "end"))
    zone, enabled = named or settings.TIME_ZONE, check_flag("enabled", given.get("enabled", True))
    timing = Timing(text, zone, misfire, overlap, starts, ends, _max_fires(given), enabled)
    if starts is not None and ends is not None:
        if ends <= starts:
            raise InvalidOption(f"the end {ends.isoformat()} must be after the start {starts.isoformat()}")
        bounded = cron.bounded_schedule_of(timing.expression, timing.zone, starts, ends)
        if bounded.after(starts - timedelta(microseconds=1)) is None:
            raise InvalidOption(f"{text!r} never fires from {starts.isoformat()} to {ends.isoformat()}")
    return timing


def _of_cron(entry: CronDeclaration, given: ScheduleOptions) -> tuple[str, str | None, str, str]:
    if entry.call is not None:
        raise InvalidOption(f"cron entry {entry.name!r} has a call of its own: leave it out")
    if entry.each_database:
        raise InvalidOption("each_database=True makes no sense: a schedule is one row; register it in each database")
    if both := [option for option in OF_A_CRON if given.get(option) is not None]:
        raise InvalidOption(f"the Cron says {', '.join(both)} itself: leave it out beside it")
    return entry.expression, entry.zone, str(entry.misfire), entry.overlap


def _bound(option: Literal["start", "end"], given: ScheduleOptions) -> datetime | None:
    value = given.get(option)
    return None if value is None else check_instant(option, value)


def _max_fires(given: ScheduleOptions) -> int | None:
    value: object = given.get("max_fires")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_FIRES:
        raise InvalidOption(f"max_fires must be an integer from 1 to {MOST_FIRES}, not {value!r}")
    return int(value)


def _wrong(name: object, what: object) -> InvalidJob:
    return InvalidJob(f"schedule {name!r}: {what}" if name else str(what))
