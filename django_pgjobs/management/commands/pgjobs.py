"""``manage.py pgjobs …``: everything of this package that is done from the shell."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_pgjobs.management import operating, pruning, running


class Command(BaseCommand):
    """The subcommands; ``pgjobs run`` is ``runjobs``."""

    help = "Background jobs: run a worker, and what else is done from the shell."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the subcommands."""
        subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        running.add_arguments(subcommands.add_parser("run", help="Run a worker (the same as runjobs)."))
        operating.add_subcommands(subcommands)
        text = "Delete ended jobs, with their history, whose retention is over."
        pruning.add_arguments(subcommands.add_parser("prune", help=text, description=text))
        # Hidden: what a supervisor starts its executors with.
        running.add_executor_arguments(subcommands.add_parser("executor"))

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand."""
        if options["subcommand"] == "executor":
            running.run_executor(options)
        elif options["subcommand"] in operating.ACTIONS:
            operating.operate(self, options["subcommand"], options)
        elif options["subcommand"] == "prune":
            pruning.prune(self, options)
        else:
            running.check_and_run(self, options)
        sys.stdout.flush()
