"""``manage.py pgjobs workers``: the workers, their last heartbeats, and which are silent or lost."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from django_pgjobs.inspection.words import span
from django_pgjobs.management import databases, filters, output, watching
from django_pgjobs.management.output import Options
from django_pgjobs.presentation.fleet import workers_of

HEADERS = ("NAME", "STATUS", "BEAT", "QUEUES", "JOBS", "SLOTS", "FINISHED", "HOST", "PID", "RELEASE", "STARTED")

COLUMNS = (
    "id", "name", "status", "host", "pid", "queues", "excluded_queues", "processes", "threads", "async_slots", "places",
    "running", "finished", "version", "release", "started_at", "last_beat_at", "deaths", "died_at", "death",
    "suspects", "suspects_since",
)  # fmt: skip
"""The columns of a worker; their order is that of the JSON fields."""


def add_subcommands(subcommands: object) -> None:
    """Declare ``workers``."""
    text = "Show the workers: last heartbeats, queues, and numbers of jobs."
    parser = filters.declare(subcommands, "workers", show_workers, text)
    parser.add_argument("--queue", metavar="NAME", help="Only workers that serve this queue.")
    parser.add_argument("--all", action="store_true", help="Include workers that stopped within a day.")
    watching.add_watch(parser)
    filters.add_output(parser)


def show_workers(command: BaseCommand, options: Options) -> None:
    """Print the workers, latest heartbeat first."""
    queues = None if options["queue"] is None else [options["queue"]]

    def found(alias: str) -> list[Any]:
        return workers_of(alias, queues, everyone=options["all"])

    def fields(alias: str) -> list[dict[str, Any]]:
        return [output.located(_fields_of(worker)) for worker in found(alias)]

    if options["format"] == "json":
        replies = databases.asked(databases.aliases_of(options), fields)
        output.write_line(command, output.json_of([each for reply in replies for each in reply.answer or ()]))
        output.exit_if(databases.complain(command, replies))
    else:
        draw: watching.Draw = lambda alias: output.table(HEADERS, map(_cells, found(alias)))  # noqa: E731
        watching.watch(command, options, options["watch"], draw)


def _fields_of(worker: Any) -> dict[str, Any]:
    fields = {column: getattr(worker, column) for column in COLUMNS}
    return {**fields, "leads": worker.leads, "beat_age_seconds": worker.beat_age.total_seconds()}


def _cells(worker: Any) -> tuple[str, ...]:
    named, excluded = worker.served
    places = worker.slots_of_queues
    served = "all" if named is None else ",".join(named)
    without = "".join(f",-{name}" for name in excluded) + "".join(f",{name}={most}" for name, most in places.items())
    return (
        output.short(worker.name, 60),
        output.plain(worker.status) + (", leads" if worker.leads else ""),
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
