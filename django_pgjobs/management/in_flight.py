"""``manage.py pgjobs check --in-flight``: whether the code here would run what waits in the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from django.core.management.base import BaseCommand, CommandError

from django_pgjobs.diagnosis.in_flight import InFlight, Misfit, Survey
from django_pgjobs.inspection.words import grouped, span
from django_pgjobs.management import databases, output
from django_pgjobs.management.output import Options
from django_pgjobs.store.database import PINS, at_read_committed, configure, on

STATEMENT_TIMEOUT = "60s"


@databases.on_each
def check_in_flight(command: BaseCommand, options: Options) -> None:
    """Print what does not fit this code; exit with 1 if there is any that is not allowed."""
    if options["watch"] is not None:
        raise CommandError("--in-flight looks once: leave --watch out.", returncode=output.WRONG)
    using = options["database"]
    with at_read_committed(using):
        db = on(using)
        settings = {**PINS, "statement_timeout": STATEMENT_TIMEOUT, "transaction_read_only": "on"}
        configure(db, settings, local=True)
        seen = Survey(db, using, options["queue"]).run(options["most"])
    for each in seen.findings:
        each.is_note = each.is_note or bool({each.name, f"{each.code}:{each.name}"} & {*options["allow"]})
    problems = [each for each in seen.findings if not each.is_note]
    output.answer(command, options, _fields(seen, problems), _lines(seen, problems))
    output.exit_if(problems)


def _fields(seen: InFlight, problems: list[Misfit]) -> dict[str, object]:
    notes = [each for each in seen.findings if each.is_note]
    lists = {"problems": problems, "notes": notes}
    return {
        "fits": not problems,
        **{key: [{k: v for k, v in asdict(each).items() if k != "is_note"} for each in lists[key]] for key in lists},
        "read": {"jobs": seen.jobs, "schedules": seen.crons, "events": seen.events, "all": not seen.cut},
    }


def _lines(seen: InFlight, problems: list[Misfit]) -> Iterator[str]:
    for each in [*problems, *(each for each in seen.findings if each.is_note)]:
        is_job = each.code not in ("cron", "cron_missing", "event_payload")
        ids = ", ".join(output.ref(job_id) if is_job else str(job_id) for job_id in each.ids)
        more = ", …" if each.jobs > len(each.ids) else ""
        age = f", the oldest of {span(each.seconds)} ago" if is_job else ""
        note = "note: " if each.is_note else ""
        yield output.plain(f"{note}{each.code}: {each.name}: {grouped(each.jobs)} {each.fate}: {each.text}")
        yield output.plain(f"  {ids}{more}{age}." + (f" Cure: {each.cure}." if each.cure else ""))
    more = " There are more: --most says where to stop." if seen.cut else ""
    found = "all fit this code" if not problems else "some do not fit this code"
    rows = f"{grouped(seen.jobs)} jobs, {grouped(seen.crons)} schedules, {grouped(seen.events)} unread events"
    yield f"Looked at {rows}: {found}.{more}"
