"""``manage.py pgjobs crons``: list, next, run-now, pause, resume and stop; ``cron_rows`` has the other verbs."""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_pgjobs.exceptions import PgJobsError
from django_pgjobs.management import cron_rows, filters, output
from django_pgjobs.management.steer import instant, shell_user
from django_pgjobs.models import CronEntry, CronEntryQuerySet
from django_pgjobs.presentation.schedules import in_words
from django_pgjobs.steering.crons import JSON_COLUMNS, MOST_PREVIEWED

HELP = {
    "list": "Show cron entries, their status and their next fire.",
    "next": "Show when cron entries fire next.",
    "run-now": "Register a job of each cron entry now, without changing its schedule.",
    "pause": "Stop cron entries from firing until they are resumed; existing jobs still run.",
    "resume": "Resume paused cron entries.",
    "stop": "Pause cron entries and cancel their unfinished jobs.",
}

TEXT = "Show, run, pause, resume or stop cron entries; add, change or delete schedules."


def add_subcommands(subcommands: Any) -> None:
    """Declare ``crons`` and its verbs."""
    verbs = subcommands.add_parser("crons", help=TEXT, description=TEXT).add_subparsers(
        dest="verb", required=True, metavar="VERB"
    )
    performs = (show, preview, run_now, pause, resume, stop)
    for (verb, text), perform in zip(HELP.items(), performs, strict=True):
        parser = verbs.add_parser(verb, help=text, description=text)
        _add_arguments(parser, verb)
        parser.set_defaults(perform=perform)
    cron_rows.add_verbs(verbs)


def _add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    many = "*" if verb in ("list", "next") else "+"
    parser.add_argument("names", metavar="ENTRY", nargs=many, help="Names of cron entries.")
    if many == "*":
        text = "Entries whose names begin with this."
        parser.add_argument("--prefix", metavar="TEXT", default="", help=text)
    if verb == "next":
        parser.add_argument(
            "--count", metavar="N", type=filters.number, default=5, help="How many fires to show for each (default: 5)."
        )
    if verb in ("pause", "stop"):
        parser.add_argument("--reason", metavar="TEXT", default="", help="Why.")
    if verb == "pause":
        ends = parser.add_mutually_exclusive_group()
        ends.add_argument("--until", metavar="INSTANT", type=instant, help="When the pause ends by itself.")
        ends.add_argument(
            "--for", metavar="AGE", type=filters.age, dest="seconds", help="How long from now: 90s, 30m, 36h, 7d."
        )
    if many == "+":
        parser.add_argument("--by", metavar="TEXT", default=shell_user(), help="Who (default: the user of the shell).")
    output.add_format(parser)
    filters.add_database(parser)


def _chosen(options: dict[str, Any]) -> CronEntryQuerySet:
    """Return the named entries, or all. An unknown name is an error before any change."""
    entries = CronEntryQuerySet(CronEntry, using=filters.database_of(options)).order_by("pk").defer(*JSON_COLUMNS)
    if prefix := options.get("prefix"):
        entries = entries.filter(pk__startswith=prefix)
    names = set(options["names"])
    if not names:
        return entries
    found = entries.filter(pk__in=names)
    if missing := names - set(found.values_list("pk", flat=True)):
        words = ", ".join(output.plain(name) for name in sorted(missing))
        raise CommandError(f"There is no cron entry {words}.", returncode=output.SKIPPED)
    return found


@output.facing_the_database
def show(command: BaseCommand, options: dict[str, Any]) -> None:
    """List the entries; exit with 1 if one is broken or missing, so that the command serves as a probe."""
    entries = list(_chosen(options))
    if options["format"] == "json":
        output.write_line(command, output.json_of({"crons": [_as_json(entry) for entry in entries]}))
    else:
        headers = ("ENTRY", "STATUS", "EXPRESSION", "ZONE", "JOB", "LAST FIRE", "NEXT FIRE", "NOTE")
        for line in output.table(headers, map(_cells, entries)):
            output.write_line(command, line)
    if any(entry.status in ("broken", "missing") for entry in entries):
        sys.exit(output.SKIPPED)


def _cells(entry: CronEntry) -> tuple[str, ...]:
    upcoming = entry.next_fires(1)
    return (
        output.short(entry.pk, 60), entry.status, output.short(entry.effective_expression, 40),
        output.short(entry.effective_zone, 40), output.short(entry.job_name, 60), output.instant(entry.last_fire_at),
        output.instant(upcoming[0] if upcoming and entry.status == "on" else None), output.short(_note(entry), 120),
    )  # fmt: skip


def _note(entry: CronEntry) -> str:
    if entry.broken:
        return entry.broken
    if entry.status == "missing":
        return f"no code declares it since {output.instant(entry.missing_since)}"
    if not entry.enabled:
        return "it is off"
    if not entry.is_paused:
        return ""
    until = f" until {output.instant(entry.paused_until)}" if entry.paused_until else ""
    by = f" by {entry.paused_by}" if entry.paused_by else ""
    return f"paused{by}{until}" + (f": {entry.paused_reason}" if entry.paused_reason else "")


