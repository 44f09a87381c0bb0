"""``manage.py pgjobs names``: which names unfinished jobs need, and whether the code here knows them."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from django_pgjobs.inspection import names
from django_pgjobs.management import filters, output
from django_pgjobs.serialization.escapes import one_line

HEADERS = ("NAME", "USE", "ROWS", "KNOWN")


def add_subcommands(subcommands: Any) -> None:
    """Declare ``names``."""
    text = "Show which names unfinished jobs need, and exit with 1 if the code here does not know one of them."
    parser = subcommands.add_parser("names", help=text, description=text)
    output.add_format(parser)
    filters.add_database(parser)
    parser.set_defaults(perform=show_names)


@output.facing_the_database
def show_names(command: BaseCommand, options: dict[str, Any]) -> None:
    """Print them; exit with 1 if one is unknown."""
    found = names.needed(filters.database_of(options))
    if options["format"] == "json":
        output.write_line(command, output.json_of([each._asdict() for each in found]))
    else:
        rows = [
            (output.plain(one_line(each.name)), each.use, str(each.rows), "yes" if each.known else "NO")
            for each in found
        ]
        for line in output.table(HEADERS, rows):
            output.write_line(command, line)
    if not all(each.known for each in found):
        sys.exit(output.SKIPPED)
