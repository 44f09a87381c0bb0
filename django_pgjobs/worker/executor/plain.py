"""In the executor: which statements cannot have changed their session, so that no reset is needed after them.

Of most jobs' own statements, the ORM writes the text, and it reads or updates rows of ordinary tables. Such a text is
known by its tokens, which leave no room for a call of a function; and the server says which tables run no code of the
project when they are read or updated: no view, trigger, policy, rule, or function in a constraint or an index. All
other statements are taken to change the session.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error

from django_pgjobs.store import sessions
from django_pgjobs.store.database import WrapperDatabase

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

MOST_STATEMENTS = 8
"""A job that has sent more is not looked at: a reset is small beside them."""

KNOWN_SECONDS = 60.0
"""Time for which an answer of the server about a table is trusted: a trigger may be made in the meantime."""

_PIECE = r"""(?:
    "[^"%]+" (?! \s*[("] )
  | %s | \d+\b
  | (?: <= | >= | <> | [=<>] ) (?! [-+*/<>=~!@#%^&|`?] )
  | [(),] | \.(?=")
  | COUNT\(\*\) | INNER\ JOIN | LEFT\ OUTER\ JOIN | ORDER\ BY
  | (?: SELECT | UPDATE | DISTINCT | FROM | WHERE | AND | OR | NOT | IN | IS | NULL | SET | ON | AS | ASC | DESC
      | LIMIT | OFFSET ) \b
)"""
_TEXT = re.compile(rf"(?:{_PIECE}\s*)+", re.VERBOSE)
_NAME = r'("[^"]+"(?:\."[^"]+")?)'
_TABLE = re.compile(rf"\b(?:FROM|JOIN|UPDATE) {_NAME}(\s*,)?")
_BEFORE_TABLES = re.compile(r"\b(?:FROM|JOIN|UPDATE)\b")
_COLUMN = re.compile(r'\."([^"]+)"')


class Touched(NamedTuple):
    """The tables of a statement, as its text names them, and all names behind a dot."""

    tables: tuple[str, ...]
    columns: frozenset[str]


@lru_cache(maxsize=1000)
def touched(text: str) -> Touched | None:
    """Return what a statement of the ORM reads or updates; None if its text may do anything else."""
    if not text.startswith(("SELECT ", "UPDATE ")) or not _TEXT.fullmatch(text):
        return None
    found = _TABLE.findall(text)
    if not found or len(found) < len(_BEFORE_TABLES.findall(text)) or any(comma for _, comma in found):
        return None
    return Touched(tuple(name for name, _ in found), frozenset(_COLUMN.findall(text)))


_known: dict[tuple[str, str], tuple[float, frozenset[str] | None]] = {}
"""By alias and table: until when the columns of a table without code are believed, None if it may run code."""


def is_plain(wrapper: BaseDatabaseWrapper, texts: Sequence[object]) -> bool:
    """Return whether statements of these texts cannot have changed the session. May ask the server about tables.

    Anything but a text stands for a statement whose text is not known.
    """
    if len(texts) > MOST_STATEMENTS or not all(isinstance(text, str) for text in texts):
        return False
    statements = [touched(text) for text in texts if isinstance(text, str)]
    columns: set[str] = set()
    for statement in statements:
        if statement is None:
            return False
        for table in statement.tables:
            found = _columns(wrapper, table, statements)
            if found is None:
                return False
            columns |= found
            columns.add(table.rpartition(".")[2].strip('"'))  # of a name with its schema
    return all(statement is not None and statement.columns <= columns for statement in statements)


def _columns(wrapper: BaseDatabaseWrapper, table: str, statements: Iterable[Touched | None]) -> frozenset[str] | None:
    """Return the columns of a table on which no code of the project runs; None of any other."""
    known = _known.get((wrapper.alias, table))
    if known is None or known[0] < time.monotonic():
        tables = {name for statement in statements if statement is not None for name in statement.tables}
        try:
            found = sessions.list_codeless_tables(WrapperDatabase(wrapper), sorted(tables))
        except Error:
            found = {}
        until = time.monotonic() + KNOWN_SECONDS
        for name in tables:
            _known[wrapper.alias, name] = (until, found.get(name))
        known = _known[wrapper.alias, table]
    return known[1]
