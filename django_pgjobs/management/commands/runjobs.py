"""``manage.py runjobs``: run a worker."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandParser

from django_pgjobs.management import run


class Command(BaseCommand):
    """A worker: claims and runs jobs until it is stopped."""

    help = "Run a worker: claim and run jobs until SIGTERM or Ctrl-C, which drains; a second one releases them at once."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        run.add_arguments(parser)

    def handle(self, *args: object, **options: object) -> None:
        """Run a worker until it has drained."""
        run.check_and_run(self, options)
