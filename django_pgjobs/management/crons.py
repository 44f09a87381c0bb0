"""``manage.py pgjobs crons``: look at cron entries, run, pause and stop them; and make schedules at run time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.exceptions import InvalidJob, PgJobsError, UnreadablePayload
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import CronEntry, CronEntryQuerySet
from django_pgjobs.presentation.schedules import in_each_database, meaning, next_fire
from django_pgjobs.schedules import Reading, ScheduleOptions, read_back, schedulable
from django_pgjobs.serialization.payload import decode_payload
from django_pgjobs.steering.crons import JSON_COLUMNS, MOST_PREVIEWED
from django_pgjobs.store.database import at_read_committed
from django_pgjobs.values.zones import InvalidCron, check_zone

HELP = {
    "list": "Show cron entries, their status and their next fire.",
    "next": "Show when cron entries fire next.",
    "run-now": "Register a job of each cron entry now, without changing its schedule.",
    "pause": "Stop cron entries from firing until they are resumed; existing jobs still run.",
    "resume": "Resume paused cron entries.",
    "stop": "Pause cron entries and cancel their unfinished jobs.",
    "add": "Make a schedule for a job that is declared with schedulable=True.",
    "change": "Change a schedule made at run time; what you do not name stays.",
    "delete": "Delete schedules made at run time, and entries that no code declares any more.",
}

PREVIEWED = 3
"""Number of fires to show of what was written."""

MOST_MEANT = 1000
"""Number of entries among which to look for the one that was meant."""

CLEARED = "none"
"""The word that clears an option."""

TIMING = ("tz", "misfire", "misfire_limit", "overlap", "start", "end", "max_fires", "enabled")
OPTIONS = ("queue", "priority", "max_attempts")

TEXT = "Show, run, pause, resume or stop cron entries; add, change or delete schedules."


def add_subcommands(subcommands: argparse._SubParsersAction[CommandParser]) -> None:
    """Declare ``crons`` and its verbs."""
    verbs = subcommands.add_parser("crons", help=TEXT, description=TEXT).add_subparsers(
        dest="verb", required=True, metavar="VERB"
    )
    performs = (show, preview, run_now, pause, resume, stop, add, change, delete)
    for (verb, text), perform in zip(HELP.items(), performs, strict=True):
        reads = verb in ("list", "next")
        located = databases.on_each(perform, named=_present) if reads else databases.on_one(perform, steers=True)
        parser = filters.declare(verbs, verb, located, text)
        _add_arguments(parser, verb)
        filters.add_output(parser)


def _add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    of_rows = verb in ("add", "change")
    many: dict[str, Any] = {} if of_rows else {"nargs": "*" if verb in ("list", "next") else "+"}
    parser.add_argument("names" if many else "name", metavar="ENTRY", help="Names of cron entries.", **many)
    if verb in ("list", "next"):
        text = "Entries whose names begin with this."
        parser.add_argument("--prefix", metavar="TEXT", default="", help=text)
    if verb == "next":
        text = "How many fires to show for each (default: 5)."
        parser.add_argument("--count", metavar="N", type=filters.number, default=5, help=text)
    if of_rows:
        _add_schedule(parser, verb)
    if of_rows or verb in ("pause", "stop", "delete"):
        parser.add_argument("--reason", metavar="TEXT", default="", help="Why.")
    if verb == "pause":
        filters.add_end_of_pause(parser, "When the pause ends by itself.")
    if verb not in ("list", "next"):
        filters.add_author(parser)


def _add_schedule(parser: argparse.ArgumentParser, verb: str) -> None:
    whens = parser.add_mutually_exclusive_group(required=verb == "add")
    example = '"0 7 * * 1", or "every 2 weeks from 2026-01-05 07:00"'
    whens.add_argument("--expression", metavar="TEXT", help=f"When: {example}.")
    whens.add_argument("--every", metavar="TEXT", help='When: an interval such as "45 minutes".')
    text = 'A local time that fixes the phase of --every: "2026-01-05 07:00".'
    parser.add_argument("--anchor", metavar="TEXT", help=text)
    parser.add_argument("--tz", metavar="ZONE", help="The IANA time zone (default: the project's).")
    if verb == "add":
        parser.add_argument("--job", metavar="NAME", required=True, help="The name of the job.")
    # Not "args": Django takes that name for the positional arguments of a command.
    parser.add_argument(
        "--args", dest="call_args", metavar="JSON", type=_json(list), help="Positional arguments: a JSON list."
    )
    parser.add_argument(
        "--kwargs", dest="call_kwargs", metavar="JSON", type=_json(dict), help="Keyword arguments: a JSON object."
    )
    parser.add_argument("--queue", metavar="NAME", help="The queue of its jobs (default: the job's).")
    parser.add_argument("--priority", metavar="N", type=_whole, help="The priority of its jobs (default: the job's).")
    parser.add_argument("--max-attempts", metavar="N", type=_whole, help="Attempts of its jobs (default: the job's).")
    parser.add_argument("--misfire", choices=["once", "skip", "all"], help="How to treat missed fires.")
    parser.add_argument(
        "--misfire-limit", metavar="N", type=_whole, help="How many to make up for, with --misfire all."
    )
    overlaps = ["allow", "skip", "after_completion"]
    parser.add_argument("--overlap", choices=overlaps, help="How a fire acts while a job of the entry is unfinished.")
    instant = _clearable(filters.instant)
    for option, text in (("--start", "The first instant at which it may fire"), ("--end", "The last one")):
        parser.add_argument(option, metavar="INSTANT", type=instant, help=f"{text}; none for no bound.")
    text = "How many fires it makes at most; none for no bound."
    parser.add_argument("--max-fires", metavar="N", type=_clearable(_whole), help=text)
    enabled = parser.add_mutually_exclusive_group()
    enabled.add_argument("--enabled", action="store_true", default=None, help="Let it fire.")
    enabled.add_argument("--disabled", action="store_false", dest="enabled", help="Keep it from firing.")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _clearable(read: Callable[[str], object]) -> Callable[[str], object]:
    return lambda text: CLEARED if text == CLEARED else read(text)


def _json(kind: type) -> Callable[[str], object]:
    def read(text: str) -> object:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, kind):
            what = "list, such as [7]" if kind is list else 'object, such as {"tenant_id": 7}'
            raise argparse.ArgumentTypeError(f"must be a JSON {what}, not {text!r}")
        return found

    return read


def _present(options: Options) -> set[str]:
    """Return those of the named entries that are in this database."""
    entries = CronEntryQuerySet(CronEntry, using=filters.database_of(options))
    return set(entries.filter(pk__in=options["names"]).values_list("pk", flat=True))


def _chosen(options: Options) -> CronEntryQuerySet:
    """Return the named entries, or all. A name that no database has is an error before any change."""
    entries = CronEntryQuerySet(CronEntry, using=filters.database_of(options)).order_by("pk").defer(*JSON_COLUMNS)
    entries = entries.annotate(in_each=in_each_database())
    if prefix := options.get("prefix"):
        entries = entries.filter(pk__startswith=prefix)
    names = set(options["names"])
    if not names:
        return entries
    found = entries.filter(pk__in=names)
    if missing := names - set(found.values_list("pk", flat=True)) - options.get("elsewhere", set()):
        known = entries.values_list("pk", flat=True)[:MOST_MEANT]
        words = ", ".join(f"{name}{did_you_mean(name, known)}" for name in sorted(missing))
        raise CommandError(output.plain(f"There is no cron entry {words}."), returncode=output.SKIPPED)
    return found


def show(command: BaseCommand, options: Options) -> None:
    """List the entries; exit with 1 if one is broken or missing, so that the command serves as a probe."""
    entries = list(_chosen(options))
    headers = ("ENTRY", "STATUS", "EXPRESSION", "ZONE", "JOB", "LAST FIRE", "NEXT FIRE", "NOTE")
    fields = {"crons": [_as_json(entry) for entry in entries]}
    output.answer(command, options, fields, output.table(headers, map(_cells, entries)))
    output.exit_if(any(entry.status in ("broken", "missing") for entry in entries))


def _cells(entry: CronEntry) -> tuple[str, ...]:
    return (
        output.short(entry.pk, 60), entry.status, output.short(entry.effective_expression, 40),
        output.short(entry.effective_zone, 40), output.short(entry.job_name, 60), _fire(entry, entry.last_fire_at),
        _fire(entry, next_fire(entry)), output.short(_note(entry), 120),
    )  # fmt: skip


def _fire(entry: CronEntry, instant: datetime | None) -> str:
    """Return an instant on the clocks of the entry's zone, with their offset; on ours if there is no such zone."""
    try:
        zone = check_zone(entry.effective_zone)
    except InvalidCron:
        return output.instant(instant)
    return "-" if instant is None else instant.astimezone(zone).isoformat(" ", "seconds")


