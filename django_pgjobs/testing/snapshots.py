"""Effects of a job, to compare: rows of the database, without what differs between two equal runs, and what was sent.

Primary keys that are made are left out; of times and UUIDs with a default, and of ignored columns, only whether they
are null counts, and a foreign key to a row that the run has made says "new". Sequences are wound back between runs, so
that ids elsewhere, such as among a registered job's arguments, are comparable. Of our own tables jobs and events count.
"""
# ruff: noqa: S608 - names of tables and columns are quoted, and no value is a stranger's

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from django.apps import apps
from django.core import mail
from django.db import connections
from django.db.models import AutoField, DateField, Field, ForeignKey, Model, TimeField, UUIDField

from django_pgjobs.models import EventState, Job

Effects = Callable[[], float | Sequence[object]]
"""Returns how much was sent so far, or a list of it."""

Prints = Mapping[str, tuple[int, str]]
"""Table → number of its rows, and a fingerprint of them."""

_OURS: dict[type[Model], tuple[str, str]] = {
    Job: (
        "name payload queue priority key idempotency_key limit_key sequence tags description outcome",
        "t.queue <> 'pgjobs'",
    ),
    EventState: ("name payload", "t.name NOT LIKE 'pgjobs.%'"),
}
"""The columns that count, and the rows."""

_THERE = "SELECT n FROM unnest(%s::text[]) n JOIN pg_class c ON c.oid = to_regclass(n) WHERE c.relkind IN ('r', 'p')"
_SEQUENCES = (
    "SELECT format('%I.%I', schemaname, sequencename), last_value, start_value FROM pg_sequences"
    " WHERE schemaname = ANY(current_schemas(false))"
)


class Tables:
    """The tables of one database; ``ignore``: columns to leave out, by ``column`` or ``table.column``."""

    def __init__(self, using: str, ignore: Collection[str]) -> None:
        self.using, self.quote = using, connections[using].ops.quote_name
        models = {m._meta.db_table: m for m in apps.get_models(include_auto_created=True) if not m._meta.proxy}
        names = {self.quote(name): name for name in models}
        self.models = {names[row[0]]: models[names[row[0]]] for row in self._fetch(_THERE, [list(names)])}
        self.sequences = {name: last for name, last, _ in self._fetch(_SEQUENCES)}
        self.newest = self._newest()
        self.columns: set[str] = set()
        ours = Job._meta.app_label
        counted = [model for model in self.models.values() if model._meta.app_label != ours or model in _OURS]
        self.queries = {model._meta.db_table: self._query(model, ignore) for model in counted}

    def _fetch(self, query: str, params: Any = None) -> list[Any]:
        if not query:
            return []
        with connections[self.using].cursor() as cursor:
            cursor.execute(query, params)
            found: list[Any] = cursor.fetchall()
        return found

    def _query(self, model: type[Model], ignore: Collection[str]) -> str:
        """Return the SELECT of a table's rows as texts."""
        table, hidden, row = model._meta.db_table, ["''"], "to_jsonb(t)"
        shown, condition = _OURS.get(model, ("", "true"))
        for f in model._meta.concrete_fields:
            own = str(f.column)
            names, name, column = {own, f"{table}.{own}"}, _literal(own), f"t.{self.quote(own)}"
            self.columns |= names
            target = f.target_field if isinstance(f, ForeignKey) else f
            if own not in shown.split() if shown else f.primary_key and _is_made(f):
                hidden.append(name)
            elif names & set(ignore) or _is_made(f) or (target.primary_key and isinstance(target, UUIDField)):
                row += f" || jsonb_build_object({name}, CASE WHEN {column} IS NOT NULL THEN '…' END)"
            elif isinstance(target, AutoField) and target.model._meta.db_table in self.newest:
                newest = self.newest[target.model._meta.db_table][1]
                made = f"CASE WHEN {column} > {newest} THEN '\"new\"' ELSE to_jsonb({column}) END"
                row += f" || jsonb_build_object({name}, {made})"
        columns = f"ARRAY[{', '.join(hidden)}]"
        return f"SELECT (({row}) - {columns})::text AS r FROM {self.quote(table)} t WHERE {condition}"

    def _of(self, name: str, but: Job) -> str:
        mine = name == Job._meta.db_table and self.using == but._state.db
        return f"{self.queries[name]} AND t.id <> {but.pk}" if mine else self.queries[name]

    def prints(self, but: Job) -> Prints:
        """Return the fingerprints of all tables, leaving out the job itself."""
        parts = [
            f"SELECT {_literal(name)}, count(*), md5(coalesce(string_agg(h, '' ORDER BY h), ''))"
            f" FROM (SELECT md5(r) h FROM ({self._of(name, but)}) r) h"
            for name in self.queries
        ]
        return {name: (count, digest) for name, count, digest in self._fetch(" UNION ALL ".join(parts))}

    def rows(self, name: str, but: Job) -> Counter[str]:
        """Return the rows of a table, and how often each is there."""
        return Counter(row[0] for row in self._fetch(self._of(name, but)))

    def _newest(self, *, made: bool = False) -> dict[str, tuple[str, int]]:
        """Return, by table, the sequence of its key and the newest key; with ``made`` of those that it has made."""
        parts = []
        for name, model in self.models.items():
            if isinstance(model._meta.pk, AutoField):
                column, key = str(model._meta.pk.column), self.quote(str(model._meta.pk.column))
                sequence = f"pg_get_serial_sequence({_literal(self.quote(name))}, {_literal(column)})"
                # The test may have given a row a key that its sequence will not reach.
                before = self.newest[name][1] if made else 0
                own = f"{key} <= pg_sequence_last_value({sequence}::regclass) OR {key} > {before}" if made else "true"
                newest = f"coalesce(max({key}) FILTER (WHERE {own}), 0)"
                parts.append(f"SELECT {_literal(name)}, {sequence}, {newest} FROM {self.quote(name)}")
        return {name: (sequence, newest) for name, sequence, newest in self._fetch(" UNION ALL ".join(parts))}

    def rewind(self, *, keys_only: bool = False) -> None:
        """Wind sequences back to where they were, or to behind the rows that were made; others than of keys too."""
        found = dict(self._newest(made=True).values())
        for name, now, start in self._fetch(_SEQUENCES):
            before = self.sequences.get(name)
            wanted = found[name] if found.get(name, 0) > (before or 0) else before
            if now != wanted and (name in found or not keys_only):
                self._fetch("SELECT setval(%s::regclass, %s, %s)", [name, wanted or start, wanted is not None])


