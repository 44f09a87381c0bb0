"""The plans of a worker's statements, at the worst: the table was analysed while empty, then 50,000 jobs came.

Autovacuum does that to every queue that is often empty. ``emptied``: the table had been full before, and what was
analysed were its empty pages. The pins of a worker's connections must hold the plans at the indexes then, whether a
statement was prepared before the jobs came or after.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from django_pgjobs import sql
from django_pgjobs.definition.registry import registry
from django_pgjobs.store import (
    admitting,
    atomic,
    claiming,
    finalising,
    firing,
    gates,
    keeping,
    leading,
    limiting,
    memos,
    pausing,
    pruning,
    registering,
    servants,
    turns,
)
from django_pgjobs.store.admitting import Bounds, StartRate, Terms
from django_pgjobs.store.claiming import Pair
from django_pgjobs.store.finalising import End
from django_pgjobs.store.firing import ListedCron
from django_pgjobs.store.keeping import Crash, record_crashes
from django_pgjobs.store.new_jobs import NewJob
from tests.plugins.explaining import PAGES_PER_JOB, Explaining, analysed_while_empty, as_if_emptied, faults, nodes
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    WORKER,
    Claimed,
    RawDatabase,
    alike,
    claim,
    from_the_beginning,
    register,
)

BATCH = 100
READY = 40_000
ENDED = 10_000

Connect = Callable[..., RawDatabase]


def _failed(claimed: Claimed) -> list[End]:
    return claimed.ends(delay=1.0, cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE)


def _first(claimed: Claimed) -> int:
    return (claimed.ids or [0])[0]


LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
ENTRY = ListedCron(
    "clean",
    "test.job",
    "@daily",
    "UTC",
    "once",
    "skip",
    "",
    LONG_AGO,
    None,
    None,
    None,
    None,
    None,
    LONG_AGO,
    False,
    None,
)
"""As ``fill`` leaves it: with a thousand jobs behind it."""

LIMITED = Terms("limited", "test.job", "test.job", ("test.job",), of_key=Bounds(1, 1, 60.0), after=("k500", 0))

NEXT = '{"name": "test.job", "queue": "mail", "max_attempts": 5, "payload": {}}'

EVENTS = [f"event:{n}" for n in range(0, BATCH * 10, 10)]


def _suspended(held: Claimed) -> list[End]:
    """Jobs that wait for events which others wait for, and some failed steps among them."""
    ends = held.ends(seconds=1.0)
    for end, event in zip(ends, EVENTS, strict=False):
        wait = f'"memo": "{event}", "kind": "event", "event": "{event}", "delay": 60, "failures": 0'
        end.columns = f'{{{wait}, "progressed": true}}'
        end.failure, end.cause = (FAILURE, "failed") if end.id % 2 else (None, None)
    return ends


def _limits_running(db: Any) -> int:
    limiting.override_limit(db, "queue", ["default", "mail"], Bounds(2), by="", reason="")
    return limiting.limit_running(db, registry.names(), limit=BATCH)


LINE = '[{"number": 1, "level": 20, "logger": "shop", "message": "paid", "at": 1.5}]'

STATEMENTS: dict[str, Callable[[Any, Claimed], object]] = {
    "claim_jobs": lambda db, _: claim(db, BATCH, from_the_beginning(("none", 3), ("default", 1), ("default", 0))),
    "finalise_success": lambda db, held: finalising.finalise_success(db, held.ends(result="1"), AUTHOR),
    "finalise_success_fast": lambda db, held: finalising.finalise_success_fast(db, held.ends(result="1"), AUTHOR),
    "finalise_retry": lambda db, held: finalising.finalise_retry(db, _failed(held), AUTHOR),
    "finalise_snooze": lambda db, held: finalising.finalise_snooze(db, held.ends(delay=1.0)),
    "next_step": lambda db, held: finalising.next_step(db, held.ends(columns=NEXT), AUTHOR),
    "suspend_jobs": lambda db, held: memos.suspend_jobs(db, _suspended(held), AUTHOR),
    "await_events": lambda db, _: memos.await_events(db, EVENTS, lock_seconds=1),
    "list_locked_events": lambda db, _: memos.list_locked_events(db, EVENTS),
    "delete_events": lambda db, _: db.fetch("delete_events", {"seconds": -60.0, "after": LONG_AGO, "limit": BATCH}),
    "finalise_end": lambda db, held: finalising.finalise_end(db, _failed(held), AUTHOR),
    "mark_ending": lambda db, held: finalising.mark_ending(db, _failed(held), AUTHOR, allowance_seconds=1.0),
    "expire_jobs": lambda db, _: keeping.expire_jobs(
        db, after=pruning.OLDEST, limit=BATCH, reason="expired", without_on_cancel=["test.job"]
    ),
    "hold_jobs": lambda db, held: finalising.hold_jobs(db, held.ends(reason="x")),
    "unpause_jobs": lambda db, _: pausing.unpause_jobs(db, limit=BATCH),
    "release_jobs": lambda db, held: finalising.release_jobs(db, _failed(held), AUTHOR),
    "write_progress": lambda db, held: finalising.write_progress(
        db, [(job, fence, {"progress": "1"}) for job, fence in held.fences()]
    ),
    "write_lines": lambda db, held: finalising.write_lines(db, [(*fence, True, LINE) for fence in held.fences()]),
    "write_cursor": lambda db, held: memos.write_cursor(
        db, _first(held), str(held.claim_id), name="each", cursor="1", progress='{"n": 1}'
    ),
    "read_cursors": lambda db, held: memos.read_cursors(db, _first(held), str(held.claim_id)),
    "read_fences": lambda db, held: finalising.read_fences(db, held.fences()),
    "read_flags": lambda db, held: keeping.read_flags(db, held.fences()),
    "read_claim": lambda db, held: claiming.read_claim(db, held.claim_id),
    "read_payload": lambda db, held: finalising.read_payload(db, *held.fences()[0]),
    "record_crashes": lambda db, held: record_crashes(
        db, [(Crash(job, str(uuid4()), 1, 1.0, "", ""), 0.0) for job in held.ids], AUTHOR
    ),
    "delete_claims": lambda db, held: finalising.delete_claims(db, [str(held.claim_id)]),
    "renew_claims": lambda db, held: keeping.renew_claims(db, {str(held.claim_id): 1.0}, lease_seconds=30),
    "next_due": lambda db, _: claiming.next_due(db, [("none", 3), ("default", 1), ("default", 0)]),
    "list_pairs": lambda db, _: claiming.list_pairs(db),
    "unpark_jobs": lambda db, _: keeping.unpark_jobs(db, {"test.job": "new"}, limit=BATCH),
    "wake_sleepers": lambda db, _: memos.wake_sleepers(db, after="", limit=BATCH),
    "mend_undoing": lambda db, _: servants.mend_undoing(db, after=0, limit=BATCH),
    "list_unheld": lambda db, held: keeping.list_unheld(db, [str(held.claim_id)], held.ids[:1], most=BATCH),
    "list_uncancelled": lambda db, _: servants.list_uncancelled(
        db, first=0, member=0, limit=BATCH, members=BATCH, seconds=0
    ),
    "list_parked_names": lambda db, _: keeping.list_parked_names(db, ["known.job"], limit=BATCH),
    "list_prunable": lambda db, _: pruning.list_prunable(
        db, "succeeded", seconds=-60.0, queues=["mail"], after=pruning.OLDEST, limit=BATCH
    ),
    "prune_jobs": lambda db, held: pruning.prune_jobs(db, [job - ENDED for job in held.ids], until="infinity"),
    "finalise_delete": lambda db, held: finalising.finalise_delete(db, held.ends()),
    "finalise_delete_fast": lambda db, held: finalising.finalise_delete_fast(db, held.ends()),
    "finalise_success_keyed": lambda db, held: finalising.finalise_success(
        db, held.ends(result="1"), AUTHOR, remember=True
    ),
    "end_atomic": lambda db, held: atomic.end_atomic(db, End(_first(held), str(held.claim_id)), outermost=False),
    "lock_atomic": lambda db, held: db.fetch("lock_atomic", {"id": _first(held)}),
    "settle_doubts": lambda db, held: atomic.settle_doubts(db, held.fences()),
    "finalise_delete_keyed": lambda db, held: finalising.finalise_delete(db, held.ends(), remember=True),
    "rescue_jobs": lambda db, _: keeping.rescue_jobs(
        db, limit=5, quiet_seconds=0, grace_seconds=10, stale_seconds=60, without_on_cancel=[], without_on_abandon=[]
    ),
    "check_duties": lambda db, _: db.fetch(
        "check_duties", {"lease": 3.0, "fire": 1.0, "leads": True, "after": pruning.OLDEST}
    ),
    "scan_schema": lambda db, _: db.fetch(
        "scan_schema", {"queues": None, "excluded": [], "ahead": 2.0, "unled": 300.0}
    ),
    "audit_claims": lambda db, _: leading.audit_claims(db, leading.BEGINNING, limit=BATCH, lease_seconds=30),
    "park_unclaimable": lambda db, held: claiming.park_unclaimable(db, _first(held), "x", {}),
    "next_claimable": lambda db, _: claiming.next_claimable(db, from_the_beginning(("none", 3), ("default", 0))),
    "list_limited": lambda db, _: admitting.list_limited(db, after=("", ""), limit=BATCH),
    "revoke_admissions": lambda db, _: db.fetch("revoke_admissions", {"limit": BATCH}),
    "date_starts": lambda db, _: admitting.admit_jobs(
        db,
        [],
        rates=[StartRate("key:test.job", 60.0, name="test.job", keyed=True)],
        lanes=BATCH,
        limit=BATCH,
        lookahead=1000,
        notify=False,
    ),
    "limit_running": lambda db, _: _limits_running(db),
    "admit_jobs": lambda db, _: admitting.admit_jobs(
        db, [LIMITED], lanes=BATCH, limit=BATCH, lookahead=1000, notify=False
    ),
    "claim_jobs, by id": lambda db, held: claiming.claim_one(
        db, _first(held), claim_id=uuid4(), worker=WORKER, lease_seconds=30, allowance_seconds=5, grace_seconds=10
    ),
    "list_crons": lambda db, _: firing.list_crons(db, everything=True),
    "fire_cron": lambda db, _: firing.fire_cron(db, ENTRY, [LONG_AGO], None, notify=False),
}
"""What a worker runs on its own connections and what touches jobs; each for a batch of jobs."""


def fill(raw: RawDatabase) -> Claimed:
    """Ended, ready, future and parked jobs, and a batch that is claimed and returned."""
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, queue, outcome, finished_at, claim_id) "
        "SELECT 'test.job', '{}', 'default', 'succeeded', statement_timestamp(), gen_random_uuid() "
        "FROM generate_series(1, %s)",
        [ENDED],
    )
    register(READY)
    register(1000, delay_seconds=3600, priority=1)
    limited = [alike(NewJob("test.job", "{}", "limited", limit_key=f"k{n % 1000}")) for n in range(10_000)]
    registering.register_jobs("default", limited, limited=True)
    raw.query(
        "UPDATE pgjobs_job SET hold = 'parked', hold_fingerprint = 'old' WHERE id IN "
        "(SELECT id FROM pgjobs_job WHERE outcome IS NULL ORDER BY id DESC OFFSET 5000 LIMIT 1000)"
    )
    raw.query(
        "INSERT INTO pgjobs_cron_entry (name, job_name, declared_expression, declared_zone, declared_payload, "
        "declared_options, overlap) VALUES ('clean', 'test.job', '@daily', 'UTC', '{}', %s, 'skip')",
        ['{"queue": "default", "priority": 0, "max_attempts": 5, "description": "", "key_scope": ""}'],
    )
    raw.query("UPDATE pgjobs_job SET cron_entry = 'clean' WHERE outcome IS NOT NULL AND mod(id, 10) = 0")
    raw.query("INSERT INTO pgjobs_event (name) SELECT 'event:' || g FROM generate_series(1, 5000) AS g")
    for kind, event in (("event", "'event:' || mod(id, 5000)"), ("step", "NULL"), ("gather", "'gather:' || id")):
        raw.query(
            "INSERT INTO pgjobs_memo (job_id, name, kind, event, wake_at) "
            f"SELECT id, '{kind}', '{kind}', {event}, now() FROM pgjobs_job WHERE outcome IS NULL"
        )
    for _ in range(3):
        claim(raw, BATCH)
    held = claim(raw, BATCH)
    raw.query(
        "UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01' WHERE claim_id = %s",
        [held.claim_id],
    )
    return held


@pytest.mark.parametrize("prepared", ["before", "after"])
@pytest.mark.parametrize("emptied", [False, True])
def test_every_statement_of_a_worker_costs_its_batch_and_not_the_table(
    db_connection: Connect, raw: RawDatabase, prepared: str, emptied: bool
) -> None:
    """P16 and the promise of a cost per job that does not grow with backlog or history."""
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        if prepared == "before":
            nothing = Claimed(UUID(int=0), [])
            for name, run in STATEMENTS.items():
                if name != "read_payload":
                    run(explaining, nothing)
            worker.commit()
        held = fill(raw)
        if emptied:
            as_if_emptied(raw)
        wrong = {}
        for name, run in STATEMENTS.items():
            run(explaining, held)
            worker.rollback()
            if found := faults(explaining.plan, vain=10):
                wrong[name] = found
    assert wrong == {}


def test_the_check_above_finds_what_went_wrong_before(
    db_connection: Connect, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twins: an order that the pins turn into a walk over the table, and a claim without its pins."""
    worker = db_connection(autocommit=False)
    whole = sql.statement
    ordered = whole("finalise_success").replace("FOR NO KEY", "ORDER BY j.id\nFOR NO KEY")
    monkeypatch.setattr(sql, "statement", lambda name: ordered if name == "finalise_success" else whole(name))
    with analysed_while_empty(raw):
        explaining = Explaining(worker, set())
        held = fill(raw)
        STATEMENTS["finalise_success"](explaining, Claimed(held.claim_id, held.jobs[:5]))
        assert faults(explaining.plan, jobs=5) != []
        worker.rollback()