def _note(entry: CronEntry) -> str:
    notes = [_trouble(entry), f"this is the one of {entry._state.db}" if getattr(entry, "in_each", False) else ""]
    return "; ".join(filter(None, notes))


def _trouble(entry: CronEntry) -> str:
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


def _as_json(entry: CronEntry) -> dict[str, object]:
    own = ("paused_by", "paused_reason", "paused_until", "missing_since", "broken")
    return {
        "name": entry.pk,
        "status": entry.status,
        "origin": entry.origin,
        "each_database": getattr(entry, "in_each", False),
        "job": entry.job_name,
        "expression": entry.effective_expression,
        "zone": entry.effective_zone,
        "words": meaning(entry),
        "misfire": entry.misfire,
        "overlap": entry.overlap,
        "last_fire_at": entry.last_fire_at,
        "last_job": entry.last_job_id,
        "next_fire_at": next_fire(entry),
        **{name: getattr(entry, name) for name in own},
    }


def preview(command: BaseCommand, options: Options) -> None:
    """Show the next fires of entries; exit with 1 if one has none."""
    if options["count"] > MOST_PREVIEWED:
        raise CommandError(f"--count takes at most {MOST_PREVIEWED}.", returncode=output.WRONG)
    entries = list(_chosen(options))
    found = {entry.pk: entry.next_fires(options["count"]) for entry in entries}
    output.answer(command, options, {"next": found}, _lines_of_fires(entries, found))
    output.exit_if(not all(found.values()))


