"""Arguments of subcommands: those that select jobs, with the same filters as in the admin, and what most have."""

from __future__ import annotations

import argparse
import getpass
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.core.management.base import CommandError
from django.db import router
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_pgjobs.management import output
from django_pgjobs.management.output import Options
from django_pgjobs.models import Job
from django_pgjobs.presentation import filters, search_words
from django_pgjobs.presentation.job_conditions import BIGGEST_ID
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.states import Outcome


def age(text: str) -> float:
    """Return an age in seconds; a number without unit means seconds."""
    seconds = search_words.age(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: write 90s, 30m, 36h, 7d or 2w, up to ten years")
    return seconds


def number(text: str) -> int:
    """Return a whole number of at least 1."""
    found = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return found


class RowId(NamedTuple):
    """The id of a job or an action as given; ``alias`` is empty, or says in which database."""

    alias: str
    id: int


def row_id(text: str) -> RowId:
    """Return an id: digits, with or without a leading # or a database alias and a colon."""
    alias, _, number = text.rpartition(":")
    digits = number.removeprefix("#")
    if not re.fullmatch(r"[0-9]{1,30}", digits) or int(digits) > BIGGEST_ID or text.startswith(":"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a job id")
    return RowId(alias, int(digits))


def argument(text: str) -> tuple[str, str]:
    """Return name and value of an argument."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def instant(text: str) -> datetime:
    """Return an instant; without a zone it is in the project's time zone."""
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an instant: write 2030-01-31T03:00 or 2030-01-31T03:00+01:00"
        )
    if settings.USE_TZ:
        return found if timezone.is_aware(found) else timezone.make_aware(found)
    return timezone.make_naive(found) if timezone.is_aware(found) else found


def shell_user() -> str:
    """Return the name of the shell's user, or the user id if there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name in a container: OSError from Python 3.13 on
        return f"uid {os.getuid()}"


KINDS: dict[str, Callable[[str], object]] = {"text": str, "age": age, "id": row_id, "argument": argument}
"""The kind of a filter → what reads its value."""


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that select jobs."""
    parser.add_argument("ids", metavar="ID", nargs="*", type=row_id, help="Ids of jobs.")
    for each in filters.FILTERS:
        if each.flags:
            flags = parser.add_mutually_exclusive_group()
            for value, text in each.flags.items():
                option = f"--{value.replace('_', '-')}"
                flags.add_argument(option, action="store_const", const=value, dest=each.name, help=text)
        if each.help:
            choices = [str(choice) for choice in each.choices] or None
            parser.add_argument(
                each.option or f"--{each.name}", dest=each.name, metavar=each.metavar, type=KINDS[each.kind],
                choices=choices, help=each.help,
            )  # fmt: skip


def declare(
    parsers: Any, name: str, perform: Callable[..., None], text: str, *, description: str = ""
) -> argparse.ArgumentParser:
    """Declare a subcommand or verb: what it does, and in which words its help says so."""
    parser: argparse.ArgumentParser = parsers.add_parser(name, help=text, description=description or text)
    parser.set_defaults(perform=output.facing_the_database(perform))
    return parser


def add_job(parser: argparse.ArgumentParser) -> None:
    """Declare the id of one job, and the output."""
    parser.add_argument("id", metavar="ID", type=row_id, help="The id of the job.")
    add_output(parser)


def add_names(parser: argparse.ArgumentParser) -> None:
    """Declare the names of queues and ``--job``."""
    parser.add_argument("queues", metavar="QUEUE", nargs="*", help="Names of queues.")
    parser.add_argument("--job", metavar="NAME", action="append", default=[], help="The name of a job; repeatable.")


def named(options: Options, kind: str = "job") -> list[tuple[str, str]]:
    """Return kind and name of each queue and of each job, which is of this kind."""
    if not options["queues"] and not options["job"]:
        raise CommandError("Name the queues, or name jobs with --job.", returncode=output.WRONG)
    return [*(("queue", name) for name in options["queues"]), *((kind, name) for name in options["job"])]


def add_author(parser: argparse.ArgumentParser) -> None:
    """Declare ``--by``."""
    parser.add_argument("--by", metavar="TEXT", default=shell_user(), help="Who (default: the user of the shell).")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare ``--format`` and ``--database``."""
    add_format(parser)
    add_database(parser)


def add_format(parser: argparse.ArgumentParser) -> None:
    """Declare ``--format``."""
    parser.add_argument("--format", choices=["table", "json"], default="table", help="Output format (default: table).")


def add_yes(parser: argparse.ArgumentParser, text: str) -> None:
    """Declare ``--yes``, under Django's names, too."""
    parser.add_argument("--yes", "--no-input", "--noinput", action="store_true", dest="yes", help=text)


def add_end_of_pause(parser: argparse.ArgumentParser, help_of_until: str) -> None:
    """Declare ``--until`` and ``--for``, of which ``end_of_pause`` makes one value."""
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--until", metavar="INSTANT", type=instant, help=help_of_until)
    text = "How long from now: 90s, 30m, 36h, 7d."
    ends.add_argument("--for", metavar="AGE", type=age, dest="seconds", help=text)


def end_of_pause(options: Options) -> datetime | timedelta | None:
    """Return when a pause ends, or how long it lasts; None for one that lasts until it is resumed."""
    return options["until"] if options["seconds"] is None else timedelta(seconds=options["seconds"])


def add_database(parser: argparse.ArgumentParser) -> None:
    """Declare ``--database``."""
    text = "Database alias of the jobs (default: the one that they are registered in)."
    parser.add_argument("--database", metavar="ALIAS", help=text)


def database_of(options: Options) -> str:
    """Return the database alias. Raises ``CommandError`` if the settings do not have it."""
    using = str(options["database"] or router.db_for_write(Job))
    if using not in settings.DATABASES:
        raise CommandError(f"There is no database alias {using!r}.", returncode=output.WRONG)
    return using


def is_filtered(options: Options) -> bool:
    """Tell whether the options include a filter."""
    return bool(_given(options))


def _given(options: Options) -> Options:
    names = [each.name for each in filters.FILTERS if each.help or each.flags]
    return {name: options[name] for name in names if options[name] is not None}


def filter_words(options: Options) -> str:
    """Return the filters in words, as an action's row stores them; empty if there are only ids."""
    if not is_filtered(options):
        return "" if options["ids"] else "all"
    return search_of(options).words


def search_of(options: Options, *, far: bool = False) -> JobSearch:
    """Return the filters as a ``JobSearch``."""
    given = _given(options)
    error = given.get("error", "")
    if error:
        given = {"state": Outcome.ABANDONED.value, **given}
    others = {each.name: value for each in filters.FILTERS if each.condition and (value := given.pop(each.name, ""))}
    found = JobSearch(**given, exact_error="." in error, others=others)
    return replace(found, reach=found.reaches(far=far))
