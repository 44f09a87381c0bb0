"""``manage.py pgjobs stats``: the figures of the queues, as last counted by the leader, or counted now.

With ``--sizes``: how much room the results and arguments of ended jobs take, by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError

from django_pgjobs.conf import get_conf
from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.health import known_workers, paused_queues
from django_pgjobs.diagnosis.latest import MOST_NOW, figure, figures_of
from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.inspection import liveness
from django_pgjobs.inspection.words import grouped, span
from django_pgjobs.management import databases, filters, output, watching
from django_pgjobs.management.output import Options
from django_pgjobs.presentation.wording import size
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import Hold, Outcome
from django_pgjobs.store.asking import SECONDS
from django_pgjobs.store.counting import KnownWorker, Sizes, count_sizes
from django_pgjobs.store.database import PINS, Database, at_read_committed, configure, on

HEADERS = (
    "QUEUE", "READY", "OLDEST", "SCHEDULED", "RETRYING", "RUNNING", *map(str.upper, [*Hold, *Outcome]), "WORKERS",
)  # fmt: skip
NOW_SECONDS = 60.0
"""Time that several databases together may take to count."""

SIZES_HEADERS = ("QUEUE", "NAME", "JOBS", "RESULTS", "ARGUMENTS")


def add_subcommands(subcommands: object) -> None:
    """Declare ``stats``."""
    text = "Show the figures of the queues: due and running jobs, jobs that ended within the last hour, and workers."
    parser = filters.declare(subcommands, "stats", show_stats, text)
    parser.add_argument("--queue", metavar="NAME", action="append", help="Only this queue; repeatable.")
    text = "Count now, up to 100,000 each, instead of showing the leader's figures."
    parser.add_argument("--now", action="store_true", help=text)
    text = "Show instead how much room results and arguments take, by name: of the latest 100,000 of each outcome."
    parser.add_argument("--sizes", action="store_true", help=text)
    watching.add_watch(parser)
    filters.add_output(parser)


def show_stats(command: BaseCommand, options: Options) -> None:
    """Print the figures."""
    if options["sizes"]:
        _show_sizes(command, options)
        return
    how = {"queues": options["queue"], "now": options["now"]}
    patience = NOW_SECONDS if options["now"] else SECONDS

    def fields(alias: str) -> dict[str, Any]:
        found = _read(alias, **how)
        return output.located({**found.figures, **fields_of_problems(found.problems)})  # type: ignore[no-any-return]

    def lines(alias: str) -> Iterator[str]:
        found = _read(alias, **how)
        yield from [*lines_of_problems(found.problems), ""]
        yield from _lines(found)

    if options["format"] == "json":
        replies = databases.asked(databases.aliases_of(options), fields, seconds=patience)
        output.write_line(command, output.json_of(databases.fields_of(replies)))
        output.exit_if(databases.complain(command, replies))
        return
    watching.watch(command, options, options["watch"], lines, patience=patience)


@databases.on_each
def _show_sizes(command: BaseCommand, options: Options) -> None:
    """Print what takes the room, the largest first. Raises ``CommandError`` with ``--now`` or ``--watch``."""
    if options["now"] or options["watch"] is not None:
        raise CommandError("--sizes goes with neither --now nor --watch.", returncode=output.WRONG)
    with counting(filters.database_of(options)) as db:
        found = count_sizes(db, list(map(str, Outcome)), most=MOST_NOW)
    rows: dict[tuple[str, str], list[int]] = {}
    for each in found:
        if not options["queue"] or each.queue in options["queue"]:
            sums = rows.get((each.queue, each.name), (0, 0, 0))
            added = zip(sums, (each.jobs, each.result_bytes, each.argument_bytes), strict=True)
            rows[each.queue, each.name] = [before + more for before, more in added]
    largest = sorted(rows.items(), key=lambda row: (-row[1][1] - row[1][2], row[0]))
    read = [_read_of(outcome, [each for each in found if each.outcome == outcome]) for outcome in map(str, Outcome)]
    names = ("queue", "name", "jobs", "result_bytes", "argument_bytes")
    sizes = [dict(zip(names, (*key, *sums), strict=True)) for key, sums in largest]
    output.answer(command, options, {"sizes": sizes, "read": read}, _lines_of_sizes(largest, read))


def _lines_of_sizes(largest: list[tuple[tuple[str, str], list[int]]], read: list[dict[str, object]]) -> Iterator[str]:
    yield f"Looked at {', '.join(map(_words_of, read))}."
    cells = (
        [*(output.plain(one_line(text)) for text in key), str(sums[0]), *map(size, sums[1:])] for key, sums in largest
    )
    yield from output.table(SIZES_HEADERS, cells)
    if largest:
        yield "To delete those of a name before their time: manage.py pgjobs prune --name NAME --older-than AGE."


def _read_of(outcome: str, found: list[Sizes]) -> dict[str, object]:
    jobs = sum(each.jobs for each in found)
    since = max((each.seconds for each in found), default=None)
    return {"outcome": outcome, "jobs": jobs, "more": jobs == MOST_NOW, "seconds": since}


def _words_of(read: dict[str, Any]) -> str:
    if not read["more"]:
        return f"all {grouped(read['jobs'])} {read['outcome']}"
    return f"the latest {grouped(read['jobs'])} {read['outcome']} (of {span(read['seconds'])})"


def fields_of_problems(found: Sequence[HealthProblem]) -> dict[str, object]:
    """Return problems and notes as JSON values."""
    values = [(each.is_note, _fields_of_problem(each)) for each in found]
    return {
        "problems": [value for is_note, value in values if not is_note],
        "notes": [value for is_note, value in values if is_note],
    }


def _fields_of_problem(found: HealthProblem) -> dict[str, object]:
    fields: dict[str, object] = {"code": found.code, "queue": found.queue, "text": found.text}
    return {"database": found.database, **fields} if found.database else fields


def lines_of_problems(found: Sequence[HealthProblem]) -> list[str]:
    """Return a line for each problem, or *healthy*; then one for each note."""
    problems = [_line_of_problem(each) for each in found if not each.is_note] or ["healthy"]
    return [*problems, *(f"note: {_line_of_problem(each)}" for each in found if each.is_note)]


def _line_of_problem(found: HealthProblem) -> str:
    return output.plain(": ".join(filter(None, (found.database, found.code, found.text))))


class Read(NamedTuple):
    """Figures that were read in one transaction."""

    figures: dict[str, Any]
    workers: list[KnownWorker]
    problems: list[HealthProblem]


def lines_of(using: str, *, queues: list[str] | None, now: bool) -> Iterator[str]:
    """Yield the figures of all or these queues, as lines."""
    return _lines(_read(using, queues=queues, now=now))


def _read(using: str, *, queues: list[str] | None, now: bool) -> Read:
    with counting(using) as db:
        workers = known_workers(db)
        figures_shown = figures_of(db, workers, now=now)
        _mark_paused(figures_shown, using)
        problems = health.problems(db, using, Limits(queues=queues))
    if queues:
        figures_shown["queues"] = [found for found in figures_shown["queues"] if found["queue"] in queues]
    return Read(figures_shown, workers, problems)


@contextmanager
def counting(using: str, **settings: str) -> Iterator[Database]:
    """Open a transaction with a worker's planner settings, which keep plans on the indexes, and with these settings."""
    with at_read_committed(using):
        db = on(using)
        configure(db, {**PINS, **settings}, local=True)
        yield db


