"""Subcommands where several databases are served: they show all of them, and steer each by its own.

A subcommand itself knows one database, the option ``database``. Here is decided which that is, before it is performed:

* ``on_each``: every database, one after the other. What a subcommand prints stands below its database's name; as JSON
  it becomes one list, or the list ``databases`` of one object.
* ``on_one``: the one that has the row whose id is given. Ids repeat, so one without an alias is enough only for a
  subcommand that reads, and only where one database alone has such a row.
* What draws itself again (``watching``), ``check`` and ``list`` ask all databases themselves, by ``asked``.

A database without an answer is a line that names it, and exit status 1; the others are served. Each is asked first
whether it answers, within two seconds in all. ``--database``, or an alias before an id, narrows everything to that one.
Where one database is served, nothing of this applies.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Any, NamedTuple, NoReturn, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import models

from django_pgjobs.management import filters, output
from django_pgjobs.management.filters import RowId
from django_pgjobs.management.output import Options
from django_pgjobs.models import Action, Job
from django_pgjobs.registering.served import several_aliases
from django_pgjobs.store.asking import SECONDS, NoAnswer, Reply, ask_each

Perform = Callable[[BaseCommand, Options], None]

Answer = TypeVar("Answer")


def _several() -> tuple[str, ...]:
    try:
        return several_aliases()
    except ImproperlyConfigured as error:
        raise CommandError(output.plain(error), returncode=output.WRONG) from None


def aliases_of(options: Options) -> tuple[str, ...]:
    """Return the databases that the options mean. Raises ``CommandError`` if they contradict each other."""
    rows = [*filter(_is_row, options.values()), *(options.get("ids") or () if _are_of_one(options) else ())]
    named = {row.alias for row in rows} - {""}
    if options["database"] is not None:
        named.add(options["database"])
    if len(named) > 1:
        _refuse_others(*named)
    if not named and (several := _several()):
        return several
    alias = filters.database_of({"database": next(iter(named), None)})
    if others := {row.alias for row in options.get("ids") or ()} - {"", alias}:
        _refuse_others(alias, *others)
    return (alias,)


def _refuse_others(*aliases: str) -> NoReturn:
    raise CommandError(f"These are several databases: {', '.join(sorted(aliases))}.", returncode=output.WRONG)


def _is_row(value: object) -> bool:
    return isinstance(value, RowId)


def _are_of_one(options: Options) -> bool:
    """Return whether ids mean one database together; otherwise each means its own."""
    return len({row.alias for row in options.get("ids") or ()}) == 1 or options["database"] is not None


def shown(alias: str) -> str:
    """Return the alias if output says it: where several are served."""
    try:
        return alias if several_aliases() else ""
    except ImproperlyConfigured:
        return ""


def _plain(options: Options, alias: str) -> Options:
    """Return the options for a subcommand on this database: with its ids, as numbers."""
    found = {name: value.id if isinstance(value, RowId) else value for name, value in options.items()}
    if "ids" in found:
        found["ids"] = [row.id for row in options["ids"] if row.alias in ("", alias)]
    return {**found, "database": alias}


def asked(
    aliases: Sequence[str], question: Callable[[str], Answer], *, seconds: float = SECONDS
) -> list[Reply[Answer]]:
    """Return what each database answers. With more time than usual those come first that answer at all."""
    says = aliases[0] if len(aliases) > 1 else shown(aliases[0])

    def ask(alias: str) -> Answer:
        with output.shown_at(says and alias):
            return question(alias)

    if seconds <= SECONDS or len(aliases) == 1:
        return ask_each(aliases, ask)
    there = ask_each(aliases, lambda _: None)
    answering = [each.alias for each in there if not each.trouble]
    answers = {each.alias: each for each in ask_each(answering, ask, seconds=seconds)}
    return [answers.get(each.alias, Reply(each.alias, trouble=each.trouble)) for each in there]


def trouble_line(reply: Reply[object]) -> str:
    """Return the line about a database without an answer."""
    return output.plain(f"{reply.alias}: {reply.trouble.text if reply.trouble else ''}.")


def sections(replies: Sequence[Reply[list[str]]]) -> Iterator[str]:
    """Yield what each database answered, of several below its name."""
    if len(replies) == 1:
        yield from replies[0].answer or ()
        return
    for index, reply in enumerate(replies):
        yield from [""] if index else []
        yield trouble_line(reply) if reply.trouble else f"{reply.alias}:"
        yield from reply.answer or ()


def fields_of(replies: Sequence[Reply[dict[str, object]]]) -> dict[str, object]:
    """Return the answers as one JSON object."""
    if len(replies) == 1:
        return replies[0].answer or {}
    return {"databases": [_fields_of_trouble(reply) if reply.trouble else reply.answer for reply in replies]}


def _fields_of_trouble(reply: Reply[object]) -> dict[str, object]:
    return {"database": reply.alias, "trouble": None if reply.trouble is None else reply.trouble._asdict()}


def complain(command: BaseCommand, replies: Sequence[Reply[Answer]]) -> list[Reply[Answer]]:
    """Write a line to stderr for each database without an answer, and return those."""
    away = [reply for reply in replies if reply.trouble]
    for reply in away:
        output.write_line(command, trouble_line(reply), to_stderr=True)
    return away


class Spread(NamedTuple):
    """The databases of a subcommand that answer, each with its own options; and those that do not."""

    options: dict[str, Options]
    away: list[Reply[object]]


def spread(command: BaseCommand, options: Options, *, steers: bool) -> Spread:
    """Return where to perform a subcommand, and complain of databases without an answer.

    Raises ``CommandError`` for an id that needs an alias.
    """
    aliases = aliases_of(options)
    if len(aliases) == 1:
        away = _away(command, aliases[0])
        return Spread({} if away else {aliases[0]: _plain(options, aliases[0])}, away)
    if bare := [name for name, value in options.items() if isinstance(value, RowId)]:
        words = f"Say of which database --{bare[0]} is: {_choices(aliases, options[bare[0]].id)}."
        raise CommandError(words, returncode=output.WRONG)
    ids = options.get("ids") or []
    if steers and (unsaid := [row.id for row in ids if not row.alias]):
        _refuse_bare(command, aliases, unsaid, Job)
    if ids and all(row.alias for row in ids):
        for row in ids:
            filters.database_of({"database": row.alias})
        aliases = tuple(dict.fromkeys(row.alias for row in ids))
    replies = ask_each(aliases, lambda _: None) if len(aliases) > 1 else []
    away = complain(command, replies)
    there = [alias for alias in aliases if alias not in {reply.alias for reply in away}]
    return Spread({alias: _plain(options, alias) for alias in there}, away)


def _away(command: BaseCommand, alias: str) -> list[Reply[object]]:
    """Complain of one of several that does not answer."""
    return complain(command, ask_each([alias], lambda _: None, bounded=True)) if shown(alias) else []


def _choices(aliases: Sequence[str], number: int) -> str:
    return " or ".join(f"{alias}:{number}" for alias in aliases)


def _holders(aliases: Sequence[str], numbers: Sequence[int], model: type[models.Model]) -> list[Reply[set[int]]]:
    def there(alias: str) -> set[int]:
        return set(model._default_manager.using(alias).filter(pk__in=numbers).values_list("pk", flat=True))

    return ask_each(aliases, there)


def _refuse_bare(
    command: BaseCommand, aliases: Sequence[str], numbers: list[int], model: type[models.Model]
) -> NoReturn:
    replies = _holders(aliases, numbers, model)
    complain(command, replies)
    having = {number: [each.alias for each in replies if number in (each.answer or ())] for number in numbers}
    said = [f"{_choices(found, number)}" for number, found in having.items() if found]
    nowhere = [str(number) for number, found in having.items() if not found]
    words = f"Several databases are served: say which {model._meta.model_name} you mean"
    words += f": {'; '.join(said)}" if said else ""
    words += f" (no database that answers has {', '.join(nowhere)})" if nowhere else ""
    raise CommandError(f"{words}.", returncode=output.WRONG)


def on_one(perform: Perform, model: type[models.Model] = Job, *, steers: bool) -> Perform:
    """Decorate a subcommand about one row, or one database."""

    @functools.wraps(perform)
    def wrapped(command: BaseCommand, options: Options) -> None:
        aliases = aliases_of(options)
        alias = aliases[0] if len(aliases) == 1 else _home(command, options, aliases)
        if len(aliases) == 1:
            output.exit_if(_away(command, alias))
        with output.shown_at(shown(alias)):
            perform(command, _plain(options, alias))

    def _home(command: BaseCommand, options: Options, aliases: tuple[str, ...]) -> str:
        row = next(filter(_is_row, options.values()), None)
        if row is None:
            words = f"Several databases are served: say which with --database: {', '.join(aliases)}."
            raise CommandError(words, returncode=output.WRONG)
        if steers:
            _refuse_bare(command, aliases, [row.id], model)
        replies = _holders(aliases, [row.id], model)
        complain(command, replies)
        found = [reply.alias for reply in replies if reply.answer]
        if not found:
            where = ", ".join(reply.alias for reply in replies if not reply.trouble)
            where = f"in {where}" if where else "in a database that answers"
            output.fail(command, f"There is no {model._meta.model_name} {row.id} {where}.")
        if len(found) > 1:
            words = f"Several databases have a {model._meta.model_name} {row.id}: say {_choices(found, row.id)}."
            raise CommandError(words, returncode=output.WRONG)
        return found[0]

    return wrapped


def on_each(perform: Perform, *, steers: bool = False, named: Callable[[Options], set[str]] | None = None) -> Perform:
    """Decorate a subcommand that runs on each database by itself; one that fails there does not stop the others.

    ``named`` returns what a database has of the rows that are named, so that none is missing because it is elsewhere.
    """

    @functools.wraps(perform)
    def wrapped(command: BaseCommand, options: Options) -> None:
        where = spread(command, options, steers=steers)
        if len(where.options) == 1 and not where.away:
            [(alias, here)] = where.options.items()
            with output.shown_at(shown(alias)):
                perform(command, here)
            return
        statuses, found = [output.SKIPPED for _ in where.away], list[Any]()
        elsewhere = set[str]()
        if named is not None:
            replies = ask_each(list(where.options), lambda alias: named(where.options[alias]))
            elsewhere.update(*(reply.answer or () for reply in replies))
        for alias, here in where.options.items():
            status, texts = _performed(command, alias, {**here, "elsewhere": elsewhere}, perform)
            statuses.append(status)
            found += map(json.loads, texts)
        if options["format"] == "json":
            flat = found and all(isinstance(each, list) for each in found)
            whole = {"databases": [*found, *map(_fields_of_trouble, where.away)]}
            output.write_line(command, output.json_of([row for rows in found for row in rows] if flat else whole))
        if worst := max(statuses, default=0):
            raise SystemExit(worst)

    return wrapped


def _performed(command: BaseCommand, alias: str, options: Options, perform: Perform) -> tuple[int, list[str]]:
    """Perform a subcommand on one of several; return its exit status, and the JSON that it printed."""
    before, text = command.stdout, StringIO()
    try:
        with output.shown_at(alias):
            if options["format"] == "json":
                command.stdout = OutputWrapper(text)
            else:
                output.write_line(command, f"{alias}:")
            output.facing_the_database(perform)(command, options)
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except CommandError as error:
        output.write_line(command, f"{alias}: {error}", to_stderr=True)
        status = error.returncode
        if options["format"] == "json":
            trouble = NoAnswer("failed", str(error))
            text = StringIO(output.json_of(_fields_of_trouble(Reply(alias, trouble=trouble))))
    finally:
        command.stdout = before
    return status, list(filter(None, text.getvalue().split("\n")))


def on_action(perform: Perform) -> Perform:
    """Decorate a subcommand about one action of an operator."""
    return on_one(perform, Action, steers=True)
