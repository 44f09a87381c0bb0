"""``manage.py pgjobs stats``: the figures of the queues, as the leader keeps them, or counted now."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Q
from django.db.models.functions import Now

from django_pgjobs import figures, store
from django_pgjobs.conf import get_conf
from django_pgjobs.management import choosing, telling
from django_pgjobs.models import QueueState
from django_pgjobs.states import Hold, Outcome
from django_pgjobs.steering import at_read_committed
from django_pgjobs.why import span
from django_pgjobs.worker.connection import PINS

MOST_NOW = 100_000
"""How far figures are counted for somebody who asks for it."""

FRESH_SECONDS = 60.0
"""Figures that are older are counted anew: nobody leads."""

HEADERS = (
    "QUEUE",
    "READY",
    "OLDEST",
    "SCHEDULED",
    "RUNNING",
    *map(str.upper, Hold),
    *map(str.upper, Outcome),
    "WORKERS",
)


def add_subcommands(subcommands: Any) -> None:
    """Declare ``stats``."""
    text = "Show the figures of the queues: jobs that wait, run and ended within the last hour, and who serves them."
    parser = subcommands.add_parser("stats", help=text, description=text)
    add_arguments(parser)
    parser.set_defaults(perform=show_stats)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is shown and how."""
    queue = "Only this queue; may be repeated."
    parser.add_argument("--queue", metavar="NAME", type=choosing.words, action="append", help=queue)
    parser.add_argument(
        "--now", action="store_true", help="Count now, up to 100,000 each, instead of showing what the leader counted."
    )
    telling.add_format(parser)
    choosing.add_database(parser)


@telling.facing_the_database
def show_stats(command: BaseCommand, options: dict[str, Any]) -> None:
    """Tell the figures."""
    using = choosing.database_of(options)
    with counting(using) as db:
        told = _figures(db, now=options["now"])
        _mark_paused(told, using)
    if options["queue"]:
        told["queues"] = [found for found in told["queues"] if found["queue"] in options["queue"]]
    if options["format"] == "json":
        telling.say(command, telling.json_of(told))
        return
    for line in _lines(told):
        telling.say(command, line)


@contextmanager
def counting(using: str, **settings: str) -> Iterator[store.Database]:
    """Open a transaction whose plans are held at the indexes, as those of a worker, and that has these settings."""
    with at_read_committed(using):
        db = store.on(using)
        store.configure(db, {**PINS, **settings}, local=True)
        yield db


def _figures(db: store.Database, *, now: bool) -> dict[str, Any]:
    """Return the figures that are kept; count where there are none, or only old ones."""
    kept = store.read_statistic(db)
    if now or kept.age_seconds is None or kept.age_seconds > FRESH_SECONDS:
        counted = figures.measure(db, stale_seconds=get_conf().stale_seconds, most=MOST_NOW)
        return {"measured_at": kept.now, "age_seconds": 0.0, "measured_by": None, **counted}
    told = {"measured_at": kept.measured_at, "age_seconds": kept.age_seconds, "measured_by": kept.worker_name}
    return {**told, **kept.figures}


def paused_queues(using: str) -> set[str]:
    """Return the queues that are paused now."""
    paused = QueueState.objects.using(using).filter(Q(until=None) | Q(until__gt=Now()), kind="queue")
    return set(paused.values_list("name", flat=True))


def _mark_paused(told: dict[str, Any], using: str) -> None:
    paused = paused_queues(using)
    for found in told["queues"]:
        found["paused"] = found["queue"] in paused


def _lines(told: dict[str, Any]) -> Iterator[str]:
    workers = told["workers"]
    seconds, by = told["age_seconds"], telling.plain(told["measured_by"])
    yield f"Counted {span(seconds)} ago by {by}." if told["measured_by"] else "Counted now."
    yield (
        f"{workers['live']} workers live, {workers['draining']} of them draining; they hold {workers['held']} jobs"
        f" in {workers['places']} threads."
    )
    yield from telling.table(HEADERS, map(_cells, told["queues"]))


def _cells(found: dict[str, Any]) -> list[str]:
    oldest = found["oldest_ready_seconds"]
    return [
        telling.plain(found["queue"]) + (" (paused)" if found["paused"] else ""),
        _number(found, "ready", found["ready"]),
        "-" if oldest is None else span(oldest),
        _number(found, "scheduled", found["scheduled"]),
        _number(found, "running", found["running"]),
        *(_number(found, f"held.{hold}", found["held"].get(hold, 0)) for hold in map(str, Hold)),
        *(_number(found, f"ended.{outcome}", found["ended"].get(outcome, 0)) for outcome in map(str, Outcome)),
        str(found["workers"]),
    ]


def _number(found: dict[str, Any], name: str, jobs: int) -> str:
    return f"≥{jobs}" if name in found["at_least"] else str(jobs)
