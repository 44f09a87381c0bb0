"""``manage.py pgjobs check``: a health check for probes and alerts."""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DatabaseError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Q
from django.db.models.functions import Left, Now

from django_pgjobs.inspection import liveness
from django_pgjobs.inspection.words import span
from django_pgjobs.management import filters, output
from django_pgjobs.management.stats import counting, known_workers, paused_queues
from django_pgjobs.models import CronEntry
from django_pgjobs.states import Hold, Outcome
from django_pgjobs.store import statements as store

MAX_LATENCY_SECONDS = 300.0
LEADER_SECONDS = 30.0
"""How long there may be no leader; an election takes a while."""

OVERDUE_SECONDS = 30.0
"""How long ago a lease may have expired: workers check once a second, except for ten seconds after they connect."""

STATEMENT_TIMEOUT = "10s"
MANY = 1000
SAMPLED = 100
"""How many due jobs of each queue and priority to read for the longest wait."""

SHARED = 20
NAMED = 10


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """One problem: a ``code`` for programs, the queue if there is one, and ``text`` for people."""

    code: str
    text: str
    queue: str | None = None


def add_subcommands(subcommands: Any) -> None:
    """Declare ``check``."""
    text = "Check that jobs run: print the problems and exit with 1, or print healthy and exit with 0."
    parser = subcommands.add_parser("check", help=text, description=text)
    add_arguments(parser)
    parser.set_defaults(perform=check)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the limits."""
    parser.add_argument(
        "--queue",
        metavar="NAME",
        type=filters.words,
        action="append",
        help="Check workers and latency of this queue only; repeatable (default: all).",
    )
    parser.add_argument(
        "--max-latency",
        metavar="AGE",
        type=filters.age,
        default=MAX_LATENCY_SECONDS,
        help="How long a due job may wait for a claim: 90s, 30m (default: 5m).",
    )
    parser.add_argument("--max-parked", metavar="N", type=_count, help="How many jobs may be parked (default: any).")
    parser.add_argument(
        "--max-abandoned",
        metavar="N",
        type=_count,
        help="How many jobs may have been abandoned --since (default: any).",
    )
    parser.add_argument(
        "--max-lost", metavar="N", type=_count, help="How many workers may have been lost --since (default: any)."
    )
    parser.add_argument(
        "--since",
        metavar="AGE",
        type=filters.age,
        default=3600.0,
        help="The time span of --max-abandoned and --max-lost (default: 1h).",
    )
    output.add_format(parser)
    filters.add_database(parser)


def _count(text: str) -> int:
    return 0 if text == "0" else filters.number(text)


def check(command: BaseCommand, options: dict[str, Any]) -> None:
    """Print the problems; exit with 1 if there are any."""
    using = filters.database_of(options)
    found = _problems(using, options)
    if options["format"] == "json":
        problems = [{"code": problem.code, "queue": problem.queue, "text": problem.text} for problem in found]
        output.write_line(command, output.json_of({"healthy": not found, "problems": problems}))
    else:
        for problem in found:
            output.write_line(command, output.plain(f"{problem.code}: {problem.text}"))
        if not found:
            output.write_line(command, "healthy")
    if found:
        sys.exit(output.SKIPPED)


def _problems(using: str, options: dict[str, Any]) -> list[HealthProblem]:
    try:
        if missing := _unapplied(using):
            return [HealthProblem("migrations", f"Not applied: {', '.join(missing)}. Run manage.py migrate.")]
        with counting(using, statement_timeout=STATEMENT_TIMEOUT) as db:
            workers = known_workers(db)
            return [
                *_of_queues(db, using, options, workers),
                *_of_workers(workers, options),
                *_of_upkeep(db),
                *_of_crons(using),
                *_of_failures(db, options),
            ]
    except DatabaseError as error:
        return [HealthProblem("database", output.words_of(error))]


def _unapplied(using: str) -> list[str]:
    """Return our unapplied migrations; none if the project disables migrations for this app."""
    module, _ = MigrationLoader.migrations_module("pgjobs")
    if module is None:
        return []
    found = {name for _, name, is_package in pkgutil.iter_modules(import_module(module).__path__) if not is_package}
    applied = {name for app, name in MigrationRecorder(connections[using]).applied_migrations() if app == "pgjobs"}
    return sorted(name for name in found - applied if name[0] not in "_~")


def _of_queues(
    db: store.Database, using: str, options: dict[str, Any], workers: list[store.KnownWorker]
) -> Iterator[HealthProblem]:
    """Yield queues whose due jobs have no worker or wait too long; paused queues wait on purpose."""
    paused = paused_queues(using)
    for due in store.count_due(db, most=SAMPLED, budget=MANY * SHARED):
        if due.oldest_seconds is None or due.queue in paused or due.queue not in (options["queue"] or [due.queue]):
            continue
        if not any(worker.status == "running" and worker.serves(due.queue) for worker in workers):
            words = f"Queue {due.queue} has due jobs, but no worker that serves it was heard from lately."
            yield HealthProblem("no_worker", words, due.queue)
        if due.oldest_seconds > options["max_latency"]:
            words = f"The oldest due job of queue {due.queue} has waited for {span(due.oldest_seconds)}"
            yield HealthProblem("latency", f"{words}, more than {span(options['max_latency'])}.", due.queue)


def _of_workers(workers: list[store.KnownWorker], options: dict[str, Any]) -> Iterator[HealthProblem]:
    """Yield silent workers; with ``--max-lost`` also too many lost ones."""
    queues = options["queue"]
    ours = [worker for worker in workers if queues is None or any(map(worker.serves, queues))]
    for worker in ours:
        if worker.status == liveness.SILENT:
            beat_age = span(worker.beat_age_seconds)
            yield HealthProblem(
                "silent", f"Worker {worker.name} was last heard from {beat_age} ago, and has not stopped."
            )
    if (most := options["max_lost"]) is not None:
        since = options["since"]
        lost = [each for each in ours if each.status == liveness.LOST and each.beat_age_seconds <= since]
        if len(lost) > most:
            names = ", ".join(each.name for each in lost[:NAMED])
            yield HealthProblem(
                "lost", f"{len(lost)} of the workers heard from within {span(since)} are lost: {names}."
            )


def _of_crons(using: str) -> Iterator[HealthProblem]:
    """Yield broken cron entries; paused ones rest on purpose."""
    resting = Q(paused_at__isnull=False) & (Q(paused_until=None) | Q(paused_until__gt=Now()))
    broken = CronEntry.objects.using(using).exclude(broken="").exclude(resting).order_by("name")
    for name, why in broken.values_list("name", Left("broken", 200))[:NAMED]:
        yield HealthProblem("cron", f"Cron entry {name} is broken and does not fire: {why}")


def _of_upkeep(db: store.Database) -> Iterator[HealthProblem]:
    """Yield overdue rescues and a missing leader."""
    if overdue := store.count_overdue(db, seconds=OVERDUE_SECONDS, most=MANY):
        many = f"{overdue} batches" if overdue < MANY else f"{MANY} batches or more"
        yield HealthProblem(
            "overdue", f"{many} of claimed jobs should have been rescued more than {OVERDUE_SECONDS:g} s ago."
        )
    leader = store.read_leader(db)
    if leader is None:
        yield HealthProblem("leader", "No worker has ever led: is one running? Without a leader nothing is pruned.")
    elif leader[1] < -LEADER_SECONDS:
        yield HealthProblem(
            "leader", f"No worker has led for {span(-leader[1])}; the last leader was {leader[0]}. Is a worker running?"
        )


def _of_failures(db: store.Database, options: dict[str, Any]) -> Iterator[HealthProblem]:
    """Yield too many parked or abandoned jobs."""
    if (most := options["max_parked"]) is not None:
        parked = store.count_held(db, [Hold.PARKED], most=most + 1)
        if sum(part.jobs for part in parked) > most:
            yield HealthProblem("parked", f"More than {most} jobs are parked: see pgjobs list --state parked.")
    if (most := options["max_abandoned"]) is not None:
        seconds = options["since"]
        abandoned = store.count_ended(db, [Outcome.ABANDONED], seconds=seconds, most=most + 1)
        if sum(part.jobs for part in abandoned) > most:
            yield HealthProblem("abandoned", f"More than {most} jobs were abandoned within {span(seconds)}.")
