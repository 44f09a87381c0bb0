"""``manage.py pgjobs prune``: prune now and completely, as the leader does from time to time, or by another rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, transaction

from django_pgjobs.conf import get_conf
from django_pgjobs.maintenance.pruning import BUSY_SECONDS, LEAST_SECONDS, Pruner, PruneRule, rules_of
from django_pgjobs.management import databases, filters, output
from django_pgjobs.management.output import Options
from django_pgjobs.management.steer import confirm
from django_pgjobs.states import Outcome
from django_pgjobs.store import pruning
from django_pgjobs.store.database import Enclosing, Params, Rows, configure, on, read_committed
from django_pgjobs.values.setting_rules import QUEUE_NAME


def add_subcommands(subcommands: object) -> None:
    """Declare ``prune``."""
    text = "Delete ended jobs whose retention is over, with their history."
    parser = filters.declare(subcommands, "prune", databases.on_each(prune, steers=True), text)
    parser.add_argument("--dry-run", action="store_true", help="Count the jobs, but delete nothing.")
    text = "Delete jobs that ended longer ago than this (90s, 36h, 2w), instead of applying RETENTION."
    parser.add_argument("--older-than", metavar="AGE", type=filters.age, help=text)
    text = "Only jobs with this outcome; repeatable (default: all)."
    parser.add_argument("--outcome", action="append", choices=list(map(str, Outcome)), help=text)
    parser.add_argument("--queue", metavar="NAME", action="append", help="Only this queue; repeatable.")
    parser.add_argument("--name", metavar="NAME", action="append", help="Only jobs of this name; repeatable.")
    filters.add_output(parser)
    filters.add_yes(parser, "With --older-than, do not ask for confirmation.")


def prune(command: BaseCommand, options: Options) -> None:
    """Delete all of them, and print how many; exit with 1 if some could not be deleted."""
    rules, db = _rules(options), _Committing(filters.database_of(options))
    if options["dry_run"]:
        _write_counts(command, options, _each(rules, lambda rule: (_count(db, rule), 0)))
        return
    if options["older_than"] is not None and not options["yes"]:
        confirm(command, f"Delete ended jobs of more than {options['older_than']:g} seconds ago?")
    counts = _each(rules, lambda rule: _delete(db, rule))
    _write_counts(command, options, counts)
    output.exit_if(any(skipped for _, skipped in counts.values()))


def _rules(options: Options) -> list[PruneRule]:
    outcomes, queues = options["outcome"] or list(Outcome), tuple(options["queue"] or ())
    for queue in queues:
        if not QUEUE_NAME.fullmatch(queue):
            raise CommandError(f"There is no queue {queue!r}.", returncode=output.WRONG)
    found = _rules_of_queues(options, outcomes, queues)
    return [replace(rule, names=tuple(options["name"])) for rule in found] if options["name"] else found


def _rules_of_queues(options: Options, outcomes: Sequence[str], queues: tuple[str, ...]) -> list[PruneRule]:
    if options["older_than"] is not None:
        seconds = max(options["older_than"], LEAST_SECONDS)
        return [PruneRule(str(outcome), seconds, queues, only=bool(queues)) for outcome in outcomes]
    rules = [rule for rule in rules_of(get_conf().retention) if rule.outcome in outcomes]
    return [narrowed for rule in rules if (narrowed := _narrowed(rule, queues)) is not None] if queues else rules


def _narrowed(rule: PruneRule, queues: tuple[str, ...]) -> PruneRule | None:
    """Return the rule, narrowed to the requested queues."""
    both = tuple(queue for queue in queues if (queue in rule.queues) == rule.only)
    return PruneRule(rule.outcome, rule.seconds, both, only=True) if both else None


class _Committing:
    """Django's connection, in transactions of its own, regardless of the role's defaults."""

    def __init__(self, using: str) -> None:
        self.using = using

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement, by itself in a transaction outside of one; errors of psycopg pass through."""
        with self.transaction():
            return on(self.using).fetch(name, params)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the statements of a block together; errors of psycopg pass through."""
        db = on(self.using)
        ours = not transaction.get_connection(self.using).in_atomic_block
        try:
            with transaction.atomic(using=self.using):
                if ours:
                    read_committed(db)
                    configure(db, {"statement_timeout": "0"}, local=True)
                yield
        except DatabaseError as error:
            raise (error.__cause__ or error) from None


def _each(rules: list[PruneRule], work: Callable[[PruneRule], tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Do ``work``, count or delete, for each rule; return outcome → jobs it counted or deleted, and jobs it skipped."""
    counts: dict[str, tuple[int, int]] = {}
    for rule in rules:
        done, skipped = work(rule)
        before = counts.get(rule.outcome, (0, 0))
        counts[rule.outcome] = (before[0] + done, before[1] + skipped)
    return counts


def _count(db: Enclosing, rule: PruneRule) -> int:
    return pruning.count_prunable(
        db, rule.outcome, seconds=rule.seconds, queues=rule.queues, only=rule.only, names=rule.names
    )


def _delete(db: Enclosing, rule: PruneRule) -> tuple[int, int]:
    pruner = Pruner(rules=[rule])
    total = 0
    while not pruner.done:
        deleted = pruner(db)
        total += deleted
        if not deleted and not pruner.done:
            time.sleep(BUSY_SECONDS)
    return total, pruner.skipped


def _write_counts(command: BaseCommand, options: Options, counts: dict[str, tuple[int, int]]) -> None:
    total, skipped = (sum(each[n] for each in counts.values()) for n in (0, 1))
    fields = {
        "dry_run": options["dry_run"],
        "pruned": total,
        "skipped": skipped,
        "by_outcome": {outcome: done for outcome, (done, _) in counts.items()},
    }
    would = "would be pruned" if options["dry_run"] else "pruned"
    lines = [f"prune: {total} {would}, {skipped} skipped", *(f"  {done} {each}" for each, (done, _) in counts.items())]
    output.answer(command, options, fields, lines)