def test_a_claim_behind_a_frontier_reads_nothing_before_it(db_connection: Connect, raw: RawDatabase) -> None:
    """Claims do not walk again and again over rows that a pinned snapshot keeps in the index, dead."""
    pinned = db_connection(autocommit=False)
    worker = db_connection()
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        register(10_000)
        pinned.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pinned.query("SELECT count(*) FROM pgjobs_job")
        last = None
        for _ in range(80):
            last = claim(raw, BATCH).jobs[-1]
        assert last is not None
        behind = [Pair("default", 0, last.run_at, last.id)]
        claim(explaining, BATCH, behind)
        near = explaining.plan["Shared Hit Blocks"] + explaining.plan["Shared Read Blocks"]
        claim(explaining, BATCH)
        sweep = explaining.plan["Shared Hit Blocks"] + explaining.plan["Shared Read Blocks"]
        assert near < PAGES_PER_JOB * BATCH
        assert near < sweep
    pinned.rollback()


OF_GATES: dict[str, Callable[[Any, list[int]], object]] = {
    "settle_ends": lambda db, ids: gates.settle_ends(db, ids, lock_seconds=1),
    "list_locked_gates": lambda db, ids: gates.list_locked_gates(db, ids),
    "open_gates": lambda db, ids: gates.open_gates(db, ids),
    "recount_gates": lambda db, ids: gates.recount_gates(db, ids),
    "prune_jobs": lambda db, ids: pruning.prune_jobs(db, ids, until="infinity"),
}


