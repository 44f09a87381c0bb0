"""``manage.py pgjobs stack``: where a running job is at this moment, on whatever machine it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.core.management.base import BaseCommand
from django.utils.translation import override

from django_pgjobs import clock
from django_pgjobs.inspection.words import span
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.presentation.job_rows import stacks_of
from django_pgjobs.presentation.wording import problem_of_stack
from django_pgjobs.steering.jobs import take_stacks

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import StackRow, WorkerRow

WAIT_SECONDS = 15.0
"""Longer than a heartbeat takes where no notification arrives."""

POLL_SECONDS = 0.2


def add_subcommands(subcommands: object) -> None:
    """Declare ``stack``."""
    text = "Show where a running job is at this moment: its worker reads the stack, and keeps it with the attempt."
    status = "Exit status: 0, or 1 if there is none: the job does not run, has ended, or its worker does not answer."
    perform = databases.on_one(show_stack, steers=True)
    parser = filters.declare(subcommands, "stack", perform, text, description=f"{text} {status}")
    filters.add_job(parser)
    text = f"How long to wait for the worker: 5s, 1m (default: {WAIT_SECONDS:g}s)."
    parser.add_argument("--wait", metavar="AGE", type=filters.age, default=WAIT_SECONDS, help=text)
    parser.add_argument("--reason", metavar="TEXT", default="", help="Why; kept with the stack.")
    filters.add_author(parser)


def show_stack(command: BaseCommand, options: Options) -> None:
    """Ask for the stack of a job, wait for it and print it; exit with 1 if there is none."""
    using, until = filters.database_of(options), clock.monotonic() + options["wait"]
    jobs = Job.objects.using(using)
    if not jobs.filter(pk=options["id"]).exists():
        output.fail(command, f"There is no job {output.ref(options['id'], '')}.")
    done = take_stacks(jobs.filter(pk=options["id"]), using, by=options["by"], reason=options["reason"])
    if done.skipped:
        output.fail(command, f"The job is not running: {', '.join(done.skipped)}.")
    job = jobs.defer("payload", "headers", "result", "progress", "options").filter(pk=options["id"]).first()
    row = _latest(job)
    while job and row and row.answered_at is None and job.claim_id == row.claim_id and clock.monotonic() < until:
        time.sleep(POLL_SECONDS)
        job = jobs.only("pk", "claim_id", "outcome").filter(pk=options["id"]).first()
        row = _latest(job)
    if job is None or row is None:
        output.fail(command, "The job has ended and is gone.")
    problem = _problem(row, job)
    fields = {
        "job": options["id"], "attempt": row.number, "worker": row.worker, "asked_at": row.asked_at, "by": row.who,
        "reason": row.words, "answered_at": row.answered_at, "problem": problem, "stack": row.text,
    }  # fmt: skip
    output.answer(command, options, output.located(fields), map(output.plain, _lines(row, problem, using)))
    output.exit_if(not row.text)


def _latest(job: Job | None) -> StackRow | None:
    return None if job is None else next(iter(stacks_of(job)), None)


def _problem(row: StackRow, job: Job) -> str:
    with override(None):
        return problem_of_stack(row, job)


def _lines(row: StackRow, problem: str, using: str) -> Iterator[str]:
    worker: WorkerRow | None = Heartbeat.objects.using(using).with_status().filter(pk=row.worker).first()
    name = "a worker that is gone" if worker is None else f"worker {output.short(worker.name, 60)}"
    if row.answered_at is None:
        if worker is not None:
            name += f" ({worker.status}, last heard from {span(worker.beat_age.total_seconds())} ago)"
        yield f"{problem} Asked: {name}."
        return
    yield f"attempt {row.number} on {name} at {output.instant(row.answered_at)}"
    yield from [problem] if problem else []
    yield from output.block(row.text.rstrip()) if row.text else ()
