"""``manage.py pgjobs top``: problems, queues, workers with what they run now, and the latest failures, live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.core.management.base import BaseCommand

from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.problem import Limits
from django_pgjobs.inspection.words import span
from django_pgjobs.management import filters, output, stats, watching
from django_pgjobs.management.output import Options
from django_pgjobs.presentation import fleet
from django_pgjobs.store import noticing
from django_pgjobs.store.database import on
from django_pgjobs.store.explaining import RunningJob
from django_pgjobs.store.noticing import AbandonedGroup

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import WorkerRow

MOST_WORKERS = 20
MOST_JOBS = 5
MOST_GROUPS = 10
MOST_LINES = 15
MOST_FAILURES = 10_000
HOUR = 3600.0

WORKER_HEADERS = ("WORKER", "STATUS", "BEAT", "JOBS", "SLOTS", "RUNS NOW")
FAILURE_HEADERS = ("ABANDONED", "LAST", "NAME", "ERROR", "RELEASE")


def add_subcommands(subcommands: object) -> None:
    """Declare ``top``."""
    text = (
        "Show problems, queues, workers with what they run now, and the failures of the last hour, until q or Ctrl-C; "
        "without a terminal once."
    )
    parser = filters.declare(subcommands, "top", show_top, text)
    queue = "Only this queue, and workers that serve it; repeatable."
    parser.add_argument("--queue", metavar="NAME", action="append", help=queue)
    text, default = "Seconds between two drawings (default: %(default)g).", watching.SECONDS
    parser.add_argument("--interval", metavar="SECONDS", type=watching.interval, default=default, help=text)
    parser.add_argument("--once", action="store_true", help="Print it once.")
    filters.add_database(parser)


def show_top(command: BaseCommand, options: Options) -> None:
    """Draw it until the user ends it."""
    seconds = None if options["once"] else options["interval"]
    watching.watch(command, options, seconds, lambda alias: _screen(alias, options["queue"]))


def _screen(using: str, queues: list[str] | None) -> Iterator[str]:
    with stats.counting(using) as db:
        problems = health.problems(db, using, Limits(queues=queues))
        failed, _read = noticing.list_failures(db, seconds=HOUR, groups=MOST_GROUPS, most=MOST_FAILURES)
    yield from stats.lines_of_problems(problems)[:MOST_LINES]
    yield ""
    yield from stats.lines_of(using, queues=queues, now=False)
    yield ""
    yield from _workers(using, queues)
    if failed:
        yield ""
        yield from output.table(FAILURE_HEADERS, map(_failure, failed))


def _workers(using: str, queues: list[str] | None) -> Iterator[str]:
    found = fleet.workers_of(using, queues)[:MOST_WORKERS]
    running = fleet.running_jobs(on(using), found, most=MOST_JOBS + 1)
    yield from output.table(WORKER_HEADERS, (_worker(each, running[each.pk]) for each in found))


def _worker(worker: WorkerRow, jobs: list[RunningJob]) -> tuple[str, ...]:
    return (
        output.short(worker.name, 40),
        output.plain(worker.status) + (", leads" if worker.leads else ""),
        f"{span(worker.beat_age.total_seconds())} ago",
        str(worker.running),
        str(worker.processes * worker.threads),
        runs_now(jobs),
    )


def runs_now(jobs: list[RunningJob]) -> str:
    """*#17 shop.charge 3 s, …*: what a worker runs now."""
    words = (
        f"{output.ref(job.id)} {output.short(job.name, 40)} {span(job.running_seconds)}" for job in jobs[:MOST_JOBS]
    )
    return ", ".join([*words, "…"] if len(jobs) > MOST_JOBS else words) or "-"


def _failure(group: AbandonedGroup) -> tuple[str, ...]:
    return (
        str(group.jobs),
        f"{span(group.last_seconds)} ago",
        output.short(group.name, 60),
        output.short(group.error_class, 60) or "-",
        output.short(group.release, 40) or "-",
    )
