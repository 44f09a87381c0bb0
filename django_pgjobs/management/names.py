"""``manage.py pgjobs names``: which names unfinished jobs need, and whether the code here knows them."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from django_pgjobs.inspection import names
from django_pgjobs.management import filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.serialization.escapes import one_line

HEADERS = ("NAME", "USE", "ROWS", "KNOWN")


def add_subcommands(subcommands: Any) -> None:
    """Declare ``names``."""
    text = "Show which names unfinished jobs need, and exit with 1 if the code here does not know one of them."
    filters.add_output(filters.declare(subcommands, "names", show_names, text))


def show_names(command: BaseCommand, options: Options) -> None:
    """Print them; exit with 1 if one is unknown."""
    found = names.needed(filters.database_of(options))
    rows = (
        (output.plain(one_line(each.name)), each.use, str(each.rows), "yes" if each.known else "NO") for each in found
    )
    output.answer(command, options, [each._asdict() for each in found], output.table(HEADERS, rows))
    output.exit_if(not all(each.known for each in found))
