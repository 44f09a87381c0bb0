"""``beat_schedule`` as cron entries: they fire by the database's clock, and no ``celery beat`` runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from celery.exceptions import NotRegistered
from celery.schedules import crontab, schedule
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs.celery_bridge import messages, sending
from django_pgjobs.celery_bridge.bridges import Bridge
from django_pgjobs.celery_bridge.definitions import definition_of
from django_pgjobs.cron_entries import Cron
from django_pgjobs.exceptions import InvalidJob

PLAIN = re.compile(r"\*|\*/\d+|\d+(,\d+)*")
"""Fields that cron reads as Celery does; others are written out."""

FIELDS = {"minute": range(60), "hour": range(24), "day_of_month": range(1, 32), "month_of_year": range(1, 13),
          "day_of_week": range(7)}  # fmt: skip

OPTIONS = ("queue", "priority", "expires")


def declare(bridge: Bridge) -> None:
    """Declare an entry for each schedule of the app that we can fire. The checks name the others."""
    for name, entry in _entries(bridge):
        try:
            _declare(bridge, name, entry)
        except (InvalidJob, NotRegistered, ImproperlyConfigured):
            continue


def problems(bridge: Bridge) -> Iterator[tuple[str, str]]:
    """Yield the schedules that we cannot fire, and why. Declares the others again, which changes nothing."""
    for name, entry in _entries(bridge):
        try:
            _declare(bridge, name, entry)
        except NotRegistered as error:
            yield name, f"no task is called {error}"
        except (InvalidJob, ImproperlyConfigured) as error:
            yield name, str(error)


def _entries(bridge: Bridge) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return sorted((bridge.app.conf.beat_schedule or {}).items()) if bridge.beat else ()


def _declare(bridge: Bridge, name: str, entry: Mapping[str, Any]) -> None:
    app = bridge.app
    args, kwargs = messages.packed([list(entry.get("args") or ()), dict(entry.get("kwargs") or {})])
    given = dict(entry.get("options") or {})
    if other := sorted(given.keys() - {*OPTIONS, "routing_key", "exchange"}):
        raise ImproperlyConfigured(f"schedules here take no {', '.join(other)}")
    task = app.tasks[entry["task"]]
    options = app.amqp.router.route({**task._get_exec_options(), **given}, task.name, args, kwargs)
    if not app.amqp.takes(task.name, kwargs, options):
        raise ImproperlyConfigured("the patterns of install() leave its task to the broker")
    using = {"queue": sending.queue_of(app.amqp, options), "expires": options.get("expires")}
    if options.get("priority"):
        using["priority"] = sending.priority_of(app, options["priority"])
    zone = str(app.conf.timezone or "") or ("UTC" if app.conf.enable_utc else None)
    cron = Cron(**when(entry["schedule"]), name=name, tz=zone)
    cron.location = f"beat_schedule[{name!r}]"
    cron._declare(definition_of(app, task.name).using(**using).bind(*args, **kwargs))


def when(given: Any) -> dict[str, Any]:
    """Return a schedule of Celery's in the words of ``Cron``. Raises ``ImproperlyConfigured``."""
    if isinstance(given, int | float | timedelta):
        return {"every": given}
    if type(given) is schedule:
        return {"every": given.run_every}
    if type(given) is not crontab:
        raise ImproperlyConfigured(f"a schedule of the type {type(given).__name__} has no counterpart here")
    fields = [_field(given, name, every) for name, every in FIELDS.items()]
    if fields[2] != "*" and fields[4] != "*":
        raise ImproperlyConfigured(
            "Celery means days that are in both day_of_month and day_of_week, cron those in either: "
            "leave one of them out, and let the task ask for the day"
        )
    return {"expression": " ".join(fields)}


def _field(given: crontab, name: str, every: range) -> str:
    written, values = str(getattr(given, f"_orig_{name}")), getattr(given, name)
    if set(values) >= set(every):
        return "*"
    return written if PLAIN.fullmatch(written) else ",".join(str(value) for value in sorted(values))
