"""``python -m example_project.demo``: the whole example, from an empty database to a page to look at.

Without DATABASE_URL it starts a PostgreSQL of its own and keeps its data in ``.pg``. It migrates, registers a flow
with a job for each file of the standard library, runs a worker on it, and compares the totals with a count made without
jobs. The report then waits for approval: the demo serves the site and the admin, where you approve or refuse it, until
Ctrl-C. With ``--once`` it asks nobody: it approves the report itself, reads everything again, refuses that report, and
stops. Its status is 0 if all totals are equal, no job has failed but those of unreadable files, and of the report that
was refused nothing is left.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import environ

from example_project.progress import Bar
from example_project.worker import Worker, WorkerEnded

if TYPE_CHECKING:
    from example_project.indexer.models import Edition
    from example_project.indexer.totals import Totals

HERE = Path(__file__).resolve().parent
USER = "demo"
LAST_PORT = 65535
POLL_SECONDS = 0.2
STALL_SECONDS = 120.0
NODES_OF_REPORT = 2
"""The report, and the note that there is none: what ends after the approval."""


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=(__doc__ or "").strip())
    parser.add_argument("--once", action="store_true", help="approve one report, refuse a second one, end")
    parser.add_argument("--port", type=number, default=8000, metavar="N", help="default: 8000, or the next free one")
    parser.add_argument("--processes", type=number, default=2, metavar="N", help="executors of the worker (default: 2)")
    parser.add_argument("--limit", type=number, metavar="N", help="read only the first N files")
    return parser.parse_args()


def number(text: str) -> int:
    """Return a number from 1 to 65535, for argparse."""
    if not text.isdecimal() or not 1 <= int(text) <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {LAST_PORT}, not {text!r}")
    return int(text)


def main() -> int:
    """Run the demo; return the exit status."""
    options = arguments()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    environ.Env.read_env(str(HERE / ".env"))
    if not os.environ.get("DATABASE_URL"):
        start_over_with_a_server()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, stop)
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    import django

    django.setup()
    try:
        return run(options)
    except WorkerEnded as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("\nStopped.")
        return 128 + signal.SIGINT


def start_over_with_a_server() -> None:
    """Become ``python -m django_pgjobs.embedded``, which runs this module again, with DATABASE_URL."""
    again = [sys.executable, "-m", "example_project.demo", *sys.argv[1:]]
    data = str(HERE.parent / ".pg")
    os.environ.pop("DATABASE_URL", None)
    os.execv(sys.executable, [sys.executable, "-m", "django_pgjobs.embedded", "--data", data, "--", *again])  # noqa: S606


def stop(number: int, frame: FrameType | None) -> None:
    """End in good order on a signal."""
    raise SystemExit(128 + number)


def run(options: argparse.Namespace) -> int:
    """Index, compare, serve; the worker is stopped in any case."""
    from django.core.management import call_command

    from example_project.indexer.indexing import start_edition
    from example_project.indexer.sources import LIBRARY, source_files

    call_command("migrate", verbosity=0)
    paths = source_files(options.limit)

    def start() -> Edition:
        started = time.monotonic()
        edition = start_edition(paths)
        say(
            f"Registered {edition.files:,} files and {edition.packages} packages of {LIBRARY} as one flow in "
            f"{time.monotonic() - started:.1f} s."
        )
        return edition

    edition = start()
    with Worker(options.processes) as worker:
        watch(edition, worker)
        counted = count_directly(paths)
        sound = compare(edition, counted)
        if options.once:
            sound &= approve(edition, worker)
            again = start()
            watch(again, worker)
            sound &= compare(again, counted) and refuse(again, edition, worker)
        else:
            sound &= judge(edition)
            serve(options.port, worker, edition)
        status = worker.stop()
    if status:
        say(f"The worker ended with status {status}.")
    return 0 if sound and status == 0 else 1


def watch(edition: Edition, worker: Worker) -> None:
    """Show how far the jobs are until the report waits for approval, or there is none. Raises WorkerEnded."""
    from example_project.indexer.indexing import is_being_read, jobs_ended, waits_for_approval

    before = jobs_ended(edition)[1] - NODES_OF_REPORT

    def ended() -> int:
        done = min(jobs_ended(edition)[0], before)
        return done + (done == before and (waits_for_approval(edition) or not is_being_read(edition)))

    with Bar("jobs have ended, and the report waits for approval", before + 1) as bar:
        follow(bar, worker, ended)
    edition.refresh_from_db()


def approve(edition: Edition, worker: Worker) -> bool:
    """Approve the report, since nobody is asked; return whether the flow has ended well then. Raises WorkerEnded."""
    from example_project.indexer.indexing import is_being_read
    from example_project.indexer.jobs import approval

    say("Nobody is asked with --once: the demo itself approves this report.")
    approval.send(edition.pk, payload={"approved": True}, by="demo")
    with Bar("flow has ended", 1) as bar:
        follow(bar, worker, lambda: int(not is_being_read(edition)))
    edition.refresh_from_db()
    return judge(edition) and edition.approved_at is not None


def refuse(edition: Edition, before: Edition, worker: Worker) -> bool:
    """Refuse the report; return whether it was undone, so that the page shows the one before. Raises WorkerEnded."""
    from example_project.indexer.indexing import is_being_read, report_of
    from example_project.indexer.jobs import approval, forget_totals, take_off_page
    from example_project.indexer.models import Edition

    say("Nobody is asked with --once: the demo itself refuses this report.")
    approval.send(edition.pk, payload={"approved": False, "reason": "one report is enough for a demo"}, by="demo")
    report = report_of(edition)
    if report is None:
        return False
    compensations = report.compensations.order_by("pk")

    def undone() -> bool:
        return compensations.exists() and not compensations.filter(finished_at=None).exists()

    with Bar("flow has ended, and the report is undone", 1) as bar:
        follow(bar, worker, lambda: int(not is_being_read(edition) and undone()))
    edition.refresh_from_db()
    shown = Edition.on_page()
    say(f"There is no report: {edition.problem}")
    for job in compensations:
        say(f"undone by job {job.pk}, {job.name}, which {job.outcome}")
    say(f"The page shows the report of {shown}.")
    parts = {job.name for job in compensations if job.outcome == "succeeded"}
    return parts >= {take_off_page.name, forget_totals.name} and edition.totals is None and shown == before


def follow(bar: Bar, worker: Worker, count: Callable[[], int]) -> None:
    """Show the count until it is the bar's total. Raises WorkerEnded, also when nothing moves for long."""
    done, until = -1, 0.0
    while done < bar.total:
        before, done = done, count()
        if done != before:
            until = time.monotonic() + STALL_SECONDS
        elif time.monotonic() > until:
            raise WorkerEnded(f"Nothing has happened for {STALL_SECONDS:g} s. The worker's log:\n{worker.tail()}")
        bar.show(done)
        worker.wait(POLL_SECONDS if done < bar.total else 0)


