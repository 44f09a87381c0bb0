"""Clauses that stand in two statements, each in a file of its own, agree but for what is named here.

PostgreSQL would take neither from one text without a function or a view in the schema, and a statement that is put
together from parts cannot be read, explained or searched for as it runs. So each is written out, and whoever changes
one of two learns of the other here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from django_pgjobs import sql
from tests.mutations.faults import faults_of

CLAUSE = re.compile(r"^(?:WITH (?:RECURSIVE )?)?(\w+) AS (?:MATERIALIZED )?\($", re.MULTILINE)
CLOSE = re.compile(r"^\),?$", re.MULTILINE)
RESULT = "result"


class Twins(NamedTuple):
    """Clauses of ``one`` that stand in ``other`` too; ``RESULT`` is what comes behind all that have names.

    ``renamed``: what ``one`` calls otherwise. ``but``: what stands in the clauses of ``one``, and in its place in the
    other's.
    """

    one: str
    other: str
    clauses: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...] = ()
    but: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.one}-{self.other}"


FROM_ARRAYS = (
    "FROM ROWS FROM (unnest(%(ids)s::bigint[]), unnest(%(claims)s::smallint[]), unnest(%(micros)s::bigint[]), "
    "json_array_elements(%(results)s::json)) AS done (id, claim, micros, result) "
    "WHERE (SELECT set_config('lock_timeout', '50ms', true)) IS NOT NULL "
    "AND json_array_length(%(results)s::json) IN (0, cardinality(%(ids)s::bigint[])) "
    "AND (j.flow & 7 = 0 OR %(settled)s::boolean) "
    "AND j.id = ANY (ARRAY[done.id]) "
    "AND j.claim_id = (%(claim_ids)s::uuid[])[done.claim] AND j.outcome IS NULL"
)
"""Where a fast statement of a success takes its rows from, instead of those that it has locked."""

FIRST_NAME = (
    "CASE WHEN j.flow = 0 THEN j.name ELSE coalesce((SELECT s.name FROM pgjobs_step AS s WHERE s.job_id = j.id "
    "ORDER BY s.id LIMIT 1), j.name) END AS name"
)
"""The name of a job, or of its first step."""

ARGUMENTS = (
    "CASE WHEN j.idempotency_key IS NULL THEN NULL ELSE coalesce((SELECT s.payload FROM pgjobs_step AS s "
    "WHERE s.job_id = j.id ORDER BY s.id LIMIT 1), j.payload)::text END AS arguments"
)
"""The arguments of a job with an idempotency key, or those of its first step."""

GATE_ALONE = "CASE WHEN j.flow & 7 = 1 THEN j.parent_id END"
GATE = f"{GATE_ALONE} AS gate"
"""The batch whose gate alone an end feeds."""

HELD_UP = "CASE WHEN j.outcome = 'abandoned' AND j.flow & 128 = 0 THEN j.sequence END AS sequence"
"""The sequence that a job held up."""

TWINS = (
    Twins("finalise_success", "finalise_success_keyed", ("done", "locked", RESULT)),
    Twins(
        "finalise_success",
        "finalise_success_keyed",
        ("recorded",),
        but=(
            (
                f"j.id, j.waited, {GATE}",
                f"j.id, j.waited, {GATE}, j.idempotency_key, j.result, {FIRST_NAME}, {ARGUMENTS}",
            ),
        ),
    ),
    Twins(
        "finalise_success",
        "finalise_success_fast",
        ("recorded",),
        renamed=(("recorded", RESULT),),
        but=(
            ("locked.result", "nullif(done.result::text, 'null')::jsonb"),
            ("locked.seconds", "done.micros::float8 / 1e6::float8"),
            ("FROM locked WHERE j.id = ANY (ARRAY[locked.id])", FROM_ARRAYS),
            (f"j.waited, {GATE}", f"CASE WHEN j.waited THEN pg_notify('pgjobs_ended', j.id::text) END, {GATE_ALONE}"),
        ),
    ),
    Twins(
        "finalise_success_keyed",
        "finalise_delete_keyed",
        ("stored",),
        renamed=(("recorded", "gone"),),
        but=(("WHERE r.idempotency_key", "WHERE r.succeeded AND r.idempotency_key"),),
    ),
    Twins("finalise_end", "mark_ending", ("history",), renamed=(("ended", "ending"), ("recorded", "marked"))),
    Twins(
        "finalise_end",
        "mark_ending",
        ("locked",),
        renamed=(("ended", "ending"),),
        but=(("AND (j.flow & 7 = 0 OR %(settled)s::boolean) ", ""),),
    ),
    Twins("settle_ends", "open_gates", ("free", "unblocked")),
    Twins("list_pairs", "scan_schema", ("pairs",)),
    Twins(
        "settle_ends",
        "open_gates",
        (RESULT,),
        but=(
            (", NULL AS servant, NULL AS reason", ""),
            (
                "UNION ALL SELECT id, queue, NULL, false AS old, 'pgjobs.cancel_members', reason FROM failing "
                "UNION ALL SELECT id, queue, NULL, false AS old, 'pgjobs.undo', NULL FROM undoing",
                "",
            ),
        ),
    ),
    Twins(
        "finalise_success_keyed",
        "mark_ending",
        ("stored",),
        renamed=(("recorded", "marked"),),
        but=(("WHERE r.idempotency_key", "WHERE r.ending = 'succeeded' AND r.idempotency_key"),),
    ),
    Twins("finalise_end", "finalise_retry", ("history",), but=(("WHERE cause IS NOT NULL", ""),)),
    Twins("finalise_delete", "finalise_delete_keyed", ("history", RESULT)),
    Twins("finalise_delete", "finalise_delete_fast", ("history", RESULT)),
    Twins(
        "finalise_delete",
        "finalise_delete_fast",
        ("gone",),
        but=(
            (
                "USING locked WHERE j.id = ANY (ARRAY[locked.id])",
                "USING ROWS FROM (unnest(%(ids)s::bigint[]), unnest(%(claims)s::smallint[])) AS done (id, claim) "
                "WHERE (SELECT set_config('lock_timeout', '50ms', true)) IS NOT NULL AND NOT j.waited "
                "AND j.flow = 0 AND j.id = ANY (ARRAY[done.id]) "
                "AND j.claim_id = (%(claim_ids)s::uuid[])[done.claim] AND j.outcome IS NULL",
            ),
        ),
    ),
    Twins("finalise_delete", "prune_jobs", ("history",)),
    Twins("finalise_delete", "prune_jobs", (RESULT,), but=(("SELECT id FROM gone", "SELECT id, sequence FROM gone"),)),
    Twins(
        "finalise_delete",
        "prune_jobs",
        ("gone",),
        renamed=(("locked", "old"),),
        but=(("RETURNING j.id", f"RETURNING j.id, j.flow, {HELD_UP}"),),
    ),
    Twins(
        "finalise_snooze",
        "next_step",
        ("locked",),
        renamed=(("snoozed", "stepped"),),
        but=(
            (
                "j.id, snoozed.delay",
                "stepped.*, j.name AS old_name, j.payload AS old_payload, j.queue AS old_queue, "
                "j.attempt AS old_attempt, j.flow AS old_flow, j.unique_key",
            ),
        ),
    ),
    Twins(
        "retry_jobs",
        "reschedule_jobs",
        ("judged",),
        but=(
            ("locked.wanted IS NULL OR (", "locked.unique_key IS NULL OR locked.queue = locked.wanted OR ("),
            (
                "BY locked.queue, locked.wanted ORDER BY locked.ended,",
                "BY locked.unique_key ORDER BY locked.queue <> locked.wanted,",
            ),
            ("rival.queue = locked.queue", "rival.queue = locked.wanted"),
            ("rival.unique_key = locked.wanted", "rival.unique_key = locked.unique_key"),
        ),
    ),
    Twins("list_pairs", "count_due", ("pairs",)),
    Twins(
        "admit_jobs",
        "date_starts",
        ("dated",),
        but=(("starts FROM subjects", "late FROM rated WHERE late > 0"),),
    ),
)


def clauses(text: str) -> dict[str, str]:
    """Return what is in the brackets of each named clause, and the result; without comments and line breaks."""
    found: dict[str, str] = {}
    end = 0
    for start in CLAUSE.finditer(text):
        close = CLOSE.search(text, start.end())
        assert close is not None
        found[start[1]] = plain(text[start.end() : close.start()])
        end = close.end()
    return {**found, RESULT: plain(text[end:])}


def plain(text: str) -> str:
    """Return SQL in one line, without comments."""
    words = " ".join(re.sub(r"--.*", "", text).split())
    return words.replace("( ", "(").replace(" )", ")")


def differences(twins: Twins, one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return the clauses in which these two statements differ otherwise than they may."""
    found = []
    for name in twins.clauses:
        text, called = one[name], name
        for before, after in twins.but:
            if before not in text:
                found.append(name)
            text = text.replace(before, after)
        for before, after in twins.renamed:
            text, called = re.sub(rf"\b{before}\b", after, text), after if called == before else called
        if plain(text) != other[called]:
            found.append(name)
    return found


