"""``manage.py pgjobs limit``: set limits in place of the code's, restore these, and list what is set."""

from __future__ import annotations

from django.core.management.base import BaseCommand, CommandError

from django_pgjobs.definition.declared_limits import declared, numbers, subject
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.models import LimitOverride
from django_pgjobs.queues import limits
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import at_read_committed

HELP = "Set the limit of queues, or of jobs by name, in place of the code's; or restore that."


def add_subcommands(subcommands: object) -> None:
    """Declare ``limit``."""
    parser = filters.declare(subcommands, "limit", databases.on_each(limit, steers=True), HELP)
    filters.add_names(parser)
    parser.add_argument("--each-key", action="store_true", help="Of each job the limit with a key.")
    parser.add_argument("--concurrency", metavar="N", type=int, help="How many run at once.")
    parser.add_argument("--rate", metavar="N", type=int, help="How many start in a period.")
    parser.add_argument("--per", metavar="SECONDS", type=float, help="The period (default: the code's, or 60).")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--restore", action="store_true", help="Let the code's numbers apply again.")
    what.add_argument("--list", action="store_true", help="Only list the limits that are set.")
    parser.add_argument("--reason", metavar="TEXT", default="", help="Why.")
    until = "When the code's numbers apply again by themselves: 2030-01-31T03:00, in the project's time zone."
    filters.add_end_of_pause(parser, until)
    filters.add_author(parser)
    filters.add_output(parser)


def limit(command: BaseCommand, options: Options) -> None:
    """Set limits and print each with the code's numbers; a wrong number or name sets none."""
    database = filters.database_of(options)
    if options["restore"]:
        _restore(command, options, database)
        return
    found = list(limits.current(database)) if options["list"] else _set(options, database)
    output.answer(command, options, {"limits": [_as_json(each) for each in found]}, map(_line, found))
    if options["format"] != "json" and not found:
        output.write_line(command, "No limit is set in place of the code's.")


def _set(options: Options, database: str) -> list[LimitOverride]:
    words = {name: options[name] for name in ("concurrency", "rate", "per", "by", "reason")}
    words |= {"until": filters.end_of_pause(options), "database": database}
    with output.refused(InvalidJob), at_read_committed(database):
        return [limits.override(kind, name, **words) for kind, name in _named(options)]


def _restore(command: BaseCommand, options: Options, database: str) -> None:
    """Restore, and print what was; exit with 1 if something was not set."""
    words = {"by": options["by"], "reason": options["reason"], "database": database}
    answers = [(kind, name, limits.restore(kind, name, **words)) for kind, name in _named(options)]
    fields = [{"kind": kind, "name": name, "was_set": was} for kind, name, was in answers]
    lines = (f"{subject(kind, name)}: {'restored' if was else 'no limit was set'}" for kind, name, was in answers)
    output.answer(command, options, {"restored": fields}, map(output.plain, lines))
    output.exit_if(not all(was for _, _, was in answers))


def _named(options: Options) -> list[tuple[str, str]]:
    """Return kind and name of what to limit."""
    if options["each_key"] and options["queues"]:
        raise CommandError("--each-key is about jobs: name them with --job.", returncode=output.WRONG)
    return filters.named(options, "key" if options["each_key"] else "job")


def _as_json(found: LimitOverride) -> dict[str, object]:
    code = declared(found.kind, found.name)
    shown = {
        key: getattr(found, key) for key in ("kind", "name", "concurrency", "rate", "per", "reason", "set_at", "until")
    }
    in_code = code.limit and {"concurrency": code.limit.concurrency, "rate": code.limit.rate, "per": code.limit.per}
    return {**shown, "by": found.set_by, "code": in_code, "idle": not code.applies}


def _line(found: LimitOverride) -> str:
    code = declared(found.kind, found.name)
    until = f"until {output.instant(found.until)}" if found.until else "until it is restored"
    by = f" by {found.set_by}" if found.set_by else ""
    reason = f": {found.reason}" if found.reason else ""
    said = numbers(found.concurrency, found.rate, found.per)
    head = f"limit of {subject(found.kind, found.name)}: {said}, {code.words}"
    idle = "" if code.applies else " (idle: this code has nothing that it could count)"
    return output.plain(one_line(f"{head} {until}{by}{reason}{idle}"))
