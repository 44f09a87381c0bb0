"""``manage.py pgjobs list``: jobs, read along an index up to the limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db.models import Case, F, Func, IntegerField, Q, TextField, When
from django.db.models.functions import Cast, Left, Now

from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.inspection.words import grouped
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import Job, JobQuerySet
from django_pgjobs.presentation import job_list
from django_pgjobs.presentation.job_conditions import claimed_by, workers_named
from django_pgjobs.presentation.job_rows import fate
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.presentation.sight import Hidden
from django_pgjobs.presentation.wording import arguments, label_of
from django_pgjobs.store import claiming
from django_pgjobs.store.database import on

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import JobRow

LIMIT = 50
MOST_PAYLOAD = 10_000
"""The JSON of a job has its arguments if they take up to so many bytes in the table."""

ABANDONED_ALONE = (
    "Only abandoned jobs were looked at: --state retrying and --state limited find those that will be tried again."
)
"""The states that ``--error`` without a state looks at: an index leads to those."""

PAGE = 1000
"""Rows per batch."""

COLUMNS = (
    "id", "name", "queue", "state", "outcome", "priority", "attempt", "max_attempts", "created_at", "run_at",
    "claimed_at", "finished_at", "duration_seconds", "description", "key", "hold", "ending", "cancel_requested_at",
)  # fmt: skip
"""The columns to read; none can grow to a megabyte. Their order is that of the JSON fields."""

HEADERS = ("ID", "STATE", "NAME", "QUEUE", "PRIO", "ATTEMPT", "RUN AT", "FINISHED", "DESCRIPTION")


def add_subcommands(subcommands: object) -> None:
    """Declare ``list``."""
    parser = filters.declare(subcommands, "list", show_list, "List the jobs that match a filter, or the newest jobs.")
    filters.add_filters(parser)
    parser.add_argument("--worker", metavar="NAME", help="Jobs claimed by this worker (name or id).")
    text = "At most N jobs (default: %(default)s)."
    parser.add_argument("--limit", metavar="N", type=filters.number, default=LIMIT, help=text)
    text = "List all jobs, however many there are and however long it takes."
    parser.add_argument("--all", action="store_true", help=text)
    text = "Search unindexed columns in 1,000,000 jobs instead of 100,000."
    parser.add_argument("--far", action="store_true", help=text)
    filters.add_output(parser)


def show_list(command: BaseCommand, options: Options) -> None:
    """Print the jobs; exit with 1 if an id matches no job."""
    where = databases.spread(command, options, steers=False)
    ids, notices, no_workers = dict[str, list[int]](), list[str](), list[CommandError]()
    many = len(where.options) + len(where.away) > 1
    for alias, here in where.options.items():
        try:
            ids[alias], notice = _found(JobQuerySet(Job, using=alias), here)
        except CommandError as error:
            no_workers.append(error)
        else:
            notices += [f"{alias}: {notice}" if many else notice] if notice else []
    if no_workers and not ids:
        raise no_workers[0]
    rows = _rows_of_all(ids, many=many, with_arguments=options["format"] == "json")
    if options["format"] == "json":
        _write_json(command, rows)
    else:
        for line in output.table(HEADERS, map(_cells, rows)):
            output.write_line(command, line)
    for notice in notices:
        output.write_line(command, notice, to_stderr=True)
    if options["error"] is not None and options["state"] is None and not options["ids"]:
        output.write_line(command, ABANDONED_ALONE, to_stderr=True)
    if not any(ids.values()) and (hint := _name_hint(options["name"]) or _alias_hint(options["alias"])):
        output.fail(command, hint)
    there = {(at, pk) for alias, found in ids.items() for pk in found for at in ("", alias)}
    if missing := sorted(set(options["ids"]) - there):
        words = (f"{row.alias}:{row.id}" if row.alias else f"#{row.id}" for row in missing)
        output.fail(command, f"Not among them: {', '.join(words)}.")
    output.exit_if(where.away)


def _rows_of_all(ids: Mapping[str, list[int]], *, many: bool, with_arguments: bool) -> Iterator[JobRow]:
    for alias, found in ids.items():
        with output.shown_at(alias if many else databases.shown(alias)):
            yield from _rows(JobQuerySet(Job, using=alias), found, with_arguments=with_arguments)


def _name_hint(name: str | None) -> str:
    """Return a hint if no job matched and this project's code has no job of that name."""
    if name is None or registry.resolved(name) is not None:
        return ""
    hint = did_you_mean(name, sorted(registry.names()))
    return output.plain(f"The code here has no job {name!r}{hint}; --name takes the whole name.")


