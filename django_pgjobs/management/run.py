"""The options of ``runjobs`` and ``pgjobs run``, and the start of a worker from them.

Only the function that runs a worker imports it: other subcommands, above all probes, start faster without it.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections, router

from django_pgjobs.conf import get_conf, problems
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import log
from django_pgjobs.management.output import Options
from django_pgjobs.models import Job
from django_pgjobs.registering.served import served_aliases
from django_pgjobs.running import reloader
from django_pgjobs.values import setting_rules
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.by_queue import EVERY_OTHER
from django_pgjobs.values.setting_rules import QUEUE_NAME
from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.command_line import ANY_PROJECT, entry_point
from django_pgjobs.worker.shared.handover import handing_over, take_over
from django_pgjobs.worker.supervisor.logs import speak_on_stderr
from django_pgjobs.worker.supervisor.template import ExecutorTemplate

if TYPE_CHECKING:
    from django_pgjobs.running.worker import WorkerOptions

SAME_NAME = (
    "database", "name", "queues", "processes", "threads", "async_slots", "executor_max_jobs", "executor_max_megabytes",
    "max_jobs", "until_idle", "metrics_port", "metrics_host", "places",
)  # fmt: skip
"""Options of the command that ``WorkerOptions`` has under the same names."""


def add_subcommands(subcommands: argparse._SubParsersAction[CommandParser]) -> None:
    """Declare ``run``, and the hidden subcommand with which a supervisor starts executors."""
    run = subcommands.add_parser("run", help="Run a worker (the same as runjobs).")
    add_arguments(run)
    run.set_defaults(perform=check_and_run)
    hidden = subcommands.add_parser("executor")
    add_executor_arguments(hidden)
    hidden.set_defaults(perform=run_executor)


class _Once(argparse.Action):
    """Stores the value of an option, and refuses a second one, of which argparse would take the last in silence."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: object, option: str | None = None) -> None:
        if getattr(namespace, self.dest) != self.default:
            parser.error(f"argument {option}: give it once")
        setattr(namespace, self.dest, values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a worker's options."""
    conf = "default: the setting"
    for name, metavar, kind, text in (
        ("queues", "NAME[,NAME...]", _queues, "Serve only these queues (default: all)."),
        ("exclude-queues", "NAME[,NAME...]", _queues, "Serve all queues but these."),
        ("places", "QUEUE=N[,QUEUE=N...]", _places,
         f"Run at most N jobs of a queue at once; * is all others together ({conf} PLACES)."),
        ("processes", "N", _positive, f"Executor processes ({conf} PROCESSES)."),
        ("threads", "N", _positive, f"Job threads per executor ({conf} THREADS)."),
        ("async-slots", "N", _positive, f"async def jobs at once per executor ({conf} ASYNC_SLOTS)."),
        ("executor-max-jobs", "N", _positive, f"Replace an executor after N jobs ({conf} EXECUTOR_MAX_JOBS)."),
        ("executor-max-megabytes", "MB", _positive,
         f"Replace an executor holding more than MB ({conf} EXECUTOR_MAX_MEGABYTES)."),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", action=_Once, metavar=metavar, type=kind, help=text)
    text = "Exit with 0 as soon as no job is due. Later retries do not count."
    parser.add_argument("--until-idle", action="store_true", help=text)
    parser.add_argument(
        "--max-jobs", action=_Once, metavar="N", type=_positive, help="Exit with 0 after N jobs have ended."
    )
    text = "One process, one job at a time in its main thread, for debuggers and coverage. No timeouts, no kill."
    parser.add_argument("--inline", action="store_true", help=text)
    text = "Restart the worker when code changes (default: while DEBUG is on)."
    parser.add_argument("--reload", action=argparse.BooleanOptionalAction, default=None, help=text)
    text = f"Serve metrics for Prometheus at this port, under /metrics ({conf} METRICS_PORT)."
    parser.add_argument("--metrics-port", action=_Once, metavar="PORT", type=_port, help=text)
    text = f"Bind that port to this address ({conf} METRICS_HOST)."
    parser.add_argument("--metrics-host", action=_Once, metavar="HOST", type=_host, help=text)
    text = "Aliases of the databases of the jobs (default: the setting DATABASES, or the one they are registered in)."
    parser.add_argument("--database", action=_Once, metavar="ALIAS[,ALIAS...]", type=_aliases, help=text)
    parser.add_argument(
        "--name", action=_Once, metavar="NAME", default="", help="Label of this worker (default: host:pid)."
    )


def add_executor_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that a supervisor passes to its executors."""
    for name in ("channel", "board", "threads", "async-slots"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--application-name", required=True)


def check_and_run(command: BaseCommand, options: Options) -> None:
    """Run a worker and exit with its status; on check errors print them and refuse to start."""
    _check_platform(options)
    process.fill_streams()
    template = _template(command, options)
    # Django 6.1 would ask each server for its version. Ours may not be up yet; the code below waits for it.
    command.check(display_num_errors=True, databases=[])
    options["databases"] = databases = _databases(options)
    options["database"] = databases[0]
    if options["queues"] and options["exclude_queues"]:
        raise CommandError("Use either --queues or --exclude-queues, not both.")
    if options["places"] is not None:
        _check_places(options)
    if get_conf().schemas is not None:
        _check_schemas(options, databases)
    if options["inline"] and databases[1:]:
        raise CommandError("With --inline a worker serves one database: name it by --database.")
    most, gentle = get_conf().executor_kill_megabytes, options["executor_max_megabytes"]
    if most is not None and gentle is not None and most <= gentle:
        raise CommandError(f"PGJOBS['EXECUTOR_KILL_MEGABYTES'] ({most}) is not above --executor-max-megabytes.")
    if options["inline"] and options["metrics_port"]:
        raise CommandError("With --inline nothing serves metrics: leave out --metrics-port.")
    if reloader.wanted(options["reload"], options):
        speak_on_stderr(options["verbosity"])
        sys.exit(reloader.run_with_restarts())
    reloader.follow_parent()
    be_silent = speak_on_stderr(options["verbosity"])
    try:
        status = _run(command, options, template)
    finally:
        be_silent()
    if status:
        sys.exit(status)


def _check_schemas(options: Options, databases: tuple[str, ...]) -> None:
    """Refuse what a worker for many schemas cannot do. Raises ``CommandError``."""
    if databases[1:]:
        raise CommandError('With PGJOBS["SCHEMAS"] a worker serves the schemas of one database: name it by --database.')
    for name in ("inline", "until_idle", "max_jobs"):
        if options[name]:
            raise CommandError(f'With PGJOBS["SCHEMAS"] a worker takes no --{name.replace("_", "-")}.')


def _databases(options: Options) -> tuple[str, ...]:
    """Return the aliases to serve, at least one. Raises ``CommandError``."""
    try:
        databases = options["database"] or served_aliases() or (router.db_for_write(Job),)
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    databases = tuple(databases.split(",")) if isinstance(databases, str) else databases
    for alias in databases:
        if alias not in settings.DATABASES:
            raise CommandError(f"There is no database alias {alias!r}.")
        _check_caller(alias)
        if databases[1:] and connections[alias].vendor != "postgresql":
            raise CommandError(f"Jobs live on PostgreSQL; database {alias!r} is {connections[alias].display_name}.")
    return databases


def _check_places(options: Options) -> None:
    """Refuse places that this worker cannot give. Raises ``CommandError``."""
    places, served, excluded = options["places"], options["queues"], options["exclude_queues"] or ()
    if options["inline"]:
        raise CommandError("With --inline one job runs at a time: leave out --places.")
    for queue in places:
        if queue != EVERY_OTHER and (queue in excluded or queue not in (served or places)):
            option = "--exclude-queues leaves it out" if queue in excluded else "--queues does not name it"
            raise CommandError(f"--places gives places to queue {queue!r}, but {option}.")
    if served and EVERY_OTHER in places and set(served) <= set(places):
        raise CommandError("--places names each queue of --queues, so there are no others for *.")
    conf = get_conf()
    processes, threads = options["processes"] or conf.processes, options["threads"] or conf.threads
    loops = (options["async_slots"] or conf.async_slots) if any(each.is_async for each in registry.definitions()) else 0
    for queue, most in places.items():
        if most > (slots := processes * (threads + loops)):
            raise CommandError(f"--places gives {most} places to queue {queue!r}, but the worker has {slots} slots.")


def _template(command: BaseCommand, options: Options) -> ExecutorTemplate | None:
    """Start the template, at once: checks may import more, and threads and connections come soon.

    A program that calls a worker has its own, and a process that only watches files no executors.
    """
    if not getattr(command, "_called_from_command_line", False) or options["inline"]:
        return None
    if reloader.wanted(options["reload"], options) or any(problems(getattr(settings, "PGJOBS", {}))):
        return None
    return (
        ExecutorTemplate.start(partial(speak_on_stderr, options["verbosity"])) if get_conf().executor_template else None
    )


def _run(command: BaseCommand, options: Options, template: ExecutorTemplate | None) -> int:
    """Run a worker; for a calling program, restore the process afterwards and pass on a test runner's changes."""
    if library := process.patched_by():
        log.warning(
            "threads are patched by %s: a job that computes stops its neighbours and cannot be interrupted; "
            "workers need a manage.py that patches nothing", library,
        )  # fmt: skip
    from django_pgjobs.running import inline, runtime  # here for start-up time

    worker = _worker_options(command, options)
    if options["inline"]:
        return inline.run(worker)
    if getattr(command, "_called_from_command_line", False):
        return runtime.run(replace(worker, template=template))
    with handing_over() as environment:
        return runtime.run(replace(worker, environment=environment))


def _check_platform(options: Options) -> None:
    if not hasattr(os, "killpg") and not options["inline"]:
        raise CommandError("Workers need a POSIX system (Linux, macOS). Here, use --inline.")
    if not options["inline"] and settings.SETTINGS_MODULE is None:
        raise CommandError("Executors need a settings module they can import; with settings.configure() use --inline.")


def _check_caller(database: str) -> None:
    """Refuse callers, such as tests, with an open transaction or outside the main thread."""
    if connections[database].in_atomic_block:
        raise CommandError(
            f"A transaction is open on database {database!r}, and a worker sees only what is committed. In tests use "
            "TransactionTestCase, or @pytest.mark.django_db(transaction=True); in a TestCase let "
            "django_pgjobs.testing.run_jobs() run the jobs."
        )
    if threading.current_thread() is not threading.main_thread():
        raise CommandError("A worker must run in the main thread of its process: only that thread receives signals.")


def _worker_options(command: BaseCommand, options: Options) -> WorkerOptions:
    from django_pgjobs.running.worker import WorkerOptions  # here for start-up time

    from_command_line = getattr(command, "_called_from_command_line", False)
    passed = [f"--{key}={options[key]}" for key in ("settings", "pythonpath") if options.get(key)]
    if not from_command_line:
        passed = []
    entry = entry_point(from_command_line=from_command_line)
    if entry[-2:] == ANY_PROJECT and not any(option.startswith("--settings=") for option in passed):
        passed.append(f"--settings={os.environ.get('DJANGO_SETTINGS_MODULE', settings.SETTINGS_MODULE)}")
    given = {name: options[name] for name in SAME_NAME}
    given["databases"] = options["databases"] if options["databases"][1:] else ()
    passed.append(f"--verbosity={options['verbosity']}")
    excluded = options["exclude_queues"] or ()
    return WorkerOptions(entry=entry, entry_options=tuple(passed), excluded=excluded, **given)


def run_executor(command: BaseCommand, options: Options) -> None:
    """Run an executor; never returns."""
    from django_pgjobs.worker.executor import main  # here for start-up time

    speak_on_stderr(options["verbosity"])
    take_over()
    given = {name: options[name] for name in ("threads", "async_slots", "database", "application_name")}
    main.main(channel_fd=options["channel"], board_fd=options["board"], **given)


def _aliases(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError("name at least one alias, and none twice")
    return names


def _queues(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    allowed = get_conf().queues
    for name in names:
        if not QUEUE_NAME.fullmatch(name) or (allowed is not None and name not in allowed):
            raise argparse.ArgumentTypeError(f"there is no queue {name!r}")
    if not names:
        raise argparse.ArgumentTypeError("name at least one queue")
    return names


def _places(text: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        queue, equals, most = map(str.strip, part.rpartition("="))
        if not equals:
            raise argparse.ArgumentTypeError(f"write QUEUE=N, not {part!r}")
        [name] = (queue,) if queue == EVERY_OTHER else _queues(queue)
        if name == OWN_QUEUE:
            raise argparse.ArgumentTypeError(f"queue {name!r} is of this package and has no places")
        if name in places:
            raise argparse.ArgumentTypeError(f"name {name!r} once")
        places[name] = _positive(most)
    if not places:
        raise argparse.ArgumentTypeError("name at least one queue, such as mail=2")
    return places


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def _port(text: str) -> int:
    number = _positive(text)
    if number > 65_535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, not {text!r}")
    return number


def _host(text: str) -> str:
    try:
        return setting_rules.host(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be {error}, not {text!r}") from None