def _is_made(field: Field[Any, Any]) -> bool:
    """Return whether the database, the clock or chance makes the value of this field."""
    if not isinstance(field, AutoField | DateField | TimeField | UUIDField):
        return False
    by_django = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
    return isinstance(field, AutoField) or by_django or callable(field.default) or field.has_db_default()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def columns_that_differ(before: Counter[str], after: Counter[str]) -> list[str]:
    """Return the columns whose values differ in rows of one table."""
    one, other = ([json.loads(row) for row in rows.elements()] for rows in (before, after))
    names = {name for row in one for name in row}
    return sorted(n for n in names if Counter(repr(r[n]) for r in one) != Counter(repr(r[n]) for r in other))


def compared(table: str, expected: Counter[str], found: Counter[str]) -> str:
    """Return how rows differ from those of an undisturbed run."""
    extra, missing = found - expected, expected - found
    if extra.total() == missing.total():
        before, after = (json.loads(next(iter(rows))) for rows in (missing, extra))
        differ = [f"{n} is {after[n]!r} instead of {before[n]!r}" for n in before if before[n] != after[n]]
        return f"{table}: {_rows(extra)} changed: {', '.join(differ)}"
    parts = [(extra, "doubled" if extra.keys() & expected.keys() else "too many"), (missing, "missing")]
    return f"{table}: " + "; ".join(f"{_rows(rows)} {what}: {next(iter(rows)):.160}" for rows, what in parts if rows)


def _rows(rows: Counter[str]) -> str:
    return "1 row" if rows.total() == 1 else f"{rows.total()} rows"


class Outgoing(NamedTuple):
    """Something that was sent: as messages show it, and all of it."""

    shown: str
    whole: str = ""

    def __repr__(self) -> str:
        return self.shown


class Outside:
    """Mail, and whatever else ``effects`` counts or lists."""

    def __init__(self, effects: Effects | None) -> None:
        self.effects = effects or (lambda: 0)
        self.began = len(self._outbox())

    def _outbox(self) -> list[Any]:
        return getattr(mail, "outbox", [])

    def mark(self) -> tuple[int, float]:
        """Return how much was sent so far."""
        sent = self.effects()
        return len(self._outbox()), sent if isinstance(sent, int | float) else len(sent)

    def between(self, start: tuple[int, Any], end: tuple[int, Any]) -> list[Outgoing]:
        """Return what was sent between two marks."""
        mails = [
            Outgoing(f"mail: {m.subject!r} to {', '.join(m.to)}", repr((m.from_email, m.cc, m.bcc, m.body)))
            for m in self._outbox()[start[0] : end[0]]
        ]
        sent = self.effects()
        if isinstance(sent, int | float):
            return [*mails, *[Outgoing("effects: a call")] * round(end[1] - start[1])]
        return [*mails, *(Outgoing(f"effects: {each!r}") for each in sent[start[1] : end[1]])]

    def clear(self) -> None:
        """Take the mails of all runs out of the outbox."""
        del self._outbox()[self.began :]
