"""``manage.py pgjobs cancel``, ``retry``, ``abandon``, ``release``, ``reschedule``, ``undo-action``: steer jobs."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_pgjobs import reverting
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.management import filters, output
from django_pgjobs.models import Job, JobQuerySet
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import CancelMode, JobState
from django_pgjobs.steering.jobs import Steered
from django_pgjobs.steering.trail import REVERSIBLE, recorded_as

UNFINISHED = Q(finished_at__isnull=True)


@dataclass(frozen=True, slots=True)
class SteeringCommand:
    """One subcommand: its help, the jobs that a filter selects for it, and its function."""

    help: str
    takes: Q
    perform: Callable[[JobQuerySet, dict[str, Any]], Steered]


def _words(options: dict[str, Any]) -> dict[str, str]:
    return {"by": options["by"], "reason": options["reason"]}


def _reschedule(jobs: JobQuerySet, options: dict[str, Any]) -> Steered:
    to = {"run_at": "run_at", "delay": "delay", "queue": "to_queue", "priority": "priority"}
    target: dict[str, Any] = {key: options[option] for key, option in to.items()}
    if all(value is None for value in target.values()):
        raise CommandError("Give a destination: --run-at, --delay, --to-queue or --priority.", returncode=output.WRONG)
    return jobs.reschedule(**{**target, **_words(options)})


ACTIONS: dict[str, SteeringCommand] = {
    "cancel": SteeringCommand(
        "Cancel jobs: unclaimed ones end at once, running ones stop as --mode says.",
        UNFINISHED,
        lambda jobs, options: jobs.cancel(mode=options["mode"], **_words(options)),
    ),
    "retry": SteeringCommand(
        "Make abandoned, cancelled and parked jobs ready again.",
        Q(state__in=[JobState.ABANDONED, JobState.CANCELLED, JobState.PARKED]),
        lambda jobs, options: jobs.retry(**_words(options)),
    ),
    "abandon": SteeringCommand(
        "Abandon jobs that are not running.",
        UNFINISHED,
        lambda jobs, options: jobs.abandon(**_words(options)),
    ),
    "release": SteeringCommand(
        "Ask the workers of running jobs to release them, uncharged; with --force, let waiting jobs proceed instead.",
        Q(state=JobState.RUNNING),
        lambda jobs, options: jobs.release(force=options["force"], **_words(options)),
    ),
    "reschedule": SteeringCommand(
        "Move jobs that are not running to another time, queue or priority.",
        UNFINISHED & ~Q(state=JobState.RUNNING),
        _reschedule,
    ),
}


def add_subcommands(subcommands: Any) -> None:
    """Declare a subcommand for each action."""
    for verb, action in ACTIONS.items():
        parser = subcommands.add_parser(verb, help=action.help, description=action.help)
        add_arguments(parser, verb)
        parser.set_defaults(perform=operate)
    text = "Undo a retry, a reschedule, a pause or a resume: values that it left unchanged since go back."
    parser = subcommands.add_parser("undo-action", help=text, description=text)
    parser.add_argument("action_id", metavar="ID", type=filters.job_id, help="The action, as --action takes it.")
    parser.add_argument("--by", metavar="TEXT", default=shell_user(), help="Who (default: the user of the shell).")
    output.add_format(parser)
    filters.add_database(parser)
    parser.set_defaults(perform=undo_action)


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare the selection of jobs, the author and the reason."""
    filters.add_filters(parser)
    parser.add_argument("--limit", metavar="N", type=filters.number, help="At most N jobs, oldest registration first.")
    parser.add_argument("--all", action="store_true", help="Without a filter: all jobs that the action applies to.")
    if verb == "cancel":
        parser.add_argument(
            "--mode",
            choices=list(map(str, CancelMode)),
            default=str(CancelMode.ASK),
            help="How to stop a running job: ask it, raise an exception in it, or kill its process "
            "(default: %(default)s).",
        )
    if verb == "release":
        parser.add_argument(
            "--force", action="store_true", help="Let waiting jobs proceed without further waiting; running ones stay."
        )
    if verb == "reschedule":
        _add_destination(parser)
    parser.add_argument("--reason", metavar="TEXT", default="", help="Why; kept with the job or in the log.")
    parser.add_argument("--by", metavar="TEXT", default=shell_user(), help="Who (default: the user of the shell).")
    output.add_format(parser)
    filters.add_database(parser)
    parser.add_argument(
        "--yes",
        "--no-input",
        "--noinput",
        action="store_true",
        dest="yes",
        help="Do not ask for confirmation, even for many jobs.",
    )


