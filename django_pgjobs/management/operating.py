"""``manage.py pgjobs cancel``, ``retry``, ``abandon``, ``release``: what an operator does to jobs, from the shell."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Q

from django_pgjobs.models import Job
from django_pgjobs.querysets import JobQuerySet
from django_pgjobs.states import CancelMode, JobState
from django_pgjobs.steering import Steered

UNFINISHED = Q(finished_at__isnull=True)


@dataclass(frozen=True, slots=True)
class Action:
    """One subcommand: its help, which jobs a filter means, and how to do it."""

    help: str
    takes: Q
    perform: Callable[[JobQuerySet, dict[str, Any]], Steered]


def _words(options: dict[str, Any]) -> dict[str, str]:
    return {"by": options["by"], "reason": options["reason"]}


ACTIONS: dict[str, Action] = {
    "cancel": Action(
        "Cancel jobs: those that nobody runs end at once, running ones are stopped as --mode says.",
        UNFINISHED,
        lambda jobs, options: jobs.cancel(mode=options["mode"], **_words(options)),
    ),
    "retry": Action(
        "Make abandoned, cancelled and parked jobs ready again.",
        Q(state__in=[JobState.ABANDONED, JobState.CANCELLED, JobState.PARKED]),
        lambda jobs, options: jobs.retry(**_words(options)),
    ),
    "abandon": Action(
        "Give up jobs that nobody runs.",
        UNFINISHED,
        lambda jobs, options: jobs.abandon(**_words(options)),
    ),
    "release": Action(
        "Ask the workers of running jobs to give them back, uncharged.",
        Q(state=JobState.RUNNING),
        lambda jobs, options: jobs.release(**_words(options)),
    ),
}


def add_subcommands(subcommands: Any) -> None:
    """Declare a subcommand for each action."""
    for verb, action in ACTIONS.items():
        parser = subcommands.add_parser(verb, help=action.help, description=action.help)
        add_arguments(parser, verb)
        parser.set_defaults(perform=operate)


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare which jobs are meant, and who does it why."""
    parser.add_argument("ids", metavar="ID", nargs="*", type=int, help="Jobs by their ids.")
    parser.add_argument("--queue", metavar="NAME", help="Jobs of this queue.")
    parser.add_argument("--name", metavar="NAME", help="Jobs of this definition.")
    parser.add_argument("--state", metavar="STATE", choices=list(JobState), help=f"Jobs that are {_or(JobState)}.")
    if verb == "cancel":
        parser.add_argument(
            "--mode",
            choices=list(CancelMode),
            default=str(CancelMode.ASK),
            help="What a running job meets: it is asked, an exception is raised in it, or its process is killed "
            "(default: %(default)s).",
        )
    parser.add_argument("--reason", metavar="TEXT", default="", help="Why; kept with the job or in the log.")
    parser.add_argument("--by", metavar="TEXT", default=_user(), help="Who (default: the user of the shell).")
    parser.add_argument("--database", metavar="ALIAS", default=DEFAULT_DB_ALIAS, help="Database alias of the jobs.")
    parser.add_argument(
        "--yes", "--no-input", "--noinput", action="store_true", dest="yes", help="Ask nothing, also for many jobs."
    )


def _or(words: Any) -> str:
    *most, last = map(str, words)
    return f"{', '.join(most)} or {last}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name in a container: OSError from Python 3.13 on
        return f"uid {os.getuid()}"


def operate(command: BaseCommand, options: dict[str, Any]) -> None:
    """Do it, say to how many and why not to the others; exit with 1 if any was skipped."""
    verb: str = options["subcommand"]
    jobs, unknown = _chosen(verb, options)
    count = jobs.count()
    if count > 1 and not options["yes"]:
        confirm(command, f"{verb.capitalize()} {count} jobs?")
    done = ACTIONS[verb].perform(jobs, options)
    if unknown:
        done += Steered(0, {"unknown": unknown})
    command.stdout.write(f"{verb}: {done.changed} changed, {sum(done.skipped.values())} skipped")
    for reason, number in sorted(done.skipped.items()):
        command.stdout.write(f"  {number} skipped: {reason}")
    if done.skipped:
        sys.exit(1)


def _chosen(verb: str, options: dict[str, Any]) -> tuple[JobQuerySet, int]:
    """Return the jobs that are meant, and how many ids name none."""
    if options["database"] not in settings.DATABASES:
        raise CommandError(f"There is no database alias {options['database']!r}.")
    asked = {key: options[key] for key in ("queue", "name", "state") if options[key] is not None}
    ids = set(options["ids"])
    if not asked and not ids:
        raise CommandError("Say which jobs: by their ids, or by --queue, --name or --state.")
    jobs = JobQuerySet(Job, using=options["database"]).filter(**asked)
    if not ids:
        # A filter means those that can take it: the ended ones would only be counted as skipped, by the million.
        return (jobs if "state" in asked else jobs.filter(ACTIONS[verb].takes)), 0
    jobs = jobs.filter(pk__in=ids)
    return jobs, len(ids) - jobs.count()


def confirm(command: BaseCommand, question: str) -> None:
    """Ask, and leave with 1 unless the answer is yes."""
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        raise CommandError("Nobody answers. With --yes nothing is asked.") from None
    if answer.strip().lower() not in ("y", "yes"):
        command.stdout.write("Nothing was changed.")
        sys.exit(1)
