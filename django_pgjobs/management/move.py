"""``manage.py pgjobs move``: move waiting jobs to another database."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.management.steer import UNFINISHED, add_common, chosen, confirm
from django_pgjobs.steering import moving
from django_pgjobs.steering.batching import Steered
from django_pgjobs.steering.trail import recorded_as


def add_subcommands(subcommands: object) -> None:
    """Declare ``move``."""
    text = "Move waiting jobs to another database, each once. After an error, run the same command again."
    parser = filters.declare(subcommands, "move", databases.on_one(move, steers=True), text)
    filters.add_filters(parser)
    parser.add_argument("--from", dest="database", metavar="ALIAS", required=True, help="The database of the jobs.")
    parser.add_argument("--to", metavar="ALIAS", required=True, help="The database to move them to.")
    text = "How long to wait for running jobs to become ready again: 90s, 30m (default: they are skipped)."
    parser.add_argument("--wait", metavar="AGE", type=filters.age, default=0, help=text)
    parser.add_argument("--dry-run", action="store_true", help="Count the jobs, but move none.")
    add_common(parser)


def move(command: BaseCommand, options: Options) -> None:
    """Move the jobs; print former and new id of each, and why others stayed; exit with 1 if any did."""
    jobs, unknown = chosen(options, UNFINISHED)
    as_json, dry_run = options["format"] == "json", options["dry_run"]
    if not dry_run and not options["yes"] and (count := jobs.count()) > 1:
        if as_json:
            words = f"--format json cannot ask for confirmation: add --yes to move {count} jobs."
            raise CommandError(words, returncode=output.WRONG)
        confirm(command, f"Move {count} jobs from {options['database']} to {options['to']}?")
    ids: list[tuple[int, int]] = []

    def report(pairs: Sequence[tuple[int, int]]) -> None:
        if as_json:
            ids.extend(pairs)
        for former, new in () if as_json else pairs:
            output.write_line(command, f"  {former} -> {new}")

    given = {name: options[name] for name in ("to", "wait", "dry_run", "by", "reason")}
    try:
        with output.refused(InvalidJob), recorded_as(filter_words=filters.filter_words(options)):
            done = moving.move(jobs, jobs.db, report=report, **given)
    except (DatabaseError, psycopg.Error) as error:
        words = "The move is not complete: run the same command again."
        raise CommandError(f"{output.words_of(error)}\n{words}") from error
    done += Steered(0, {"unknown": unknown} if unknown else {})
    head = f"move: {done.changed} {'would move' if dry_run else 'moved'}, {sum(done.skipped.values())} skipped"
    fields = {"dry_run": dry_run, "moved": done.changed, "skipped": done.skipped, "ids": ids}
    output.answer(command, options, fields, [head, *output.skipped_lines(done.skipped)])
    output.exit_if(done.skipped)