def _add_destination(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run-at",
        metavar="INSTANT",
        type=instant,
        help="Run the jobs at this time: 2030-01-31T03:00, in the project's time zone.",
    )
    parser.add_argument(
        "--delay", metavar="AGE", type=filters.age, help="Run the jobs after this delay: 90s, 30m; 0 is now."
    )
    parser.add_argument("--to-queue", metavar="NAME", help="Move the jobs to this queue.")
    parser.add_argument("--priority", metavar="N", type=int, help="Give the jobs this priority, from -100 to 100.")


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


@output.facing_the_database
def operate(command: BaseCommand, options: dict[str, Any]) -> None:
    """Act, and print how many jobs changed and why others did not; exit with 1 if any was skipped."""
    verb: str = options["subcommand"]
    jobs, unknown = _chosen(verb, options)
    count = jobs.count()
    if count > 1 and not options["yes"]:
        if options["format"] == "json":
            raise CommandError(
                f"--format json cannot ask for confirmation: add --yes to change {count} jobs.", returncode=output.WRONG
            )
        confirm(command, f"{verb.capitalize()} {count} jobs?")
    try:
        with recorded_as(filter_words=filters.filter_words(options)) as origin:
            done = ACTIONS[verb].perform(jobs, options)
    except InvalidJob as error:
        raise CommandError(str(error), returncode=output.WRONG) from None
    if unknown:
        done += Steered(0, {"unknown": unknown})
    if options["format"] == "json":
        output.write_line(command, output.json_of({"action": verb, "changed": done.changed, "skipped": done.skipped}))
    else:
        _write_counts(command, verb, done)
        if verb in REVERSIBLE and origin.recorded:
            hint = f"To undo it: manage.py pgjobs undo-action {origin.recorded[-1]}"
            output.write_line(command, hint, to_stderr=True)
    if done.skipped:
        sys.exit(output.SKIPPED)


@output.facing_the_database
def undo_action(command: BaseCommand, options: dict[str, Any]) -> None:
    """Undo it, and print how much went back and why the rest did not; exit with 1 if any was skipped."""
    action_id: int = options["action_id"]
    try:
        with recorded_as(filter_words=f"action {action_id}"):
            done = reverting.revert(action_id, by=options["by"], database=filters.database_of(options))
    except InvalidJob as error:
        raise CommandError(output.plain(one_line(error)), returncode=output.WRONG) from None
    if options["format"] == "json":
        answer = {"action": action_id, "changed": done.changed, "skipped": done.skipped}
        output.write_line(command, output.json_of(answer))
    else:
        _write_counts(command, "undo-action", done)
    if done.skipped:
        sys.exit(output.SKIPPED)


def _write_counts(command: BaseCommand, verb: str, done: Steered) -> None:
    output.write_line(command, f"{verb}: {done.changed} changed, {sum(done.skipped.values())} skipped")
    output.write_skipped(command, done.skipped)


def _chosen(verb: str, options: dict[str, Any]) -> tuple[JobQuerySet, int]:
    """Return the selected jobs, and the number of unknown ids."""
    jobs = JobQuerySet(Job, using=filters.database_of(options))
    filtered, ids = filters.is_filtered(options), set(options["ids"])
    if not filtered and not ids and not options["all"]:
        raise CommandError(
            "Select jobs: give ids, a filter such as --queue, --name or --state, or --all.",
            returncode=output.WRONG,
        )
    jobs = jobs.filter(replace(filters.search_of(options), by_ids=bool(ids)).where())
    # A filter selects only jobs that the action applies to: ended ones would count as skipped, by the million.
    jobs = jobs if ids or options["state"] is not None else jobs.filter(_takes(verb, options))
    jobs = jobs.filter(pk__in=ids) if ids else jobs
    unknown = len(ids) - jobs.count() if ids else 0
    return (jobs if options["limit"] is None else _first(jobs, options["limit"])), unknown


def _takes(verb: str, options: dict[str, Any]) -> Q:
    if options.get("force"):  # of the jobs that sleep or wait, the filter leaves no others
        return Q() if options["suspended"] is not None else Q(state=JobState.WAITING)
    return ACTIONS[verb].takes


def _first(jobs: JobQuerySet, most: int) -> JobQuerySet:
    first = list(jobs.order_by("pk").values_list("pk", flat=True)[:most])
    return JobQuerySet(Job, using=jobs.db).filter(pk__in=first)


def confirm(command: BaseCommand, question: str) -> None:
    """Ask; exit with 1 unless the answer is yes."""
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        raise CommandError("There was no answer. Add --yes to skip the question.") from None
    if answer.strip().lower() not in ("y", "yes"):
        command.stdout.write("Nothing was changed.")
        sys.exit(1)
