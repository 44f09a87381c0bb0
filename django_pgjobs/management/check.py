"""``manage.py pgjobs check``: a health check for probes and alerts; and ``names``, for a look before a deploy."""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from django.core.management.base import BaseCommand
from django.db import DatabaseError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_pgjobs.checks import names
from django_pgjobs.diagnosis import health, problem
from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.management import databases, filters, in_flight, output, stats, watching
from django_pgjobs.management.output import Options
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.asking import Reply

STATEMENT_TIMEOUT = "10s"

NAMES_HEADERS = ("NAME", "USE", "ROWS", "KNOWN")


def add_subcommands(subcommands: object) -> None:
    """Declare ``check`` and ``names``."""
    text = "Check that jobs run: print the problems and exit with 1, or print healthy and exit with 0."
    parser = filters.declare(subcommands, "check", check, text)
    text = "Check workers and latency of this queue only; repeatable (default: all)."
    parser.add_argument("--queue", metavar="NAME", action="append", help=text)
    for name, kind, metavar, default, text in LIMITS:
        parser.add_argument(f"--{name}", metavar=metavar, type=kind, default=default, help=text)
    text = "Bind what waits in the database against the code here, and exit with 1 if something does not fit."
    parser.add_argument("--in-flight", action="store_true", help=text)
    text = "With --in-flight: accept what is found of this job, schedule or event; repeatable."
    parser.add_argument("--allow", metavar="NAME", action="append", default=[], help=text)
    text = "With --in-flight: look at so many jobs at most (default: all)."
    parser.add_argument("--most", metavar="N", type=filters.number, help=text)
    watching.add_watch(parser)
    filters.add_output(parser)
    text = "Show which names unfinished jobs need, and exit with 1 if the code here does not know one of them."
    filters.add_output(filters.declare(subcommands, "names", databases.on_each(show_names), text))


def _count(text: str) -> int:
    return 0 if text == "0" else filters.number(text)


def _percent(text: str) -> float:
    number = float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else -1.0
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 100.")
    return number


LIMITS: tuple[tuple[str, Callable[[str], object], str, object, str], ...] = (
    ("max-latency", filters.age, "AGE", problem.MAX_LATENCY_SECONDS,
     "How long a due job may wait for a claim: 90s, 30m (default: 5m)."),
    ("max-limited", filters.age, "AGE", problem.MAX_LIMITED_SECONDS,
     "How long limits may hold a job that could run (default: 1h)."),
    ("max-paused", filters.age, "AGE", problem.MAX_PAUSED_SECONDS,
     "How long a pause without an end may last (default: 1d)."),
    ("max-event", filters.age, "AGE", problem.MAX_EVENT_SECONDS,
     "How long a job may wait for an event (default: 2d)."),
    ("max-failing", _percent, "PERCENT", problem.MAX_FAILING_PERCENT,
     "How many percent of the latest attempts of a name may fail (default: %(default)g)."),
    ("max-parked", _count, "N", 0, "How many jobs may be parked (default: 0)."),
    ("max-abandoned", _count, "N", problem.MAX_ABANDONED,
     "How many jobs may have been abandoned --since (default: %(default)d)."),
    ("max-lost", _count, "N", None, "How many workers may have been lost --since (default: any)."),
    ("since", filters.age, "AGE", 3600.0,
     "The time span of --max-abandoned, --max-lost and of crashes (default: 1h)."),
)  # fmt: skip
"""Fields of ``Limits``, with dashes: how a value is read, its metavar, the default, and the help."""


def check(command: BaseCommand, options: Options) -> None:
    """Print problems and notes; exit with 1 if there is a problem. With ``--watch`` draw them until it is ended."""
    if options["in_flight"]:
        in_flight.check_in_flight(command, options)
        return
    if options["watch"] is not None and options["format"] == "table":
        draw: watching.Draw = lambda alias: stats.lines_of_problems(_problems(alias, options))  # noqa: E731
        watching.watch(command, options, options["watch"], draw)
        return
    found = _found(databases.asked(databases.aliases_of(options), lambda alias: _problems(alias, options)))
    is_healthy = all(each.is_note for each in found)
    output.answer(
        command, options, {"healthy": is_healthy, **stats.fields_of_problems(found)}, stats.lines_of_problems(found)
    )
    output.exit_if(not is_healthy)


def _found(replies: list[Reply[list[HealthProblem]]]) -> list[HealthProblem]:
    """Return the problems, of several databases with their aliases, then the notes."""
    if len(replies) == 1:
        return replies[0].answer or []
    found: list[HealthProblem] = []
    for reply in replies:
        given = reply.answer or []
        if (trouble := reply.trouble) is not None:
            code = "migrations" if trouble.code == "unmigrated" else "database"
            given = [HealthProblem(code, f"{trouble.text[0].upper()}{trouble.text[1:]}.")]
        found += [replace(each, database=reply.alias) for each in given]
    return sorted(found, key=lambda each: each.is_note)


def _problems(using: str, options: Options) -> list[HealthProblem]:
    given = {name: options[name] for name in (each[0].replace("-", "_") for each in LIMITS)}
    return problems_of(using, Limits(**given, queues=options["queue"]))


def problems_of(using: str, limits: Limits) -> list[HealthProblem]:
    """Return the problems and notes of a database, or only that it does not answer or is not migrated."""
    try:
        if missing := _unapplied(using):
            return [HealthProblem("migrations", f"Not applied: {', '.join(missing)}. Run manage.py migrate.")]
        with stats.counting(using, statement_timeout=STATEMENT_TIMEOUT) as db:
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


def show_names(command: BaseCommand, options: Options) -> None:
    """Print them; exit with 1 if one is unknown."""
    found = names.needed(filters.database_of(options))
    rows = (
        (output.plain(one_line(each.name)), each.use, str(each.rows), "yes" if each.known else "NO") for each in found
    )
    output.answer(command, options, [each._asdict() for each in found], output.table(NAMES_HEADERS, rows))
    output.exit_if(not all(each.known for each in found))
