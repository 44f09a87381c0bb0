"""Judges what programs have done to gates.

A trigger keeps every change of a job and of a gate. ``wrong`` judges each opening and each release by what the gate
counted in that statement, then what the rows say when everybody has stopped and the sweep has come by, and last how
everything ends: by a worker that runs what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from django_pgjobs.ends import kinds
from django_pgjobs.maintenance.gates import Recount, open_due_gates
from django_pgjobs.states import CANCEL_MEMBERS, FlowFlag, Rule
from django_pgjobs.store.finalising import End
from django_pgjobs.store.gates import is_met
from django_pgjobs.testing import run_jobs
from tests.chaos import gate_scenes as scenes
from tests.chaos.gate_scenes import Program, Scene, World
from tests.plugins.fix_db import AUTHOR, TABLES, RawDatabase, claim

MAKE_AUDIT = (
    """
    CREATE UNLOGGED TABLE explorer_gates (
        number bigint GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT statement_timestamp(),
        maker text DEFAULT current_setting('application_name'), kind text, old jsonb, new jsonb
    )
    """,
    """
    CREATE FUNCTION explorer_gates() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO explorer_gates (kind, old, new) VALUES (TG_TABLE_NAME, to_jsonb(OLD), to_jsonb(NEW));
            RETURN NULL;
        END
    $$
    """,
    *(
        f"CREATE TRIGGER explorer_gates AFTER UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION explorer_gates()"
        for table in ("pgjobs_job", "pgjobs_gate")
    ),
)
DROP_AUDIT = (
    "DROP TRIGGER IF EXISTS explorer_gates ON pgjobs_job",
    "DROP TRIGGER IF EXISTS explorer_gates ON pgjobs_gate",
    "DROP FUNCTION IF EXISTS explorer_gates()",
    "DROP TABLE IF EXISTS explorer_gates",
)
EMPTY = ("; ".join(f"DELETE FROM {table}" for table in (*TABLES, "explorer_gates")),)

COUNTED = ("pending", "total", "succeeded", "abandoned", "cancelled", "unmet")

Row = dict[str, Any]


def set_up(db: RawDatabase, scene: Scene) -> World:
    """Make the scene's rows, and nothing else."""
    for statement in EMPTY:
        db.raw.execute(statement, prepare=False)
    world = World(db)
    scene(world)
    db.query("DELETE FROM explorer_gates")
    return world


@dataclass(frozen=True)
class Rows:
    """All jobs and gates by their ids, and what is needed: (needed, waiting, rule)."""

    jobs: dict[int, Row]
    gates: dict[int, Row]
    links: list[tuple[int, int, Rule]]

    @classmethod
    def of(cls, db: RawDatabase) -> Rows:
        """Read them as they are."""
        jobs = {row["id"]: row for (row,) in db.query("SELECT to_jsonb(j) FROM pgjobs_job AS j ORDER BY id")}
        gates = {row["job_id"]: row for (row,) in db.query("SELECT to_jsonb(g) FROM pgjobs_gate AS g ORDER BY job_id")}
        links = [(*ids, Rule(rule)) for *ids, rule in db.query("SELECT parent_id, job_id, rule FROM pgjobs_link")]
        return cls(jobs, gates, links)

    def inputs(self, gate: Row) -> list[tuple[str | None, bool]]:
        """Return the outcome of each job that a gate counts, and whether it is what the gate asks for."""
        waiting = gate["job_id"]
        members = [
            (job["outcome"], _is_well(job))
            for job in self.jobs.values()
            if job["parent_id"] == waiting and job["flow"] & FlowFlag.MEMBER
        ]
        outcomes = [(self.jobs[needed]["outcome"], rule) for needed, each, rule in self.links if each == waiting]
        return members + [(outcome, outcome is not None and is_met(rule, outcome)) for outcome, rule in outcomes]

    def figures(self, gate: Row) -> Row:
        """Return what a gate must count."""
        inputs = self.inputs(gate)
        outcomes = [outcome for outcome, _ in inputs]
        return {
            "pending": outcomes.count(None) + gate["hands"],
            "total": len(inputs),
            **{outcome: outcomes.count(outcome) for outcome in ("succeeded", "abandoned", "cancelled")},
            "unmet": sum(outcome is not None and not met for outcome, met in inputs),
        }


def _is_well(job: Row) -> bool:
    return job["outcome"] == "succeeded" or (job["outcome"], job["cancel_by"]) == ("cancelled", "pgjobs:not_needed")


def _may_open(gate: Row) -> bool:
    return bool(gate["pending"] <= 0 or (gate["eager"] and gate["unmet"] > 0))


def wrong(world: World, programs: dict[str, Program], failed: Collection[str]) -> list[str]:
    """Return what is not as it must be: ``programs`` did it, and those of ``failed`` were rolled back."""
    found = [*_wrong_releases(world, programs, failed)]
    if world.mends:
        Recount()(world.db)
    while open_due_gates(world.db):
        pass
    found += _wrong_at_rest(world.db, retried=scenes.retries_a in programs.values())
    return found or [*_wrong_in_the_end(world, programs)]


def _changes(db: RawDatabase) -> list[tuple[Any, str, str, Row, Row]]:
    return db.query("SELECT at, maker, kind, old, new FROM explorer_gates ORDER BY number")


