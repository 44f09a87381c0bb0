"""Judges what programs have done to jobs.

A trigger keeps every change of a job with who made it. ``wrong`` reads the changes, one after the other, and judges
each by what its maker may do; then it judges the history, and where everything has come to rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.chaos.scenes import (
    GIVES_BACK,
    LEAVES_NO_ROW,
    OWNER,
    RECORDS,
    Program,
    Scene,
    World,
    claims,
    claims_and_ends,
    gives_up,
    goes_on,
    goes_on_in_its_transaction,
    overdue,
    remembers_a_step,
    remembers_an_event,
    rescues,
    retries,
    running,
)
from tests.plugins.fix_db import RawDatabase

MAKE_AUDIT = (
    """
    CREATE UNLOGGED TABLE explorer_audit (
        number bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT statement_timestamp(),
        maker text DEFAULT current_setting('application_name'), old jsonb, new jsonb
    )
    """,
    """
    CREATE FUNCTION explorer_audit() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO explorer_audit (old, new)
            VALUES (to_jsonb(OLD), CASE WHEN TG_OP = 'UPDATE' THEN to_jsonb(NEW) END);
            RETURN NULL;
        END
    $$
    """,
    """
    CREATE TRIGGER explorer_audit AFTER UPDATE OR DELETE ON pgjobs_job
        FOR EACH ROW EXECUTE FUNCTION explorer_audit()
    """,
)
DROP_AUDIT = (
    "DROP TRIGGER IF EXISTS explorer_audit ON pgjobs_job",
    "DROP FUNCTION IF EXISTS explorer_audit()",
    "DROP TABLE IF EXISTS explorer_audit",
)
EMPTY = (
    "DELETE FROM pgjobs_job",
    "DELETE FROM pgjobs_claim",
    "DELETE FROM pgjobs_attempt",
    "DELETE FROM pgjobs_step",
    "DELETE FROM pgjobs_memo",
    "DELETE FROM pgjobs_log_line",
    "DELETE FROM pgjobs_event",
    "DELETE FROM explorer_audit",
)

MEMO_OF: dict[Program, str] = {remembers_a_step: "pay", remembers_an_event: "approval"}
"""Under which name a program remembers something."""

Row = dict[str, Any]


def set_up(db: RawDatabase, scene: Scene) -> World:
    """Make the scene's rows, and nothing else."""
    for statement in EMPTY:
        db.query(statement)
    world = World(db)
    scene(world)
    db.query("DELETE FROM explorer_audit")
    world.history = history(db)
    world.lease_is_good = scene in (running, overdue)
    return world


@dataclass(frozen=True)
class Change:
    """One change of a job's row; ``new`` is None when it was deleted."""

    at: datetime
    maker: str
    old: Row
    new: Row | None


def changes_of(db: RawDatabase) -> list[Change]:
    return [
        Change(*row) for row in db.query("SELECT at, maker, old, new FROM explorer_audit ORDER BY number")
    ]  # fmt: skip


def wrong(world: World, programs: dict[str, Program], failed: set[str]) -> list[str]:
    """Return what is not as it must be: ``programs`` did it, and those of ``failed`` were rolled back."""
    db = world.db
    found: list[str] = []
    changes = changes_of(db)
    for change in changes:
        found += (
            f"{programs[change.maker].__name__}: {what}" for what in _judge(world, programs[change.maker], change)
        )
    for maker in programs.keys() - failed:
        made = sum(change.maker == maker for change in changes)
        told = world.answered.get(maker, 0)
        if made < told and (memo := MEMO_OF.get(programs[maker])):
            # Where the cursor of a walk has marked the row before, a memo changes nothing of it.
            made = db.value("SELECT count(*) FROM pgjobs_memo WHERE name = %s AND finished_at IS NOT NULL", [memo])
        if made != told:
            found.append(f"{programs[maker].__name__}: told of {told} writes and made {made}")
    return [*found, *_wrong_history(world, changes, programs), *_wrong_at_rest(db)]


def _judge(world: World, program: Program, change: Change) -> Iterator[str]:
    old, new = change.old, change.new
    if new is None:
        if program in LEAVES_NO_ROW:
            yield from _judge_attempt(old, old, {str(world.claimed.claim_id)})
            if old["outcome"] is not None:
                yield "a job that had ended was changed"
        elif old["finished_at"] is None:
            yield "an unfinished job was deleted"
        return
    yield from _judge_row(old, new)
    if program in OWNER:
        yield from _judge_attempt(old, new, {str(world.claimed.claim_id)})
    elif program in (claims, claims_and_ends):
        rights = world.rights[change.maker]
        if new["claim_id"] in rights and old["claim_id"] not in rights:
            yield from _judge_claim(old, new, change.at)
        else:
            yield from _judge_attempt(old, new, rights)
    elif program is rescues:
        yield from _judge_rescue(world, old, change.at)
    elif old["claim_id"] is not None and old["outcome"] is None and _meaning(old) != _meaning(new):
        yield "an attempt was overwritten that a worker has claimed"
    if old["outcome"] == "succeeded" or (program is not retries and old["outcome"] is not None):
        yield "a job that had ended was changed"
    yield from _judge_charge(program, old, new)


