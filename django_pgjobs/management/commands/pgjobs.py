"""``manage.py pgjobs …``: everything of this package that is done from the shell."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_pgjobs.management import (
    checking,
    counted,
    crons,
    listed,
    operating,
    pausing,
    pruning,
    running,
    showing,
    telling,
    workers,
)

GROUPS = (running, listed, showing, counted, workers, checking, operating, pausing, crons, pruning)
"""Modules of subcommands, in the order of the help. Each has ``add_subcommands(subcommands)``, which sets a parser's
default ``perform``: what is called with the command and its options."""


class Command(BaseCommand):
    """The subcommands; ``pgjobs run`` is ``runjobs``."""

    help = "Background jobs: run a worker, and what else is done from the shell."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for group in GROUPS:
            group.add_subcommands(subcommands)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand."""
        with telling.quietly(self):
            options["perform"](self, options)