@pytest.mark.parametrize("twins", TWINS, ids=str)
def test_what_stands_in_two_statements_is_the_same_in_both(twins: Twins) -> None:
    assert differences(twins, clauses(sql.source(twins.one)), clauses(sql.source(twins.other))) == []


@pytest.mark.parametrize("twins", TWINS, ids=str)
def test_a_fault_in_one_of_two_is_noticed(twins: Twins) -> None:
    """Every fault of one line that the mutation run could put there."""
    text = sql.source(twins.one)
    sound, other = clauses(text), clauses(sql.source(twins.other))
    tried = 0
    for fault in faults_of(f"{twins.one}.sql", text):
        faulty = clauses(fault.apply(text))
        if any(faulty.get(name) != sound[name] for name in twins.clauses):
            tried += 1
            assert differences(twins, faulty, other), str(fault)
    assert tried or twins.clauses == (RESULT,)


MAY_FIRE = plain("""
    AND e.enabled
    AND (e.missing_since IS NULL OR e.origin = 'row')
    AND (e.paused_at IS NULL OR e.paused_until <= statement_timestamp())
    AND (e.max_fires IS NULL OR e.fires_made < e.max_fires)
""")


def test_each_part_of_the_list_of_schedules_asks_whether_they_may_fire() -> None:
    """Each part has a LIMIT, so each must filter before it."""
    text = plain(sql.statement("list_crons"))
    assert (text.count(MAY_FIRE), text.count("FROM pgjobs_cron_entry AS e")) == (4, 4)