def _judge_row(old: Row, new: Row) -> Iterator[str]:
    """What no change of a row may do, whoever makes it."""
    if (new["outcome"] is None) != (new["finished_at"] is None):
        yield "outcome and finished_at contradict each other"
    if new["outcome"] is not None and old["ending"] not in (None, new["outcome"]):
        yield f"a job of which only the end as {old['ending']} was left has {new['outcome']}"
    if old["ending"] is not None and new["ending"] is None and old["outcome"] is None:
        yield "a job of which only the callback was left may run its body again"
    if new["outcome"] == "succeeded" and old["claim_id"] is None:
        yield "a job that nobody had claimed has succeeded"
    waits = new["claim_id"] is None and new["outcome"] is None and new["ending"] is None
    if waits and new["cancel_requested_at"] is not None:
        yield "a job to be cancelled went back into the queue"


def _judge_attempt(old: Row, new: Row, rights: set[str]) -> Iterator[str]:
    if old["claim_id"] not in rights:
        yield "a claim that does not hold the job has changed it"


def _judge_claim(old: Row, new: Row, at: datetime) -> Iterator[str]:
    if old["claim_id"] is not None or old["outcome"] is not None or old["hold"] is not None:
        yield "a job was claimed that was not ready"
    if datetime.fromisoformat(old["run_at"]) > at:
        yield "a job was claimed before its time"


def _judge_rescue(world: World, old: Row, at: datetime) -> Iterator[str]:
    if old["claim_id"] != str(world.claimed.claim_id):
        yield "a job was rescued that the lost claim did not hold"
    deadline = old["overdue_at"] and datetime.fromisoformat(old["overdue_at"])
    if world.lease_is_good and (deadline is None or deadline > at):
        yield "a job was rescued whose lease was good and whose deadline had not passed"


def _judge_charge(program: Program, old: Row, new: Row) -> Iterator[str]:
    """Attempts are accounted: a start is charged when it is claimed, and given back by what says so."""
    charged = new["attempt"] - old["attempt"], new["ending_attempt"] - old["ending_attempt"]
    body = old["ending"] is None
    allowed = {(0, 0)}
    if old["claim_id"] is None and new["claim_id"] is not None:
        allowed = {(1, 0) if body else (0, 1)}
    elif program in GIVES_BACK:
        allowed = {(-1, 0) if body else (0, -1)}
    elif program in (goes_on, goes_on_in_its_transaction):
        allowed = {(-old["attempt"], 0)}
    elif program is gives_up and body and new["ending"] is not None:
        allowed = {(0, 1)}
    elif program is retries and old["outcome"] is not None:
        allowed = {(0, -old["ending_attempt"])}
    if charged not in allowed:
        yield f"attempts were charged by {charged}"
    if new["attempt"] > new["max_attempts"]:
        yield "more attempts were started than there are"


def _meaning(row: Row) -> Row:
    """What of a row an operator's wish leaves alone."""
    return {key: value for key, value in row.items() if not key.startswith(("cancel_", "release_requested"))}


def _wrong_history(world: World, changes: list[Change], programs: dict[str, Program]) -> Iterator[str]:
    kept = history(world.db)
    recorded = {
        (change.old["id"], change.old["claim_id"])
        for change in changes
        if programs[change.maker] in RECORDS and change.old["claim_id"] is not None
    }
    for job_id, claim_id in recorded - kept:
        yield f"the attempt of job {job_id} under {claim_id} is not in the history"
    for job_id, claim_id in kept - recorded - world.history:
        yield f"an attempt of job {job_id} under {claim_id} is in the history, and its end was not written"
    stepped = {
        (change.old["id"], change.old["claim_id"])
        for change in changes
        if programs[change.maker] in (goes_on, goes_on_in_its_transaction) and change.new
    }
    if stepped != (
        steps := {(job, str(claim)) for job, claim in world.db.query("SELECT job_id, claim_id FROM pgjobs_step")}
    ):
        yield f"the steps {stepped} were finished, and {steps} are kept"


def history(db: RawDatabase) -> set[tuple[int, str]]:
    """Which (job, claim) the history knows; each once, which a constraint sees to."""
    return {(job, str(claim_id)) for job, claim_id in db.query("SELECT job_id, claim_id FROM pgjobs_attempt")}


def _wrong_at_rest(db: RawDatabase) -> Iterator[str]:
    """Every job has ended, can be claimed, waits for other code, or is in the ledger for a rescue to find."""
    for job_id, has_claim in db.query(
        "SELECT j.id, EXISTS (SELECT FROM pgjobs_claim AS k WHERE k.claim_id = j.claim_id AND j.id = ANY (k.job_ids)) "
        "FROM pgjobs_job AS j WHERE j.outcome IS NULL AND j.claim_id IS NOT NULL"
    ):
        if not has_claim:
            yield f"job {job_id} runs and nothing is in the ledger to find it by"
