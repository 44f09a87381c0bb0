"""``manage.py pgjobs logs``: what a job has logged, and what it logs until it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from django.core.management.base import BaseCommand
from django.db.models.functions import Now

from django_pgjobs.definition.registry import registry
from django_pgjobs.execution.log_lines import level_of
from django_pgjobs.inspection.words import clock_time
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import Job
from django_pgjobs.presentation import job_lines
from django_pgjobs.presentation.job_lines import Position, level_name
from django_pgjobs.presentation.sight import Fact, may_see
from django_pgjobs.store.asking import Reply, ask_each

SLICE = 1000
POLL_SECONDS = 1.0

LAST_SECONDS = 3.0
"""A job that has ended itself in its own transaction may get lines for so long after it."""

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import JobRow, LineRow

    FoundLines = tuple[JobRow | None, list[LineRow]]
    """The job, None if there is none, and its next lines."""


def add_subcommands(subcommands: object) -> None:
    """Declare ``logs``."""
    text = "Show the lines that a job has logged, as far as JOB_LOGS or the job itself keeps them."
    status = "Exit status: 0, or 1 if there is no such job, or its lines are hidden as its result is."
    perform = databases.on_one(show_logs, steers=False)
    parser = filters.declare(subcommands, "logs", perform, text, description=f"{text} {status}")
    filters.add_job(parser)
    text = "Continue until the job has ended, also through its retries, or until Ctrl-C."
    parser.add_argument("--follow", action="store_true", help=text)
    text = "Only lines of this attempt."
    parser.add_argument("--attempt", metavar="N", type=filters.number, default=None, help=text)


def show_logs(command: BaseCommand, options: Options) -> None:
    """Print the lines in their order; with ``--follow`` continue until the job has ended."""
    using, position = filters.database_of(options), None
    job, rows = _next(options, using, position=None)
    if job is None:
        output.fail(command, f"There is no job {output.ref(options['id'], '')}.")
    if not may_see(Fact.LINES, job.name, reveal=False):
        output.fail(command, "Its lines are hidden: it has sensitive arguments, or this process does not know it.")
    if not rows and not options["follow"]:
        output.write_line(command, _nothing(job), to_stderr=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            for row in rows:
                _print(command, options, row)
                position = job_lines.position_of(row)
            if not rows or (len(rows) < SLICE and not options["follow"]):
                break
            job, rows = _next(options, using, position=position)
        if options["follow"]:
            _follow(command, options, using, position)


def _next(options: Options, using: str, *, position: Position | None) -> FoundLines:
    jobs = Job.objects.using(using).only("pk", "name", "attempt", "outcome", "finished_at").annotate(now=Now())
    job = cast("JobRow | None", jobs.filter(pk=options["id"]).first())
    return job, [] if job is None else job_lines.after(job, position, SLICE, attempt=options["attempt"])


def _follow(command: BaseCommand, options: Options, using: str, position: Position | None) -> None:
    """Print lines as they come until the job is over. An outage of the database is said, and survived."""
    away = False
    while True:
        [reply] = ask_each([using], partial(_next, options, position=position), bounded=True)
        if (reply.trouble is not None) != away:
            away = not away
            output.write_line(command, _outage(reply), to_stderr=True)
        job, rows = (None, []) if reply.answer is None else reply.answer
        for row in rows:
            _print(command, options, row)
            position = job_lines.position_of(row)
        command.stdout.flush()
        if not away and not rows and (over := _over(job, options["attempt"])):
            output.write_line(command, output.plain(over), to_stderr=True)
            return
        if len(rows) < SLICE:
            time.sleep(POLL_SECONDS)


def _outage(reply: Reply[FoundLines]) -> str:
    if reply.trouble is None:
        return "The database answers again."
    return f"The database does not answer, trying again: {output.plain(reply.trouble.text)}."


def _over(job: JobRow | None, attempt: int | None) -> str:
    """Return why there will be no more lines; empty if there may be."""
    if job is None:
        return "The job is gone."
    if job.outcome and job.finished_at and (job.now - job.finished_at).total_seconds() >= LAST_SECONDS:
        return f"The job has ended: {job.outcome}."
    return f"Attempt {attempt} is over." if attempt is not None and job.attempt > attempt else ""


def _nothing(job: JobRow) -> str:
    definition = registry.resolved(job.name)
    if definition is not None and not level_of(definition):
        return "The job keeps no lines: neither JOB_LOGS nor its own logs= says so."
    return "There are no lines."


def _print(command: BaseCommand, options: Options, row: LineRow) -> None:
    if options["format"] == "json":
        fields = {
            "job": options["id"], "attempt": row.attempt, "logged_at": row.logged_at, "level": level_name(row.level),
            "logger": row.whose, "message": row.text,
        }  # fmt: skip
        output.write_line(command, output.json_of(output.located(fields)))
        return
    for line in _lines(row):
        output.write_line(command, line)


def _lines(row: LineRow) -> Iterator[str]:
    first, *more = output.block(row.text)
    start = f"{clock_time(row.logged_at)} attempt {row.attempt} {level_name(row.level)} {output.plain(row.whose)}"
    yield f"{start}: {first}".rstrip()
    yield from (f"  {line}".rstrip() for line in more)