def _alias_hint(alias: str | None) -> str:
    """Return a hint if no job matched and the settings have no such alias of tasks."""
    known = getattr(settings, "TASKS", None) or {}
    if alias is None or alias in known:
        return ""
    return output.plain(f"TASKS has no alias {alias!r}{did_you_mean(alias, list(known))}.")


def _found(jobs: JobQuerySet, options: Options) -> tuple[list[int], str]:
    """Return the ids in order, and a remark if there may be more jobs."""
    search = filters.search_of(options, far=options["far"])
    if options["worker"] is not None:
        if not workers_named(options["worker"]).using(jobs.db).exists():
            raise CommandError(f"There is no worker {output.plain(options['worker'])!r}: see pgjobs workers --all.")
        among = Q(pk__in=options["ids"]) if options["ids"] else Q()
        claimed = jobs.filter(search.where(), claimed_by(options["worker"]), among).order_by("-pk")
        held = list(claimed.values_list("pk", flat=True))
        most = len(held) if options["all"] else options["limit"]
        return held[:most], f"There are more than {most}: see --limit and --all." if len(held) > most else ""
    if options["ids"]:
        return _named(jobs, search, options["ids"]), ""
    search = search if options["all"] else job_list.settled(search, jobs.db)
    ranges = job_list.ranges_of(search, claiming.list_pairs(on(jobs.db)))
    cut = job_list.bounded(search, jobs, ranges) if search.bounded and not options["all"] else []
    most = None if options["all"] else options["limit"] + 1
    ids = job_list.find_ids(jobs.filter(search.where() if options["all"] else search.listed()), cut or ranges, most)
    if most is not None and len(ids) == most:
        return ids[:-1], f"There are more than {most - 1}: see --limit and --all."
    wider = "--all looks at all" if options["far"] else "--far and --all look further"
    return ids, f"Only the first {grouped(search.reach)} jobs were searched; {wider}." if cut else ""


def _named(jobs: JobQuerySet, search: JobSearch, ids: Iterable[int]) -> list[int]:
    ids = list(dict.fromkeys(ids))
    there = set(jobs.filter(search.where(), pk__in=ids).values_list("pk", flat=True))
    return [job_id for job_id in ids if job_id in there]


def _rows(jobs: JobQuerySet, ids: list[int], *, with_arguments: bool) -> Iterator[JobRow]:
    extracts = {
        "now": Now(),
        "fate": fate(),
        "error_start": Left("error", 500),
        "reason_start": Left("hold_reason", 500),
    }
    sizes = {"payload_size": Func(F("payload"), function="pg_column_size", output_field=IntegerField())}
    if with_arguments:
        short = Case(When(payload_size__lte=MOST_PAYLOAD, then=Cast("payload", TextField())))
        jobs, extracts = jobs.annotate(**sizes), {**extracts, "payload_start": short}
    rows: Any = jobs.annotate(**extracts).only(*COLUMNS)
    for start in range(0, len(ids), PAGE):
        yield from job_list.in_order(rows, ids[start : start + PAGE])


def fields_of(job: JobRow) -> dict[str, object]:
    """Return the documented JSON fields of a job."""
    found = {column: getattr(job, column) for column in COLUMNS}
    label = {"label": label_of(job), "hold_reason": job.reason_start, "error": job.error_start}
    return {**found, **label, "arguments": _arguments_of(job)}


def _arguments_of(job: JobRow) -> dict[str, str] | None:
    """Return the arguments as ``show`` prints them, sensitive ones hidden; None if they cannot be shown."""
    if job.payload_start is None:
        return None
    shown = arguments(job.name, job.payload_start, reveal=False)
    return None if isinstance(shown, Hidden) else dict(shown)


def _write_json(command: BaseCommand, rows: Iterable[JobRow]) -> None:
    """Write one JSON list, an object per line; drop each row once it is written."""
    before = "["
    for row in rows:
        output.write_line(command, f"{before}{output.json_of(output.located(fields_of(row)))}".removesuffix("\n"))
        before = ","
    output.write_line(command, "[]" if before == "[" else "]")


def _cells(job: JobRow) -> tuple[str, ...]:
    state = label_of(job)
    if job.ending and not job.outcome:
        state = f"{state} > {job.ending}"
    reason = job.reason_start if job.hold else "" if job.outcome == "succeeded" else job.error_start
    details = " - ".join(output.short(text, 60) for text in (job.description, reason) if text)
    return (
        output.ref(job.pk, ""),
        output.plain(state),
        output.short(job.name, 60),
        output.plain(job.queue),
        str(job.priority),
        f"{job.attempt}/{job.max_attempts}",
        output.instant(job.run_at),
        output.instant(job.finished_at),
        details,
    )
