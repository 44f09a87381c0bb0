"""``manage.py pgjobs adopt``: decide what becomes of the jobs of a copied database."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandError

from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.management.steer import confirm
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.steering import adopting

HELP = {
    "run": "Run its jobs and schedules: the database has moved here, and the other one is served no more.",
    "park": "Hold its jobs until they are retried, and pause its schedules.",
    "cancel": "End its jobs as cancelled, without callbacks and undo, and pause its schedules.",
}


def add_subcommands(subcommands: object) -> None:
    """Declare ``adopt``."""
    text = "Decide what becomes of the jobs of a copied database; without an option, say whether it is one."
    parser = filters.declare(subcommands, "adopt", databases.on_one(adopt, steers=True), text)
    fates = parser.add_mutually_exclusive_group()
    for fate, words in HELP.items():
        fates.add_argument(f"--{fate}", dest="fate", action="store_const", const=fate, help=words)
    parser.add_argument("--reason", metavar="TEXT", default="", help="Why; kept with the jobs and in the log.")
    filters.add_author(parser)
    filters.add_output(parser)
    filters.add_yes(parser, "Do not ask for confirmation.")


def adopt(command: BaseCommand, options: Options) -> None:
    """Adopt the database, or say whether it is to be; exit with 1 if it is and no fate was given, or it is no copy."""
    using, fate = filters.database_of(options), options["fate"]
    environment = get_conf().environment
    refusal = adopting.refusal(using, environment)
    jobs, crons = Job.objects.using(using).filter(finished_at=None), CronEntry.objects.using(using)
    firing = crons.exclude(paused_at__isnull=False, paused_until=None)  # a pause with an end is none in a copy
    if not refusal:
        lines = ["This database is not the copy of another one: its jobs are run."]
        output.answer(command, options, {"copied": False, "fate": None, "jobs": 0, "schedules": 0}, lines)
        output.exit_if(bool(fate))
        return
    if fate is None:
        fields = {"copied": True, "fate": None, "jobs": jobs.count(), "schedules": firing.count()}
        found = f"{fields['jobs']} unfinished jobs and {fields['schedules']} schedules that fire"
        lines = [refusal, f"It has {found}. Decide with one of:"]
        lines += [f"  --{each}: {words}" for each, words in HELP.items()]
        output.answer(command, options, fields, lines)
        output.exit_if(True)
    if not options["yes"]:
        if options["format"] == "json":
            raise CommandError("--format json cannot ask for confirmation: add --yes.", returncode=output.WRONG)
        confirm(command, f"{refusal.partition(':')[0]}. {fate.capitalize()} its {jobs.count()} unfinished jobs?")
    try:
        done = adopting.adopt(jobs, firing, environment, fate, by=options["by"], reason=options["reason"])
    except InvalidJob as error:
        raise CommandError(str(error)) from None
    if done is None:
        raise CommandError("Another process has just declared this database. Look again: manage.py pgjobs adopt")
    words = {"run": "are run", "park": "are parked", "cancel": "are cancelled"}[fate]
    fields = {"copied": True, "fate": fate, "jobs": done.jobs, "schedules": done.schedules}
    output.answer(
        command, options, fields, [f"adopt: {done.jobs} jobs {words}, {done.schedules} schedules were paused."]
    )
