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

from django_pgjobs.diagnosis import health, problem
from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.management import filters, output, told, watching
from django_pgjobs.management.stats import counting

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
        action="append",
        help="Check workers and latency of this queue only; repeatable (default: all).",
    )
    for name, default, text in (
        (
            "--max-latency",
            problem.MAX_LATENCY_SECONDS,
            "How long a due job may wait for a claim: 90s, 30m (default: 5m).",
        ),
        ("--max-limited", problem.MAX_LIMITED_SECONDS, "How long limits may hold a job that could run (default: 1h)."),
        ("--max-paused", problem.MAX_PAUSED_SECONDS, "How long a pause without an end may last (default: 1d)."),
        ("--max-event", problem.MAX_EVENT_SECONDS, "How long a job may wait for an event (default: 2d)."),
    ):
        parser.add_argument(name, metavar="AGE", type=filters.age, default=default, help=text)
    parser.add_argument(
        "--max-failing",
        metavar="PERCENT",
        type=_percent,
        default=problem.MAX_FAILING_PERCENT,
        help="How many percent of the latest attempts of a name may fail (default: %(default)g).",
    )
    parser.add_argument(
        "--max-parked", metavar="N", type=_count, default=0, help="How many jobs may be parked (default: 0)."
    )
    parser.add_argument(
        "--max-abandoned",
        metavar="N",
        type=_count,
        default=problem.MAX_ABANDONED,
        help="How many jobs may have been abandoned --since (default: %(default)d).",
    )
    parser.add_argument(
        "--max-lost", metavar="N", type=_count, help="How many workers may have been lost --since (default: any)."
    )
    parser.add_argument(
        "--since",
        metavar="AGE",
        type=filters.age,
        default=3600.0,
        help="The time span of --max-abandoned, --max-lost and of crashes (default: 1h).",
    )
    watching.add_watch(parser)
    output.add_format(parser)
    filters.add_database(parser)


def _count(text: str) -> int:
    return 0 if text == "0" else filters.number(text)


def _percent(text: str) -> float:
    number = float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else -1.0
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 100.")
    return number


def check(command: BaseCommand, options: dict[str, Any]) -> None:
    """Print problems and notes; exit with 1 if there is a problem. With ``--watch`` draw them until it is ended."""
    using = filters.database_of(options)
    if options["watch"] is not None and options["format"] == "table":
        watching.watch(command, using, options["watch"], lambda: told.lines_of(_problems(using, options)))
        return
    found = _problems(using, options)
    is_healthy = all(each.is_note for each in found)
    if options["format"] == "json":
        output.write_line(command, output.json_of({"healthy": is_healthy, **told.as_json(found)}))
    else:
        for line in told.lines_of(found):
            output.write_line(command, line)
    if not is_healthy:
        sys.exit(output.SKIPPED)


def _problems(using: str, options: dict[str, Any]) -> list[HealthProblem]:
    given = ("latency", "limited", "paused", "event", "failing", "parked", "abandoned", "lost")
    limits = Limits(
        **{f"max_{name}": options[f"max_{name}"] for name in given}, since=options["since"], queues=options["queue"]
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
