"""``manage.py index_library``: register a job for every file of the standard library."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from example_project.indexer.indexing import start_edition
from example_project.indexer.sources import source_files


class Command(BaseCommand):
    """Registers; a worker (``manage.py runjobs``) does the work."""

    help = "Register one job for each source file of the Python standard library, in one transaction."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--limit", type=positive, metavar="N", help="Only the first N files.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Register an edition."""
        edition = start_edition(source_files(options["limit"]))
        self.stdout.write(f"Edition {edition.pk}: {edition.files} files, {edition.packages} packages registered.")


def positive(text: str) -> int:
    """Return a number from 1 on, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, not {text!r}")
    return int(text)