def _lines_of_fires(entries: list[CronEntry], found: Mapping[str, Sequence[datetime | None]]) -> Iterator[str]:
    rows = ((output.short(each.pk, 60), _fire(each, fire)) for each in entries for fire in found[each.pk] or [None])
    yield from output.table(("ENTRY", "FIRE"), rows)
    for entry in entries:
        if words := meaning(entry):
            yield output.plain(f"{entry.pk}: {words}.")


def run_now(command: BaseCommand, options: Options) -> None:
    """Register a job of each entry; exit with 1 if one fails."""
    jobs: dict[str, int | None] = {}
    for entry in _chosen(options):
        try:
            jobs[entry.pk] = entry.run_now(by=options["by"]).pk
        except PgJobsError as error:
            jobs[entry.pk] = None
            output.write_line(command, output.plain(error), to_stderr=True)
    lines = (f"{name}: " + ("not run" if job is None else f"job {output.ref(job, '')}") for name, job in jobs.items())
    output.answer(command, options, {"jobs": jobs}, map(output.plain, lines))
    output.exit_if(None in jobs.values())


def pause(command: BaseCommand, options: Options) -> None:
    """Pause entries, and print how many."""
    until = filters.end_of_pause(options)
    with output.refused(PgJobsError):
        changed = _chosen(options).pause(by=options["by"], reason=options["reason"], until=until)
    output.answer(command, options, {"paused": changed}, [f"{_entries(changed)} paused"])


def resume(command: BaseCommand, options: Options) -> None:
    """Resume entries, and print how many were paused; exit with 1 if one was not."""
    chosen = _chosen(options)
    chosen_names, paused = (list(entries.values_list("pk", flat=True)) for entries in (chosen, chosen.paused()))
    changed = chosen.resume(by=options["by"])
    output.answer(command, options, {"resumed": changed}, [f"{_entries(changed)} resumed"])
    for name in chosen_names:
        if name not in paused:
            output.write_line(command, output.plain(f"{name} was not paused"), to_stderr=True)
    output.exit_if(changed < len(chosen_names))


