"""``manage.py pgjobs stats``: the figures of the queues, as last counted by the leader, or counted now."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand

from django_pgjobs.conf import get_conf
from django_pgjobs.inspection import liveness
from django_pgjobs.inspection.words import span
from django_pgjobs.management import filters, output, told, watching
from django_pgjobs.presentation import health
from django_pgjobs.presentation.health import known_workers, paused_queues
from django_pgjobs.presentation.latest import figures_of
from django_pgjobs.presentation.problem import HealthProblem, Limits
from django_pgjobs.states import Hold, Outcome
from django_pgjobs.store import statements as store
from django_pgjobs.store.transactions import at_read_committed
from django_pgjobs.worker.shared.connection import PINS

HEADERS = (
    "QUEUE",
    "READY",
    "OLDEST",
    "SCHEDULED",
    "RETRYING",
    "RUNNING",
    *map(str.upper, Hold),
    *map(str.upper, Outcome),
    "WORKERS",
)


def add_subcommands(subcommands: Any) -> None:
    """Declare ``stats``."""
    text = (
        "Show the figures of the queues: waiting and running jobs, jobs that ended within the last hour, and workers."
    )
    parser = subcommands.add_parser("stats", help=text, description=text)
    add_arguments(parser)
    parser.set_defaults(perform=show_stats)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare filter, source and format."""
    queue = "Only this queue; repeatable."
    parser.add_argument("--queue", metavar="NAME", action="append", help=queue)
    parser.add_argument(
        "--now", action="store_true", help="Count now, up to 100,000 each, instead of showing the leader's figures."
    )
    watching.add_watch(parser)
    output.add_format(parser)
    filters.add_database(parser)


@output.facing_the_database
def show_stats(command: BaseCommand, options: dict[str, Any]) -> None:
    """Print the figures."""
    using, how = filters.database_of(options), {"queues": options["queue"], "now": options["now"]}
    if options["format"] == "json":
        found = _read(using, **how)
        output.write_line(command, output.json_of({**found.figures, **told.as_json(found.problems)}))
        return

    def lines() -> Iterator[str]:
        found = _read(using, **how)
        yield from [*told.lines_of(found.problems), ""]
        yield from _lines(found)

    if options["watch"] is not None:
        watching.watch(command, using, options["watch"], lines)
        return
    for line in lines():
        output.write_line(command, line)


class Read(NamedTuple):
    """What was read in one transaction."""

    figures: dict[str, Any]
    workers: list[store.KnownWorker]
    problems: list[HealthProblem]


def lines_of(using: str, *, queues: list[str] | None, now: bool) -> Iterator[str]:
    """Yield the figures of all or these queues, as lines."""
    return _lines(_read(using, queues=queues, now=now))


def _read(using: str, *, queues: list[str] | None, now: bool) -> Read:
    with counting(using) as db:
        workers = known_workers(db)
        figures_shown = figures_of(db, workers, now=now)
        _mark_paused(figures_shown, using)
        problems = health.problems(db, using, Limits(queues=queues))
    if queues:
        figures_shown["queues"] = [found for found in figures_shown["queues"] if found["queue"] in queues]
    return Read(figures_shown, workers, problems)


@contextmanager
def counting(using: str, **settings: str) -> Iterator[store.Database]:
    """Open a transaction with a worker's planner settings, which keep plans on the indexes, and with these settings."""
    with at_read_committed(using):
        db = store.on(using)
        store.configure(db, {**PINS, **settings}, local=True)
        yield db


def _mark_paused(figures_shown: dict[str, Any], using: str) -> None:
    paused = paused_queues(using)
    for found in figures_shown["queues"]:
        found["paused"] = found["queue"] in paused


def _lines(found: Read) -> Iterator[str]:
    figures_shown, workers, _ = found
    seconds, by = figures_shown["age_seconds"], output.plain(figures_shown["measured_by"])
    yield f"Counted {span(seconds)} ago by {by}." if figures_shown["measured_by"] else "Counted now."
    yield _workers_line(figures_shown["workers"])
    for worker in workers:
        if worker.status == liveness.SILENT:
            name, beat_age = output.plain(worker.name), span(worker.beat_age_seconds)
            yield f"Worker {name} is silent: last heard from {beat_age} ago, with {_jobs(worker.running)}."
    yield from output.table(HEADERS, map(_cells, figures_shown["queues"]))


def _workers_line(workers: dict[str, int]) -> str:
    live, lately = workers["live"], span(get_conf().silent_seconds)
    if not live:
        return f"No worker was heard from within {lately}."
    many = f"{live} worker{'' if live == 1 else 's'} {'was' if live == 1 else 'were'}"
    draining = f", {workers['draining']} draining" if workers["draining"] else ""
    held = f"{_jobs(workers['running'])} in {workers['slots']} threads"
    return f"{many} heard from within {lately}{draining}, with {held} at the last heartbeat."


def _jobs(number: int) -> str:
    return f"{number} job{'' if number == 1 else 's'}"


def _cells(found: dict[str, Any]) -> list[str]:
    oldest = found["oldest_ready_seconds"]
    return [
        output.plain(found["queue"]) + (" (paused)" if found["paused"] else ""),
        _number(found, "ready", found["ready"]),
        "-" if oldest is None else span(oldest),
        _number(found, "scheduled", found["scheduled"]),
        _number(found, "retrying", found["retrying"]),
        _number(found, "running", found["running"]),
        *(_number(found, f"held.{hold}", found["held"].get(hold, 0)) for hold in map(str, Hold)),
        *(_number(found, f"ended.{outcome}", found["ended"].get(outcome, 0)) for outcome in map(str, Outcome)),
        str(found["workers"]),
    ]


def _number(found: dict[str, Any], name: str, jobs: int) -> str:
    return f"≥{jobs}" if name in found["at_least"] else str(jobs)
