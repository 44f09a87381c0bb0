"""What an operator may do with cron entries: pause, resume, stop, run now, and put other values over the declared ones.

None of it is undone by a deploy: what code declares has columns of its own. Each may be repeated, and joins the
caller's transaction. The leader sees it within half a second; the statement that makes a fire looks itself, so that
none is made once a pause is committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import sync_to_async
from django.core.exceptions import ValidationError
from django.db import DatabaseError, DataError, IntegrityError, models, router
from django.db.models import Value
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgjobs import store, waking
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import DuplicateJob, InvalidJob, JobDoesNotExist, UnreadablePayload
from django_pgjobs.logs import safe_logger
from django_pgjobs.pausing import REASON_CHARS, Until, end_of
from django_pgjobs.serialization import codec
from django_pgjobs.states import CancelMode
from django_pgjobs.steering.jobs import Steered, at_read_committed, who, written_at
from django_pgjobs.steering.trail import Trail, coming
from django_pgjobs.values import schedule as cron

if TYPE_CHECKING:
    from django_pgjobs.models import CronEntry, Job

log = safe_logger("django_pgjobs")

MOST_PREVIEWED = 1000

MOST_NAMED = 5
"""How many entries the trace of an action names."""

OVERRIDES = ("expression", "zone", "payload")

JSON_COLUMNS = ("declared_payload", "declared_options", "payload")
"""What a list leaves unread: one forged number of 5000 digits would keep every row from being shown."""


class CronEntryQuerySet(models.QuerySet["CronEntry"]):
    """Cron entries, and what can be done to many of them."""

    def paused(self) -> CronEntryQuerySet:
        """Those that are paused now, by the database's clock."""
        return self.filter(models.Q(paused_until=None) | models.Q(paused_until__gt=Now()), paused_at__isnull=False)

    def pause(self, *, by: object = None, reason: str = "", until: Until = None) -> int:
        """Let them fire no more; return how many there are. Jobs that are registered already go on.

        ``by``: a user or a text. ``until``: an aware instant, or seconds or a ``timedelta`` from now, by the database's
        clock; None until they are resumed. What would have fired meanwhile is not made up for. Raises ``InvalidJob``,
        also for a pause that would be over already.
        """
        instant, seconds = end_of(until)
        if len(reason) > REASON_CHARS or "\0" in reason + who(by):
            raise InvalidJob(f"The reason of a pause may have {REASON_CHARS} characters, none of them NUL.")
        ends: Any = instant if seconds is None else Now() + timedelta(seconds=seconds)
        chosen = self if instant is None else self.filter(GreaterThan(Value(instant), Now()))
        trail = Trail("pause", who(by), reason, kind="cron")
        changed = chosen._change(trail, paused_at=Now(), paused_by=who(by), paused_reason=reason, paused_until=ends)
        if not changed and instant is not None and self.using(self._alias()).exists():
            raise InvalidJob(f"until={until!r} has passed already, by the database's clock.")
        return self._told("pause", by, reason, changed)

    def resume(self, *, by: object = None) -> int:
        """Let those that are paused fire again, from their next fire on; return how many there were."""
        changed = self.paused()._change(
            Trail("resume", who(by), kind="cron"),
            paused_at=None,
            paused_by="",
            paused_reason="",
            paused_until=None,
            in_force_since=Now(),
            next_fire_at=None,
        )
        return self._told("resume", by, "", changed)

    def stop(self, *, by: object = None, reason: str = "", mode: str = "ask") -> Steered:
        """Pause them until they are resumed, and cancel their jobs that are not finished; return what became of those.

        ``mode`` is that of ``Job.cancel``.
        """
        if mode not in list(CancelMode):
            raise ValueError(f"stop(mode=…) takes {', '.join(repr(str(m)) for m in CancelMode)}, not {mode!r}")
        from django_pgjobs.models import Job

        names = list(self.values_list("pk", flat=True))
        self.pause(by=by, reason=reason)
        jobs: Any = Job.objects.using(self._alias())
        with coming(asked=f"cron entry {_listed(names)}"):
            steered: Steered = jobs.filter(cron_entry__in=names, finished_at__isnull=True).cancel(
                mode=mode, by=by, reason=reason
            )
        return steered

    async def apause(self, *, by: object = None, reason: str = "", until: Until = None) -> int:
        """Pause, from asynchronous code."""
        return await sync_to_async(self.pause)(by=by, reason=reason, until=until)

    async def aresume(self, *, by: object = None) -> int:
        """Resume, from asynchronous code."""
        return await sync_to_async(self.resume)(by=by)

    async def astop(self, *, by: object = None, reason: str = "", mode: str = "ask") -> Steered:
        """Stop, from asynchronous code."""
        return await sync_to_async(self.stop)(by=by, reason=reason, mode=mode)

    _altering: Any
    for _altering in (pause, resume, stop, apause, aresume, astop):
        _altering.alters_data = _altering.queryset_only = True
    del _altering

    def _change(self, trail: Trail, **columns: Any) -> int:
        alias = self._alias()
        with at_read_committed(alias):
            trail.subject = _listed(self.using(alias).order_by("pk").values_list("pk", flat=True)[: MOST_NAMED + 1])
            changed = self.using(alias).update(**columns)
            trail.add(store.on(alias), changed)
        return changed

    def _alias(self) -> str:
        own: Any = self
        return str(own._db or router.db_for_write(self.model, **own._hints))

    def _told(self, verb: str, by: object, reason: str, changed: int) -> int:
        words = " ".join(f"by={who(by)}: {reason}".split())
        log.info("operator's %s of cron entries changed=%d %s", verb, changed, words)
        return changed


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
        """Register its job at once, whatever its schedule says and also while it is paused; return the job.

        Its fires stay as they are. Raises ``InvalidJob`` where its overlap policy forbids it while another job of it
        is not finished, and where the database refuses what its row says, ``DuplicateJob`` when its key is taken,
        ``JobDoesNotExist`` when the entry is gone.
        """
        from django_pgjobs.models import Job

        alias = self._itself()._alias()
        try:
            with at_read_committed(alias):
                found = store.run_cron(store.on(alias), self.pk)
                made = [found.job_id] if found is not None and found.job_id is not None else []
                Trail("run now", who(by), kind="cron", subject=str(self.pk)).add(store.on(alias), len(made), made)
                if found is not None and found.wakes is not None:
                    waking.tell(alias, [found.wakes])
        except (DataError, IntegrityError) as error:
            raise InvalidJob(f"cron entry {self.pk!r}: its job cannot be inserted: {_refusal(error)}") from error
        if found is None:
            raise JobDoesNotExist(f"There is no cron entry {self.pk!r}.")
        if found.busy:
            raise InvalidJob(f"cron entry {self.pk!r}: a job of it is not finished, and its overlap policy forbids two")
        if found.job_id is None:
            raise DuplicateJob(message=f"cron entry {self.pk!r}: an unfinished job has the key of its job")
        log.info("operator's run now cron=%s job=%d by=%s", self.pk, found.job_id, " ".join(who(by).split()))
        job: Job = Job.objects.using(alias).get(pk=found.job_id)
        return job

    def override(self, *, by: object = None, **values: Any) -> None:
        """Put ``expression``, ``zone`` or ``payload`` in the place of what code declares; None takes it back.

        ``payload`` is ``{"args": […], "kwargs": {…}}`` as stored. Raises ``ValidationError`` for an expression, a zone
        or arguments that would not do, and for a job that this process does not know.
        """
        if unknown := values.keys() - set(OVERRIDES):
            raise TypeError(f"override() takes {', '.join(OVERRIDES)}, not {', '.join(sorted(unknown))}")
        entry = cast("CronEntry", self)
        checked = check_overrides(entry.job_name, {name: value or None for name, value in values.items()})
        columns: dict[str, Any] = {**checked, "broken": "", "next_fire_at": None}
        if checked.keys() & {"expression", "zone"}:
            columns["in_force_since"] = Now()
        self._itself()._change(Trail("override", who(by), mode=", ".join(checked), kind="cron"), **columns)
        said = " ".join(f"{name}={value!r}" for name, value in checked.items() if name != "payload")
        log.info("operator's override cron=%s by=%s %s", self.pk, " ".join(who(by).split()), said)

    def next_fires(self, count: int = 5, *, after: datetime | None = None) -> list[datetime]:
        """Return its next fires in UTC, from now or from ``after`` on, as its schedule has them.

        Empty for an entry whose expression or zone is wrong. A pause is not taken off; with ``after_completion`` they
        are the earliest possible. Raises ``ValueError`` for more than 1000.
        """
        if not 0 <= count <= MOST_PREVIEWED:
            raise ValueError(f"next_fires() takes a count from 0 to {MOST_PREVIEWED}, not {count!r}")
        entry = cast("CronEntry", self)
        try:
            schedule = cron.schedule_of(entry.effective_expression, entry.effective_zone)
        except cron.InvalidCron:
            return []
        if after is not None and timezone.is_naive(after):
            after = timezone.make_aware(after)
        return schedule.next_fires(after or datetime.now(UTC), count)

    async def apause(self, *, by: object = None, reason: str = "", until: Until = None) -> int:
        """Pause, from asynchronous code."""
        return await sync_to_async(self.pause)(by=by, reason=reason, until=until)

    async def aresume(self, *, by: object = None) -> int:
        """Resume, from asynchronous code."""
        return await sync_to_async(self.resume)(by=by)

    async def astop(self, *, by: object = None, reason: str = "", mode: str = "ask") -> Steered:
        """Stop, from asynchronous code."""
        return await sync_to_async(self.stop)(by=by, reason=reason, mode=mode)

    async def arun_now(self, *, by: object = None) -> Job:
        """Run now, from asynchronous code."""
        return await sync_to_async(self.run_now)(by=by)

    async def aoverride(self, *, by: object = None, **values: Any) -> None:
        """Override, from asynchronous code."""
        await sync_to_async(self.override)(by=by, **values)

    _altering: Any
    for _altering in (pause, resume, stop, run_now, override, apause, aresume, astop, arun_now, aoverride):
        _altering.alters_data = True
    del _altering