def fill_gates(raw: RawDatabase) -> tuple[list[int], list[int]]:
    """20,000 jobs that need two each, and 20,000 members of one batch, beside many others; a batch of each ended."""
    register(READY)
    needed, waiting, members = register(20_000), register(20_000), register(20_000)
    [batch] = register()
    raw.query("UPDATE pgjobs_job SET flow = 2 WHERE id = ANY (%s)", [needed])
    raw.query("UPDATE pgjobs_job SET flow = 16, hold = 'blocked' WHERE id = ANY (%s)", [[*waiting, batch]])
    raw.query("UPDATE pgjobs_job SET flow = 1, parent_id = %s WHERE id = ANY (%s)", [batch, members])
    raw.query(
        "INSERT INTO pgjobs_gate (job_id, pending, total, eager) SELECT unnest(%s::bigint[]), 2, 2, true", [waiting]
    )
    raw.query("INSERT INTO pgjobs_gate (job_id, pending, total) VALUES (%s, 20000, 20000)", [batch])
    for shift in (0, 7):
        raw.query(
            "INSERT INTO pgjobs_link (parent_id, job_id, rule) SELECT p, j, 'succeeded'"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS l (p, j)",
            [needed, waiting[shift:] + waiting[:shift]],
        )
    ended = needed[: BATCH // 2] + members[: BATCH // 2]
    raw.query("UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = now() WHERE id = ANY (%s)", [ended])
    return ended, waiting[:BATCH]


@pytest.mark.parametrize("prepared", ["before", "after"])
@pytest.mark.parametrize("emptied", [False, True])
def test_ends_that_count_cost_their_number_and_lock_gates_in_their_order(
    db_connection: Connect, raw: RawDatabase, prepared: str, emptied: bool
) -> None:
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        if prepared == "before":
            for run in OF_GATES.values():
                run(explaining, [])
            worker.commit()
        ended, waiting = fill_gates(raw)
        if emptied:
            as_if_emptied(raw)
        wrong = {}
        for name, run in OF_GATES.items():
            run(explaining, waiting if name in ("open_gates", "recount_gates") else ended)
            # The recount compares a hundred gates with each other, once an hour.
            if found := faults(explaining.plan, vain=200 if name == "recount_gates" else 10):
                wrong[name] = found
            if name in ("settle_ends", "open_gates"):
                [loop] = [node for node in nodes(explaining.plan) if node.get("Subplan Name") == "CTE locked"]
                assert {node["Node Type"] for node in nodes(loop)} >= {"Nested Loop", "LockRows", "Sort"}, name
            worker.rollback()
    assert wrong == {}


OF_TURNS: dict[str, Callable[[Any, list[int], list[str]], object]] = {
    "lock_turns": lambda db, ids, _: turns.lock_turns(db, ids),
    "list_standing": lambda db, _, names: turns.list_standing(db, names),
    "next_in_turn": lambda db, _, names: turns.next_in_turn(db, names),
    "list_locked_gates": lambda db, ids, _: gates.list_locked_gates(db, ids),
}


def fill_sequences(raw: RawDatabase) -> tuple[list[int], list[str]]:
    """20,000 sequences of two jobs, whose first has just ended, and one in which 20,000 wait and many were passed."""
    register(READY)
    first, second, waiting, passed = (register(20_000) for _ in range(4))
    place = "sequence = 's' || j.n FROM unnest(%s::bigint[]) WITH ORDINALITY AS j (id, n) WHERE pgjobs_job.id = j.id"
    raw.query(f"UPDATE pgjobs_job SET flow = 2, outcome = 'succeeded', finished_at = now(), {place}", [first])
    raw.query(f"UPDATE pgjobs_job SET flow = 18, hold = 'blocked', {place}", [second])
    raw.query("UPDATE pgjobs_job SET flow = 18, hold = 'blocked', sequence = 's1' WHERE id = ANY (%s)", [waiting])
    gone = "flow = 146, outcome = 'abandoned', finished_at = now(), sequence = 's1'"
    raw.query(f"UPDATE pgjobs_job SET {gone} WHERE id = ANY (%s)", [passed])
    raw.query(
        "INSERT INTO pgjobs_gate (job_id, pending, hands, eager) SELECT unnest(%s::bigint[]), 1, 1, true",
        [second + waiting],
    )
    return first[:BATCH], [f"s{n}" for n in range(1, BATCH + 1)]


@pytest.mark.parametrize("prepared", ["before", "after"])
@pytest.mark.parametrize("emptied", [False, True])
def test_a_turn_costs_the_same_however_many_wait(
    db_connection: Connect, raw: RawDatabase, prepared: str, emptied: bool
) -> None:
    """Neither those that wait nor those that were passed are read, and other sequences are nobody's business."""
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        if prepared == "before":
            for run in OF_TURNS.values():
                run(explaining, [], [])
            worker.commit()
        ended, names = fill_sequences(raw)
        if emptied:
            as_if_emptied(raw)
        wrong = {}
        for name, run in OF_TURNS.items():
            run(explaining, ended, names)
            if found := faults(explaining.plan, vain=10):
                wrong[name] = found
            worker.rollback()
        assert len(turns.next_in_turn(worker, names)) == BATCH
        worker.rollback()
    assert wrong == {}


@pytest.mark.parametrize("emptied", [False, True])
def test_who_mends_looks_at_some_members_of_a_huge_batch_at_a_time(
    db_connection: Connect, raw: RawDatabase, emptied: bool
) -> None:
    """20,000 members that are all asked to stop: none of them shows that the next is, too."""
    explaining = Explaining(db_connection(autocommit=False), set())
    with analysed_while_empty(raw):
        fill_gates(raw)
        raw.query("UPDATE pgjobs_job SET cancel_requested_at = now() - interval '1 hour' WHERE flow & 17 <> 0")
        if emptied:
            as_if_emptied(raw)
        [(batch, member)] = raw.query("SELECT parent_id, max(id) FROM pgjobs_job WHERE flow = 1 GROUP BY parent_id")
        for last in (0, member - 10_000):
            servants.list_uncancelled(explaining, first=batch, member=last, limit=BATCH, members=BATCH, seconds=0)
            assert faults(explaining.plan) == []
            read = [node["Actual Rows"] for node in nodes(explaining.plan) if node.get("Alias") == "found"]
            assert read == [BATCH]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("emptied", [False, True])
def test_pruning_reads_of_a_batch_what_it_reads_of_one_job(
    db_connection: Connect, raw: RawDatabase, emptied: bool, ended: bool
) -> None:
    """Whatever members a batch has, that have ended or not: what needs them is asked once, by index."""
    worker = db_connection(autocommit=False)
    explaining = Explaining(worker, set())
    with analysed_while_empty(raw):
        fill(raw)
        _, waiting = fill_gates(raw)
        [batch] = raw.query("SELECT DISTINCT parent_id FROM pgjobs_job WHERE parent_id IS NOT NULL")
        raw.query("UPDATE pgjobs_job SET finished_at = now(), outcome = 'abandoned' WHERE parent_id IS NOT NULL")
        needy = 'flow = 22, options = \'{"gather": "gather:0"}\', target_id = %s'
        raw.query(f"UPDATE pgjobs_job SET {needy} WHERE id = ANY (%s)", [waiting[0], [batch[0], *waiting]])
        end = "UPDATE pgjobs_job SET finished_at = now(), outcome = 'abandoned' WHERE id = ANY (%s)"
        raw.query(end, [[batch[0], *waiting[1:]] if ended else waiting[1:]])
        members = raw.query("SELECT id FROM pgjobs_job WHERE parent_id IS NOT NULL LIMIT %s", [BATCH])
        if emptied:
            as_if_emptied(raw)
        for ids in ([row[0] for row in members], waiting):
            assert len(ids) == BATCH
            pruning.prune_jobs(explaining, ids, until="infinity")
            assert faults(explaining.plan) == []
            worker.rollback()


def test_every_statement_that_takes_a_batch_of_jobs_is_explained_here() -> None:
    """Those that only an operator or a registration runs go over Django's connection, without pins."""
    elsewhere = {
        "abandon_jobs", "cancel_jobs", "request_release", "reschedule_jobs", "retry_jobs", "read_states", "mark_waited",
        "register_job", "register_plain", "register_jobs", "register_special_jobs", "copy_jobs",
        "copy_special_jobs", "are_keys_taken",
        "reserve_ids", "find_keys", "find_members", "free_keys", "postpone_jobs", "count_unfinished", "count_prunable",
        "pause", "read_why", "read_blockers", "admit_one",
    }  # fmt: skip
    elsewhere |= {
        "count_due",
        "count_held",
        "count_running",
        "count_ended",
        "count_sizes",
        "count_retrying",
        "list_failures",
        "list_fired",
        "list_running",
        "list_held_pairs",
        "list_parked",
    }  # in test_figures.py
    elsewhere |= {"count_events", "list_held_up"}  # in test_troubles.py
    elsewhere |= {"count_names"}  # it reads all unfinished jobs, as ``pgjobs names`` has to
    elsewhere |= {"survey_jobs", "survey_memos", "read_samples"}  # they read all, by slices: in test_in_flight.py
    elsewhere |= {"read_why"}  # in test_why.py
    elsewhere |= {"find_result"}  # in test_plans_by_shape.py
    elsewhere |= {"read_result"}  # in test_results.py
    elsewhere |= {"first_due"}  # in test_listing.py
    elsewhere |= {"read_notice", "read_failures"}  # in test_notices.py
    elsewhere |= {"write_notice", "register_servants"}  # register one job each, or few
    elsewhere |= {"add_members", "need_jobs", "list_running_members", "read_results", "read_needs"}
    elsewhere |= {"reach_dependents", "lock_flow", "revive_jobs"}
    # In test_plans_by_shape.py.
    elsewhere |= {"write_memo", "finish_wait", "begin_gather", "wake_waiters", "wake_suspended", "list_undone"}
    elsewhere |= {"list_gathered"}
    elsewhere |= {"mark_moving", "take_moving", "arrive_jobs", "list_arrivals", "give_away", "keep_jobs", "land_jobs"}
    elsewhere |= {"read_former", "judge_former", "revert_jobs", "read_suspension"}
    elsewhere |= {"lock_jobs", "cancel_copied", "park_copied"}  # all of them, once, in a copy
    elsewhere |= {"ask_stacks", "answer_stack", "delete_stacks"}  # one job or ten, and those of jobs that are gone
    elsewhere |= {"delete_lines"}  # a walk, by the primary keys of both tables
    elsewhere |= {"lock_imported", "withdraw_imported"}  # by their ids, when an operator undoes an import
    elsewhere |= {"wait_again", "pass_over", "read_turn"}
    elsewhere |= set(OF_GATES) | set(OF_TURNS)
    touching = {name for name in sql.names() if "pgjobs_job " in sql.statement(name)}
    assert touching - elsewhere <= set(STATEMENTS)
