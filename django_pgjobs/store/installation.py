"""The identity of a database, kept in it: workers leave the jobs of a copy alone until an operator has adopted it.

A copy of production's database has production's jobs, and what they do to the outside is not a copy: mails, payments.
One row says which database its jobs belong to. The first worker writes it, and it travels with every copy:

* **Another environment** than ``PGJOBS["ENVIRONMENT"]``, with both or one of them named, is a copy for certain.
* **The same environment**, if it has a name, is no copy: the database has moved, and the row follows.
* Without names the server decides. A database of the same server is the same if its oid or its name is. On another
  server it is the same only if ``pg_upgrade`` has made it: the version has grown, and it keeps oids, and the very row,
  with the transaction that wrote it. A restored dump may have the same oids, but never this row.

``docs/adr/0057-a-copy-runs-nothing.md``.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import NamedTuple

import psycopg

from django_pgjobs.store.database import Database

HELD_BY_ADOPTION = "adopt"
"""The mark of a parked job that no worker resumes, in the place of the code that parked it."""

HELD_IN_A_COPY = "Held when this copy of a database was adopted"
"""The beginning of the reason for which such a job is held."""

TRIES = 5


class NotAdopted(psycopg.OperationalError):
    """The database is a copy of another one: its jobs belong there. The text says what to do."""


class KnownDatabase(NamedTuple):
    """A database: its server, oid, name, the oid of its job table, the server's major version, and ``environment``."""

    system: str
    database: int
    name: str
    table: int
    version: int
    environment: str


class Verdict(Enum):
    """The relation of a database to the declared one; ``MOVED`` is the same one, found elsewhere."""

    SAME = "same"
    MOVED = "moved"
    COPY = "copy"


class Compared(NamedTuple):
    """A database as it is, and as it was declared, None before the first worker."""

    now: KnownDatabase
    declared: KnownDatabase | None
    untouched: bool = False
    """True if the row is the very one that was declared, not one restored from a dump."""

    @property
    def verdict(self) -> Verdict:
        """The relation of the database to the declared one."""
        return Verdict.MOVED if self.declared is None else judge(self.declared, self.now, untouched=self.untouched)

    def refusal(self) -> str:
        """Return why its jobs are not run, empty if they are."""
        was = self.declared
        if was is None or self.verdict is not Verdict.COPY:
            return ""
        if was.environment != self.now.environment:
            named = f"environment {was.environment!r}" if was.environment else "an environment without a name"
            here = f"{self.now.environment!r}" if self.now.environment else "none"
            words = f"This database is of {named}, and ENVIRONMENT names {here}"
        else:
            words = f"This database is a copy of {was.name} on server {was.system}"
        return f"{words}: none of its jobs is run. Decide what becomes of them: manage.py pgjobs adopt"


def judge(declared: KnownDatabase, now: KnownDatabase, *, untouched: bool) -> Verdict:
    """Compare a database with the declared one."""
    if declared == now:
        return Verdict.SAME
    if declared.environment and declared.environment != now.environment:
        return Verdict.COPY
    if declared.system == now.system:
        stayed = declared.database == now.database or declared.name == now.name
    else:
        upgraded = (declared.database, declared.name, declared.table) == (now.database, now.name, now.table)
        stayed = upgraded and untouched and now.version > declared.version
    named = declared.environment != "" and declared.environment == now.environment
    return Verdict.MOVED if stayed or named else Verdict.COPY


def read(db: Database, environment: str) -> Compared:
    """Return what this database is, for a process whose settings name this environment, and what was declared."""
    row = db.fetch("read_installation", {})[0]
    declared = KnownDatabase._make(row[5:11]) if row[5] is not None else None
    return Compared(KnownDatabase._make([*row[:5], environment]), declared, row[11] is True)


def settle(db: Database, environment: str) -> Compared:
    """Make sure that this database may be served, and declare it if it is new or has moved; return what was seen.

    Raises ``NotAdopted`` for a copy. Repeatable.
    """
    for _ in range(TRIES):
        seen = read(db, environment)
        if refusal := seen.refusal():
            raise NotAdopted(refusal)
        if seen.verdict is Verdict.SAME or _declare(db, seen):
            return seen
    raise NotAdopted("Another process declares this database again and again.")


def adopt(db: Database, seen: Compared, by: str) -> bool:
    """Declare a copy to be a database of its own; return False if something else is declared by now."""
    return _declare(db, seen, by)


def lock_jobs(db: Database) -> None:
    """Keep all writers from the jobs until the end of the transaction."""
    db.fetch("lock_jobs", {})


def cancel_copied(db: Database, *, by: str, reason: str) -> int:
    """End all unfinished jobs without their callbacks, and remove who ran them; return how many there were."""
    return int(db.fetch("cancel_copied", {"by": by, "reason": reason})[0][0])


def park_copied(db: Database, *, reason: str) -> int:
    """Hold all unfinished jobs but those that wait for others, and remove who ran them; return how many."""
    held = f"{HELD_IN_A_COPY}: {reason}" if reason else f"{HELD_IN_A_COPY}."
    return int(db.fetch("park_copied", {"reason": held, "fingerprint": HELD_BY_ADOPTION})[0][0])


def _declare(db: Database, seen: Compared, by: str = "") -> bool:
    was = seen.declared
    before = None if was is None else json.dumps([was.system, was.database, was.environment])
    return bool(db.fetch("declare_installation", {**seen.now._asdict(), "by": by, "before": before}))
