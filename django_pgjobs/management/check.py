"""``manage.py pgjobs check``: a health check for probes and alerts."""

from __future__ import annotations

import argparse
import pkgutil
import sys
from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DatabaseError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_pgjobs.management import filters, output, watching
from django_pgjobs.management.stats import counting
from django_pgjobs.presentation import health
from django_pgjobs.presentation.health import MAX_LATENCY_SECONDS, HealthProblem, Limits

STATEMENT_TIMEOUT = "10s"


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
    watching.add_watch(parser)
    output.add_format(parser)
    filters.add_database(parser)


def _count(text: str) -> int:
    return 0 if text == "0" else filters.number(text)


def check(command: BaseCommand, options: dict[str, Any]) -> None:
    """Print the problems; exit with 1 if there are any. With ``--watch`` draw them until somebody ends it."""
    using = filters.database_of(options)
    if options["watch"] is not None and options["format"] == "table":
        watching.watch(command, using, options["watch"], lambda: _lines(_problems(using, options)))
        return
    found = _problems(using, options)
    if options["format"] == "json":
        problems = [{"code": problem.code, "queue": problem.queue, "text": problem.text} for problem in found]
        output.write_line(command, output.json_of({"healthy": not found, "problems": problems}))
    else:
        for line in _lines(found):
            output.write_line(command, line)
    if found:
        sys.exit(output.SKIPPED)


def _lines(found: list[HealthProblem]) -> list[str]:
    return [output.plain(f"{problem.code}: {problem.text}") for problem in found] or ["healthy"]


def _problems(using: str, options: dict[str, Any]) -> list[HealthProblem]:
    limits = Limits(
        max_latency=options["max_latency"],
        max_parked=options["max_parked"],
        max_abandoned=options["max_abandoned"],
        max_lost=options["max_lost"],
        since=options["since"],
        queues=options["queue"],
    )
    try:
        if missing := _unapplied(using):
            return [HealthProblem("migrations", f"Not applied: {', '.join(missing)}. Run manage.py migrate.")]
        with counting(using, statement_timeout=STATEMENT_TIMEOUT) as db:
            return health.problems(db, using, limits)
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
