"""``manage.py pgjobs crons add``, ``change`` and ``delete``: schedules for jobs that code exposes to people."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from django.core.management.base import BaseCommand, CommandError
from django.db.models import QuerySet

from django_pgjobs.exceptions import InvalidJob, UnreadablePayload
from django_pgjobs.management import filters, output
from django_pgjobs.management.steer import instant, shell_user
from django_pgjobs.models import CronEntry, CronEntryQuerySet
from django_pgjobs.presentation.schedules import in_words
from django_pgjobs.schedules import Reading, ScheduleOptions, read_back, schedulable
from django_pgjobs.serialization.payload import decode_payload
from django_pgjobs.store.transactions import at_read_committed

HELP = {
    "add": "Make a schedule for a job that is declared with schedulable=True.",
    "change": "Change a schedule made at run time; what you do not name stays.",
    "delete": "Delete schedules made at run time, and entries that no code declares any more.",
}

PREVIEWED = 3
"""Number of fires to show of what was written."""

CLEARED = "none"
"""The word that clears an option."""

TIMING = ("tz", "misfire", "misfire_limit", "overlap", "start", "end", "max_fires", "enabled")
OPTIONS = ("queue", "priority", "max_attempts")


def add_verbs(verbs: Any) -> None:
    """Declare the verbs."""
    for verb, perform in (("add", add), ("change", change), ("delete", delete)):
        parser = verbs.add_parser(verb, help=HELP[verb], description=HELP[verb])
        many = {"nargs": "+"} if verb == "delete" else {}
        parser.add_argument("names" if many else "name", metavar="ENTRY", help="Names of cron entries.", **many)
        if verb != "delete":
            _add_schedule(parser, verb)
        parser.add_argument("--reason", metavar="TEXT", default="", help="Why.")
        parser.add_argument("--by", metavar="TEXT", default=shell_user(), help="Who (default: the user of the shell).")
        output.add_format(parser)
        filters.add_database(parser)
        parser.set_defaults(perform=perform)


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
    for option, text in (("--start", "The first instant at which it may fire"), ("--end", "The last one")):
        parser.add_argument(option, metavar="INSTANT", type=_clearable(instant), help=f"{text}; none for no bound.")
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


def _clearable(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: CLEARED if text == CLEARED else read(text)


def _json(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, kind):
            what = "list, such as [7]" if kind is list else 'object, such as {"tenant_id": 7}'
            raise argparse.ArgumentTypeError(f"must be a JSON {what}, not {text!r}")
        return found

    return read


@output.facing_the_database
def add(command: BaseCommand, options: dict[str, Any]) -> None:
    """Make a schedule; an entry that has its name is an error."""
    with at_read_committed(filters.database_of(options)), _sentences():
        _refuse(_named(options).exists(), options)
        blank = Reading(schedulable(options["job"]), {}, "", ScheduleOptions(name=options["name"]), [], {})
        entry = _written(options, blank)
        _refuse(entry.written != "created", options)  # another session made it in between
    _show(command, options, entry)


@output.facing_the_database
def change(command: BaseCommand, options: dict[str, Any]) -> None:
    """Change what the options name; another user's change comes before or after it."""
    with at_read_committed(filters.database_of(options)), _sentences():
        entry = _named(options).select_for_update(no_key=True).first()
        if entry is None:
            raise CommandError(f"There is no cron entry {output.plain(options['name'])}.", returncode=output.SKIPPED)
        entry = _written(options, read_back(entry))
    _show(command, options, entry)


@output.facing_the_database
def delete(command: BaseCommand, options: dict[str, Any]) -> None:
    """Delete schedules; if code declares one of them, delete none."""
    names = set(options["names"])
    chosen = CronEntryQuerySet(CronEntry, using=filters.database_of(options)).filter(pk__in=names)
    if missing := names - set(chosen.values_list("pk", flat=True)):
        words = ", ".join(output.plain(name) for name in sorted(missing))
        raise CommandError(f"There is no cron entry {words}.", returncode=output.SKIPPED)
    with _sentences():
        deleted = chosen.remove(by=options["by"], reason=options["reason"])
    if options["format"] == "json":
        output.write_line(command, output.json_of({"deleted": deleted}))
    else:
        output.write_line(command, f"{deleted} cron {'entry' if deleted == 1 else 'entries'} deleted")


def _named(options: dict[str, Any]) -> QuerySet[CronEntry]:
    return CronEntryQuerySet(CronEntry, using=filters.database_of(options)).filter(pk=options["name"])


def _refuse(taken: bool, options: dict[str, Any]) -> None:
    if taken:
        words = f"There is a cron entry {output.plain(options['name'])}: change it, or choose another name."
        raise CommandError(words, returncode=output.WRONG)


@contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except (InvalidJob, UnreadablePayload, TypeError) as error:
        raise CommandError(output.plain(error), returncode=output.WRONG) from None


def _written(options: dict[str, Any], reading: Reading) -> CronEntry:
    given = {name: None if options[name] == CLEARED else options[name] for name in TIMING if options[name] is not None}
    if given.get("misfire", "all") != "all":
        given.setdefault("misfire_limit", None)
    timing = cast("ScheduleOptions", {**reading.timing, **given, "by": options["by"], "reason": options["reason"]})
    expression = options["expression"] or reading.expression or None
    length, _, anchor = (reading.expression or "").partition(" from ")
    if options["every"] is not None:
        expression, timing["every"] = None, options["every"]
        if anchor and " from " not in options["every"]:
            timing["anchor"] = anchor
    if options["anchor"] is not None:
        timing["anchor"] = options["anchor"]
        expression = length if expression == reading.expression else expression
    parts = {part: given for part in ("args", "kwargs") if (given := options[f"call_{part}"]) is not None}
    args, kwargs = decode_payload(json.dumps(parts))
    changed = reading._replace(
        options={
            **reading.options,
            **{name: options[name] for name in OPTIONS if options[name] is not None},
            "database": filters.database_of(options),
        },
        expression=expression,
        timing=timing,
        args=args if "args" in parts else reading.args,
        kwargs=kwargs if "kwargs" in parts else reading.kwargs,
    )
    return changed.write()


def _show(command: BaseCommand, options: dict[str, Any], entry: CronEntry) -> None:
    fires = entry.next_fires(PREVIEWED)
    if options["format"] == "json":
        answer = {"name": entry.pk, "written": entry.written, "status": entry.status, "next": fires}
        output.write_line(command, output.json_of(answer))
        return
    output.write_line(command, output.plain(f"{entry.pk}: {entry.written}"))
    if words := in_words(entry.effective_expression, entry.effective_zone):
        output.write_line(command, output.plain(f"{words}."))
    for fire in fires:
        output.write_line(command, f"  {output.instant(fire)}")