def _mark_paused(figures_shown: dict[str, Any], using: str) -> None:
    paused = paused_queues(using)
    for found in figures_shown["queues"]:
        found["paused"] = found["queue"] in paused


def _lines(found: Read) -> Iterator[str]:
    figures_shown, workers, _ = found
    seconds, by = figures_shown["age_seconds"], output.plain(figures_shown["measured_by"])
    yield f"Counted {span(seconds)} ago by {by}." if figures_shown["measured_by"] else "Counted now."
    yield _workers_line(figures_shown["workers"])
    for worker in workers:
        if worker.status == liveness.SILENT:
            name, beat_age = output.plain(worker.name), span(worker.beat_age_seconds)
            yield f"Worker {name} is silent: last heard from {beat_age} ago, with {_jobs(worker.running)}."
    yield from output.table(HEADERS, map(_cells, figures_shown["queues"]))


def _workers_line(workers: dict[str, int]) -> str:
    live, lately = workers["live"], span(get_conf().silent_seconds)
    if not live:
        coming = " One comes to this schema when it has something to do." if liveness.sleeps() else ""
        return f"No worker was heard from within {lately}.{coming}"
    many = f"{live} worker{'' if live == 1 else 's'} {'was' if live == 1 else 'were'}"
    draining = "".join(f", {n} {state}" for state in ("quiet", "draining") if (n := workers.get(state, 0)))
    held = f"{_jobs(workers['running'])} in {workers['slots']} threads"
    return f"{many} heard from within {lately}{draining}, with {held} at the last heartbeat."


def _jobs(number: int) -> str:
    return f"{number} job{'' if number == 1 else 's'}"


def _cells(found: dict[str, Any]) -> list[str]:
    oldest = found["oldest_ready_seconds"]
    paths = (
        "scheduled",
        "retrying",
        "running",
        *(f"held.{hold}" for hold in Hold),
        *(f"ended.{end}" for end in Outcome),
    )
    return [
        output.plain(found["queue"]) + (" (paused)" if found["paused"] else ""),
        _number(found, "ready"),
        "-" if oldest is None else span(oldest),
        *(_number(found, path) for path in paths),
        str(found["workers"]),
    ]


def _number(found: dict[str, Any], path: str) -> str:
    return f"{'≥' if path in found['at_least'] else ''}{figure(found, path)}"
