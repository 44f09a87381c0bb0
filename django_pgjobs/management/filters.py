"""Arguments that select jobs: ids, and the same filters as in the admin."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import router

from django_pgjobs.management.output import WRONG
from django_pgjobs.models import Job
from django_pgjobs.presentation import search_words
from django_pgjobs.presentation.fronts import FRONTS
from django_pgjobs.presentation.job_conditions import BIGGEST_ID
from django_pgjobs.presentation.job_search import STATES, JobSearch
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


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that select jobs."""
    parser.add_argument("ids", metavar="ID", nargs="*", type=job_id, help="Ids of jobs.")
    parser.add_argument("--queue", metavar="NAME", help="Jobs of this queue.")
    parser.add_argument("--name", metavar="NAME", help="Jobs of this definition.")
    *most, last = STATES
    parser.add_argument(
        "--state",
        metavar="STATE",
        choices=list(map(str, STATES)),
        help=f"Jobs that are {', '.join(most)} or {last}; ready ones are due, the others scheduled or retrying.",
    )
    since = "of an ended --state, that ended; of others, that were registered"
    parser.add_argument("--since", metavar="AGE", type=age, help=f"Jobs, {since}, within this time: 90s, 30m, 36h, 7d.")
    parser.add_argument("--older-than", metavar="AGE", type=age, help=f"Jobs, {since}, longer ago than this.")
    parser.add_argument("--description", metavar="TEXT", help="Jobs with this text in their description.")
    parser.add_argument("--tag", metavar="TAG", help="Jobs with this tag.")
    parser.add_argument("--key", metavar="KEY", help="Jobs registered with this key.")
    parser.add_argument(
        "--error",
        metavar="CLASS",
        help="Jobs abandoned with an error of this class, with or without its path.",
    )
    parser.add_argument(
        "--arg",
        metavar="NAME=VALUE",
        type=argument,
        help="Jobs with this argument: a number, a text, true, false or null.",
    )
    parser.add_argument("--action", metavar="ID", type=job_id, help="Jobs that this action of an operator changed.")
    parser.add_argument("--front", choices=list(FRONTS), help="Jobs declared by @task, or by @job.")
    parser.add_argument("--alias", metavar="ALIAS", help="Tasks of this alias of TASKS.")
    parser.add_argument("--batch", metavar="ID", type=job_id, help="Members of this batch or flow.")
    suspended = parser.add_mutually_exclusive_group()
    suspended.add_argument(
        "--sleeping", action="store_const", const="sleeping", dest="suspended", help="Durable functions that sleep."
    )
    suspended.add_argument(
        "--waiting-for-event",
        action="store_const",
        const="waiting_for_event",
        dest="suspended",
        help="Durable functions that wait for an event.",
    )


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
    names = (
        "queue",
        "name",
        "state",
        "since",
        "older_than",
        "description",
        "key",
        "tag",
        "batch",
        "suspended",
        "error",
        "arg",
        "action",
        "front",
        "alias",
    )
    return any(options[name] is not None for name in names)


def filter_words(options: dict[str, Any]) -> str:
    """Return the filters in words, as an action's row stores them; empty if there are only ids."""
    if not is_filtered(options):
        return "" if options["ids"] else "all"
    return search_of(options).words


def search_of(options: dict[str, Any], *, far: bool = False) -> JobSearch:
    """Return the filters as a ``JobSearch``."""
    error = options["error"] or ""
    found = JobSearch(
        state=options["state"] or (Outcome.ABANDONED.value if error else ""),
        queue=options["queue"] or "",
        name=options["name"] or "",
        description=options["description"] or "",
        error=error,
        exact_error="." in error,
        argument=options["arg"],
        action=options["action"],
        key=options["key"] or "",
        front=options["front"] or "",
        alias=options["alias"] or "",
        tag=options["tag"] or "",
        batch=options["batch"],
        since=options["since"],
        older=options["older_than"],
        suspended=options["suspended"] or "",
    )
    return replace(found, reach=found.reaches(far=far))
