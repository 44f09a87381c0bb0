"""``manage.py pgjobs import``: take over what waits in another queue."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_pgjobs.exceptions import PgJobsError
from django_pgjobs.importing import brokers, planning, rabbit, taking
from django_pgjobs.importing.celery_messages import CELERY, CELERY_UNACKED
from django_pgjobs.importing.messages import BROKERS
from django_pgjobs.importing.recurring import SCHEDULERS
from django_pgjobs.importing.sources import SOURCES
from django_pgjobs.importing.taking import Fate
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import is_not_migrated
from django_pgjobs.store.importing import Imported

NO_BROKER = "Give its Redis: --broker redis://HOST:6379/0."


def add_subcommands(subcommands: object) -> None:
    """Declare ``import``."""
    text = "Take over what waits in another queue, each job once. Writes nothing without --apply."
    parser = filters.declare(subcommands, "import", databases.on_one(import_jobs, steers=True), text)
    parser.add_argument(
        "source", metavar="SOURCE", nargs="?", choices=[*SOURCES, *BROKERS, *SCHEDULERS],
        help=f"One of {', '.join([*SOURCES, *BROKERS, *SCHEDULERS])}.",
    )  # fmt: skip
    parser.add_argument("--broker", metavar="URL", help=f"Redis of {', '.join(BROKERS)}: redis://HOST:6379/0.")
    text = "Celery on Redis: first let wait again what its killed workers had."
    parser.add_argument("--unacked", action="store_true", help=text)
    text = "Return the jobs of this run that no worker has started to the queue that they came from."
    parser.add_argument("--undo", metavar="RUN", help=text)
    writes = parser.add_mutually_exclusive_group()
    writes.add_argument("--apply", action="store_true", help="Do it.")
    writes.add_argument("--dry-run", action="store_true", help="Only say what would be done: the default.")
    filters.add_output(parser)


def import_jobs(command: BaseCommand, options: Options) -> None:
    """Import, or undo an import; exit with 1 if something was left."""
    if (options["source"] is None) == (options["undo"] is None):
        raise CommandError("Give a SOURCE, or --undo RUN.", returncode=output.WRONG)
    if options["unacked"] and options["source"] != CELERY.name:
        raise CommandError("--unacked is for celery alone.", returncode=output.WRONG)
    try:
        (_take if options["undo"] is None else _undo)(command, options)
    except PgJobsError as error:
        raise CommandError(output.plain(one_line(error)), returncode=output.WRONG) from None
    except (DatabaseError, psycopg.Error) as error:
        words = output.words_of(error)
        missing = output.plain(str(error).partition("\n")[0])
        if is_not_migrated(error) and "pgjobs_" not in missing:
            raise CommandError(f"This database has no such queue ({missing}).") from error
        raise CommandError(f"{words}\nThe reported jobs are done: run the same command again.") from error


def _take(command: BaseCommand, options: Options) -> None:
    name, apply = options["source"], options["apply"]
    as_json = options["format"] == "json"
    rows: list[Fate] = []

    def report(fates: Sequence[Fate]) -> None:
        if as_json:
            rows.extend(fates)
        for fate in () if as_json else fates:
            output.write_line(command, f"  {_line(fate)}")

    using = filters.database_of(options)
    if name in SOURCES:
        tally = taking.take(SOURCES[name], using, apply=apply, report=report)
    elif name in BROKERS:
        broker = CELERY_UNACKED if options["unacked"] else BROKERS[name]
        url = _url(broker, options)
        if broker is CELERY and rabbit.is_rabbit(url):
            tally = rabbit.take_from_rabbit(url, using, apply=apply, report=report)
        else:
            tally = brokers.take_messages(broker, url, using, apply=apply, report=report)
    else:
        tally = planning.take_schedules(SCHEDULERS[name], using, apply=apply, report=report)
    fields = {
        "source": name,
        "run": tally.run if apply else None,
        "applied": apply,
        "taken": tally.taken,
        "different": tally.different,
        "left": tally.left,
        "jobs": [fate._asdict() for fate in rows],
    }
    verb = "taken" if apply else "would be taken"
    lines = [f"import: {tally.taken} {verb}, {tally.different} of them with a difference, {tally.left} left."]
    if apply and tally.taken:
        lines.append(f"To undo it: manage.py pgjobs import --undo {tally.run} --apply")
    elif tally.taken:
        where = " --broker URL" if options["broker"] else ""
        lines.append(f"Nothing was written. To take them: manage.py pgjobs import {name}{where} --apply")
    output.answer(command, options, fields, lines)
    output.exit_if(tally.left)


def _url(broker: brokers.Broker, options: Options) -> str:
    url: str = options["broker"] or broker.url()
    if not url:
        raise CommandError(NO_BROKER, returncode=output.WRONG)
    return url


def _line(fate: Fate) -> str:
    name = output.plain(f"{fate.id} {fate.name}".strip())
    if fate.is_left:
        return f"left {name}: {output.plain(one_line(fate.reason))}"
    more = f": {output.plain('; '.join(fate.differences))}" if fate.differences else ""
    return f"{name} -> {'' if fate.job_id is None else output.ref(fate.job_id)}".rstrip(" ->") + more


def _undo(command: BaseCommand, options: Options) -> None:
    apply, as_json = options["apply"], options["format"] == "json"
    rows: list[Imported] = []

    def report(notes: Sequence[Imported]) -> None:
        if as_json:
            rows.extend(notes)
        for note in () if as_json else notes:
            here = output.plain(note.entry or "") if note.job_id is None else output.ref(note.job_id)
            output.write_line(command, f"  {here} -> {output.plain(note.source_id)}")

    using, run = filters.database_of(options), options["undo"]
    name = brokers.source_of(run, using)
    if name in BROKERS:
        url = _url(BROKERS[name], options)
        done = brokers.undo_messages(BROKERS[name], url, run, using, apply=apply, report=report)
    elif name == rabbit.RABBIT:
        done = rabbit.undo_to_rabbit(_url(CELERY, options), run, using, apply=apply, report=report)
    else:
        done = taking.undo(run, using, apply=apply, report=report)
    verb = "returned" if apply else "would be returned"
    fields = {
        "run": options["undo"],
        "applied": apply,
        "returned": done.returned,
        "kept": done.kept,
        "jobs": [note._asdict() for note in rows],
    }
    lines = [f"import: {done.returned} {verb}, {sum(done.kept.values())} stay here."]
    lines += [f"  {number} stay here: {output.plain(reason)}" for reason, number in sorted(done.kept.items())]
    output.answer(command, options, fields, lines)
    output.exit_if(done.kept)
