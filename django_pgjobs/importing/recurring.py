"""The sources of schedules: how django-celery-beat, django-q2 and django-ox store one, and when it would fire here.

Texts that stand for Python values are read as literals: nothing of a row is ever run.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.store import importing
from django_pgjobs.store.importing import SourceTables


@dataclass(slots=True)
class ForeignSchedule:
    """A schedule of another scheduler: ``when`` as ``schedule`` takes it, ``options`` as ``using``.

    ``run_at``: it is to run once, and no expression says when. ``differences``: what is not as it was there.
    """

    name: str
    job: str
    args: Sequence[object] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    when: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    run_at: datetime | None = None
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OtherScheduler:
    """A scheduler in the same database. ``planned`` reads a row, and raises ``InvalidJob`` for one that is left."""

    name: str
    tables: SourceTables
    planned: Callable[..., ForeignSchedule]


ForeignRow = Mapping[str, Any]

MOST_LITERAL = 100_000
"""Characters of a literal that Python's parser gets, which needs memory and time for it."""

UNITS = ("days", "hours", "minutes", "seconds", "microseconds")


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _of_beat(
    row: ForeignRow, crontab: ForeignRow | None, interval: ForeignRow | None, clocked: ForeignRow | None
) -> ForeignSchedule:
    if row["task"] == "celery.backend_cleanup":
        raise InvalidJob("Celery cleans its own results with it")
    args, kwargs = json.loads(row["args"] or "[]"), json.loads(row["kwargs"] or "{}")
    found = ForeignSchedule(row["name"], row["task"], args, kwargs)
    if row["one_off"] and row["total_run_count"]:
        raise InvalidJob("it was to fire once, and has")
    if row["queue"] not in (None, "celery"):
        found.options["queue"] = row["queue"]
    if row["expire_seconds"]:
        found.options["expires"] = row["expire_seconds"]
    if row["priority"] is not None:
        found.differences.append(f"without priority {row['priority']}, whose direction the broker decides")
    if json.loads(row["headers"] or "{}"):
        found.differences.append("without its headers")
    if clocked is not None:
        if not row["enabled"]:
            raise InvalidJob("it is disabled, as one that has fired")
        found.run_at = _instant(clocked["clocked_time"])
        return found
    found.when = {"start": _instant(row["start_time"]), "end": _instant(row["expires"]), "enabled": row["enabled"]}
    if row["one_off"]:
        found.when["max_fires"] = 1
    if crontab is not None:
        found.when |= _of_crontab(crontab)
    elif interval is not None and interval["period"] in UNITS:
        since = _instant(row["last_run_at"] or row["date_changed"])
        every = timedelta(**{interval["period"]: interval["every"]})
        # In UTC, where a day has 24 hours, as an interval of Celery has.
        found.when |= {"every": every, "anchor": since and since.replace(microsecond=0), "tz": "UTC"}
    else:
        raise InvalidJob("only crontabs, intervals and instants have a counterpart here")
    return found


def _of_crontab(crontab: ForeignRow) -> dict[str, object]:
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    fields = ["".join(crontab[name].split()) for name in names]
    if "*" not in (fields[2], fields[4]):
        raise InvalidJob("Celery fires if day of month and day of week both match, cron if one of them does")
    zone = crontab["timezone"] if getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True) else None
    return {"expression": " ".join(fields), "tz": zone or getattr(settings, "CELERY_TIMEZONE", None) or "UTC"}


def _of_q2(row: ForeignRow) -> ForeignSchedule:
    if not row["repeats"]:
        raise InvalidJob("it has no fires left")
    if row["intended_date_kwarg"]:
        raise InvalidJob("it gets its date as an argument: read context.fire_at, and leave that out")
    name = row["name"] or f"{row['func']}:{row['id']}"
    found = ForeignSchedule(name, row["func"], _literal_args(row["args"]), _literal_kwargs(row["kwargs"]))
    if row["cluster"]:
        found.options["queue"] = row["cluster"]
    lost = [found.kwargs.pop("q_options", None), *(row.get(hook) for hook in HOOKS)]
    if any(lost):
        found.differences.append("without its hooks or q_options: write on_success or on_abandon")
    due = _instant(row["next_run"])
    if due is None:
        raise InvalidJob("it does not say when it fires next")
    if row["schedule_type"] == "O":
        found.run_at = due
        return found
    local = due.astimezone(ZoneInfo(settings.TIME_ZONE))
    found.when = {"tz": settings.TIME_ZONE, "start": due.replace(second=0, microsecond=0), **_when_of_q2(row, local)}
    if row["repeats"] > 0:
        found.when["max_fires"] = row["repeats"]
    return found


