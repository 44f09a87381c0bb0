"""The folder ``sql/`` read as data: what each statement says of itself, and what none may contain."""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

import django_pgjobs
from django_pgjobs import sql
from django_pgjobs.store.atomic import LOCK_TIMEOUT
from tests.plugins.explaining import numbered
from tests.plugins.fix_db import RawDatabase

NAMES = sql.names()
PACKAGE = Path(django_pgjobs.__file__).parent

FAST = ("finalise_delete_fast", "finalise_success_fast")

ATOMIC = ("end_atomic", "write_cursor")
"""The end inside the transaction of a job's own body, or of a part of that."""

REMEMBERING = ("begin_gather", "finish_wait", "write_memo")
"""What a job's own body writes about its one job."""

SEVERAL = ("reset_session",)
"""Sent as one message of several statements, since each would take a round trip."""

BOUND = ("assume_role", "reset_session")
"""Their values become literals before they are sent: the server takes no parameters in these statements."""

OF_CITUS = ("read_distributed",)
"""It asks a catalog that only Citus brings; ``test_names`` runs it on one."""

VERBS = ("lock", "read", "take", "return")
OTHERS = ("procrastinate", "tasks_db", "ox", "dj_queue", "q2_jobs", "beat", "q2", "ox_schedules")
OF_OTHERS = {f"{verb}_{source}" for source in OTHERS for verb in VERBS}
"""Statements on the tables of other queues; ``test_importing`` prepares and runs them."""

FORBIDDEN = {
    r"\b(now|clock_timestamp|transaction_timestamp)\s*\(": "only statement_timestamp() bounds scans and never freezes",
    r"\b(current_timestamp|localtimestamp|current_date|localtime)\b": "only statement_timestamp()",
    r"\bctid\b": "Citus refuses it",
    r"\b(SELECT|RETURNING)\s+\*(?!\s*FROM json_to_recordset)": "columns are named, so that a migration may add one",
    r"\b(j|k|a|pgjobs_\w+)\.\*": "columns are named, so that a migration may add one",
    r"\w\.\"?pgjobs_": "search_path decides on the schema",
    r"\b(public|pg_catalog)\.": "search_path decides on the schema",
    r"\bpg_(try_)?advisory_lock": "no session state",
}


def header(name: str) -> list[str]:
    return [line for line in sql.source(name).splitlines() if line.startswith("--")]


def fence_lines(name: str) -> list[str]:
    return [line for line in sql.statement(name).splitlines() if line.endswith("-- fence")]