def _as_json(entry: CronEntry) -> dict[str, Any]:
    upcoming = entry.next_fires(1)
    return {
        "name": entry.pk,
        "status": entry.status,
        "origin": entry.origin,
        "job": entry.job_name,
        "expression": entry.effective_expression,
        "zone": entry.effective_zone,
        "words": in_words(entry.effective_expression, entry.effective_zone),
        "misfire": entry.misfire,
        "overlap": entry.overlap,
        "last_fire_at": entry.last_fire_at,
        "last_job": entry.last_job_id,
        "next_fire_at": upcoming[0] if upcoming and entry.status == "on" else None,
        "paused_by": entry.paused_by,
        "paused_reason": entry.paused_reason,
        "paused_until": entry.paused_until,
        "missing_since": entry.missing_since,
        "broken": entry.broken,
    }


@output.facing_the_database
def preview(command: BaseCommand, options: dict[str, Any]) -> None:
    """Show the next fires of entries; exit with 1 if one has none."""
    if options["count"] > MOST_PREVIEWED:
        raise CommandError(f"--count takes at most {MOST_PREVIEWED}.", returncode=output.WRONG)
    entries = list(_chosen(options))
    found = {entry.pk: entry.next_fires(options["count"]) for entry in entries}
    if options["format"] == "json":
        output.write_line(command, output.json_of({"next": found}))
    else:
        for line in output.table(("ENTRY", "FIRE"), _fires(found)):
            output.write_line(command, line)
        for entry in entries:
            if words := in_words(entry.effective_expression, entry.effective_zone):
                output.write_line(command, output.plain(f"{entry.pk}: {words}."))
    if not all(found.values()):
        sys.exit(output.SKIPPED)


def _fires(found: dict[str, list[Any]]) -> list[tuple[str, str]]:
    return [(output.short(name, 60), output.instant(fire)) for name, fires in found.items() for fire in fires or [None]]


@output.facing_the_database
def run_now(command: BaseCommand, options: dict[str, Any]) -> None:
    """Register a job of each entry; exit with 1 if one fails."""
    jobs: dict[str, int | None] = {}
    for entry in _chosen(options):
        try:
            jobs[entry.pk] = entry.run_now(by=options["by"]).pk
        except PgJobsError as error:
            jobs[entry.pk] = None
            output.write_line(command, output.plain(error), to_stderr=True)
    if options["format"] == "json":
        output.write_line(command, output.json_of({"jobs": jobs}))
    else:
        for name, job in jobs.items():
            output.write_line(command, output.plain(f"{name}: " + ("not run" if job is None else f"job {job}")))
    if None in jobs.values():
        sys.exit(output.SKIPPED)


@output.facing_the_database
def pause(command: BaseCommand, options: dict[str, Any]) -> None:
    """Pause entries, and print how many."""
    until = options["until"] if options["seconds"] is None else timedelta(seconds=options["seconds"])
    try:
        changed = _chosen(options).pause(by=options["by"], reason=options["reason"], until=until)
    except PgJobsError as error:
        raise CommandError(str(error), returncode=output.WRONG) from None
    _write_changed(command, options, "paused", changed)


@output.facing_the_database
def resume(command: BaseCommand, options: dict[str, Any]) -> None:
    """Resume entries, and print how many were paused; exit with 1 if one was not."""
    chosen = _chosen(options)
    chosen_names, paused = (list(entries.values_list("pk", flat=True)) for entries in (chosen, chosen.paused()))
    changed = chosen.resume(by=options["by"])
    _write_changed(command, options, "resumed", changed)
    for name in chosen_names:
        if name not in paused:
            output.write_line(command, output.plain(f"{name} was not paused"), to_stderr=True)
    if changed < len(chosen_names):
        sys.exit(output.SKIPPED)


@output.facing_the_database
def stop(command: BaseCommand, options: dict[str, Any]) -> None:
    """Pause entries and cancel their jobs; print both counts; exit with 1 if a job was not cancelled."""
    chosen = _chosen(options)
    number = chosen.count()
    steered = chosen.stop(by=options["by"], reason=options["reason"])
    if options["format"] == "json":
        answer = {"stopped": number, "cancelled": steered.changed, "skipped": steered.skipped}
        output.write_line(command, output.json_of(answer))
    else:
        jobs = f"{steered.changed} {'job' if steered.changed == 1 else 'jobs'} cancelled"
        output.write_line(command, f"{_entries(number)} stopped, {jobs}")
        output.write_skipped(command, steered.skipped)
    if steered.skipped:
        sys.exit(output.SKIPPED)


def _write_changed(command: BaseCommand, options: dict[str, Any], what: str, changed: int) -> None:
    if options["format"] == "json":
        output.write_line(command, output.json_of({what: changed}))
    else:
        output.write_line(command, f"{_entries(changed)} {what}")


def _entries(number: int) -> str:
    return f"{number} cron {'entry' if number == 1 else 'entries'}"