HOOKS = ("hook", "timeout_hook", "failure_hook")
"""Columns of django-q2 that name functions to call at the end; its newer releases have the latter two."""

MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}
"""The types of schedules of django-q2 that go by months, and of how many."""


def _when_of_q2(row: ForeignRow, local: datetime) -> dict[str, object]:
    kind, clock = row["schedule_type"], f"{local.minute} {local.hour}"
    if kind == "C":
        return {"expression": row["cron"]}
    if kind in ("I", "BW"):
        every = timedelta(weeks=2) if kind == "BW" else timedelta(minutes=row["minutes"] or 0)
        return {"every": every, "anchor": local.replace(second=0, microsecond=0)}
    if kind in MONTHS:
        if local.day > 28:
            raise InvalidJob(f"not every month has a day {local.day}")
        step = MONTHS[kind]
        months = ",".join(str(month) for month in range(1, 13) if (month - local.month) % step == 0)
        return {"expression": f"{clock} {local.day} {'*' if step == 1 else months} *"}
    expressions = {"H": f"{local.minute} * * * *", "D": f"{clock} * * *", "W": f"{clock} * * {local.isoweekday() % 7}"}
    if kind not in expressions:
        raise InvalidJob(f"schedules of type {kind!r} are not known")
    return {"expression": expressions[kind]}


def _short(text: str) -> str:
    if len(text) > MOST_LITERAL:
        raise InvalidJob(f"its arguments are a text of more than {MOST_LITERAL:,} characters")
    return text


def _literal_args(text: str | None) -> Sequence[object]:
    found = ast.literal_eval(_short(text)) if text else ()
    return found if isinstance(found, tuple) else (found,)


def _literal_kwargs(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        return dict(ast.literal_eval(_short(text)))
    except (SyntaxError, ValueError):
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
            raise
        return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}


def _of_ox(row: ForeignRow) -> ForeignSchedule:
    found = ForeignSchedule(row["name"], _job_of_ox(row["task_key"]), (), dict(row["arguments"]))
    start, end = _instant(row["start_time"]), _instant(row["end_time"])
    found.when = {"tz": settings.TIME_ZONE, "start": start, "end": end, "enabled": row["enabled"]}
    if row["starting_deadline_seconds"] is not None:
        found.differences.append("without its starting deadline: see misfire")
    if row["trigger"] == "cron":
        found.when["expression"] = row["cron"]
        return found
    every, phase = timedelta(seconds=row["every_seconds"]), timedelta(seconds=row["phase_seconds"])
    # Its fires count from 1970 by the clock on the wall. Ours do so by days, and else by the time that passes.
    begin = datetime(1970, 1, 1) + phase
    anchor = begin + (datetime.now(ZoneInfo(settings.TIME_ZONE)).replace(tzinfo=None) - begin) // every * every
    found.when |= {"every": every, "anchor": anchor.isoformat(" ")}
    if every % timedelta(days=1) and timedelta(hours=1) % every:
        found.differences.append("its fires keep their distance when the clocks change, not their hours")
    return found


def _job_of_ox(key: str) -> str:
    """Return the path of a task that the settings declare; one that a decorator declares keeps its key as its name."""
    for backend in (getattr(settings, "TASKS", None) or {}).values():
        declared = backend.get("OPTIONS", {}).get("SCHEDULABLE_TASKS", {}).get(key)
        if declared:
            return declared if isinstance(declared, str) else str(declared["task"])
    return key


SCHEDULERS: Mapping[str, OtherScheduler] = {
    each.name: each
    for each in (
        OtherScheduler("django-celery-beat", importing.BEAT, _of_beat),
        OtherScheduler("django-q2-schedules", importing.Q2, _of_q2),
        OtherScheduler("django-ox-schedules", importing.OX_SCHEDULES, _of_ox),
    )
}
