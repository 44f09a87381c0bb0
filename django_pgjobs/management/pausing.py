"""``manage.py pgjobs pause`` and ``resume``: for queues, and for jobs by name."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.management.base import BaseCommand

from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import QueueState
from django_pgjobs.queues import pauses
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import at_read_committed

HELP = {
    "pause": "Stop queues, or jobs by name, from starting; running jobs continue.",
    "resume": "Resume paused queues, or jobs by name.",
}


def add_subcommands(subcommands: object) -> None:
    """Declare ``pause`` and ``resume``."""
    for (verb, text), perform in zip(HELP.items(), (pause, resume), strict=True):
        parser = filters.declare(subcommands, verb, databases.on_each(perform, steers=True), text)
        filters.add_names(parser)
        if verb == "pause":
            parser.add_argument("--list", action="store_true", help="Only list the current pauses.")
            parser.add_argument("--reason", metavar="TEXT", default="", help="Why.")
            until = "When the pause ends by itself: 2030-01-31T03:00, in the project's time zone."
            filters.add_end_of_pause(parser, until)
        filters.add_author(parser)
        filters.add_output(parser)


def pause(command: BaseCommand, options: Options) -> None:
    """Pause, and print each pause and its end; an invalid name pauses nothing."""
    database = filters.database_of(options)
    found = list(pauses.current(database)) if options["list"] else _pause(options, database)
    output.answer(command, options, {"paused": [_as_json(state) for state in found]}, map(_line, found))
    if options["format"] == "json":
        return
    if not options["list"]:
        _warn_unknown(command, options["queues"])
    if not found:
        output.write_line(command, "Nothing is paused.")


def _pause(options: Options, database: str) -> list[QueueState]:
    until, by, reason = filters.end_of_pause(options), options["by"], options["reason"]
    words = {"by": by, "reason": reason, "until": until, "database": database}
    with output.refused(InvalidJob), at_read_committed(database):
        return [pauses.pause(kind, name, **words) for kind, name in filters.named(options)]


def _warn_unknown(command: BaseCommand, queues: Sequence[str]) -> None:
    """Warn of queues that no job of this process declares: another project's, or typos."""
    known = {definition.queue for definition in registry.definitions()}
    for queue in dict.fromkeys(queues):
        if queue not in known:
            hint = did_you_mean(queue, known)
            text = f"No job in this process declares queue {queue!r}{hint}; it is paused anyway."
            output.write_line(command, output.plain(text), to_stderr=True)


def _as_json(state: QueueState) -> dict[str, object]:
    shown = {key: getattr(state, key) for key in ("kind", "name", "reason", "paused_at", "until")}
    return {**shown, "by": state.paused_by}


def _line(state: QueueState) -> str:
    until = f"until {output.instant(state.until)}" if state.until else "until it is resumed"
    by = f" by {state.paused_by}" if state.paused_by else ""
    reason = f": {state.reason}" if state.reason else ""
    return output.plain(one_line(f"paused {state.kind} {state.name} {until}{by}{reason}"))


def resume(command: BaseCommand, options: Options) -> None:
    """Resume, and print what was paused; exit with 1 if something was not."""
    database, by = filters.database_of(options), options["by"]
    answers = [
        (kind, name, pauses.resume(kind, name, by=by, database=database)) for kind, name in filters.named(options)
    ]
    fields = [{"kind": kind, "name": name, "was_paused": was} for kind, name, was in answers]
    lines = (f"resumed {kind} {name}" if was else f"{kind} {name} was not paused" for kind, name, was in answers)
    output.answer(command, options, {"resumed": fields}, map(output.plain, lines))
    output.exit_if(not all(was for _, _, was in answers))