def stop(command: BaseCommand, options: Options) -> None:
    """Pause entries and cancel their jobs; print both counts; exit with 1 if a job was not cancelled."""
    chosen = _chosen(options)
    number = chosen.count()
    steered = chosen.stop(by=options["by"], reason=options["reason"])
    fields = {"stopped": number, "cancelled": steered.changed, "skipped": steered.skipped}
    jobs = f"{steered.changed} {'job' if steered.changed == 1 else 'jobs'} cancelled"
    lines = [f"{_entries(number)} stopped, {jobs}", *output.skipped_lines(steered.skipped)]
    output.answer(command, options, fields, lines)
    output.exit_if(steered.skipped)


def _entries(number: int) -> str:
    return f"{number} cron {'entry' if number == 1 else 'entries'}"


# Schedules made at run time


def add(command: BaseCommand, options: Options) -> None:
    """Make a schedule; an entry that has its name is an error."""
    with at_read_committed(filters.database_of(options)), output.refused(InvalidJob, UnreadablePayload, TypeError):
        _refuse(_named(options).exists(), options)
        blank = Reading(schedulable(options["job"]), {}, "", ScheduleOptions(name=options["name"]), [], {})
        entry = _written(options, blank)
        _refuse(entry.written != "created", options)  # another session made it in between
    _show(command, options, entry)


def change(command: BaseCommand, options: Options) -> None:
    """Change what the options name; another user's change comes before or after it."""
    with at_read_committed(filters.database_of(options)), output.refused(InvalidJob, UnreadablePayload, TypeError):
        entry = _named(options).select_for_update(no_key=True).first()
        if entry is None:
            raise CommandError(f"There is no cron entry {output.plain(options['name'])}.", returncode=output.SKIPPED)
        entry = _written(options, read_back(entry))
    _show(command, options, entry)


def delete(command: BaseCommand, options: Options) -> None:
    """Delete schedules; if code declares one of them, delete none."""
    with output.refused(InvalidJob, UnreadablePayload, TypeError):
        deleted = _chosen(options).remove(by=options["by"], reason=options["reason"])
    output.answer(command, options, {"deleted": deleted}, [f"{_entries(deleted)} deleted"])


def _named(options: Options) -> CronEntryQuerySet:
    return CronEntryQuerySet(CronEntry, using=filters.database_of(options)).filter(pk=options["name"])


def _refuse(taken: bool, options: Options) -> None:
    if taken:
        words = f"There is a cron entry {output.plain(options['name'])}: change it, or choose another name."
        raise CommandError(words, returncode=output.WRONG)


def _written(options: Options, reading: Reading) -> CronEntry:
    timing = {name: None if options[name] == CLEARED else options[name] for name in TIMING if options[name] is not None}
    timing |= {"by": options["by"], "reason": options["reason"]}
    expression = options["expression"] or reading.expression or None
    length, _, anchor = (reading.expression or "").partition(" from ")
    if options["every"] is not None:
        expression, timing["every"] = None, options["every"]
        if anchor and " from " not in options["every"]:
            timing["anchor"] = anchor
    if options["anchor"] is not None:
        timing["anchor"] = options["anchor"]
        expression = length if expression == reading.expression else expression
    given = {part: found for part in ("args", "kwargs") if (found := options[f"call_{part}"]) is not None}
    parts = dict(zip(("args", "kwargs"), decode_payload(json.dumps(given)), strict=True))
    own = {name: options[name] for name in OPTIONS if options[name] is not None}
    own["database"] = filters.database_of(options)
    return reading.changed(timing, own, expression=expression, **{part: parts[part] for part in given}).write()


def _show(command: BaseCommand, options: Options, entry: CronEntry) -> None:
    fires = entry.next_fires(PREVIEWED)
    fields = {"name": entry.pk, "written": entry.written, "status": entry.status, "next": fires}
    words = meaning(entry)
    lines = [f"{entry.pk}: {entry.written}", *([f"{words}."] if words else [])]
    lines += [f"  {_fire(entry, fire)}" for fire in fires]
    output.answer(command, options, fields, map(output.plain, lines))
