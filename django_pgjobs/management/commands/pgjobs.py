"""``manage.py pgjobs …``: every shell command of this package."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_pgjobs.management import (
    adopting,
    batches,
    check,
    crons,
    doctor,
    events,
    importing,
    limiting,
    list_jobs,
    logs,
    move,
    output,
    pausing,
    pruning,
    run,
    show,
    stacks,
    stats,
    steer,
    top,
    workers,
)

GROUPS = (
    run, list_jobs, show, logs, stacks, batches, top, stats, workers, check, doctor, steer, move, events, pausing,
    limiting, crons, pruning, adopting, importing,
)  # fmt: skip
"""Modules of subcommands, in the order of the help. Each has ``add_subcommands(subcommands)``, which sets the parser's
default ``perform``: a function of the command and its options."""


def take_standard_options(subcommands: argparse._SubParsersAction[CommandParser]) -> None:
    """Accept Django's own options after a subcommand as well as before it; the later position wins."""
    for parser in set(subcommands.choices.values()):
        take = partial(parser.add_argument, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        known = parser._option_string_actions
        if "--verbosity" not in known:
            take("-v", "--verbosity", type=int, choices=[0, 1, 2, 3])
        for option in ("--settings", "--pythonpath"):
            take(option)
        for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
            if option not in known:
                take(option, action="store_true")
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                take_standard_options(action)


class Command(BaseCommand):
    """The subcommands; ``pgjobs run`` is ``runjobs``."""

    help = "Background jobs: run a worker, inspect and steer jobs, check their health."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for group in GROUPS:
            group.add_subcommands(subcommands)
        take_standard_options(subcommands)

    def handle(self, *args: object, **options: Any) -> None:
        """Run the subcommand. Raises ``CommandError`` for an option that PostgreSQL cannot store or compare."""
        output.check_texts(options)
        with output.quietly(self):
            options["perform"](self, options)