def _listed(names: Iterable[str]) -> str:
    """The first of some names in words."""
    first = list(names)
    return ", ".join(first[:MOST_NAMED]) + (", …" if len(first) > MOST_NAMED else "")


def _refusal(error: DatabaseError) -> str:
    """Return why the database refuses a row, without its details, which hold the arguments."""
    diag = getattr(error.__cause__, "diag", None)
    return " ".join((getattr(diag, "message_primary", None) or str(error)).split())


def check_overrides(job_name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides, checked against what this process knows of the job. Raises ``ValidationError``."""
    wrong: dict[str, Any] = {}
    checked: dict[str, Any] = {}
    for name, value in values.items():
        try:
            checked[name] = None if value is None else _CHECKS[name](job_name, value)
        except (cron.InvalidCron, UnreadablePayload) as error:
            wrong[name] = str(error)
        except ValidationError as error:
            wrong[name] = error.messages
    if wrong:
        raise ValidationError(wrong)
    return checked


def _check_payload(job_name: str, value: object) -> object:
    definition = registry.find(job_name)
    if definition is None:
        raise ValidationError(
            _("This process knows no job %(name)s, so its arguments cannot be checked."), params={"name": job_name}
        )
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = codec.size_of(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnreadablePayload(f"The arguments are no JSON: {error}") from None
    except codec.Refused as refusal:
        raise UnreadablePayload(f"The arguments cannot be stored: in them is {refusal}.") from None
    limit = get_conf().payload_limit_bytes
    if size > limit:
        raise UnreadablePayload(f"The arguments have more than {limit} bytes.")
    definition.load(text)
    return value


_CHECKS: dict[str, Any] = {
    "expression": lambda job_name, value: cron.check_expression(value),
    "zone": lambda job_name, value: cron.check_zone(value).key,
    "payload": _check_payload,
}