def _wrong_releases(world: World, programs: dict[str, Program], failed: Collection[str]) -> Iterator[str]:
    """A gate opens once, in the statement that releases its job, and as its figures say."""
    changes = _changes(world.db)
    openings = {
        (at, maker, new["job_id"]): new
        for at, maker, kind, old, new in changes
        if kind == "pgjobs_gate" and old["opened_at"] is None and new["opened_at"] is not None
    }
    released: dict[str, int] = {}
    for at, maker, kind, old, new in changes:
        name = programs[maker].__name__ if maker in programs else maker
        if kind == "pgjobs_gate":
            if new["pending"] < 0:
                yield f"{name}: the gate of {new['job_id']} counts {new['pending']}"
            if old["opened_at"] is not None and new["opened_at"] not in (None, old["opened_at"]):
                yield f"{name}: the gate of {new['job_id']} opened twice"
            if old["opened_at"] is not None and new["opened_at"] is None and programs[maker] is not scenes.retries_a:
                yield f"{name}: the gate of {new['job_id']} closed again"
        elif old["hold"] == "blocked" and new["hold"] != "blocked":
            opening = openings.pop((at, maker, new["id"]), None)
            if opening is not None:
                released[maker] = released.get(maker, 0) + 1
                yield from (f"{name}: {what}" for what in _wrong_release(opening, old, new))
            elif programs[maker] not in (scenes.cancels_child, scenes.cancels_a):
                yield f"{name}: job {new['id']} was released and its gate did not open"
    for maker, count in world.told.items():
        if maker not in failed and released.get(maker, 0) != count:
            yield f"{programs[maker].__name__}: told of {count} releases and made {released.get(maker, 0)}"
    for _, maker, job_id in openings:
        hold = world.db.query("SELECT hold FROM pgjobs_job WHERE id = %s", [job_id])
        if hold == [("blocked",)]:
            yield f"{programs[maker].__name__}: the gate of {job_id} opened and the job was not released"


def _wrong_release(gate: Row, old: Row, new: Row) -> Iterator[str]:
    if not _may_open(gate):
        yield f"job {new['id']} was released though its gate counts {gate['pending']} unfinished"
    ending = None
    if old["cancel_requested_at"] is not None:
        ending = "cancelled"
    elif gate["unmet"]:
        ending = "cancelled" if gate["eager"] else "abandoned"
    elif not gate["eager"]:
        ending = "succeeded"  # a batch never runs
    if new["ending"] != ending:
        yield f"job {new['id']} was released to end as {new['ending']}, not as {ending}"


def _wrong_at_rest(db: RawDatabase, *, retried: bool) -> Iterator[str]:
    """Every gate counts what the rows say, none is due, and a job waits if and only if its gate keeps it."""
    rows = Rows.of(db)
    for job_id, gate in rows.gates.items():
        job, figures = rows.jobs[job_id], rows.figures(gate)
        if figures != (counted := {name: gate[name] for name in COUNTED}):
            yield f"the gate of {job_id} counts {counted}, and the rows say {figures}"
        if gate["due"]:
            yield f"the gate of {job_id} is due and nobody opens it"
        if job["hold"] == "blocked":
            if _may_open(gate | figures):
                yield f"job {job_id} waits and nothing keeps it"
            if gate["opened_at"] is not None:
                yield f"job {job_id} waits behind a gate that has opened"
        elif job["outcome"] is None and job["ending"] is None and gate["opened_at"] is None:
            yield f"job {job_id} may run and its gate has not opened"
        if gate["opened_at"] is not None and not retried and not _may_open(gate):
            yield f"the gate of {job_id} has opened and counts {gate['pending']} that have not ended"


def _wrong_in_the_end(world: World, programs: dict[str, Program]) -> Iterator[str]:
    """A worker runs what is left: then all have ended, and as what they waited for has ended."""
    for _ in range(2):  # an end that met a lock comes again; what it is needed for may have come since the claim
        for name in world.claims:
            scenes.record(world, world.db, name, world.left.get(name, ""))
    begun = _begun(world.db)
    if world.batch.is_new:
        world.batch.close()
    _finish(world.db)
    retried = scenes.retries_a in programs.values()
    yield from _wrong_at_rest(world.db, retried=retried)
    rows = Rows.of(world.db)
    for job_id, job in rows.jobs.items():
        if job["outcome"] is None:
            yield f"job {job_id} has not ended"
    for job_id, gate in rows.gates.items():
        job = rows.jobs[job_id]
        by_hand = job["cancel_by"] == "anna"
        if by_hand or (retried and job_id in begun) or job["outcome"] is None:
            continue
        well = all(met for _, met in rows.inputs(gate))
        wanted = "succeeded" if well else "cancelled" if gate["eager"] else "abandoned"
        if job["outcome"] != wanted:
            yield f"job {job_id} was {job['outcome']} and should be {wanted}"


def _finish(db: RawDatabase) -> None:
    """Run everything that is or becomes ready, as a worker does."""
    if db.query("SELECT 1 FROM pgjobs_job WHERE name = %s", [CANCEL_MEMBERS]):
        run_jobs()
    while True:
        taken = claim(db, 20)
        if not taken.jobs and not open_due_gates(db):
            return
        ends = [End(each.id, str(taken.claim_id), 0.0, outcome=each.ending or "") for each in taken.jobs]
        with db.transaction():
            kinds.write_counted(db, ends, AUTHOR)


def _begun(db: RawDatabase) -> set[int]:
    """Return the jobs that programs have claimed, or that had begun before: a retry of others leaves them alone."""
    return {
        job_id for (job_id,) in db.query("SELECT id FROM pgjobs_job WHERE attempt > 0 OR claim_id IS NOT NULL")
    }  # fmt: skip
