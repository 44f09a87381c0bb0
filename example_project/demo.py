"""``python -m example_project.demo``: the whole example, from an empty database to a page to look at.

Without DATABASE_URL it starts a PostgreSQL of its own and keeps its data in ``.pg``. It migrates, registers a flow
with a job for each file of the standard library, runs a worker on it, compares the totals with a count made without
jobs, and then serves the site and the admin until Ctrl-C. With ``--once`` it stops there: 0 if the totals are equal and
no job has failed but those of unreadable files.
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


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=(__doc__ or "").strip())
    parser.add_argument("--once", action="store_true", help="end when everything has been read; 0 if totals are equal")
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
    started = time.monotonic()
    edition = start_edition(paths)
    took = time.monotonic() - started
    say(f"Registered {edition.files:,} files and {edition.packages} packages of {LIBRARY} as one flow in {took:.1f} s.")
    with Worker(options.processes) as worker:
        watch(edition, worker)
        equal = compare(edition, paths)
        sound = judge(edition)
        if not options.once:
            serve(options.port, worker, edition)
        status = worker.stop()
    if status:
        say(f"The worker ended with status {status}.")
    return 0 if equal and sound and status == 0 else 1


def watch(edition: Edition, worker: Worker) -> None:
    """Show how far the jobs are until the flow has ended. Raises WorkerEnded."""
    from example_project.indexer.indexing import is_being_read, jobs_ended

    def ended() -> int:
        return jobs_ended(edition)[0] + (not is_being_read(edition))

    with Bar("jobs have ended, last the flow", jobs_ended(edition)[1] + 1) as bar:
        follow(bar, worker, ended)
    edition.refresh_from_db()


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


def compare(edition: Edition, paths: list[str]) -> bool:
    """Print both totals and what could not be read; return whether they are equal."""
    from example_project.indexer.totals import direct

    counted: Totals | None = None
    with Bar("files counted without jobs", len(paths)) as bar:
        for counted in direct(paths):
            bar.show(counted["files"])
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
    """Print how the flow ended; return whether only unreadable files have failed."""
    from django_pgjobs.models import Job

    failed = set(Job.objects.filter(parent_id=edition.flow, outcome="abandoned").values_list("pk", flat=True))
    unreadable = set(edition.read().exclude(problem="").values_list("job", flat=True))
    if (flow := edition.job()) is not None:
        say(f"The flow, job {flow.pk}, ended as {flow.outcome}. {flow.error or ''}".rstrip())
    if edition.problem:
        say(f"There is no report: {edition.problem}")
    return failed == unreadable


def serve(port: int, worker: Worker, edition: Edition) -> None:
    """Serve the site until Ctrl-C. Raises WorkerEnded, and OSError if there is no port."""
    from django.db import connection

    from example_project.site_server import bind

    with bind(port) as server:
        server.look = lambda: worker.wait(0)
        here = f"http://127.0.0.1:{server.server_port}"
        say(f"\nThe page   {here}/\nThe flow   {here}/admin/pgjobs/job/{edition.flow}/change/")
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
