"""Arguments that select jobs: ids, and the same filters as in the admin."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import router

from django_pgjobs.management.output import WRONG
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


def job_id(text: str) -> int:
    """Return a job id: digits, with or without a leading #."""
    digits = text.removeprefix("#")
    if not re.fullmatch(r"[0-9]{1,30}", digits) or int(digits) > BIGGEST_ID:
        raise argparse.ArgumentTypeError(f"{text!r} is not a job id")
    return int(digits)


def argument(text: str) -> tuple[str, str]:
    """Return name and value of an argument."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


KINDS: dict[str, Callable[[str], Any]] = {"text": str, "age": age, "id": job_id, "argument": argument}
"""The kind of a filter → what reads its value."""


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that select jobs."""
    parser.add_argument("ids", metavar="ID", nargs="*", type=job_id, help="Ids of jobs.")
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


def add_database(parser: argparse.ArgumentParser) -> None:
    """Declare ``--database``."""
    text = "Database alias of the jobs (default: the one that they are registered in)."
    parser.add_argument("--database", metavar="ALIAS", help=text)


def database_of(options: dict[str, Any]) -> str:
    """Return the database alias. Raises ``CommandError`` if the settings do not have it."""
    alias = str(options["database"] or router.db_for_write(Job))
    if alias not in settings.DATABASES:
        raise CommandError(f"There is no database alias {alias!r}.", returncode=WRONG)
    return alias


def is_filtered(options: dict[str, Any]) -> bool:
    """Tell whether the options include a filter."""
    return bool(_given(options))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    names = [each.name for each in filters.FILTERS if each.help or each.flags]
    return {name: options[name] for name in names if options[name] is not None}


def filter_words(options: dict[str, Any]) -> str:
    """Return the filters in words, as an action's row stores them; empty if there are only ids."""
    if not is_filtered(options):
        return "" if options["ids"] else "all"
    return search_of(options).words


def search_of(options: dict[str, Any], *, far: bool = False) -> JobSearch:
    """Return the filters as a ``JobSearch``."""
    given = _given(options)
    error = given.get("error", "")
    if error:
        given = {"state": Outcome.ABANDONED.value, **given}
    others = {each.name: value for each in filters.FILTERS if each.condition and (value := given.pop(each.name, ""))}
    found = JobSearch(**given, exact_error="." in error, others=others)
    return replace(found, reach=found.reaches(far=far))