def test_the_folder_holds_nothing_but_statements_and_their_loader() -> None:
    found = {entry.name for entry in resources.files(sql).iterdir() if not entry.name.startswith("__")}
    assert found == {f"{name}.sql" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_starts_with_its_contract(name: str) -> None:
    """Four lines: what it does, its fence, what its rows mean, which clock it reads."""
    does, fence, rows, clock, *more = header(name)
    assert re.fullmatch(rf"-- {name}: .+\.", does)
    assert re.fullmatch(r"-- Fence: (creates \(.+\)|required|none \(.+\))\.", fence)
    assert re.fullmatch(r"-- Rows: .+\.", rows)
    assert re.fullmatch(r"-- Clock: .+\.", clock)
    assert not more


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_says_which_clock_it_reads(name: str) -> None:
    """C35, D33, X9: the database's clock, which stands still within a statement, and only where it is announced."""
    announced = header(name)[3] == "-- Clock: statement_timestamp()."
    assert announced == ("statement_timestamp()" in sql.statement(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_contains_nothing_forbidden(name: str) -> None:
    text = sql.statement(name)
    assert [why for pattern, why in FORBIDDEN.items() if re.search(pattern, text, re.IGNORECASE)] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_parameter_is_part_of_a_quoted_text(name: str) -> None:
    assert not [text for text in re.findall(r"'[^']*'", sql.statement(name)) if "%" in text]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SEVERAL])
def test_a_statement_is_one_statement(name: str) -> None:
    assert ";" not in re.sub(r"--.*|'[^']*'", "", sql.statement(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_text_in_quotes_holds_nothing_that_is_left_out(name: str) -> None:
    """What is run has neither comments nor indentation, so no constant may hold two dashes or a line break."""
    text = "\n".join(re.sub(r"\s--.*", "", line) for line in sql.source(name).splitlines() if not line.startswith("--"))
    constants = re.findall(r"'[^']*'", text)
    assert text.count("'") == 2 * len(constants)
    assert not [constant for constant in constants if "--" in constant or "\n" in constant]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_run_is_the_file_without_comments_and_indentation(name: str) -> None:
    kept = " ".join(re.sub(r"--(?! fence\n).*", "", sql.source(name) + "\n").split())
    assert " ".join(sql.statement(name).split()) == kept
    assert not [line for line in sql.statement(name).splitlines() if line != line.strip() or not line]


def test_nearly_every_statement_is_parsed_once() -> None:
    """psycopg remembers no longer ones: binding the parameters of a claim took 0.07 ms more each time."""
    longer = {name for name in NAMES if len(sql.statement(name).encode()) > MAX_CACHED_STATEMENT_LENGTH}
    assert longer == {"admit_jobs", "read_why", "rescue_jobs", "settle_ends"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*BOUND, *OF_CITUS, *OF_OTHERS)])
def test_a_statement_prepares_on_the_migrated_schema(raw: RawDatabase, name: str) -> None:
    """Without any hint at types: what it says itself is enough."""
    result = raw.raw.pgconn.prepare(b"", numbered(sql.statement(name)).encode())
    assert result.error_message == b""


BEHIND_ENDS = "write_lines"
"""The statement that stores also what comes behind the end of its own claim: ``test_log_lines`` says for how long."""


@pytest.mark.parametrize("name", NAMES)
def test_a_fence_is_there_where_it_is_announced(name: str) -> None:
    """Fence = id, claim_id and outcome IS NULL, and nothing more (C44 to C47)."""
    required = header(name)[1] == "-- Fence: required."
    fences = fence_lines(name)
    assert bool(fences) == required
    if required:
        assert any(re.search(r"\.claim_id = ", line) for line in fences)
        assert name == BEHIND_ENDS or any(re.search(r"\.outcome IS NULL ", line) for line in fences)
        assert re.search(r"\bj\.id = ", sql.statement(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_fenced_write_waits_for_no_lock(name: str) -> None:
    """A batch dies of one foreign row lock otherwise: the locked rows are left out.

    The fast ones wait 50 ms at most and then are given up, for another that leaves them out. The end of an atomic job
    belongs to no batch, nor does what a job remembers: its body waits.

    So no order of locking is needed against deadlocks; and with sorting pinned off an ORDER BY id made the planner
    read the whole table by its primary key, once for every batch.
    """
    text = sql.statement(name)
    if name in FAST:
        assert "set_config('lock_timeout', '50ms', true)" in text
    elif name in ATOMIC:
        assert f"set_config('lock_timeout', '{LOCK_TIMEOUT}', true)" in text
    elif name in REMEMBERING:
        assert "WHERE j.id = ANY (ARRAY[%(id)s::bigint])" in text
        assert "\nFOR NO KEY UPDATE\n" in text
    elif fence_lines(name) and (write := re.search(r"\b(UPDATE|DELETE FROM) pgjobs_job\b", text)):
        # A row to be deleted is locked as deeply: somebody may be storing a row that points to it.
        strength = "NO KEY UPDATE" if write[1] == "UPDATE" else "UPDATE"
        assert f"FOR {strength} OF j SKIP LOCKED" in text
        assert not re.search(r"ORDER BY j\.", text)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if re.search("SKIP LOCKED|json_to_recordset|ROWS FROM", sql.statement(name))]
)
def test_a_batch_is_joined_to_jobs_by_any_of_one(name: str) -> None:
    """``j.id = locked.id`` lets the planner walk the jobs in id order and look each up in the batch.

    It takes that for cheap when it plans while the table is empty, and keeps the plan. ``ANY (ARRAY[…])`` can be
    an index condition and cannot be merged, so the batch always leads.
    """
    assert not re.search(r"\bj\.id = \w+\.id\b", sql.statement(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_fence_names_no_predicate_of_a_partial_index(name: str) -> None:
    """Naming one made the plan quadratic (storage-design): the fence goes by the primary key."""
    if fence_lines(name):
        picked = re.search(r"\bWHERE\b.*?(FOR NO KEY|\Z)", sql.statement(name), re.DOTALL)
        assert picked is not None
        assert not re.search(r"\bj\.(finished_at|hold) IS", picked[0])


def uses() -> Counter[str]:
    """Names of statements in calls of ``fetch``, ``fetch_together``, ``statement`` and ``_tables_of``."""
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_tables_of":
                found.update(f"{verb}_{ast.literal_eval(node.args[0])}" for verb in VERBS)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                argument = node.args[0]
                if node.func.attr in {"fetch", "statement"} and isinstance(argument, ast.Constant):
                    found[str(argument.value)] += 1
                if node.func.attr == "fetch_together" and isinstance(argument, ast.List):
                    tuples = [each for each in ast.walk(argument) if isinstance(each, ast.Tuple)]
                    found.update(str(ast.literal_eval(each.elts[0])) for each in tuples)
    return found


def test_every_statement_is_used_once_and_every_use_has_its_statement() -> None:
    assert uses() == Counter(NAMES)


def test_only_the_store_imports_the_folder() -> None:
    importers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"from django_pgjobs import .*\bsql\b|django_pgjobs\.sql", path.read_text(encoding="utf-8"))
    }
    assert importers == {"store/database.py"}


def test_a_statement_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FileNotFoundError):
        sql.statement("drop_everything")
