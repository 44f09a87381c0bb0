"""``manage.py pgjobs workers``: the workers, their last heartbeats, and which are silent or lost."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from django_pgjobs.inspection.words import span
from django_pgjobs.management import filters, output
from django_pgjobs.models import Heartbeat, LeaderTerm

HEADERS = ("NAME", "STATUS", "BEAT", "QUEUES", "JOBS", "SLOTS", "FINISHED", "HOST", "PID", "RELEASE", "STARTED")

COLUMNS = (
    "id", "name", "status", "host", "pid", "queues", "excluded_queues", "processes", "threads", "async_slots",
    "running", "finished", "version", "release", "started_at", "last_beat_at",
)  # fmt: skip
"""The columns of a worker; their order is that of the JSON fields."""


def add_subcommands(subcommands: Any) -> None:
    """Declare ``workers``."""
    text = "Show the workers: last heartbeats, queues, and numbers of jobs."
    parser = subcommands.add_parser("workers", help=text, description=text)
    add_arguments(parser)
    parser.set_defaults(perform=show_workers)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare filters and format."""
    parser.add_argument("--queue", metavar="NAME", type=filters.words, help="Only workers that serve this queue.")
    parser.add_argument("--all", action="store_true", help="Include workers that stopped within a day.")
    output.add_format(parser)
    filters.add_database(parser)


@output.facing_the_database
def show_workers(command: BaseCommand, options: dict[str, Any]) -> None:
    """Print the workers, latest heartbeat first."""
    found = _workers(filters.database_of(options), everyone=options["all"])
    if options["queue"] is not None:
        found = [worker for worker in found if _serves(worker, options["queue"])]
    if options["format"] == "json":
        output.write_line(command, output.json_of([_fields_of(worker) for worker in found]))
        return
    for line in output.table(HEADERS, map(_cells, found)):
        output.write_line(command, line)


def _workers(using: str, *, everyone: bool) -> list[Any]:
    leads = Exists(LeaderTerm.objects.filter(worker=OuterRef("pk"), expires_at__gt=Now()))
    workers = Heartbeat.objects.using(using).with_status().annotate(leads=leads)
    shown = workers if everyone else workers.exclude(state=Heartbeat.State.STOPPED)
    return list(shown.order_by("-last_beat_at", "pk"))


def _serves(worker: Any, queue: str) -> bool:
    return (worker.queues is None or queue in _names(worker.queues)) and queue not in _names(worker.excluded_queues)


def _names(stored: Any) -> list[str]:
    return [str(name) for name in stored] if isinstance(stored, list) else []


def _fields_of(worker: Any) -> dict[str, Any]:
    fields = {column: getattr(worker, column) for column in COLUMNS}
    return {**fields, "leads": worker.leads, "beat_age_seconds": worker.beat_age.total_seconds()}


def _cells(worker: Any) -> tuple[str, ...]:
    served = ",".join(_names(worker.queues)) if worker.queues is not None else "all"
    without = "".join(f",-{name}" for name in _names(worker.excluded_queues))
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
