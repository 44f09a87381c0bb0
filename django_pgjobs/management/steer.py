"""``manage.py pgjobs cancel``, ``retry``, ``abandon``, ``release``, ``reschedule``, ``undo-action``: steer jobs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q

from django_pgjobs import reverting
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import Job, JobQuerySet
from django_pgjobs.states import CancelMode, JobState
from django_pgjobs.steering.batching import Steered
from django_pgjobs.steering.trail import REVERSIBLE, recorded_as

UNFINISHED = Q(finished_at__isnull=True)


@dataclass(frozen=True, slots=True)
class SteeringCommand:
    """One subcommand: its help, the jobs that a filter selects for it, and its function."""

    help: str
    takes: Q
    perform: Callable[[JobQuerySet, dict[str, Any]], Steered]


def _words(options: Options) -> dict[str, str]:
    return {"by": options["by"], "reason": options["reason"]}


def _reschedule(jobs: JobQuerySet, options: Options) -> Steered:
    to = {"run_at": "run_at", "delay": "delay", "queue": "to_queue", "priority": "priority"}
    target = {key: options[option] for key, option in to.items()}
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
        "Ask the workers of running jobs to release them: they run again, uncharged.",
        Q(state=JobState.RUNNING),
        lambda jobs, options: jobs.release(**_words(options)),
    ),
    "unblock": SteeringCommand(
        "Let blocked jobs and suspended durable functions run, regardless of what they wait for.",
        Q(state=JobState.BLOCKED),
        lambda jobs, options: jobs.unblock(**_words(options)),
    ),
    "reschedule": SteeringCommand(
        "Move jobs that are not running to another time, queue or priority.",
        UNFINISHED & ~Q(state=JobState.RUNNING),
        _reschedule,
    ),
}


def add_subcommands(subcommands: object) -> None:
    """Declare a subcommand for each action."""
    for verb, action in ACTIONS.items():
        parser = filters.declare(subcommands, verb, databases.on_each(operate, steers=True), action.help)
        filters.add_filters(parser)
        add_common(parser)
        _add_own(parser, verb)
        filters.add_database(parser)
    text = "Undo a retry, a reschedule, a pause or a resume: values that it left unchanged since go back."
    parser = filters.declare(subcommands, "undo-action", databases.on_action(undo_action), text)
    parser.add_argument("action_id", metavar="ID", type=filters.row_id, help="The action, as --action takes it.")
    filters.add_author(parser)
    filters.add_output(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Declare what all actions on jobs have, behind the filters."""
    text = "At most N jobs, oldest registration first."
    parser.add_argument("--limit", metavar="N", type=filters.number, help=text)
    text = "Without a filter: all jobs that the action applies to."
    parser.add_argument("--all", action="store_true", help=text)
    parser.add_argument("--reason", metavar="TEXT", default="", help="Why; kept with the job or in the log.")
    filters.add_author(parser)
    filters.add_format(parser)
    filters.add_yes(parser, "Do not ask for confirmation, even for many jobs.")


def _add_own(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare the options that only this action has."""
    if verb == "cancel":
        text = (
            "How to stop a running job: ask it, raise an exception in it, or kill its process (default: %(default)s)."
        )
        modes = list(map(str, CancelMode))
        parser.add_argument("--mode", choices=modes, default=str(CancelMode.ASK), help=text)
    if verb == "reschedule":
        text = "Run the jobs at this time: 2030-01-31T03:00, in the project's time zone."
        parser.add_argument("--run-at", metavar="INSTANT", type=filters.instant, help=text)
        text = "Run the jobs after this delay: 90s, 30m; 0 is now."
        parser.add_argument("--delay", metavar="AGE", type=filters.age, help=text)
        parser.add_argument("--to-queue", metavar="NAME", help="Move the jobs to this queue.")
        parser.add_argument("--priority", metavar="N", type=int, help="Give the jobs this priority, from -100 to 100.")


def operate(command: BaseCommand, options: Options) -> None:
    """Act, and print how many jobs changed and why others did not; exit with 1 if any was skipped."""
    verb: str = options["subcommand"]
    jobs, unknown = chosen(options, _takes(verb, options))
    count = jobs.count()
    if count > 1 and not options["yes"]:
        if options["format"] == "json":
            words = f"--format json cannot ask for confirmation: add --yes to change {count} jobs."
            raise CommandError(words, returncode=output.WRONG)
        confirm(command, f"{verb.capitalize()} {count} jobs?")
    with output.refused(InvalidJob), recorded_as(filter_words=filters.filter_words(options)) as origin:
        done = ACTIONS[verb].perform(jobs, options)
    if unknown:
        done += Steered(0, {"unknown": unknown})
    _answer(command, options, verb, verb, done)
    if options["format"] != "json" and verb in REVERSIBLE and origin.recorded:
        hint = f"To undo it: manage.py pgjobs undo-action {output.ref(origin.recorded[-1], '')}"
        output.write_line(command, hint, to_stderr=True)
    output.exit_if(done.skipped)


def undo_action(command: BaseCommand, options: Options) -> None:
    """Undo it, and print how much went back and why the rest did not; exit with 1 if any was skipped."""
    action_id: int = options["action_id"]
    with output.refused(InvalidJob), recorded_as(filter_words=f"action {action_id}"):
        done = reverting.revert(action_id, by=options["by"], database=filters.database_of(options))
    _answer(command, options, "undo-action", action_id, done)
    output.exit_if(done.skipped)


def _answer(command: BaseCommand, options: Options, verb: str, action: str | int, done: Steered) -> None:
    fields = {"action": action, "changed": done.changed, "skipped": done.skipped}
    head = f"{verb}: {done.changed} changed, {sum(done.skipped.values())} skipped"
    output.answer(command, options, fields, [head, *output.skipped_lines(done.skipped)])


def chosen(options: Options, takes: Q) -> tuple[JobQuerySet, int]:
    """Return the selected jobs, of those that a filter finds only ones that the action ``takes``; and unknown ids."""
    jobs = JobQuerySet(Job, using=filters.database_of(options))
    filtered, ids = filters.is_filtered(options), set(options["ids"])
    if not filtered and not ids and not options["all"]:
        words = "Select jobs: give ids, a filter such as --queue, --name or --state, or --all."
        raise CommandError(words, returncode=output.WRONG)
    jobs = jobs.filter(replace(filters.search_of(options), by_ids=bool(ids)).where())
    # A filter selects only jobs that the action applies to: ended ones would count as skipped, by the million.
    jobs = jobs if ids or options["state"] is not None else jobs.filter(takes)
    jobs = jobs.filter(pk__in=ids) if ids else jobs
    unknown = len(ids) - jobs.count() if ids else 0
    return (jobs if options["limit"] is None else _first(jobs, options["limit"])), unknown


def _takes(verb: str, options: Options) -> Q:
    if verb == "unblock" and options["suspended"] is not None:  # the filter leaves no others
        return Q()
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
        sys.exit(output.SKIPPED)