def count_directly(paths: list[str]) -> Totals | None:
    """Count without jobs."""
    from example_project.indexer.totals import direct

    counted: Totals | None = None
    with Bar("files counted without jobs", len(paths)) as bar:
        for counted in direct(paths):
            bar.show(counted["files"])
    return counted


def compare(edition: Edition, counted: Totals | None) -> bool:
    """Print both totals and what could not be read; return whether they are equal."""
    published = edition.totals or {}
    say(f"{'':<12}{'by jobs':>12}{'directly':>12}")
    for what, total in published.items():
        say(f"{what:<12}{total:>12,}{dict(counted or {}).get(what, 0):>12,}")
    for module in edition.read().exclude(problem=""):
        say(f"given up: {module.path}: {module.problem}")
    equal = published == counted
    say("The totals are equal." if equal else "THE TOTALS DIFFER.")
    return equal


def judge(edition: Edition) -> bool:
    """Print how the flow ended, if it has; return whether only unreadable files have failed."""
    from django_pgjobs.models import Job

    failed = set(Job.objects.filter(parent_id=edition.flow, outcome="abandoned").values_list("pk", flat=True))
    unreadable = set(edition.read().exclude(problem="").values_list("job", flat=True))
    if (flow := edition.job()) is not None and flow.outcome is not None:
        say(f"The flow, job {flow.pk}, ended as {flow.outcome}. {flow.error or ''}".rstrip())
    if edition.problem:
        say(f"There is no report: {edition.problem}")
    return failed == unreadable


def serve(port: int, worker: Worker, edition: Edition) -> None:
    """Serve the site until Ctrl-C. Raises WorkerEnded, and OSError if there is no port."""
    from django.db import connection

    from example_project.indexer.indexing import report_of
    from example_project.site_server import bind

    with bind(port) as server:
        server.look = lambda: worker.wait(0)
        here = f"http://127.0.0.1:{server.server_port}"
        say(f"\nThe page   {here}/\nThe flow   {here}/admin/pgjobs/job/{edition.flow}/change/")
        if (report := report_of(edition)) is not None:
            say(f"The report {here}/admin/pgjobs/job/{report.pk}/change/  waits for your approval: send the event with")
            say('           {"approved": true}, or {"approved": false, "reason": "…"}, and see how it is undone')
        say(f"The admin  {here}/admin/  user {USER}, password {login()}")
        say(f"The worker's log is {worker.log.name}; Ctrl-C ends everything.")
        connection.close()
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def login() -> str:
    """Make or renew the demo's user; return the new password."""
    from django.contrib.auth import get_user_model

    password = secrets.token_urlsafe(9)
    users = get_user_model()
    user, _ = users._default_manager.get_or_create(username=USER)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()
    return password


def say(line: str) -> None:
    """Tell the person at the terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
