"""What the server says of its plans, and what of them costs more than the jobs that were asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg

from django_pgjobs import sql
from django_pgjobs.store.database import Params, Rows
from tests.plugins.fix_db import TABLES, RawDatabase, autovacuum_off

PARAMETER = re.compile(r"%\((\w+)\)s")


def numbered(text: str) -> str:
    """Return ``text`` with psycopg's named parameters as $1, $2, …"""
    names = list(dict.fromkeys(PARAMETER.findall(text)))
    return PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text)


PAGES_PER_JOB = 40
"""A fenced write of one job touches 18 to 25 pages: the row twice, its index entries, the history, the ledger."""

UPKEEP_PAGES = 40
"""What a statement pays now and then however few its jobs: an index that splits a page or looks for dead entries."""


class Explaining:
    """A database that explains a statement instead of answering, as prepared once on its connection."""

    def __init__(self, db: RawDatabase, prepared: set[str]) -> None:
        self.db = db
        self.prepared = prepared
        self.plan: dict[str, Any] = {}

    def fetch(self, name: str, params: Params) -> Rows:
        if name == "lock_pruning":  # a lock, and not asked for its plan
            return self.db.fetch(name, params)
        text = sql.statement(name)
        if name not in self.prepared:
            self.db.query(f"PREPARE {name} AS {numbered(text)}".replace("%", "%%"), ())
            self.prepared.add(name)
        given = [params[key] for key in dict.fromkeys(PARAMETER.findall(text))]
        values = psycopg.ClientCursor(self.db.raw).mogrify(", ".join(["%s"] * len(given)), given)
        arguments = f"({values})" if given else ""
        [(explained,)] = self.db.raw.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name}{arguments}".encode()
        ).fetchall()
        self.plan = explained[0]["Plan"]
        return [(None,) * 20] if name == "next_due" else []

    def transaction(self) -> AbstractContextManager[object]:
        return self.db.transaction()

    def fetch_together(self, statements: Sequence[tuple[str, Params]]) -> list[Rows]:
        """Run those before the last, which is explained."""
        *before, (name, params) = statements
        return [*(self.db.fetch(name, params) for name, params in before), self.fetch(name, params)]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def pages(explaining: Explaining) -> int:
    """Return how many pages of tables and indexes the last statement touched."""
    return int(explaining.plan["Shared Hit Blocks"] + explaining.plan["Shared Read Blocks"])


def faults(plan: dict[str, Any], *, jobs: int = 100, vain: int = 10) -> list[str]:
    """Return what makes the statement cost more than its batch: scans, sorts, rows read in vain, pages touched."""
    found = []
    for node in nodes(plan):
        kind, relation = node["Node Type"], node.get("Relation Name")
        if relation == "pgjobs_job" and kind in {"Seq Scan", "Bitmap Heap Scan"}:
            found.append(f"{kind} on jobs")
        if kind in {"Sort", "Incremental Sort"} and node["Actual Rows"] > 4 * jobs:
            found.append(f"{kind} of {node['Actual Rows']} rows")
        seen = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        removed = node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]
        if max(seen, removed) > vain * jobs:
            found.append(f"{kind} read {seen} rows and joined {removed} in vain")
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    if pages > PAGES_PER_JOB * jobs:
        found.append(f"{pages} pages")
    return found


@contextmanager
def analysed_while_empty(raw: RawDatabase) -> Iterator[None]:
    """Statistics say that there is nothing, and no autovacuum corrects them."""
    with autovacuum_off(raw):
        for table in TABLES:
            raw.query(f"TRUNCATE {table}")
            # Of an empty table ANALYZE takes no statistics, and leaves those that are there.
            raw.query("DELETE FROM pg_statistic WHERE starelid = %s::regclass", [table])
            raw.query(f"ANALYZE {table}")
        yield


def as_if_emptied(raw: RawDatabase) -> None:
    """Statistics say that the pages hold no row, as after VACUUM of tables whose last row had been deleted.

    A queue that is often empty has such until autovacuum comes by again: whatever the planner estimates is one row
    then, and each index looks as good as any other.
    """
    raw.query(
        "UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192 WHERE oid = ANY (%s::regclass[])",
        [list(TABLES)],
    )


TIMES = 20
"""How often a node may touch each of the jobs that are asked for: a nested loop over two batches touches it a hundred
times, a scan of the table some nine hundred times."""

EXPLAINABLE = {"WITH", "SELECT", "INSERT", "UPDATE", "DELETE"}


class Explained:
    """Explains each statement on our tables before it is run, and notes what costs more than the jobs asked for."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.seen = 0
        self.faults: list[str] = []

    def __call__(self, execute: Any, text: Any, params: Any, many: bool, context: Any) -> Any:
        if "pgjobs_" in str(text) and _bare(text).split()[0].lstrip("(") in EXPLAINABLE:
            self.seen += 1
            execute("SAVEPOINT explained", None, False, context)
            execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {_bare(text)}", params, False, context)
            [explained] = context["cursor"].fetchone()[0]
            execute("ROLLBACK TO SAVEPOINT explained", None, False, context)
            execute("RELEASE SAVEPOINT explained", None, False, context)
            self.faults += [
                f"{fault}: {' '.join(_bare(text).split())[:100]}" for fault in self._faults(explained["Plan"])
            ]
        return execute(text, params, many, context)

    def _faults(self, plan: dict[str, Any]) -> Iterator[str]:
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        if pages > PAGES_PER_JOB * self.jobs + UPKEEP_PAGES:
            yield f"{pages} pages"
        for node in nodes(plan):
            read = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Join Filter", "Index Recheck"))
            rows = (node["Actual Rows"] + read) * node["Actual Loops"]
            if rows > TIMES * self.jobs:
                where = node.get("Index Name", node.get("Relation Name", ""))
                yield f"{node['Node Type']} of {where} touched {rows:.0f} rows"


def _bare(text: Any) -> str:
    """The statement without the comments before it."""
    return "\n".join(line for line in str(text).splitlines() if not line.startswith("--"))


def rows_read(node: dict[str, Any]) -> int:
    return int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
