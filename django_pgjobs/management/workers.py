"""``manage.py pgjobs workers``: the workers, their last heartbeats, and which are silent or lost; and what to ask them.

A request goes into one row of a worker, and holds for the whole worker: of several databases, it is that of the first
in which it is alive.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from django_pgjobs.inspection.liveness import LIVE
from django_pgjobs.inspection.words import span
from django_pgjobs.management import databases, filters, output, watching
from django_pgjobs.management.output import Options
from django_pgjobs.presentation.fleet import listed_workers, named_workers, workers_of
from django_pgjobs.steering import workers as steering

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import WorkerRow

HEADERS = ("NAME", "STATUS", "BEAT", "QUEUES", "JOBS", "SLOTS", "FINISHED", "HOST", "PID", "RELEASE", "STARTED")

COLUMNS = (
    "id", "name", "status", "host", "pid", "queues", "excluded_queues", "processes", "threads", "async_slots", "places",
    "running", "finished", "version", "release", "started_at", "last_beat_at", "deaths", "died_at", "death",
    "suspects", "suspects_since", "control", "control_by", "control_reason", "controlled_at", "taken_at",
)  # fmt: skip
"""The columns of a worker; their order is that of the JSON fields."""

HELP = {
    "quiet": "Ask workers to claim nothing more; their jobs run to the end.",
    "resume": "Ask quiet workers to claim again.",
    "drain": "Ask workers to drain and to exit, as after SIGTERM.",
    "recycle": "Ask workers to replace their executors one after the other, each successor first.",
}


def add_subcommands(subcommands: object) -> None:
    """Declare ``workers``."""
    text = "Show the workers: last heartbeats, queues, and numbers of jobs."
    parser = filters.declare(subcommands, "workers", show_workers, text)
    parser.add_argument("--queue", metavar="NAME", help="Only workers that serve this queue.")
    parser.add_argument("--all", action="store_true", help="Include workers that stopped within a day.")
    watching.add_watch(parser)
    filters.add_output(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for verb, text in HELP.items():
        steers = filters.declare(verbs, verb, partial(ask, verb), text)
        steers.add_argument("names", metavar="WORKER", nargs="*", help="Names or ids of workers.")
        steers.add_argument("--all", action="store_true", dest="everyone", help="All workers that are alive.")
        steers.add_argument("--reason", metavar="TEXT", default="", help="Why.")
        filters.add_author(steers)
        filters.add_output(steers)
        for action in steers._actions:
            if action.dest in ("format", "database"):
                action.default = argparse.SUPPRESS  # what stands before the verb holds, too


def show_workers(command: BaseCommand, options: Options) -> None:
    """Print the workers, latest heartbeat first."""
    queues = None if options["queue"] is None else [options["queue"]]

    def found(alias: str) -> list[WorkerRow]:
        return workers_of(alias, queues, everyone=options["all"])

    def fields(alias: str) -> list[dict[str, object]]:
        return [output.located(_fields_of(worker)) for worker in found(alias)]

    if options["format"] == "json":
        replies = databases.asked(databases.aliases_of(options), fields)
        output.write_line(command, output.json_of([each for reply in replies for each in reply.answer or ()]))
        output.exit_if(databases.complain(command, replies))
    else:
        draw: watching.Draw = lambda alias: output.table(HEADERS, map(_cells, found(alias)))  # noqa: E731
        watching.watch(command, options, options["watch"], draw)


def ask(verb: str, command: BaseCommand, options: Options) -> None:
    """Ask workers for something, and say who was asked; exit with 1 if one was not, but for ``--all`` if it drains."""
    names = options["names"]
    if options["queue"] is not None or options["all"] or options["watch"] is not None:
        raise CommandError(
            "Before the verb, --queue, --all and --watch only list: name workers.", returncode=output.WRONG
        )
    if bool(names) == options["everyone"]:
        raise CommandError("Name workers, or give --all.", returncode=output.WRONG)

    def find(alias: str) -> list[tuple[UUID, str]]:
        return (
            list(listed_workers(alias).filter(status__in=LIVE).values_list("pk", "name"))
            if options["everyone"]
            else named_workers(alias, names)
        )

    replies = databases.asked(databases.aliases_of(options), find)
    unknown, lines, fields = set(names), [], []
    asked: set[UUID] = set()
    refused: dict[UUID, tuple[dict[str, object], str]] = {}  # a row in another database may have it asked
    for reply in replies:
        here = [(key, name) for key, name in reply.answer or () if key not in asked]
        unknown -= {name for _, name in here} | {text for text in names for key, _ in here if _is(text, key)}
        with output.shown_at(databases.shown(reply.alias)):
            for each in steering.ask(
                reply.alias, [key for key, _ in here], verb, by=options["by"], reason=options["reason"]
            ):
                field = output.located({"id": each.id, "name": each.name, "status": each.status, "asked": each.was})
                if each.was:
                    asked.add(each.id)
                    refused.pop(each.id, None)
                    fields.append(field)
                    lines.append(f"{each.name} is asked, and takes it up at its next heartbeat")
                else:
                    age = span(each.beat_age_seconds)
                    state = "draining already" if each.status == "draining" else each.status
                    gone = f"{each.name} is {state}, last heard from {age} ago: it was not asked"
                    refused.setdefault(each.id, (field, gone))
    fields += [field for field, _ in refused.values()]
    lines += [line for _, line in refused.values()]
    lines += [f"There is no worker {name!r}." for name in sorted(unknown)]
    answer = {"verb": verb, "workers": fields, "unknown": sorted(unknown)}
    output.answer(command, options, answer, map(output.plain, lines))
    troubled = databases.complain(command, replies)
    # Nothing is left to ask of one that drains: only who has named it expected something else.
    done = all(each["asked"] or (options["everyone"] and each["status"] == "draining") for each in fields)
    output.exit_if(troubled or unknown or not done)


def _is(text: str, key: object) -> bool:
    return text.replace("-", "").lower() == str(key).replace("-", "")


def _fields_of(worker: WorkerRow) -> dict[str, object]:
    fields = {column: getattr(worker, column) for column in COLUMNS}
    return {**fields, "leads": worker.leads, "beat_age_seconds": worker.beat_age.total_seconds()}


def _cells(worker: WorkerRow) -> tuple[str, ...]:
    named, excluded = worker.served
    places = worker.slots_of_queues
    served = "all" if named is None else ",".join(named)
    without = "".join(f",-{name}" for name in excluded) + "".join(f",{name}={most}" for name, most in places.items())
    return (
        output.short(worker.name, 60),
        output.plain(worker.status)
        + (f", asked to {output.short(worker.control, 20)}" if worker.is_asked else "")
        + (", leads" if worker.leads else ""),
        f"{span(worker.beat_age.total_seconds())} ago",
        output.short(f"{served}{without}", 60),
        str(worker.running),
        str(worker.processes * worker.threads),
        str(worker.finished),
        output.short(worker.host, 40),
        str(worker.pid),
        output.short(worker.release, 40) or "-",
        output.instant(worker.started_at),
    )
